//! The statistics of entities and their stores for operators: hosts, machines and guards count.
//! Source: persistence §10.16.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::cell::Cell;
use crate::support::log::Log;
use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use greylag_codec::json;
use greylag_core::{Codec, CodecId, DecodeError, EncodeError, Manifest};
use greylag_persistence::driver::{self, Ended};
use greylag_persistence::{
    Action, BreakerSettings, Ctx, DurableStateSettings, Effect, EntityCore, EntityInit, EntityStats, EventCodecs,
    EventSourced, EventSourcedSettings, FaultyJournal, FaultySnapshots, FaultyStates, Guarded, InMemoryJournal,
    InMemorySnapshots, InMemoryStates, Input, JournalOp, OnUnknownEvent, Persisted, RecoveryPermits, SeqNr, SnapshotOp,
    StateEntityCore, StateEntityInit, StateOp, StateStore, StoreFault, Stores,
};

/// Persists the numbers of a command and takes a snapshot; the commands `unhandled` and `stash` return these effects.
/// Encoding a sum of 100 takes long; a sum of 777 cannot be encoded.
struct Sum {
    journal: &'static str,
    /// The manifest of its events.
    event: &'static str,
}

fn sum(journal: &'static str) -> Sum {
    Sum { journal, event: "sum.event" }
}

impl EventSourced for Sum {
    type Command = &'static str;
    type Event = u64;
    type State = u64;

    fn journal_plugin_id(&self) -> &str {
        self.journal
    }

    fn settings(&self, _: &EventSourcedSettings) -> EventSourcedSettings {
        let stash_capacity = NonZeroUsize::new(1).unwrap();
        let on_unknown_event = OnUnknownEvent::Skip;
        EventSourcedSettings { stash_capacity, on_unknown_event, ..EventSourcedSettings::test() }
    }

    fn on_command(&mut self, _: &mut Ctx<'_, Self::Command>, _: &u64, command: &'static str) -> Effect<Self> {
        match command {
            "stash" => Effect::stash(command),
            "unhandled" => Effect::unhandled(),
            "owned" => Effect::persist(1).with_metadata("gl.ours", Bytes::new()),
            numbers => Effect::persist_all(numbers.split(' ').map(|number| number.parse().unwrap()).collect()),
        }
    }

    fn apply(sum: &mut u64, event: &u64) {
        *sum += event;
    }

    fn snapshot_when(&self, _: &u64, _: &u64, _: SeqNr) -> bool {
        true
    }
}

impl Sum {
    /// The entity with its id and its codecs.
    fn stored(self) -> Persisted<Self, EventCodecs<Self>> {
        let id = "Sum|1".parse().unwrap();
        EventCodecs::new(json(self.event)).snapshots(Slow).of(id, self)
    }
}

struct Slow;

impl Codec<u64> for Slow {
    fn id(&self) -> CodecId {
        CodecId::JSON
    }

    fn manifest(&self, _: &u64) -> Manifest {
        "sum.state".into()
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec!["sum.state".into()]
    }

    fn encode(&self, sum: &u64, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        match sum {
            // Advance the paused clock of the runtime, which moves at the first poll.
            100 => {
                let _ = tokio::time::advance(Duration::from_millis(51)).now_or_never();
            }
            777 => {
                let (manifest, reason) = ("sum.state".into(), "on purpose".into());
                return Err(EncodeError::Unrepresentable { manifest, reason });
            }
            _ => {}
        }
        json("sum.state").encode(sum, buffer)
    }

    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<u64, DecodeError> {
        json("sum.state").decode(manifest, bytes)
    }
}

/// Waits until `holds` returns `true`; time is paused, so the wait takes none.
async fn until(stores: &Stores, what: &str, holds: impl Fn(&EntityStats) -> bool) -> EntityStats {
    until_of(stores, "", what, holds).await
}

