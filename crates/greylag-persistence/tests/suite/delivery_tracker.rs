//! At-least-once delivery out of an entity: transcripts, a simulation with a quarter of failures,
//! the test kit, and an entity that runs as a task.
//!
//! In transcripts store calls are performed at once, in their order, unless `hold append` keeps
//! appends back until `answer WHAT`. Time stands still but for `advance`, which ticks at every
//! deadline, and `sleep`, which leaves that to `tick`. A sent message is lost unless the transcript confirms it.

use crate::support::outbox;

use std::collections::{BTreeMap, VecDeque};
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::log::Log;
use crate::support::memory::{failure, now, ticking};
use crate::support::outbox::{Outbox, Wire};
use crate::support::panics::quiet;
use greylag_persistence::{
    Action, AppendError, Backoff, ClaimError, DeliveryId, DeliveryTrackerSettings, EntityCore, EntityInit,
    EntityTestKit, EventSourcedSettings, Head, InMemoryJournal, InMemorySnapshots, Incarnation, Input, OnFailure,
    OnUnknownEvent, ReadError, Recovery, RecoveryPermits, RejectReason, Scope, SeqNr, SettingsError, SnapshotCaps,
    SnapshotError, StoreAnswer, StoreCall, Stores, WriterUuid, driver,
};
use greylag_testkit::transcript::{self, Case};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const ID: &str = "Outbox|1";

fn stores() -> Stores {
    let tick = ticking();
    let journal = InMemoryJournal::new(Scope::Shared, tick.clone());
    Stores::new(Arc::new(journal), Arc::new(InMemorySnapshots::new(SnapshotCaps::full(Scope::Shared), tick)))
}

// ---- Transcripts --------------------------------------------------------------------------------

#[test]
fn transcripts() {
    quiet();
    transcript::run_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tracker_protocol"), || {
        let mut world = World::new();
        move |case: &Case<'_>| world.run(case)
    });
}

struct World {
    base: Instant,
    now: Instant,
    log: Log,
    stores: Stores,
    settings: EventSourcedSettings,
    rollback: bool,
    core: Option<EntityCore<Outbox>>,
    starts: u64,
    hold: bool,
    held: VecDeque<(Incarnation, StoreCall)>,
}

impl World {
    fn new() -> Self {
        let base = Instant::now();
        Self {
            base,
            now: base,
            log: Log::default(),
            stores: stores(),
            settings: EventSourcedSettings::default(),
            rollback: false,
            core: None,
            starts: 0,
            hold: false,
            held: VecDeque::new(),
        }
    }

    fn run(&mut self, case: &Case<'_>) -> String {
        match case.command {
            "start" => self.start(case),
            "send" => case.input.lines().for_each(|line| self.input(Input::Command(line.to_owned()))),
            "hold" => self.hold = true,
            "answer" => self.answer(case.positional(0).unwrap()),
            "advance" => self.advance(transcript::duration(case.positional(0).unwrap()).unwrap()),
            "sleep" => self.now += transcript::duration(case.positional(0).unwrap()).unwrap(),
            "tick" => self.input(Input::Tick),
            "stop" => self.input(Input::Stop),
            "restart" => {
                let (behavior, mut out) = (self.behavior(), Vec::new());
                self.core.as_mut().unwrap().restart(self.now, behavior, &mut out);
                self.perform(out);
            }
            "state" => self.show_state(),
            other => panic!("no command {other:?}"),
        }
        self.log.take().into_iter().map(|line| line + "\n").collect()
    }

    fn behavior(&self) -> Outbox {
        let behavior = Outbox::logging(ID, self.settings.clone(), self.log.clone());
        Outbox { rollback: self.rollback, ..behavior }
    }

