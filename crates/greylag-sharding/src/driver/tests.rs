//! Real tasks and an in-process network; one node, so the whole path of a local message.

mod append_path;
mod counting;
mod flood;
mod hosting;
mod idle;
mod silence;
mod stops;
mod threads;
mod written;

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt;
use greylag_cluster::{Cluster, ClusterSettings};
use greylag_codec::json;
use greylag_core::{EntityError, Registry, ReplyTo};
use greylag_persistence::{
    CannotSuspend, Ctx, DeliveryId, DeliveryTracker, DeliveryTrackerSettings, DurableState, DurableStateSettings,
    Effect, EventSourced, EventSourcedSettings, FaultyStates, InMemoryStates, NotInfluence, PersistenceId, Revision,
    StateEffect, StateOp, StateStore, StateWrite, StoreFault, StoredCodec, Stores, Tracked, Under, WriterUuid,
};
use greylag_testkit::uid::fresh_uid;
use greylag_transport::Remoting;
use greylag_transport::memory::MemoryNetwork;

use super::*;
use crate::entity::{Entity, EntityCtx, Failure};
use crate::host::{DirectRef, Signal};
use crate::settings::PassivationSettings;
use crate::{AskError, ByEvents, ByState, Directive, EntityKey, EntityType, SendError, ShardingSettings, Supervision};

const PATIENCE: Duration = Duration::from_secs(10);

const COUNTER: EntityKey<Command> = EntityKey::new("Counter");
const GAUGE: EntityKey<Command> = EntityKey::new("DurableCounter");

/// A node with a uid of its own: what belongs to a process incarnation, such as the names of its replicators, is found
/// by the uid, and these tests run beside each other.
fn remoting(network: &MemoryNetwork) -> Arc<dyn Remoting> {
    network.node(format!("a:1#{}", fresh_uid()).parse().unwrap(), Arc::new(Registry::new()))
}

async fn alone(settings: ShardingSettings) -> Sharding {
    alone_over(None, settings).await
}

async fn alone_over(stores: Option<Stores>, settings: ShardingSettings) -> Sharding {
    Sharding::alone(remoting(&MemoryNetwork::new()), stores, settings).await.unwrap()
}

enum Command {
    Add(i64),
    Get(ReplyTo<i64>),
    /// Asks for incarnation and count.
    Who(ReplyTo<(u64, i64)>),
    Silence(ReplyTo<i64>),
    Fail,
    Panic,
    Passivate,
    /// Adds to the count later, by a future.
    Later {
        suspend: bool,
        by: i64,
    },
    Direct(ReplyTo<DirectRef>),
    /// Keeps the reply token and never answers.
    Sloppy(ReplyTo<i64>),
    /// Suspends twice in one handler, adds one by the first suspension, and answers the outcome of the second.
    SuspendTwice(ReplyTo<Result<(), CannotSuspend>>),
}

#[derive(Default)]
struct Counter {
    count: i64,
    unanswered: Vec<ReplyTo<i64>>,
}

impl Entity for Counter {
    type Message = Command;

    fn receive(&mut self, command: Command, cx: &mut Ctx<'_, Command>) -> Result<(), Failure> {
        match command {
            Command::Add(by) => self.count += by,
            Command::Get(reply_to) => reply_to.reply(self.count),
            Command::Who(reply_to) => reply_to.reply((cx.incarnation().unwrap(), self.count)),
            Command::Silence(reply_to) => drop(reply_to),
            Command::Fail => return Err(Failure::new("asked to")),
            Command::Panic => panic!("asked to"),
            Command::Passivate => cx.passivate(),
            Command::Later { suspend: true, by } => cx.suspend(tokio::task::yield_now(), move |()| Command::Add(by))?,
            Command::Later { suspend: false, by } => cx.spawn(tokio::task::yield_now(), move |()| Command::Add(by)),
            Command::Direct(reply_to) => reply_to.reply(cx.direct_ref().unwrap()),
            Command::Sloppy(reply_to) => self.unanswered.push(reply_to),
            Command::SuspendTwice(reply_to) => {
                cx.suspend(tokio::task::yield_now(), |()| Command::Add(1))?;
                reply_to.reply(cx.suspend(tokio::task::yield_now(), |()| Command::Add(100)));
            }
        }
        Ok(())
    }
}

