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
enum Kept {
    History,
    State,
}

const BOTH: [Kept; 2] = [Kept::History, Kept::State];

enum Request {
    /// Answered with its number once the keeper is open; stashed until then.
    Keep(u32, ReplyTo<u32>),
    /// Persists an event or state, then answers.
    Open(ReplyTo<u32>),
    Panic,
    /// Begins a timer, futures, blocking work, and a message to itself.
    Begin,
    /// Results of the work begun by `Begin`.
    Said(&'static str),
}

/// The number for which an open keeper persists again.
const AGAIN: u32 = 0;

/// Notes its inputs, in order: signals by their names, `put aside n`, `keep n`.
struct Keeper {
    diary: UnboundedSender<String>,
    on_failure: OnFailure,
    /// Whether the keeper passivates as soon as it is open.
    passivates: bool,
}

impl Keeper {
    fn note(&self, line: impl Into<String>) {
        // Sending fails if the test has stopped listening.
        self.diary.send(line.into()).ok();
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

struct Historian(Keeper);
struct Statesman(Keeper);

impl std::ops::Deref for Historian {
    type Target = Keeper;

    fn deref(&self) -> &Keeper {
        &self.0
    }
}

impl std::ops::Deref for Statesman {
    type Target = Keeper;

    fn deref(&self) -> &Keeper {
        &self.0
    }
}

mod history {
    use super::*;

    impl EventSourced for Historian {
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

    impl DurableState for Statesman {
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

/// One keeper in a region of its own, over stores with planned faults.
struct House {
    kept: Kept,
    /// Keeps sharding alive as long as the house.
    _sharding: Sharding,
    keepers: Region<Request>,
    journal: Arc<FaultyJournal>,
    states: Arc<FaultyStates>,
    diary: UnboundedReceiver<String>,
}

/// Variations of a house.
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

const KEEPER: EntityKey<Request> = EntityKey::new("Keeper");

fn house_of<K: crate::Kind<Request>>(
    sharding: &Sharding,
    keepers: EntityType<Request, K>,
    supervision: Supervision,
    stop_message: bool,
) -> Region<Request> {
    let keepers = keepers.supervision(supervision);
    let keepers = if stop_message { keepers.stop_message(|| Request::Panic) } else { keepers };
    sharding.init(keepers).unwrap()
}

impl House {
    async fn build(kept: Kept, plan: Plan) -> Self {
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
        let (diary, lines) = unbounded_channel();
        let Plan { on_failure, passivates, .. } = plan;
        let keeper = move || Keeper { diary: diary.clone(), on_failure, passivates };
        let keepers = match kept {
            Kept::History => {
                let historians = EntityType::event_sourced(KEEPER, move |_| Ok(Historian(keeper())));
                house_of(&sharding, historians.events(json("keeper.opened")), plan.supervision, plan.stop_message)
            }
            Kept::State => {
                let statesmen = EntityType::durable_state(KEEPER, move |_| Ok(Statesman(keeper())));
                house_of(&sharding, statesmen.states(json("keeper.open")), plan.supervision, plan.stop_message)
            }
        };
        Self { kept, _sharding: sharding, keepers, journal, states, diary: lines }
    }

    fn tell(&self, request: Request) {
        self.keepers.entity_ref("one").tell(request).unwrap();
    }

    async fn open(&self) -> Result<u32, AskError> {
        self.keepers.entity_ref("one").ask(Request::Open).timeout(PATIENCE).await
    }

    /// Asks, and returns once the keeper has stashed the question.
    async fn put_aside(&mut self, number: u32) -> JoinHandle<Result<u32, AskError>> {
        let keeper = self.keepers.entity_ref("one");
        let asking = tokio::spawn(async move { keeper.ask(|to| Request::Keep(number, to)).timeout(PATIENCE).await });
        self.until(&format!("put aside {number}")).await;
        asking
    }

    /// The keeper's notes, up to this line.
    async fn until(&mut self, line: &str) -> Vec<String> {
        let mut read = Vec::new();
        while read.last().is_none_or(|last| last != line) {
            let next = tokio::time::timeout(PATIENCE, self.diary.recv()).await;
            read.push(next.unwrap_or_else(|_| panic!("{line} after {read:?}")).expect("the type keeps a sender"));
        }
        read
    }

    fn fail_write(&self, fault: StoreFault) {
        self.plan_write(0, fault);
    }

    /// Plans a fault of a write, after `passing` writes.
    fn plan_write(&self, passing: u32, fault: StoreFault) {
        match self.kept {
            Kept::History => self.journal.plan(None, JournalOp::Append, passing, fault),
            Kept::State => self.states.plan(None, StateOp::Upsert, passing, fault),
        }
    }

    fn fail_recoveries(&self) {
        for _ in 0..10_000 {
            match self.kept {
                Kept::History => self.journal.plan(None, JournalOp::Claim, 0, StoreFault::Unavailable),
                Kept::State => self.states.plan(None, StateOp::Get, 0, StoreFault::Unavailable),
            }
        }
    }

    /// Simulates another writer that takes over the keeper's history or state.
    async fn fence(&self) {
        use greylag_persistence::Journal as _;
        let (id, writer_uuid) = (PersistenceId::of("Keeper", "one").unwrap(), WriterUuid::from_u128(1));
        match self.kept {
            Kept::History => {
                let generation = self.journal.head(&id).await.unwrap().generation.unwrap();
                self.journal.claim(&id, writer_uuid, Under::Generation(generation)).await.unwrap();
            }
            Kept::State => {
                let row = self.states.get(&id).await.unwrap();
                let write =
                    StateWrite { id, revision: row.revision.next().unwrap(), generation: row.generation, writer_uuid };
                let value = StoredCodec::new(json("keeper.open")).encode(&false).unwrap();
                self.states.upsert(write, value, None).await.unwrap();
            }
        }
    }

    /// Stops the region and returns the keeper's notes from here on.
    async fn shut_down(&mut self) -> Vec<String> {
        let (keepers, kept) = (self.keepers.clone(), self.kept);
        let stopped = tokio::time::timeout(PATIENCE, keepers.graceful_shutdown()).await;
        stopped.unwrap_or_else(|_| panic!("the stop of a {kept:?} waits for what cannot come"));
        self.until("PostStop").await
    }
}

async fn for_both(test: impl AsyncFn(Kept)) {
    for kept in BOTH {
        test(kept).await;
    }
}

fn answered(error: EntityError) -> Result<u32, AskError> {
    Err(AskError::Entity(error))
}

/// persistence §2.7, sharding §4.3: before Running, with nothing queued, a stop ends the entity at once.
/// During an outage of the store a handoff would otherwise take all its time.
#[tokio::test]
async fn a_stop_does_not_wait_for_a_recovery_that_nobody_needs() {
    for_both(async |kept| {
        let mut house = House::build(kept, Plan::default()).await;
        assert_eq!(house.open().await, Ok(0));
        house.fail_recoveries();
        house.fail_write(StoreFault::Unavailable);
        assert!(house.open().await.is_err());
        house.until("RecoveryFailed").await;
        let diary = house.shut_down().await;
        assert!(!diary.contains(&"RecoveryCompleted".to_owned()), "{kept:?}: {diary:?}");
    })
    .await;
}

/// persistence §4.1 (breaker): an entity that backs off because of its store goes on as soon as the breaker closes.
#[tokio::test]
async fn a_back_off_ends_with_the_outage_that_it_waits_for() {
    for_both(async |kept| {
        let hour = Duration::from_secs(3600);
        let on_failure = OnFailure::RestartBackoff(Backoff { min: hour, max: hour, jitter: 0.0 });
        let mut house = House::build(kept, Plan { on_failure, guarded: true, ..Plan::default() }).await;
        assert_eq!(house.open().await, Ok(0));
        house.fail_write(StoreFault::Unavailable);
        assert!(house.open().await.is_err());
        assert_eq!(house.open().await, Ok(0), "{kept:?} does not wait for an hour");
        house.shut_down().await;
    })
    .await;
}

/// Scenario persistence 48, in a shard: a stop before the permit is granted gives the permit back, and an entity
/// without a state ignores the stop message.
#[tokio::test]
async fn scenario_48_a_stop_before_the_grant_leaks_no_permit() {
    for (kept, stop_message) in
        [(Kept::History, false), (Kept::History, true), (Kept::State, false), (Kept::State, true)]
    {
        let mut house = House::build(kept, Plan { stop_message, ..Plan::default() }).await;
        assert_eq!(house.open().await, Ok(0));
        let permits = house.keepers.0.node.recoveries.clone();
        let (most, mut all) = (permits.available(), Vec::new());
        while permits.available() > 0 {
            all.push(permits.acquire().await);
        }
        house.fail_write(StoreFault::Unavailable);
        assert!(house.open().await.is_err());
        house.until("PreRestart").await;
        assert_eq!(house.shut_down().await, ["PostStop"], "{kept:?}, with a stop message: {stop_message}");
        drop(all);
        assert_eq!(permits.available(), most);
    }
}

/// persistence §2.7: if commands wait in the entity, it recovers, handles them, and stops.
#[tokio::test]
async fn a_stop_waits_for_a_recovery_that_commands_wait_for() {
    for_both(async |kept| {
        let mut house = House::build(kept, Plan { passivates: true, ..Plan::default() }).await;
        let asked = [house.put_aside(AGAIN).await, house.put_aside(1).await];
        // The second write is made in the middle of an unstash-all, which recovery keeps.
        house.plan_write(1, StoreFault::Unavailable);
        assert_eq!(house.open().await, Ok(0));
        let diary = house.until("PostStop").await;
        let expected = ["stores again", "PersistFailed", "PreRestart", "RecoveryCompleted", "keep 1", "PostStop"];
        assert_eq!(diary, expected, "{kept:?}");
        let [again, one] = asked;
        assert!(again.await.unwrap().is_err(), "{kept:?}: its write failed");
        assert_eq!(one.await.unwrap(), Ok(1), "{kept:?}");
    })
    .await;
}

/// persistence §2.4, §2.6: a replaced entity gets `PreRestart`, and its stash goes to its successor in order.
#[tokio::test]
async fn a_replaced_entity_hears_so_and_its_stash_goes_to_its_successor() {
    for_both(async |kept| {
        let mut house = House::build(kept, Plan { on_failure: OnFailure::Stop, ..Plan::default() }).await;
        let asked = [house.put_aside(1).await, house.put_aside(2).await];
        house.fail_write(StoreFault::Unavailable);
        assert!(house.open().await.is_err());
        let diary = house.until("put aside 2").await;
        let expected = ["PersistFailed", "PreRestart", "RecoveryCompleted", "put aside 1", "put aside 2"];
        assert_eq!(diary, expected, "{kept:?}");
        assert_eq!(house.open().await, Ok(0));
        for (asked, number) in asked.into_iter().zip(1..) {
            assert_eq!(asked.await.unwrap(), Ok(number), "{kept:?}");
        }
        assert_eq!(house.until("keep 2").await, ["keep 1", "keep 2"], "{kept:?}");
    })
    .await;
}

/// persistence §2.4: after a panic the user stash is dead letters, since it depends on the lost state.
#[tokio::test]
async fn a_panic_costs_an_entity_what_it_put_aside() {
    for_both(async |kept| {
        let mut house = House::build(kept, Plan::default()).await;
        let asked = house.put_aside(1).await;
        house.tell(Request::Panic);
        assert_eq!(asked.await.unwrap(), answered(EntityError::Stopped), "{kept:?}");
        assert_eq!(house.until("RecoveryCompleted").await, ["PreRestart", "RecoveryCompleted"], "{kept:?}");
    })
    .await;
}

/// persistence §2.6: a write that ended without an answer may have been stored.
#[tokio::test]
async fn a_write_that_ends_without_an_answer_has_an_unknown_outcome() {
    for_both(async |kept| {
        for directive in [Directive::Restart, Directive::Stop] {
            let mut house =
                House::build(kept, Plan { supervision: Supervision::always(directive), ..Plan::default() }).await;
            let asked = house.put_aside(1).await;
            house.fail_write(StoreFault::Panic);
            assert_eq!(house.open().await, answered(EntityError::OutcomeUnknown), "{kept:?}");
            if directive == Directive::Stop {
                assert_eq!(asked.await.unwrap(), answered(EntityError::Stopped), "{kept:?}");
                assert_eq!(house.until("PostStop").await, ["PostStop"], "{kept:?}");
            } else {
                assert_eq!(house.open().await, Ok(0));
                assert_eq!(asked.await.unwrap(), Ok(1), "{kept:?}");
            }
        }
    })
    .await;
}

/// persistence §2.4, §2.6, sharding §4.6: the stash of a fenced entity waits for the home to be confirmed, and goes to
/// the successor, in order.
#[tokio::test]
async fn what_a_fenced_entity_put_aside_goes_to_its_successor() {
    for_both(async |kept| {
        let mut house = House::build(kept, Plan::default()).await;
        let asked = [house.put_aside(1).await, house.put_aside(2).await];
        house.fence().await;
        assert_eq!(house.open().await, answered(EntityError::NotStored(NotStoredReason::Fenced)), "{kept:?}");
        let diary = house.until("put aside 2").await;
        let expected = ["Fenced", "PostStop", "RecoveryCompleted", "put aside 1", "put aside 2"];
        assert_eq!(diary, expected, "{kept:?}");
        assert_eq!(house.open().await, Ok(0));
        for (asked, number) in asked.into_iter().zip(1..) {
            assert_eq!(asked.await.unwrap(), Ok(number), "{kept:?}");
        }
    })
    .await;
}

/// persistence §2.6: `Resume` is not offered, because the state is lost with the failure.
#[tokio::test]
async fn a_failed_machine_is_replaced_where_the_decider_says_resume() {
    for_both(async |kept| {
        let supervision = Supervision::always(Directive::Resume);
        let mut house = House::build(kept, Plan { supervision, on_failure: OnFailure::Stop, ..Plan::default() }).await;
        house.tell(Request::Panic);
        assert_eq!(house.open().await, Ok(0), "{kept:?}");
        house.fail_write(StoreFault::Unavailable);
        assert!(house.open().await.is_err());
        assert_eq!(house.open().await, Ok(0), "{kept:?}");
        let diary = house.until("PersistFailed").await;
        assert!(diary.contains(&"PreRestart".to_owned()), "{kept:?}: {diary:?}");
    })
    .await;
}

/// Scenario persistence 77: results of work that an entity begins come as commands, even after a restart of its
/// machine, and end with the entity.
#[tokio::test]
async fn scenario_77_entities_that_persist_begin_what_plain_ones_do() {
    for_both(async |kept| {
        let mut house = House::build(kept, Plan::default()).await;
        let all = ["timer", "future", "blocking", "to itself"];
        for restart in [false, true] {
            if restart {
                house.fail_write(StoreFault::Unavailable);
                assert!(house.open().await.is_err(), "{kept:?}");
            }
            house.tell(Request::Begin);
            let mut left = all.to_vec();
            while !left.is_empty() {
                let next = tokio::time::timeout(PATIENCE, house.diary.recv()).await;
                let line = next.unwrap_or_else(|_| panic!("{kept:?}: {left:?} never comes")).unwrap();
                left.retain(|what| *what != line);
            }
        }
        let diary = house.shut_down().await;
        assert_eq!(diary, ["PostStop"], "{kept:?}");
    })
    .await;
}

/// Scenario persistence 77: results of a replaced entity's work never come; a command to itself depends on the lost
/// state. (Results during a write: greylag-persistence, tests/errands.rs.)
#[tokio::test]
async fn scenario_77_what_a_replaced_entity_began_never_comes() {
    for_both(async |kept| {
        let mut house = House::build(kept, Plan::default()).await;
        house.tell(Request::Begin);
        house.tell(Request::Panic);
        assert_eq!(house.open().await, Ok(0), "{kept:?}");
        let asking = house.keepers.entity_ref("one");
        assert_eq!(asking.ask(|to| Request::Keep(7, to)).timeout(PATIENCE).await, Ok(7));
        let diary = house.until("keep 7").await;
        let restarted = diary.iter().position(|line| line == "PreRestart").expect("it was replaced");
        let late = diary[restarted..]
            .iter()
            .filter(|line| ["timer", "future", "blocking", "to itself"].contains(&line.as_str()));
        assert_eq!(late.count(), 0, "{kept:?}: {diary:?}");
    })
    .await;
}