    fn start(&mut self, case: &Case<'_>) {
        let usize = |key, default| NonZeroUsize::new(case.parse(key).unwrap_or(default)).unwrap();
        let mut recovery = Recovery::default();
        recovery = if case.flag("read_only") { recovery.read_only() } else { recovery };
        recovery = if case.flag("no_snapshots") { recovery.no_snapshots() } else { recovery };
        let backoff = Backoff { min: Duration::from_secs(1), max: Duration::from_secs(30), jitter: 0.0 };
        self.settings = EventSourcedSettings {
            recovery,
            on_failure: OnFailure::RestartBackoff(backoff),
            snapshot_every: case.parse::<u64>("every").and_then(NonZeroU64::new),
            delivery_tracker: DeliveryTrackerSettings {
                redelivery_burst_limit: usize("burst", 10_000),
                warn_after_attempts: NonZeroU32::new(case.parse("warn").unwrap_or(5)).unwrap(),
                max_unconfirmed: usize("max", 100_000),
                ..DeliveryTrackerSettings::default()
            },
            ..EventSourcedSettings::default()
        };
        self.rollback = case.flag("rollback");
        self.starts += 1;
        self.held.clear();
        self.hold = false;
        let init = EntityInit {
            generation: None,
            start: self.starts,
            seed: [u8::try_from(self.starts).unwrap(); 32],
            caps: self.stores.journal.caps(),
            snapshot_caps: self.stores.snapshots.caps(),
            settings: EventSourcedSettings::default(),
            host: None,
        };
        let mut out = Vec::new();
        self.core = Some(EntityCore::start(self.behavior().stored(), init, self.now, &mut out).unwrap());
        self.perform(out);
    }

    fn input(&mut self, input: Input<String>) {
        let (core, mut out) = (self.core.as_mut().unwrap(), Vec::new());
        core.handle(self.now, input, &mut out);
        self.perform(out);
    }

    fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(at) = self.core.as_ref().unwrap().next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.log.push(format!("{:.1}s", (self.now - self.base).as_secs_f64()));
            self.input(Input::Tick);
        }
        self.now = end;
    }

    fn perform(&mut self, actions: Vec<Action<String>>) {
        let mut inputs = Vec::new();
        for action in actions {
            match action {
                Action::RequestPermit(incarnation) => inputs.push(Input::PermitGranted(incarnation)),
                Action::Store { incarnation, call: call @ StoreCall::Append(_) } if self.hold => {
                    self.log.push("append (held)");
                    self.held.push_back((incarnation, call));
                }
                Action::Store { incarnation, call } => {
                    match &call {
                        StoreCall::Append(_) => self.log.push("append"),
                        StoreCall::SaveSnapshot(snapshot) => {
                            self.log.push(format!("save snapshot {}", snapshot.seq_nr));
                        }
                        _ => {}
                    }
                    inputs.push(Input::Answer { incarnation, answer: now(call.perform(&self.stores)) });
                }
                Action::DeadLetter(dropped) => dropped.discard(),
                Action::Restarting(failure) => self.log.push(format!("restarting: {failure}")),
                Action::Failed(failure) => self.log.push(format!("failed: {failure}")),
                Action::Fenced(_) => self.log.push("fenced"),
                Action::Stopped => self.log.push("stopped"),
                Action::ReturnPermit(_)
                | Action::Recovered { .. }
                | Action::Passivate
                | Action::HostRequests(_)
                | Action::Unhandled
                | Action::Work { .. }
                | Action::ToSelf { .. }
                | Action::Withheld(_) => {}
            }
        }
        inputs.into_iter().for_each(|input| self.input(input));
    }

    fn answer(&mut self, what: &str) {
        self.hold = false;
        let (incarnation, call) = self.held.pop_front().expect("an append is held");
        let refused = match what {
            "ok" => None,
            "lost" => {
                now(call.clone().perform(&self.stores));
                Some(AppendError::Unknown(failure()))
            }
            "unknown" => Some(AppendError::Unknown(failure())),
            "notstored" => Some(AppendError::NotStored(failure())),
            "rejected" => Some(AppendError::Rejected(RejectReason::StorageLow("0 bytes are free".into()))),
            "fenced" => {
                let current = Head { writer_uuid: WriterUuid::from_u128(1), ..Head::default() };
                Some(AppendError::Fenced { current })
            }
            other => panic!("no answer {other:?}"),
        };
        let answer = match refused {
            None => now(call.perform(&self.stores)),
            Some(error) => StoreAnswer::Appended(Err(error)),
        };
        self.input(Input::Answer { incarnation, answer });
    }

    fn show_state(&self) {
        let core = self.core.as_ref().unwrap();
        let Some(state) = core.state() else { return self.log.push(format!("{:?}", core.phase())) };
        let unconfirmed: Vec<String> = state.tracker.unconfirmed().map(|(id, ..)| id.to_string()).collect();
        self.log.push(format!(
            "{:?} at {}: current id {}, unconfirmed {}",
            core.phase(),
            core.seq_nr(),
            state.tracker.current_id(),
            if unconfirmed.is_empty() { "none".to_owned() } else { unconfirmed.join(" ") }
        ));
    }
}