fn counters() -> EntityType<Command> {
    EntityType::new(COUNTER, |_| Ok(Counter::default()))
}

async fn get(counters: &Region<Command>, id: &str) -> i64 {
    counters.entity_ref(id).ask(Command::Get).timeout(PATIENCE).await.unwrap()
}

async fn who(counters: &Region<Command>, id: &str) -> (u64, i64) {
    counters.entity_ref(id).ask(Command::Who).timeout(PATIENCE).await.unwrap()
}

/// sharding 1, within one process.
#[tokio::test]
async fn messages_start_entities_and_are_answered() {
    let sharding = alone(ShardingSettings::test()).await;
    let counters = sharding.init(counters()).unwrap();
    for id in 0..50 {
        let counter = counters.entity_ref(id.to_string());
        for _ in 0..=id {
            counter.tell(Command::Add(1)).unwrap();
        }
    }
    for id in 0..50 {
        assert_eq!(get(&counters, &id.to_string()).await, id + 1);
    }
    let homes = counters.shard_homes();
    assert_eq!(homes, BTreeMap::from([(counters.id().node.clone(), 12)]));
    let again = sharding.init(self::counters()).unwrap();
    assert_eq!(get(&again, "7").await, 8, "the same type again is the same region");
    assert!(matches!(
        sharding.init(EntityKey::<()>::new("Counter").proxy()),
        Err(InitError::AlreadyInitialized { .. })
    ));
    assert_eq!(sharding.region(EntityKey::<Command>::new("Nobody")).unwrap_err().known, ["Counter"]);
}

#[tokio::test]
async fn an_ask_ends_whatever_becomes_of_it() {
    let sharding = alone(ShardingSettings::test()).await;
    let counters = sharding.init(counters()).unwrap();
    let one = counters.entity_ref("one");
    assert_eq!(one.ask(Command::Silence).timeout(PATIENCE).await, Err(AskError::Entity(EntityError::NoReply)));
    assert_eq!(one.ask(Command::Get).timeout(Duration::ZERO).await, Err(AskError::InvalidTimeout));
    let nameless = counters.entity_ref("");
    assert_eq!(nameless.ask(Command::Get).timeout(PATIENCE).await, Err(AskError::Send(SendError::EmptyEntityId)));
    assert_eq!(counters.entity_ref("x".repeat(1025)).tell(Command::Add(1)), Err(SendError::EntityIdTooLong));
}

/// Sharding scenario 63: an ask without an answer names the entity and the message, and how long it waited.
#[tokio::test]
async fn an_ask_that_times_out_says_what_it_waited_for() {
    let sharding = alone(ShardingSettings::test()).await;
    let counters = sharding.init(counters()).unwrap();
    let timeout = Duration::from_millis(10);
    let error = counters.entity_ref("sloppy").ask(Command::Sloppy).timeout(timeout).await.unwrap_err();
    let message_type = std::any::type_name::<Command>();
    assert_eq!(error.to_string(), format!("Counter \"sloppy\" did not answer {message_type} within 10ms"));
    let told = AskError::Timeout {
        entity_type: "Counter".to_owned(),
        entity: "sloppy".to_owned(),
        message_type: message_type.to_owned(),
        timeout,
    };
    assert_eq!(error, told);
}

/// sharding 59: a failed entity starts anew, and no other entity fails with it.
#[tokio::test]
async fn failures_and_panics_stay_with_their_entity() {
    let sharding = alone(ShardingSettings { number_of_shards: 1, ..ShardingSettings::test() }).await;
    let counters = sharding.init(counters()).unwrap();
    let (bad, good) = (counters.entity_ref("bad"), counters.entity_ref("good"));
    good.tell(Command::Add(1)).unwrap();
    for failure in [|| Command::Fail, || Command::Panic] {
        bad.tell(Command::Add(5)).unwrap();
        bad.tell(failure()).unwrap();
        bad.tell(Command::Add(1)).unwrap();
        assert_eq!(get(&counters, "bad").await, 1, "the state is new, the message after the failure is kept");
        bad.tell(Command::Add(-1)).unwrap();
    }
    assert_eq!(get(&counters, "good").await, 1);
}

