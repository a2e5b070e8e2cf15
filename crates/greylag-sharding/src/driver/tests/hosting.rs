//! Persistent entities whose shard does more than pass commands: it stops them, replaces them, and handles their
//! fencing. Each rule for a history and for a durable state.

use std::num::NonZeroU32;

use greylag_core::NotStoredReason;
use greylag_persistence::{
    Backoff, BreakerSettings, FaultyJournal, Guarded, JournalOp, OnFailure, Signal, StateSignal,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use super::*;
use crate::{Directive, Supervision};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreKind {
    History,
    State,
}

const BOTH: [StoreKind; 2] = [StoreKind::History, StoreKind::State];

enum Request {
    /// Answered with its number once the entity is open; stashed until then.
    Keep(u32, ReplyTo<u32>),
    /// Persists an event or state, then answers.
    Open(ReplyTo<u32>),
    Panic,
    /// Begins a timer, futures, blocking work, and a message to itself.
    Begin,
    /// Results of the work begun by `Begin`.
    Said(&'static str),
}

/// The number for which an open entity persists again.
const AGAIN: u32 = 0;

/// Notes its inputs, in order: signals by their names, `put aside n`, `keep n`.
struct TestEntity {
    notes: UnboundedSender<String>,
    on_failure: OnFailure,
    /// Whether the entity passivates as soon as it is open.
    passivates: bool,
}

impl TestEntity {
    fn note(&self, line: impl Into<String>) {
        // Sending fails if the test has stopped listening.
        self.notes.send(line.into()).ok();
    }

    /// Notes the name of a signal, without its content.
    fn note_signal(&self, signal: &impl std::fmt::Debug) {
        let text = format!("{signal:?}");
        self.note(text.split('(').next().unwrap_or(&text));
    }
}

/// The command handler, shared by both kinds of effects.
macro_rules! on_request {
    ($effect:ident, $opened:expr) => {
        fn on_command(&mut self, cx: &mut Ctx<'_, Request>, open: &bool, request: Request) -> $effect<Self> {
            match request {
                Request::Keep(AGAIN, reply_to) if *open => {
                    self.note("stores again");
                    $effect::persist($opened).then_reply(reply_to, |_| AGAIN)
                }
                Request::Keep(number, reply_to) if *open => {
                    self.note(format!("keep {number}"));
                    $effect::reply(reply_to, number)
                }
                Request::Keep(number, reply_to) => {
                    self.note(format!("put aside {number}"));
                    $effect::stash(Request::Keep(number, reply_to))
                }
                Request::Open(reply_to) => {
                    let effect = $effect::persist($opened).then_reply(reply_to, |_| 0).then_unstash_all();
                    if self.passivates { effect.then_passivate() } else { effect }
                }
                Request::Panic => panic!("asked to"),
                Request::Begin => {
                    cx.once("timer", Duration::from_millis(1), Request::Said("timer"));
                    cx.spawn(async {}, |()| Request::Said("future"));
                    cx.blocking(|| (), |()| Request::Said("blocking")).expect("there is room");
                    cx.tell_self(Request::Said("to itself"));
                    cx.spawn(std::future::pending(), |()| Request::Said("never"));
                    $effect::none()
                }
                Request::Said(what) => {
                    self.note(what);
                    $effect::none()
                }
            }
        }
    };
}

struct EventSourcedTestEntity(TestEntity);
struct DurableStateTestEntity(TestEntity);

impl std::ops::Deref for EventSourcedTestEntity {
    type Target = TestEntity;

    fn deref(&self) -> &TestEntity {
        &self.0
    }
}

impl std::ops::Deref for DurableStateTestEntity {
    type Target = TestEntity;

    fn deref(&self) -> &TestEntity {
        &self.0
    }
}

mod history {
    use super::*;

    impl EventSourced for EventSourcedTestEntity {
        type Command = Request;
        type Event = ();
        type State = bool;

        on_request!(Effect, ());

        fn settings(&self, _: &EventSourcedSettings) -> EventSourcedSettings {
            EventSourcedSettings { on_failure: self.on_failure, ..EventSourcedSettings::test() }
        }

        fn apply(open: &mut bool, (): &()) {
            *open = true;
        }

        fn on_signal(&mut self, _: &mut Ctx<'_, Request>, _: &bool, signal: &Signal) {
            self.note_signal(signal);
        }
    }
}

mod state {
    use super::*;

    impl DurableState for DurableStateTestEntity {
        type Command = Request;
        type State = bool;

        on_request!(StateEffect, true);

        fn settings(&self, _: &DurableStateSettings) -> DurableStateSettings {
            DurableStateSettings { on_failure: self.on_failure, ..DurableStateSettings::default() }
        }

        fn on_signal(&mut self, _: &mut Ctx<'_, Request>, _: &bool, signal: &StateSignal) {
            self.note_signal(signal);
        }
    }
}

/// One entity in a region of its own, over stores with planned faults.
struct Harness {
    kind: StoreKind,
    /// Keeps sharding alive as long as the harness.
    _sharding: Sharding,
    entities: Region<Request>,
    journal: Arc<FaultyJournal>,
    states: Arc<FaultyStates>,
    notes: UnboundedReceiver<String>,
}

/// Variations of a harness.
struct Plan {
    on_failure: OnFailure,
    supervision: Supervision,
    stop_message: bool,
    passivates: bool,
    /// Whether its stores have breakers, which open at the first failure.
    guarded: bool,
}

impl Default for Plan {
    fn default() -> Self {
        let on_failure = EventSourcedSettings::test().on_failure;
        Self { on_failure, supervision: Supervision::default(), stop_message: false, passivates: false, guarded: false }
    }
}

const TEST_ENTITY: EntityKey<Request> = EntityKey::new("TestEntity");

fn start_region<K: crate::Kind<Request>>(
    sharding: &Sharding,
    entities: EntityType<Request, K>,
    supervision: Supervision,
    stop_message: bool,
) -> Region<Request> {
    let entities = entities.supervision(supervision);
    let entities = if stop_message { entities.stop_message(|| Request::Panic) } else { entities };
    sharding.init(entities).unwrap()
}

impl Harness {
    async fn build(kind: StoreKind, plan: Plan) -> Self {
        let memory = Stores::in_memory();
        let journal = Arc::new(FaultyJournal::new(memory.journal));
        let states = Arc::new(FaultyStates::new(Arc::new(InMemoryStates::default())));
        let mut stores = Stores::new(journal.clone(), memory.snapshots).with_states(states.clone());
        if plan.guarded {
            let breaker = BreakerSettings { max_failures: NonZeroU32::MIN, ..BreakerSettings::default() };
            stores.journal = Arc::new(Guarded::new(journal.clone(), "journal", breaker.clone()).unwrap());
            stores.states = Some(Arc::new(Guarded::new(states.clone(), "states", breaker).unwrap()));
        }
        // With this timeout, a stop that waited for its deadline would take most of a minute.
        let settings = ShardingSettings { handoff_timeout: Duration::from_secs(60), ..ShardingSettings::test() };
        let sharding = Sharding::alone(remoting(&MemoryNetwork::new()), Some(stores), settings).await.unwrap();
        let (notes, lines) = unbounded_channel();
        let Plan { on_failure, passivates, .. } = plan;
        let entity = move || TestEntity { notes: notes.clone(), on_failure, passivates };
        let entities = match kind {
            StoreKind::History => {
                let event_sourced =
                    EntityType::event_sourced(TEST_ENTITY, move |_| Ok(EventSourcedTestEntity(entity())));
                start_region(
                    &sharding,
                    event_sourced.events(json("entity.opened")),
                    plan.supervision,
                    plan.stop_message,
                )
            }
            StoreKind::State => {
                let durable_state =
                    EntityType::durable_state(TEST_ENTITY, move |_| Ok(DurableStateTestEntity(entity())));
                start_region(&sharding, durable_state.states(json("entity.open")), plan.supervision, plan.stop_message)
            }
        };
        Self { kind, _sharding: sharding, entities, journal, states, notes: lines }
    }

    fn tell(&self, request: Request) {
        self.entities.entity_ref("one").tell(request).unwrap();
    }

    async fn open(&self) -> Result<u32, AskError> {
        self.entities.entity_ref("one").ask(Request::Open).timeout(PATIENCE).await
    }

    /// Asks, and returns once the entity has stashed the question.
    async fn put_aside(&mut self, number: u32) -> JoinHandle<Result<u32, AskError>> {
        let entity = self.entities.entity_ref("one");
        let asking = tokio::spawn(async move { entity.ask(|to| Request::Keep(number, to)).timeout(PATIENCE).await });
        self.until(&format!("put aside {number}")).await;
        asking
    }

    /// The entity's notes, up to this line.
    async fn until(&mut self, line: &str) -> Vec<String> {
        let mut read = Vec::new();
        while read.last().is_none_or(|last| last != line) {
            let next = tokio::time::timeout(PATIENCE, self.notes.recv()).await;
            read.push(next.unwrap_or_else(|_| panic!("{line} after {read:?}")).expect("the type keeps a sender"));
        }
        read
    }

    fn fail_write(&self, fault: StoreFault) {
        self.plan_write(0, fault);
    }

    /// Plans a fault of a write, after `passing` writes.
    fn plan_write(&self, passing: u32, fault: StoreFault) {
        match self.kind {
            StoreKind::History => self.journal.plan(None, JournalOp::Append, passing, fault),
            StoreKind::State => self.states.plan(None, StateOp::Upsert, passing, fault),
        }
    }

    fn fail_recoveries(&self) {
        for _ in 0..10_000 {
            match self.kind {
                StoreKind::History => self.journal.plan(None, JournalOp::Claim, 0, StoreFault::Unavailable),
                StoreKind::State => self.states.plan(None, StateOp::Get, 0, StoreFault::Unavailable),
            }
        }
    }

    /// Simulates another writer that takes over the entity's history or state.
    async fn fence(&self) {
        use greylag_persistence::Journal as _;
        let (id, writer_uuid) = (PersistenceId::of("TestEntity", "one").unwrap(), WriterUuid::from_u128(1));
        match self.kind {
            StoreKind::History => {
                let generation = self.journal.head(&id).await.unwrap().generation.unwrap();
                self.journal.claim(&id, writer_uuid, Under::Generation(generation)).await.unwrap();
            }
            StoreKind::State => {
                let row = self.states.get(&id).await.unwrap();
                let write =
                    StateWrite { id, revision: row.revision.next().unwrap(), generation: row.generation, writer_uuid };
                let value = StoredCodec::new(json("entity.open")).encode(&false).unwrap();
                self.states.upsert(write, value, None).await.unwrap();
            }
        }
    }

    /// Stops the region and returns the entity's notes from here on.
    async fn shut_down(&mut self) -> Vec<String> {
        let (entities, kind) = (self.entities.clone(), self.kind);
        let stopped = tokio::time::timeout(PATIENCE, entities.graceful_shutdown()).await;
        stopped.unwrap_or_else(|_| panic!("the stop of a {kind:?} waits for what cannot come"));
        self.until("PostStop").await
    }
}

async fn for_both(test: impl AsyncFn(StoreKind)) {
    for kind in BOTH {
        test(kind).await;
    }
}

fn answered(error: EntityError) -> Result<u32, AskError> {
    Err(AskError::Entity(error))
}

/// persistence §2.7, sharding §4.3: before Running, with nothing queued, a stop ends the entity at once.
/// During an outage of the store a handoff would otherwise take all its time.
#[tokio::test]
async fn a_stop_does_not_wait_for_a_recovery_that_no_command_waits_for() {
    for_both(async |kind| {
        let mut harness = Harness::build(kind, Plan::default()).await;
        assert_eq!(harness.open().await, Ok(0));
        harness.fail_recoveries();
        harness.fail_write(StoreFault::Unavailable);
        assert!(harness.open().await.is_err());
        harness.until("RecoveryFailed").await;
        let notes = harness.shut_down().await;
        assert!(!notes.contains(&"RecoveryCompleted".to_owned()), "{kind:?}: {notes:?}");
    })
    .await;
}

/// persistence §4.1 (breaker): an entity that backs off because of its store goes on as soon as the breaker closes.
#[tokio::test]
async fn a_back_off_ends_with_the_outage_that_it_waits_for() {
    for_both(async |kind| {
        let hour = Duration::from_secs(3600);
        let on_failure = OnFailure::RestartBackoff(Backoff { min: hour, max: hour, jitter: 0.0 });
        let mut harness = Harness::build(kind, Plan { on_failure, guarded: true, ..Plan::default() }).await;
        assert_eq!(harness.open().await, Ok(0));
        harness.fail_write(StoreFault::Unavailable);
        assert!(harness.open().await.is_err());
        assert_eq!(harness.open().await, Ok(0), "{kind:?} does not wait for an hour");
        harness.shut_down().await;
    })
    .await;
}

/// Scenario persistence 48, in a shard: a stop before the permit is granted gives the permit back, and an entity
/// without a state ignores the stop message.
#[tokio::test]
async fn scenario_48_a_stop_before_the_grant_leaks_no_permit() {
    for (kind, stop_message) in
        [(StoreKind::History, false), (StoreKind::History, true), (StoreKind::State, false), (StoreKind::State, true)]
    {
        let mut harness = Harness::build(kind, Plan { stop_message, ..Plan::default() }).await;
        assert_eq!(harness.open().await, Ok(0));
        let permits = harness.entities.0.node.recoveries.clone();
        let (most, mut all) = (permits.available(), Vec::new());
        while permits.available() > 0 {
            all.push(permits.acquire().await);
        }
        harness.fail_write(StoreFault::Unavailable);
        assert!(harness.open().await.is_err());
        harness.until("PreRestart").await;
        assert_eq!(harness.shut_down().await, ["PostStop"], "{kind:?}, with a stop message: {stop_message}");
        drop(all);
        assert_eq!(permits.available(), most);
    }
}

/// persistence §2.7: if commands wait in the entity, it recovers, handles them, and stops.
#[tokio::test]
async fn a_stop_waits_for_a_recovery_that_commands_wait_for() {
    for_both(async |kind| {
        let mut harness = Harness::build(kind, Plan { passivates: true, ..Plan::default() }).await;
        let asked = [harness.put_aside(AGAIN).await, harness.put_aside(1).await];
        // The second write is made in the middle of an unstash-all, which recovery keeps.
        harness.plan_write(1, StoreFault::Unavailable);
        assert_eq!(harness.open().await, Ok(0));
        let notes = harness.until("PostStop").await;
        let expected = ["stores again", "PersistFailed", "PreRestart", "RecoveryCompleted", "keep 1", "PostStop"];
        assert_eq!(notes, expected, "{kind:?}");
        let [again, one] = asked;
        assert!(again.await.unwrap().is_err(), "{kind:?}: its write failed");
        assert_eq!(one.await.unwrap(), Ok(1), "{kind:?}");
    })
    .await;
}

/// persistence §2.4, §2.6: a replaced entity gets `PreRestart`, and its stash goes to its successor in order.
#[tokio::test]
async fn a_replaced_entity_hears_so_and_its_stash_goes_to_its_successor() {
    for_both(async |kind| {
        let mut harness = Harness::build(kind, Plan { on_failure: OnFailure::Stop, ..Plan::default() }).await;
        let asked = [harness.put_aside(1).await, harness.put_aside(2).await];
        harness.fail_write(StoreFault::Unavailable);
        assert!(harness.open().await.is_err());
        let notes = harness.until("put aside 2").await;
        let expected = ["PersistFailed", "PreRestart", "RecoveryCompleted", "put aside 1", "put aside 2"];
        assert_eq!(notes, expected, "{kind:?}");
        assert_eq!(harness.open().await, Ok(0));
        for (asked, number) in asked.into_iter().zip(1..) {
            assert_eq!(asked.await.unwrap(), Ok(number), "{kind:?}");
        }
        assert_eq!(harness.until("keep 2").await, ["keep 1", "keep 2"], "{kind:?}");
    })
    .await;
}

/// persistence §2.4: after a panic the user stash is dead letters, since it depends on the lost state.
#[tokio::test]
async fn a_panic_costs_an_entity_what_it_put_aside() {
    for_both(async |kind| {
        let mut harness = Harness::build(kind, Plan::default()).await;
        let asked = harness.put_aside(1).await;
        harness.tell(Request::Panic);
        assert_eq!(asked.await.unwrap(), answered(EntityError::Stopped), "{kind:?}");
        assert_eq!(harness.until("RecoveryCompleted").await, ["PreRestart", "RecoveryCompleted"], "{kind:?}");
    })
    .await;
}

/// persistence §2.6: a write that ended without an answer may have been stored.
#[tokio::test]
async fn a_write_that_ends_without_an_answer_has_an_unknown_outcome() {
    for_both(async |kind| {
        for directive in [Directive::Restart, Directive::Stop] {
            let mut harness =
                Harness::build(kind, Plan { supervision: Supervision::always(directive), ..Plan::default() }).await;
            let asked = harness.put_aside(1).await;
            harness.fail_write(StoreFault::Panic);
            assert_eq!(harness.open().await, answered(EntityError::OutcomeUnknown), "{kind:?}");
            if directive == Directive::Stop {
                assert_eq!(asked.await.unwrap(), answered(EntityError::Stopped), "{kind:?}");
                assert_eq!(harness.until("PostStop").await, ["PostStop"], "{kind:?}");
            } else {
                assert_eq!(harness.open().await, Ok(0));
                assert_eq!(asked.await.unwrap(), Ok(1), "{kind:?}");
            }
        }
    })
    .await;
}

/// persistence §2.4, §2.6, sharding §4.6: the stash of a fenced entity waits for the home to be confirmed, and goes to
/// the successor, in order.
#[tokio::test]
async fn the_stash_of_a_fenced_entity_goes_to_its_successor() {
    for_both(async |kind| {
        let mut harness = Harness::build(kind, Plan::default()).await;
        let asked = [harness.put_aside(1).await, harness.put_aside(2).await];
        harness.fence().await;
        assert_eq!(harness.open().await, answered(EntityError::NotStored(NotStoredReason::Fenced)), "{kind:?}");
        let notes = harness.until("put aside 2").await;
        let expected = ["Fenced", "PostStop", "RecoveryCompleted", "put aside 1", "put aside 2"];
        assert_eq!(notes, expected, "{kind:?}");
        assert_eq!(harness.open().await, Ok(0));
        for (asked, number) in asked.into_iter().zip(1..) {
            assert_eq!(asked.await.unwrap(), Ok(number), "{kind:?}");
        }
    })
    .await;
}

/// persistence §2.6: `Resume` is not offered, because the state is lost with the failure.
#[tokio::test]
async fn a_failed_machine_is_replaced_where_the_decider_says_resume() {
    for_both(async |kind| {
        let supervision = Supervision::always(Directive::Resume);
        let mut harness =
            Harness::build(kind, Plan { supervision, on_failure: OnFailure::Stop, ..Plan::default() }).await;
        harness.tell(Request::Panic);
        assert_eq!(harness.open().await, Ok(0), "{kind:?}");
        harness.fail_write(StoreFault::Unavailable);
        assert!(harness.open().await.is_err());
        assert_eq!(harness.open().await, Ok(0), "{kind:?}");
        let notes = harness.until("PersistFailed").await;
        assert!(notes.contains(&"PreRestart".to_owned()), "{kind:?}: {notes:?}");
    })
    .await;
}

/// Scenario persistence 77: results of work that an entity begins come as commands, even after a restart of its
/// machine, and end with the entity.
#[tokio::test]
async fn scenario_77_entities_that_persist_begin_what_plain_ones_do() {
    for_both(async |kind| {
        let mut harness = Harness::build(kind, Plan::default()).await;
        let all = ["timer", "future", "blocking", "to itself"];
        for restart in [false, true] {
            if restart {
                harness.fail_write(StoreFault::Unavailable);
                assert!(harness.open().await.is_err(), "{kind:?}");
            }
            harness.tell(Request::Begin);
            let mut left = all.to_vec();
            while !left.is_empty() {
                let next = tokio::time::timeout(PATIENCE, harness.notes.recv()).await;
                let line = next.unwrap_or_else(|_| panic!("{kind:?}: {left:?} never comes")).unwrap();
                left.retain(|what| *what != line);
            }
        }
        let notes = harness.shut_down().await;
        assert_eq!(notes, ["PostStop"], "{kind:?}");
    })
    .await;
}

/// Scenario persistence 77: results of a replaced entity's work never come; a command to itself depends on the lost
/// state. (Results during a write: greylag-persistence, tests/suite/background_work.rs.)
#[tokio::test]
async fn scenario_77_results_of_work_of_a_replaced_entity_never_come() {
    for_both(async |kind| {
        let mut harness = Harness::build(kind, Plan::default()).await;
        harness.tell(Request::Begin);
        harness.tell(Request::Panic);
        assert_eq!(harness.open().await, Ok(0), "{kind:?}");
        let asking = harness.entities.entity_ref("one");
        assert_eq!(asking.ask(|to| Request::Keep(7, to)).timeout(PATIENCE).await, Ok(7));
        let notes = harness.until("keep 7").await;
        let restarted = notes.iter().position(|line| line == "PreRestart").expect("it was replaced");
        let late = notes[restarted..]
            .iter()
            .filter(|line| ["timer", "future", "blocking", "to itself"].contains(&line.as_str()));
        assert_eq!(late.count(), 0, "{kind:?}: {notes:?}");
    })
    .await;
}