// ---- A simulation with a quarter of failures -----------------------------------------------------

/// Scenario persistence 56: journal, sender and receiver fail a quarter of the time, and in the end
/// every message has arrived and is confirmed.
#[test]
fn scenario_56_everything_is_confirmed_in_the_end() {
    let mut failed = BTreeMap::new();
    for seed in 0..40 {
        for (what, times) in Failing::new(seed).run() {
            *failed.entry(what).or_insert(0) += times;
        }
    }
    let kinds: Vec<_> = failed.keys().copied().collect();
    assert_eq!(kinds, ["append", "claim", "head", "load", "page", "save"], "{failed:?}");
}

const MESSAGES: usize = 10;
const FAILS: f64 = 0.25;

/// One sender and one receiver; the seed draws the failures.
struct Failing {
    seed: u64,
    rng: ChaCha8Rng,
    now: Instant,
    stores: Stores,
    core: EntityCore<Outbox>,
    starts: u64,
    /// Messages sent and not received yet.
    wire: Arc<Mutex<VecDeque<(DeliveryId, String)>>>,
    /// Received messages, by id; every attempt of a delivery must have the same text.
    received: BTreeMap<DeliveryId, String>,
    /// Number of failed calls of each kind.
    failed: BTreeMap<&'static str, u32>,
}

impl Failing {
    fn new(seed: u64) -> Self {
        let (stores, wire, now) = (stores(), Arc::default(), Instant::now());
        let mut out = Vec::new();
        let core = EntityCore::start(behavior(&wire).stored(), init(1, &stores), now, &mut out).unwrap();
        let rng = ChaCha8Rng::seed_from_u64(seed);
        let mut world =
            Self { seed, rng, now, stores, core, starts: 1, wire, received: BTreeMap::new(), failed: BTreeMap::new() };
        world.perform(out);
        world
    }

    fn fails(&mut self) -> bool {
        self.rng.random_bool(FAILS)
    }