/// sharding 59: one entity panics again and again among many that work; the shard is never restarted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_panics_cost_the_neighbours_nothing() {
    const NEIGHBOURS: usize = 10_000;
    let sharding = alone(ShardingSettings { number_of_shards: 1, ..ShardingSettings::test() }).await;
    let counters = sharding.init(counters()).unwrap();
    assert_eq!(get(&counters, "bad").await, 0);
    let mut events = counters.subscribe();
    let neighbours: Vec<_> = (0..NEIGHBOURS).map(|id| counters.entity_ref(id.to_string())).collect();
    let bad = counters.entity_ref("bad");
    let mut failures = 0;
    for panics in 0..1_000 {
        bad.tell(Command::Panic).unwrap();
        for neighbour in neighbours.iter().skip(panics % 20).step_by(20) {
            neighbour.tell(Command::Add(1)).unwrap();
        }
        get(&counters, "bad").await;
        while let Some(event) = events.next().now_or_never() {
            assert!(matches!(event, Some(Event::EntityFailed { .. })), "the shard is the one of before: {event:?}");
            failures += 1;
        }
    }
    assert_eq!(failures, 1_000);
    for (id, neighbour) in neighbours.iter().enumerate() {
        assert_eq!(neighbour.ask(Command::Get).timeout(PATIENCE).await, Ok(50), "neighbour {id}");
    }
}

/// Counts, and notes its signals.
struct Watched {
    count: i64,
    signals: Arc<std::sync::Mutex<Vec<Signal>>>,
}

impl Entity for Watched {
    type Message = Command;

    fn receive(&mut self, command: Command, cx: &mut Ctx<'_, Command>) -> Result<(), Failure> {
        match command {
            Command::Add(by) => self.count += by,
            Command::Get(reply_to) => reply_to.reply(self.count),
            Command::Fail => return Err(Failure::new("asked to")),
            Command::Panic => panic!("asked to"),
            Command::Later { .. } => {
                cx.suspend(async { panic!("asked to") }, |()| Command::Fail)?;
            }
            _ => unreachable!("no test here sends it"),
        }
        Ok(())
    }

    fn on_signal(&mut self, signal: Signal, _: &mut Ctx<'_, Command>) -> Result<(), Failure> {
        self.signals.lock().unwrap().push(signal);
        Ok(())
    }
}

/// sharding 58: state and signals of the table in §4.6; the shard machine's own tests cover queues, timers and work.
#[tokio::test]
async fn each_directive_keeps_or_drops_the_state() {
    let sharding = alone(ShardingSettings::test()).await;
    let suspended = || Command::Later { suspend: true, by: 0 };
    let failures: [fn() -> Command; 3] = [|| Command::Fail, || Command::Panic, suspended];
    let (kept, replaced, stopped) = ((6, vec![]), (1, vec![Signal::PreRestart]), (1, vec![Signal::PostStop]));
    let table = [
        (Directive::Resume, [&kept, &replaced, &replaced]),
        (Directive::Restart, [&replaced, &replaced, &replaced]),
        (Directive::Stop, [&stopped, &stopped, &stopped]),
    ];
    for (directive, outcomes) in table {
        for (index, (failure, expected)) in failures.iter().zip(outcomes).enumerate() {
            let signals = Arc::default();
            let noted = Arc::clone(&signals);
            let key = EntityKey::named(format!("{directive:?}{index}"));
            let entity_type = EntityType::new(key, move |_| Ok(Watched { count: 0, signals: Arc::clone(&noted) }));
            let watched = sharding.init(entity_type.supervision(Supervision::always(directive))).unwrap();
            for command in [Command::Add(5), failure(), Command::Add(1)] {
                watched.entity_ref("one").tell(command).unwrap();
            }
            let count = get(&watched, "one").await;
            assert_eq!((count, signals.lock().unwrap().clone()), *expected, "{directive:?}, failure {index}");
        }
    }
}

#[tokio::test]
async fn an_entity_that_cannot_start_says_why() {
    let sharding = alone(ShardingSettings::test()).await;
    let broken = EntityType::new(EntityKey::new("Broken"), |_| Err::<Counter, _>(Failure::new("no money")));
    let broken = sharding.init(broken).unwrap();
    let answer = broken.entity_ref("x").ask(Command::Get).timeout(PATIENCE).await;
    assert_eq!(answer, Err(AskError::Entity(EntityError::StartFailed("no money".into()))));
}