async fn until_of(stores: &Stores, plugin: &str, what: &str, holds: impl Fn(&EntityStats) -> bool) -> EntityStats {
    for _ in 0..10_000 {
        let stats = stores.entity_stats()[plugin];
        if holds(&stats) {
            return stats;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("{what} does not come about: {:?}", stores.entity_stats());
}

#[tokio::test(start_paused = true)]
async fn entities_count_what_becomes_of_them_and_their_writes() {
    let journal = Arc::new(FaultyJournal::new(Arc::new(InMemoryJournal::default())));
    let snapshots = Arc::new(FaultySnapshots::new(Arc::new(InMemorySnapshots::default())));
    let stores = Stores::new(journal.clone(), snapshots.clone());
    let start = || driver::spawn(sum("").stored(), stores.clone(), RecoveryPermits::default()).unwrap();
    journal.plan(None, JournalOp::Claim, 0, StoreFault::Unavailable);
    let (sum, end) = start();
    let stats = until(&stores, "a recovery", |stats| stats.recoveries == 1).await;
    assert_eq!(stats, EntityStats { recoveries: 1, failed_recoveries: 1, ..EntityStats::default() });

    sum.tell("1 2").await.unwrap();
    let stats = until(&stores, "a snapshot", |stats| stats.snapshots == 1).await;
    assert_eq!((stats.writes, stats.events, stats.snapshot_bytes, stats.largest_snapshot_bytes), (1, 2, 1, 1));
    sum.tell("97").await.unwrap();
    let stats = until(&stores, "another", |stats| stats.snapshots == 2).await;
    assert_eq!((stats.slow_encodings, stats.snapshot_bytes, stats.largest_snapshot_bytes), (1, 4, 3));
    snapshots.plan(None, SnapshotOp::Save, 0, StoreFault::Unavailable);
    sum.tell("600").await.unwrap();
    until(&stores, "a failed snapshot", |stats| stats.failed_snapshots == 1).await;
    sum.tell("77").await.unwrap();
    until(&stores, "one that cannot be encoded", |stats| stats.failed_snapshots == 2).await;

    sum.tell("owned").await.unwrap();
    until(&stores, "events that are withheld", |stats| stats.rejected == 1).await;
    sum.tell("unhandled").await.unwrap();
    until(&stores, "an unhandled command", |stats| stats.unhandled == 1).await;
    sum.tell("stash").await.unwrap();
    sum.tell("stash").await.unwrap();
    let stats = until(&stores, "a dropped command", |stats| stats.stash_drops == 1).await;
    assert_eq!((stats.stashed, stats.slow_encodings, stats.writes), (1, 1, 4));
    drop(sum);
    assert_eq!(end.await, Ok(Ended::Stopped));
    assert_eq!(stores.entity_stats()[""].stashed, 0, "nothing waits in an entity that is gone");

    let (_sum, _end) = start();
    let stats = until(&stores, "its next life", |stats| stats.recoveries == 2).await;
    assert_eq!(stats.replayed_events, 2, "those after the snapshot");
}

/// Entities are counted with the journal that they select.
#[tokio::test(start_paused = true)]
async fn each_journal_has_its_own_numbers() {
    let stores = Stores::in_memory().with_plugin("archive", Stores::in_memory());
    let (_sum, _end) = driver::spawn(sum("archive").stored(), stores.clone(), RecoveryPermits::default()).unwrap();
    until_of(&stores, "archive", "a recovery", |stats| stats.recoveries == 1).await;
    assert_eq!(stores.entity_stats()[""], EntityStats::default());
}

/// Events of a newer release are skipped and counted.
#[tokio::test(start_paused = true)]
async fn skipped_events_are_counted() {
    let stores = Stores::in_memory();
    let start = |event| {
        let journal = "";
        driver::spawn(Sum { journal, event }.stored(), stores.clone(), RecoveryPermits::default()).unwrap()
    };
    let (newer, end) = start("sum.newer");
    // This state cannot be encoded, so there is no snapshot and the event is replayed.
    newer.tell("777").await.unwrap();
    drop(newer);
    assert_eq!(end.await, Ok(Ended::Stopped));
    let (_older, _end) = start("sum.event");
    let stats = until(&stores, "its next life", |stats| stats.recoveries == 2).await;
    assert_eq!((stats.replayed_events, stats.skipped_events), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn durable_states_count_too() {
    let states = Arc::new(FaultyStates::new(Arc::new(InMemoryStates::default()) as Arc<dyn StateStore>));
    let stores = Stores::in_memory().with_states(states.clone());
    let settings = DurableStateSettings {
        on_failure: EventSourcedSettings::test().on_failure,
        stash_capacity: NonZeroUsize::new(1).unwrap(),
        ..DurableStateSettings::default()
    };
    let log = Log::default();
    let cell = Cell::new("Cell|1", settings, log.clone());
    let (cell, _end) = driver::spawn_state(cell.stored(), stores.clone(), RecoveryPermits::default()).unwrap();
    until(&stores, "a recovery", |stats| stats.recoveries == 1).await;
    cell.tell("set 5".into()).await.unwrap();
    until(&stores, "a write", |stats| stats.writes == 1).await;
    states.plan(None, StateOp::Upsert, 0, StoreFault::Unavailable);
    cell.tell("set 6".into()).await.unwrap();
    until(&stores, "one that is not stored", |stats| stats.not_stored == 1).await;
    cell.tell("set 777".into()).await.unwrap();
    until(&stores, "one that is withheld", |stats| stats.rejected == 1).await;
    cell.tell("unhandled".into()).await.unwrap();
    cell.tell("active? 1".into()).await.unwrap();
    cell.tell("active? 1".into()).await.unwrap();
    let stats = until(&stores, "a dropped command", |stats| stats.stash_drops == 1).await;
    let expected =
        EntityStats { writes: 1, not_stored: 1, rejected: 1, unhandled: 1, stashed: 1, stash_drops: 1, ..stats };
    assert_eq!((stats, stats.recoveries, stats.events), (expected, 2, 0));
    let told = log.take();
    assert!(told.iter().any(|line| line.contains("signal PersistRejected")), "{told:?}");
}

/// The time of a recovery begins with its permit; the wait for the permit does not count.
#[test]
fn a_recovery_takes_as_long_as_its_machine_says() {
    let (begun, second) = (Instant::now(), Duration::from_secs(1));
    let (stores, mut out) = (Stores::in_memory(), Vec::new());
    let init = EntityInit {
        generation: None,
        start: 1,
        seed: [7; 32],
        caps: stores.journal.caps(),
        snapshot_caps: stores.snapshots.caps(),
        settings: EventSourcedSettings::default(),
        host: None,
    };
    let mut core = EntityCore::start(sum("").stored(), init, begun, &mut out).unwrap();
    let mut now = begun + 60 * second;
    while let Some(action) = out.pop() {
        match action {
            Action::RequestPermit(incarnation) => core.handle(now, Input::PermitGranted(incarnation), &mut out),
            // Head, claim and snapshot, a second each.
            Action::Store { incarnation, call } => {
                now += second;
                let answer = call.perform(&stores).now_or_never().unwrap();
                core.handle(now, Input::Answer { incarnation, answer }, &mut out);
            }
            Action::Recovered { replayed, skipped, took, .. } => {
                return assert_eq!((replayed, skipped, took), (0, 0, 3 * second));
            }
            _ => {}
        }
    }
    panic!("it does not recover");
}

#[test]
fn the_recovery_time_of_a_durable_state_is_counted() {
    let (begun, second) = (Instant::now(), Duration::from_secs(1));
    let (states, mut out) = (InMemoryStates::default(), Vec::new());
    let (caps, settings) = (states.caps(), DurableStateSettings::default());
    let init =
        StateEntityInit { generation: None, start: 1, seed: [7; 32], caps, settings: settings.clone(), host: None };
    let cell = Cell::new("Cell|1", settings, Log::default());
    let mut core = StateEntityCore::start(cell.stored(), init, begun, &mut out).unwrap();
    let Some(Action::RequestPermit(incarnation)) = out.pop() else { panic!("a permit comes first") };
    core.handle(begun + 60 * second, Input::PermitGranted(incarnation), &mut out);
    let Some(Action::Store { incarnation, call }) = out.pop() else { panic!("then the state") };
    let answer = call.perform(&states).now_or_never().unwrap();
    core.handle(begun + 64 * second, Input::Answer { incarnation, answer }, &mut out);
    let recovered = Action::Recovered { incarnation, replayed: 0, skipped: 0, took: 4 * second };
    assert!(out.contains(&recovered), "{out:?}");
}

/// The statistics of breakers are listed by the names of the stores.
#[tokio::test(start_paused = true)]
async fn breaker_stats_are_listed_by_store_name() {
    let journal = Arc::new(FaultyJournal::new(Arc::new(InMemoryJournal::default())));
    let guarded = Guarded::new(journal.clone(), "journal", BreakerSettings::default()).unwrap();
    let snapshots = Guarded::new(Arc::new(InMemorySnapshots::default()), "snapshots", BreakerSettings::snapshots());
    let states = Guarded::new(Arc::new(InMemoryStates::default()), "states", BreakerSettings::default());
    let guarded = Stores::new(Arc::new(guarded), Arc::new(snapshots.unwrap())).with_states(Arc::new(states.unwrap()));
    let stores = guarded.with_plugin("bare", Stores::in_memory());
    assert_eq!(stores.breakers().into_keys().collect::<Vec<_>>(), ["journal", "snapshots", "states"]);
    journal.plan(None, JournalOp::Head, 0, StoreFault::Unavailable);
    assert!(stores.journal.head(&"Sum|1".parse().unwrap()).await.is_err());
    let of_journal = &stores.breakers()["journal"];
    assert_eq!((of_journal.reads.failures, of_journal.reads.opened, of_journal.writes.failures), (1, 0, 0));
}