    /// Runs the simulation; returns the number of failed calls of each kind.
    fn run(mut self) -> BTreeMap<&'static str, u32> {
        for _ in 0..20_000 {
            if self.is_done() {
                self.check();
                return self.failed;
            }
            self.step();
        }
        panic!("seed {}: not everything was confirmed", self.seed);
    }

    fn is_done(&self) -> bool {
        let done = |state: &outbox::Outgoing| state.sent >= MESSAGES as u64 && state.tracker.unconfirmed_count() == 0;
        self.core.state().is_some_and(done)
    }

    fn step(&mut self) {
        if self.rng.random_bool(0.05) {
            // The sender's process crashes and restarts.
            self.starts += 1;
            let mut out = Vec::new();
            let init = init(self.starts, &self.stores);
            self.core = EntityCore::start(behavior(&self.wire).stored(), init, self.now, &mut out).unwrap();
            return self.perform(out);
        }
        let arriving = self.wire.lock().unwrap().pop_front();
        if let Some((id, text)) = arriving {
            return self.arrive(id, text);
        }
        // The asker repeats its request until the state shows the message as sent.
        match self.core.state().map(|state| state.sent) {
            Some(sent) if sent < MESSAGES as u64 => {
                let command = if self.fails() { "crash".to_owned() } else { format!("send receiver message-{sent}") };
                self.input(Input::Command(command));
            }
            _ => {
                self.now = self.core.next_deadline().expect("something is not confirmed").max(self.now);
                self.input(Input::Tick);
            }
        }
    }

    /// Receives a message and confirms it; message, receiver and confirmation fail independently.
    fn arrive(&mut self, id: DeliveryId, text: String) {
        if self.fails() || self.fails() {
            return;
        }
        let before = self.received.insert(id, text.clone());
        assert!(before.is_none_or(|before| before == text), "seed {}: {id} says something else", self.seed);
        if !self.fails() {
            self.input(Input::Command(format!("confirm {id}")));
        }
    }

    fn check(&self) {
        let texts: Vec<&String> = self.received.values().collect();
        let expected: Vec<String> = (0..MESSAGES).map(|number| format!("message-{number}")).collect();
        assert_eq!(texts, expected.iter().collect::<Vec<_>>(), "seed {}", self.seed);
    }

    fn input(&mut self, input: Input<String>) {
        let mut out = Vec::new();
        self.core.handle(self.now, input, &mut out);
        self.perform(out);
    }

    fn perform(&mut self, actions: Vec<Action<String>>) {
        for action in actions {
            match action {
                Action::RequestPermit(incarnation) => self.input(Input::PermitGranted(incarnation)),
                Action::Store { incarnation, call } => {
                    let answer = self.store(call);
                    self.input(Input::Answer { incarnation, answer });
                }
                Action::DeadLetter(dropped) => dropped.discard(),
                Action::Failed(_) => {
                    let (behavior, mut out) = (behavior(&self.wire), Vec::new());
                    self.core.restart(self.now, behavior, &mut out);
                    self.perform(out);
                }
                _ => {}
            }
        }
    }

    /// Performs a call, or fails it; some failed calls are carried out all the same.
    fn store(&mut self, call: StoreCall) -> StoreAnswer {
        if !self.fails() {
            return now(call.perform(&self.stores));
        }
        let (what, answer) = match &call {
            StoreCall::Append(_) => ("append", StoreAnswer::Appended(Err(self.append_error()))),
            StoreCall::Claim { .. } => ("claim", StoreAnswer::Claimed(Err(ClaimError::Unavailable(failure())))),
            StoreCall::ReadHead { .. } => ("head", StoreAnswer::Head(Err(ReadError::Unavailable(failure())))),
            StoreCall::ReadPage { .. } => ("page", StoreAnswer::Page(Err(ReadError::Unavailable(failure())))),
            StoreCall::LoadSnapshot { .. } => {
                ("load", StoreAnswer::Snapshot(Err(SnapshotError::Unavailable(failure()))))
            }
            StoreCall::SaveSnapshot(snapshot) => {
                let failed = Err(SnapshotError::Unavailable(failure()));
                ("save", StoreAnswer::SnapshotSaved(snapshot.seq_nr, failed))
            }
            _ => return now(call.perform(&self.stores)),
        };
        *self.failed.entry(what).or_default() += 1;
        let certain =
            matches!(answer, StoreAnswer::Appended(Err(AppendError::NotStored(_) | AppendError::Rejected(_))));
        if !certain && self.rng.random_bool(0.5) {
            now(call.perform(&self.stores));
        }
        answer
    }

    fn append_error(&mut self) -> AppendError {
        match self.rng.random_range(0..4) {
            0 => AppendError::NotStored(failure()),
            1 => AppendError::Rejected(RejectReason::StorageLow("0 bytes are free".into())),
            _ => AppendError::Unknown(failure()),
        }
    }
}