/// sharding 61.
#[tokio::test]
async fn a_suspended_entity_keeps_its_messages_waiting_and_a_spawned_result_does_not() {
    let sharding = alone(ShardingSettings::test()).await;
    let counters = sharding.init(counters()).unwrap();
    let one = counters.entity_ref("one");
    one.tell(Command::Later { suspend: true, by: 10 }).unwrap();
    assert_eq!(get(&counters, "one").await, 10);
    one.tell(Command::Later { suspend: false, by: 1 }).unwrap();
    while get(&counters, "one").await != 11 {}
}

/// sharding 61: an entity waits for one suspension at a time.
#[tokio::test]
async fn a_second_suspension_in_one_handler_is_refused() {
    let sharding = alone(ShardingSettings::test()).await;
    let counters = sharding.init(counters()).unwrap();
    let one = counters.entity_ref("one");
    let second = one.ask(Command::SuspendTwice).timeout(PATIENCE).await;
    assert_eq!(second, Ok(Err(CannotSuspend::AlreadySuspended)));
    assert_eq!(get(&counters, "one").await, 1, "the first one went on, and the second was dropped");
}

/// sharding 53.
#[tokio::test]
async fn a_passivated_entity_comes_back_as_another_incarnation() {
    let sharding = alone(ShardingSettings::test()).await;
    let counters = sharding.init(counters()).unwrap();
    let one = counters.entity_ref("one");
    one.tell(Command::Add(3)).unwrap();
    let (first, _) = who(&counters, "one").await;
    one.tell(Command::Passivate).unwrap();
    one.tell(Command::Add(1)).unwrap();
    let (second, count) = who(&counters, "one").await;
    assert!(second > first);
    assert_eq!(count, 1);
}

/// sharding 53: a message sent between the passivation and the end finds a new incarnation with the old value.
#[tokio::test]
async fn messages_sent_during_a_passivation_are_answered_by_the_next_incarnation() {
    let sharding = alone_over(Some(Stores::in_memory()), ShardingSettings::test()).await;
    let made = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&made);
    let ledgers = EntityType::event_sourced(EntityKey::named("Ledger"), move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(Ledger::new(""))
    });
    let ledgers = sharding.init(ledgers.events(json("ledger.added")).snapshots(json("ledger.state")).local_only());
    let ledgers = ledgers.unwrap();
    let one = ledgers.entity_ref("one");
    one.tell(Command::Add(3)).unwrap();
    assert_eq!(get(&ledgers, "one").await, 3);
    assert_eq!(made.load(Ordering::Relaxed), 1);
    one.tell(Command::Passivate).unwrap();
    one.tell(Command::Add(1)).unwrap();
    assert_eq!(get(&ledgers, "one").await, 4);
    assert_eq!(made.load(Ordering::Relaxed), 2, "by another incarnation");
}

#[tokio::test]
async fn an_idle_entity_is_passivated() {
    let settings = ShardingSettings {
        passivation: PassivationSettings::idle_after(Duration::from_millis(50)),
        ..ShardingSettings::test()
    };
    let sharding = alone(settings).await;
    let counters = sharding.init(counters()).unwrap();
    let (first, _) = who(&counters, "one").await;
    let direct = counters.entity_ref("one").ask(Command::Direct).timeout(PATIENCE).await.unwrap();
    assert_eq!(direct.instance, first);
    // Direct messages are no activity, so this ask does not keep the entity awake.
    let mut events = counters.subscribe();
    counters.entity_ref("two").tell(Command::Fail).unwrap();
    while !matches!(events.next().await.unwrap(), Event::EntityFailed { .. }) {}
    tokio::time::timeout(PATIENCE, async { while is_alive(&sharding, &counters, &direct).await {} }).await.unwrap();
}

/// Whether a direct message is answered.
async fn is_alive(sharding: &Sharding, counters: &Region<Command>, direct: &DirectRef) -> bool {
    let ask = sharding.remoting().open_ask(Duration::from_millis(20));
    let reply_to = ReplyTo::new(ask.address.clone(), sharding.remoting().reply_port());
    counters.tell_direct(direct, Command::Get(reply_to)).unwrap();
    ask.answer.await.is_ok()
}

#[tokio::test]
async fn a_region_stops_in_order_and_refuses_what_comes_later() {
    let sharding = alone(ShardingSettings::test()).await;
    let counters = sharding.init(counters()).unwrap();
    counters.entity_ref("one").tell(Command::Add(1)).unwrap();
    assert_eq!(get(&counters, "one").await, 1);
    tokio::time::timeout(PATIENCE, counters.graceful_shutdown()).await.unwrap();
    assert!(counters.entity_ref("one").tell(Command::Add(1)).is_err());
}

/// Many tasks, many entities, one count: no message is lost or doubled while routes open.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_senders_lose_nothing() {
    let sharding = alone(ShardingSettings { buffer_size: 100_000, ..ShardingSettings::test() }).await;
    let counters = sharding.init(counters()).unwrap();
    let senders = (0..4).map(|_| {
        let counters = counters.clone();
        tokio::spawn(async move {
            for n in 0..5_000 {
                counters.entity_ref((n % 100).to_string()).tell(Command::Add(1)).unwrap();
            }
        })
    });
    for sender in senders.collect::<Vec<_>>() {
        sender.await.unwrap();
    }
    let mut sum = 0;
    for id in 0..100 {
        sum += get(&counters, &id.to_string()).await;
    }
    assert_eq!(sum, 20_000);
}

/// An event-sourced counter that stashes `Silence`.
struct Ledger {
    journal: &'static str,
    settings: EventSourcedSettings,
}