fn init(start: u64, stores: &Stores) -> EntityInit {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&start.to_le_bytes());
    let (caps, snapshot_caps) = (stores.journal.caps(), stores.snapshots.caps());
    EntityInit {
        generation: None,
        start,
        seed,
        caps,
        snapshot_caps,
        settings: EventSourcedSettings::default(),
        host: None,
    }
}

fn behavior(wire: &Arc<Mutex<VecDeque<(DeliveryId, String)>>>) -> Outbox {
    let wire = wire.clone();
    let wire: Wire = Box::new(move |id, _, _, text| wire.lock().unwrap().push_back((id, text.to_owned())));
    let settings = EventSourcedSettings {
        snapshot_every: NonZeroU64::new(4),
        max_reject_restarts: u32::MAX,
        ..EventSourcedSettings::default()
    };
    Outbox { wire, ..Outbox::logging(ID, settings, Log::default()) }
}

// ---- Settings, test kit, task -------------------------------------------------------------------

/// Deliveries of an event that is not applied are missing, so later deliveries would get their ids.
#[test]
fn a_tracker_needs_the_whole_history() {
    let refused = |change: fn(&mut EventSourcedSettings)| {
        let mut settings = EventSourcedSettings::default();
        change(&mut settings);
        let behavior = Outbox::logging(ID, settings, Log::default());
        EntityCore::start(behavior.stored(), init(1, &stores()), Instant::now(), &mut Vec::new()).err()
    };
    assert_eq!(refused(|_| {}), None);
    assert_eq!(refused(|s| s.recovery = Recovery::default().skip_replay()), Some(SettingsError::DeliveriesMissing));
    assert_eq!(refused(|s| s.allow_partial_history = true), Some(SettingsError::DeliveriesMissing));
    assert_eq!(refused(|s| s.on_unknown_event = OnUnknownEvent::Skip), Some(SettingsError::DeliveriesMissing));
    assert_eq!(refused(|s| s.recovery = Recovery::default().to_seq_nr(SeqNr::FIRST).skip_replay()), None);
}

#[test]
fn the_test_kit_stands_still_until_time_is_let_pass() {
    let log = Log::default();
    let lines = log.clone();
    let mut kit = EntityTestKit::new(Instant::now(), move || {
        Outbox::logging(ID, EventSourcedSettings::default(), lines.clone()).stored()
    });
    kit.run("send a x".into());
    log.take();
    kit.advance(Duration::from_secs(11));
    assert_eq!(log.take(), ["  to a: 1 x, attempt 2", "  to a: 1 x, attempt 3"]);
    kit.run("confirm 1".into());
    log.take();
    kit.advance(Duration::from_secs(60));
    assert_eq!(log.take(), [""; 0]);
}

/// Hosted as a task: the host's clock triggers the redeliveries.
#[tokio::test(start_paused = true)]
async fn scenario_54_a_running_entity_repeats_until_it_is_confirmed() {
    let (sent, mut received) = tokio::sync::mpsc::unbounded_channel();
    let wire: Wire = Box::new(move |id, attempt, _, _| sent.send((id, attempt)).unwrap());
    let outbox = Outbox { wire, ..Outbox::logging(ID, EventSourcedSettings::default(), Log::default()) };
    let (entity, _end) = driver::spawn(outbox.stored(), stores(), RecoveryPermits::new(1)).unwrap();
    let begin = tokio::time::Instant::now();
    entity.tell("send a x".into()).await.unwrap();
    for attempt in 1..=3 {
        assert_eq!(received.recv().await, Some((DeliveryId::new(1), attempt)));
    }
    assert_eq!(begin.elapsed().as_secs(), 10);
    entity.tell("confirm 1".into()).await.unwrap();
    // Wait long after the confirmation: only a redelivery could end the wait early.
    let quiet = tokio::time::timeout(Duration::from_secs(60), received.recv()).await;
    assert!(quiet.is_err(), "{quiet:?}");
}