impl Ledger {
    fn new(journal: &'static str) -> Self {
        let settings = EventSourcedSettings { snapshot_every: NonZeroU64::new(7), ..EventSourcedSettings::test() };
        Self { journal, settings }
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Added(i64);

impl EventSourced for Ledger {
    type Command = Command;
    type Event = Added;
    type State = i64;

    fn journal_plugin_id(&self) -> &str {
        self.journal
    }

    fn settings(&self, _: &EventSourcedSettings) -> EventSourcedSettings {
        self.settings.clone()
    }

    fn on_command(&mut self, _: &mut Ctx<'_, Command>, state: &i64, command: Command) -> Effect<Self> {
        match command {
            Command::Add(by) => Effect::persist(Added(by)),
            Command::Get(reply_to) => Effect::reply(reply_to, *state),
            Command::Silence(_) => Effect::stash(command),
            Command::Passivate => Effect::passivate(),
            Command::Panic => panic!("asked to"),
            _ => Effect::unhandled(),
        }
    }

    fn apply(state: &mut i64, event: &Added) {
        *state += event.0;
    }
}

fn ledgers() -> EntityType<Command, ByEvents<Ledger>> {
    ledgers_in("Ledger", "")
}

fn ledgers_in(name: &str, journal: &'static str) -> EntityType<Command, ByEvents<Ledger>> {
    EntityType::event_sourced(EntityKey::named(name), move |_| Ok(Ledger::new(journal)))
        .events(json("ledger.added"))
        .snapshots(json("ledger.state"))
        .local_only()
}

/// Ledgers over `stores`, in the only region.
async fn ledgers_over(stores: Stores) -> (Sharding, Region<Command>) {
    let sharding = alone_over(Some(stores), ShardingSettings::test()).await;
    let ledgers = sharding.init(ledgers()).unwrap();
    (sharding, ledgers)
}

/// sharding 55: ten incarnations, each of which recovers everything stored before.
#[tokio::test]
async fn an_event_sourced_entity_recovers_in_every_incarnation() {
    let stores = Stores::in_memory();
    let (_sharding, ledgers) = ledgers_over(stores.clone()).await;
    let one = ledgers.entity_ref("one");
    for round in 1..=10 {
        for _ in 0..3 {
            one.tell(Command::Add(1)).unwrap();
        }
        assert_eq!(get(&ledgers, "one").await, 3 * round);
        one.tell(if round == 5 { Command::Panic } else { Command::Passivate }).unwrap();
    }
    // Simulate another process with the same journal, some time later: its generations are larger.
    let id = PersistenceId::of("Ledger", "one").unwrap();
    let head = stores.journal.head(&id).await.unwrap();
    assert_eq!(head.highest.as_u64(), 30);
    assert!(head.generation.is_some(), "claims name the shard's generation");
}

#[tokio::test]
async fn a_persistent_type_needs_a_journal_that_its_nodes_share() {
    let sharding = alone(ShardingSettings::test()).await;
    assert!(matches!(sharding.init(ledgers()), Err(InitError::NoStores { .. })));
}

/// persistence §1: a behaviour selects its journal by name.
#[tokio::test]
async fn an_entity_keeps_its_events_in_the_journal_that_it_selects() {
    let (default, archive) = (Stores::in_memory(), Stores::in_memory());
    let stores = default.clone().with_plugin("archive", archive.clone());
    let sharding = alone_over(Some(stores), ShardingSettings::test()).await;
    let ledgers = sharding.init(ledgers_in("Ledger", "archive")).unwrap();
    ledgers.entity_ref("one").tell(Command::Add(1)).unwrap();
    assert_eq!(get(&ledgers, "one").await, 1);
    let id = PersistenceId::of("Ledger", "one").unwrap();
    let highest = async |stores: &Stores| stores.journal.head(&id).await.unwrap().highest.as_u64();
    assert_eq!((highest(&default).await, highest(&archive).await), (0, 1));
}

/// Scenario persistence 9: an unknown journal fails the entity at its start; so does a journal that other nodes do not
/// reach.
#[tokio::test]
async fn scenario_09_a_journal_that_cannot_serve_fails_the_entity_at_its_start() {
    let cluster = Cluster::start(ClusterSettings::test(), remoting(&MemoryNetwork::new())).await.unwrap();
    cluster.join_self().await.unwrap();
    let stores = Stores::in_memory_shared().with_plugin("own", Stores::in_memory());
    let sharding = Sharding::start(cluster, Some(stores), ShardingSettings::test()).await.unwrap();
    for (selected, words) in [("nowhere", "besides the default there are: \"own\""), ("own", "is not shared")] {
        let ledgers = sharding.init(ledgers_in(selected, selected)).unwrap();
        let mut events = ledgers.subscribe();
        ledgers.entity_ref("one").tell(Command::Add(1)).unwrap();
        let cause = loop {
            if let Event::EntityFailed { cause, .. } = events.next().await.unwrap() {
                break cause.to_string();
            }
        };
        assert!(cause.contains(selected) && cause.contains(words), "{cause}");
    }
}

/// A newer owner fences the entity; its messages wait for the home and are answered here again, because the shard was
/// not taken away.
#[tokio::test]
async fn a_fenced_entity_ends_and_says_so() {
    let stores = Stores::in_memory();
    let (_sharding, ledgers) = ledgers_over(stores.clone()).await;
    let one = ledgers.entity_ref("one");
    one.tell(Command::Add(1)).unwrap();
    assert_eq!(get(&ledgers, "one").await, 1);
    let mut events = ledgers.subscribe();
    let id = PersistenceId::of("Ledger", "one").unwrap();
    let generation = stores.journal.head(&id).await.unwrap().generation.unwrap();
    stores.journal.claim(&id, WriterUuid::from_u128(1), Under::Generation(generation)).await.unwrap();
    one.tell(Command::Add(1)).unwrap();
    while !matches!(events.next().await.unwrap(), Event::EntityFenced { .. }) {}
    assert_eq!(get(&ledgers, "one").await, 1, "the refused event is not stored; the next incarnation claims anew");
}

/// A counter with a durable state: keeps only its newest count.
struct DurableCounter;

impl DurableState for DurableCounter {
    type Command = Command;
    type State = i64;

    fn settings(&self, _: &DurableStateSettings) -> DurableStateSettings {
        DurableStateSettings { on_failure: EventSourcedSettings::test().on_failure, ..DurableStateSettings::default() }
    }

    fn on_command(&mut self, _: &mut Ctx<'_, Command>, state: &i64, command: Command) -> StateEffect<Self> {
        match command {
            Command::Add(by) => StateEffect::persist(state + by),
            Command::Get(reply_to) => StateEffect::reply(reply_to, *state),
            Command::Passivate => StateEffect::passivate(),
            Command::Panic => panic!("asked to"),
            _ => StateEffect::unhandled(),
        }
    }
}

fn gauges() -> EntityType<Command, ByState<DurableCounter>> {
    EntityType::durable_state(GAUGE, |_| Ok(DurableCounter)).states(json("gauge.state")).local_only()
}

fn gauge_id() -> PersistenceId {
    PersistenceId::of("DurableCounter", "one").unwrap()
}

/// Gauges over `states`, in the only region.
async fn gauges_over(states: Arc<dyn StateStore>, settings: ShardingSettings) -> (Sharding, Region<Command>) {
    let stores = Stores::in_memory().with_states(states);
    let sharding = alone_over(Some(stores), settings).await;
    let gauges = sharding.init(gauges()).unwrap();
    (sharding, gauges)
}

/// persistence 52 in a shard: ten incarnations, passivated or failed, each reads what was written.
#[tokio::test]
async fn a_durable_state_is_read_in_every_incarnation() {
    let states = InMemoryStates::default();
    let (_sharding, gauges) = gauges_over(Arc::new(states.clone()), ShardingSettings::test()).await;
    let one = gauges.entity_ref("one");
    for round in 1..=10 {
        for _ in 0..3 {
            one.tell(Command::Add(1)).unwrap();
        }
        assert_eq!(get(&gauges, "one").await, 3 * round);
        one.tell(if round == 5 { Command::Panic } else { Command::Passivate }).unwrap();
    }
    assert_eq!(get(&gauges, "one").await, 30);
    let row = states.row(&gauge_id()).unwrap();
    assert_eq!(row.revision.as_u64(), 30);
    assert!(row.generation.is_some(), "writes name the shard's generation");
}

/// Commands that come during a write wait in the mailbox; a write that fails only delays them, since the machine reads
/// its state again.
#[tokio::test]
async fn commands_wait_for_a_write_and_survive_its_failure() {
    let states = InMemoryStates::default();
    let faulty = Arc::new(FaultyStates::new(Arc::new(states.clone())));
    let (_sharding, gauges) = gauges_over(faulty.clone(), ShardingSettings::test()).await;
    let one = gauges.entity_ref("one");
    one.tell(Command::Add(1)).unwrap();
    assert_eq!(get(&gauges, "one").await, 1);
    faulty.plan(None, StateOp::Upsert, 0, StoreFault::Unavailable);
    one.tell(Command::Add(10)).unwrap();
    one.tell(Command::Add(100)).unwrap();
    assert_eq!(get(&gauges, "one").await, 101, "the refused one is lost, those behind it are not");
}

/// A writer with a greater revision fences the entity; its shard confirms its home and starts the entity again.
#[tokio::test]
async fn a_durable_state_that_is_fenced_ends_and_says_so() {
    let states = InMemoryStates::default();
    let (_sharding, gauges) = gauges_over(Arc::new(states.clone()), ShardingSettings::test()).await;
    let one = gauges.entity_ref("one");
    one.tell(Command::Add(1)).unwrap();
    assert_eq!(get(&gauges, "one").await, 1);
    let mut events = gauges.subscribe();
    let row = states.row(&gauge_id()).unwrap();
    let (revision, writer_uuid) = (row.revision.next().unwrap(), WriterUuid::from_u128(1));
    let write = StateWrite { id: gauge_id(), revision, generation: row.generation, writer_uuid };
    let value = StoredCodec::new(json("gauge.state")).encode(&7_i64).unwrap();
    states.upsert(write, value, None).await.unwrap();
    one.tell(Command::Add(1)).unwrap();
    while !matches!(events.next().await.unwrap(), Event::EntityFenced { .. }) {}
    assert_eq!(get(&gauges, "one").await, 7, "the refused write is not stored; the next incarnation reads anew");
}

/// A region that stops lets writes under way complete first.
#[tokio::test]
async fn a_region_that_stops_keeps_what_was_told_before() {
    let states = InMemoryStates::default();
    let (_sharding, gauges) = gauges_over(Arc::new(states.clone()), ShardingSettings::test()).await;
    // The shard has its home, so the messages sent now are in its inbox before the region stops.
    assert_eq!(get(&gauges, "one").await, 0);
    for _ in 0..20 {
        gauges.entity_ref("one").tell(Command::Add(1)).unwrap();
    }
    tokio::time::timeout(PATIENCE, gauges.graceful_shutdown()).await.unwrap();
    assert_eq!(states.row(&gauge_id()).unwrap().revision, Revision::new(20).unwrap());
}

#[tokio::test]
async fn a_durable_state_needs_a_store_that_its_nodes_share() {
    // A node for each start: the replicator of an earlier start may still have its name.
    let init = async |stores| {
        let cluster = Cluster::start(ClusterSettings::test(), remoting(&MemoryNetwork::new())).await.unwrap();
        cluster.join_self().await.unwrap();
        let sharding = Sharding::start(cluster, stores, ShardingSettings::test()).await.unwrap();
        sharding.init(gauges()).map(|_| ())
    };
    let shared = Stores::in_memory_shared();
    let without = Stores::new(shared.journal, shared.snapshots);
    assert!(matches!(init(None).await, Err(InitError::NoStateStore { .. })));
    assert!(matches!(init(Some(without)).await, Err(InitError::NoStateStore { .. })));
    let mixed = Stores::in_memory_shared().with_states(Arc::new(InMemoryStates::default()));
    assert!(matches!(init(Some(mixed)).await, Err(InitError::StatesNotShared { .. })));
    assert_eq!(init(Some(Stores::in_memory_shared())).await, Ok(()));
}

/// An entity that sends a delivery until it is confirmed.
struct Sender {
    wire: tokio::sync::mpsc::UnboundedSender<DeliveryId>,
}

impl EventSourced for Sender {
    type Command = Command;
    type Event = i64;
    type State = DeliveryTracker<(), ()>;

    fn settings(&self, _: &EventSourcedSettings) -> EventSourcedSettings {
        let redeliver_interval = Duration::from_millis(100);
        let delivery_tracker = DeliveryTrackerSettings { redeliver_interval, ..DeliveryTrackerSettings::default() };
        EventSourcedSettings { delivery_tracker, ..EventSourcedSettings::test() }
    }

    fn on_command(&mut self, _: &mut Ctx<'_, Command>, _: &Self::State, command: Command) -> Effect<Self> {
        match command {
            Command::Add(by) => Effect::persist(by),
            Command::Panic => panic!("asked to"),
            _ => Effect::unhandled(),
        }
    }

    /// A positive number is a delivery, a negative one the confirmation of its opposite.
    fn apply(state: &mut Self::State, event: &i64) {
        if *event < 0 {
            state.confirm(DeliveryId::new(event.unsigned_abs()));
        } else {
            state.deliver((), |_| ());
        }
    }

    fn tracker<'a>(&'a mut self, state: &'a mut Self::State) -> Option<Tracked<'a>> {
        Some(state.send_by(|attempt| self.wire.send(attempt.id).unwrap_or_default()))
    }
}

/// persistence 54 in a shard: an entity that waits for confirmations sends again by itself, is not passivated for being
/// idle meanwhile, and begins anew when it is started anew.
#[tokio::test]
async fn scenario_54_a_sharded_entity_delivers_until_it_is_confirmed() {
    let (wire, mut received) = tokio::sync::mpsc::unbounded_channel();
    let idle = Some(Duration::from_millis(20));
    let passivation = PassivationSettings { idle_timeout: idle, ..PassivationSettings::default() };
    let settings = ShardingSettings { passivation, ..ShardingSettings::test() };
    let sharding = alone_over(Some(Stores::in_memory()), settings).await;
    let sender = EntityType::event_sourced(EntityKey::new("Sender"), move |_| Ok(Sender { wire: wire.clone() }))
        .events(json("sender.event"));
    let one = sharding.init(sender).unwrap().entity_ref("one");
    one.tell(Command::Add(1)).unwrap();
    let next = async |received: &mut tokio::sync::mpsc::UnboundedReceiver<DeliveryId>| {
        tokio::time::timeout(PATIENCE, received.recv()).await.unwrap().unwrap().as_u64()
    };
    for _ in 0..4 {
        assert_eq!(next(&mut received).await, 1, "idle for several times its limit, it is still there");
    }
    one.tell(Command::Panic).unwrap();
    one.tell(Command::Add(1)).unwrap();
    let mut seen = Vec::new();
    while !seen.contains(&2) {
        seen.push(next(&mut received).await);
    }
    assert!(seen.contains(&1), "the new incarnation sends what the one before could not: {seen:?}");
    one.tell(Command::Add(-1)).unwrap();
    // Deliveries sent before the confirmation may still come: in the end only 2 comes.
    while (next(&mut received).await, next(&mut received).await, next(&mut received).await) != (2, 2, 2) {}
}
