//! The protection by a journal's heads: an owner that was left behind stores nothing, and generations rise above every
//! one that a journal knows, even if homes are kept elsewhere and were lost. Over real clusters of nodes that live in
//! one process.
//!
//! Source: sharding §4.6, scenarios 81 and 82.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use crate::common::nodes::*;
use async_trait::async_trait;
use greylag_cluster::ClusterSettings;
use greylag_codec::json;
use greylag_core::{Generation, UniqueAddress};
use greylag_persistence::{
    AdvanceError, Append, AppendError, Appended, Caps, Claim, ClaimError, CloseError, Ctx, DeleteError, Effect,
    EventSourced, Head, Health, Journal, Page, PersistenceId, ReadError, ReadRange, SeqNr, Stores, Under, WriterEpoch,
    WriterUuid,
};
use greylag_sharding::fingerprint::StateStoreMode;
use greylag_sharding::machine::coordinator::CoordinatorEvent;
use greylag_sharding::machine::region::RegionEvent;
use greylag_sharding::{ByEvents, EntityKey, EntityType, Event, Region, RegionEvents, RegionState, Sharding};
use tokio::sync::watch;

/// A journal whose claims wait until they are released, as if the process was paused right before it made them.
struct HeldClaims {
    inner: Arc<dyn Journal>,
    through: watch::Sender<bool>,
    waiting: AtomicUsize,
    /// Whether claims carry the generation under which they are made.
    with_generation: bool,
}

impl HeldClaims {
    fn new(inner: Arc<dyn Journal>, with_generation: bool) -> Self {
        Self { inner, through: watch::Sender::new(false), waiting: AtomicUsize::new(0), with_generation }
    }
}

#[async_trait]
impl Journal for HeldClaims {
    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    async fn claim(&self, id: &PersistenceId, writer_uuid: WriterUuid, under: Under) -> Result<Claim, ClaimError> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.through.subscribe().wait_for(|through| *through).await.expect("the sender lives in this journal");
        let under = if self.with_generation {
            under
        } else {
            Under::Seen(self.inner.head(id).await.expect("it answers").epoch)
        };
        self.inner.claim(id, writer_uuid, under).await
    }

    async fn advance(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<(), AdvanceError> {
        self.inner.advance(id, epoch, to).await
    }

    async fn append(&self, append: Append) -> Result<Appended, AppendError> {
        self.inner.append(append).await
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        self.inner.read(id, range).await
    }

    async fn head(&self, id: &PersistenceId) -> Result<Head, ReadError> {
        self.inner.head(id).await
    }

    async fn delete_to(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<SeqNr, DeleteError> {
        self.inner.delete_to(id, epoch, to).await
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.inner.close().await
    }
}

/// A counter that counts the commands handled by its node.
struct Witness(Arc<AtomicUsize>);

const WITNESS: EntityKey<Command> = EntityKey::new("Witness");

impl EventSourced for Witness {
    type Command = Command;
    type Event = Changed;
    type State = i64;

    fn on_command(&mut self, _: &mut Ctx<'_, Command>, count: &i64, command: Command) -> Effect<Self> {
        self.0.fetch_add(1, Ordering::SeqCst);
        match command {
            Command::Increment => Effect::persist(Changed(1)),
            Command::Decrement => Effect::persist(Changed(-1)),
            Command::Passivate => Effect::passivate(),
            Command::Get { reply_to } => Effect::reply(reply_to, *count),
        }
    }

    fn apply(count: &mut i64, changed: &Changed) {
        *count += changed.0;
    }
}

fn witnesses(handled: Arc<AtomicUsize>) -> EntityType<Command, ByEvents<Witness>> {
    EntityType::event_sourced(WITNESS, move |_| Ok(Witness(handled.clone())))
        .commands(json("witness.command"))
        .events(json("witness.changed"))
        .snapshots(json("witness.state"))
}

/// A member that hosts witnesses.
struct Host {
    sharding: Sharding,
    region: Region<Command>,
    events: RegionEvents,
    handled: Arc<AtomicUsize>,
}

impl Host {
    async fn join(world: &World, address: &str) -> Self {
        let sharding = world.newcomer(address, "").await;
        let handled = Arc::new(AtomicUsize::new(0));
        let region = sharding.init(witnesses(handled.clone())).expect("fresh");
        let events = region.subscribe();
        world.join(sharding.cluster().expect("it has one")).await;
        until("it registers", || region.state() == RegionState::Registered).await;
        Self { sharding, region, events, handled }
    }

    fn address(&self) -> &UniqueAddress {
        &self.region.id().node
    }

    fn handled(&self) -> usize {
        self.handled.load(Ordering::SeqCst)
    }

    fn sees(&self, other: &UniqueAddress) -> bool {
        self.sharding.cluster().expect("it has one").view().members.iter().any(|member| member.address == *other)
    }

    /// The events since the last call.
    fn happened(&mut self) -> Vec<Event> {
        let events = &mut self.events;
        std::iter::from_fn(|| futures::FutureExt::now_or_never(events.next()).flatten()).collect()
    }
}

fn id_of(entity_type: &str, id: usize) -> PersistenceId {
    PersistenceId::of(entity_type, &id.to_string()).expect("valid")
}

/// An owner that was left behind, in a cluster of two others.
struct LeftBehind {
    a: Host,
    b: Host,
    c: Host,
    /// The journal of `c` only, with held claims.
    held: Arc<HeldClaims>,
    journal: Arc<dyn Journal>,
    /// The entity that `c` has begun to start.
    id: usize,
    _world: World,
}

/// The owner of a shard starts an entity and is paused before its claim. Meanwhile it is downed by a cluster that it
/// does not hear any more, and the entity lives elsewhere.
async fn an_owner_that_is_left_behind(mode: StateStoreMode, with_generation: bool) -> LeftBehind {
    // No member is downed automatically: the owner left behind goes on, and believes that it owns its shards.
    let mut world = World { cluster: ClusterSettings::test(), ..World::in_mode(mode) };
    let journal = world.stores.journal.clone();
    let (a, b) = (Host::join(&world, "a:1").await, Host::join(&world, "b:1").await);
    let held = Arc::new(HeldClaims::new(journal.clone(), with_generation));
    world.stores = Stores::new(held.clone(), world.stores.snapshots.clone());
    let c = Host::join(&world, "c:1").await;
    let mut id = 0;
    loop {
        increment(&c.region, id..id + 1);
        until("its shard has a home", || home_of(&c.region, id).is_some()).await;
        if home_of(&c.region, id).as_ref() == Some(c.address()) {
            break;
        }
        id += 1;
    }
    until("the entity starts", || held.waiting.load(Ordering::SeqCst) == 1).await;

    for other in [&a, &b] {
        world.network.cut(other.address().address(), c.address().address());
    }
    a.sharding.cluster().expect("it has one").down(c.address().clone()).expect("it is a member");
    until("it is removed", || !a.sees(c.address()) && !b.sees(c.address())).await;
    increment(&b.region, id..id + 1);
    assert_eq!(get_at_last(&b.region, id).await, 1);
    LeftBehind { a, b, c, held, journal, id, _world: world }
}

async fn an_owner_that_was_left_behind_stores_nothing(mode: StateStoreMode) {
    let LeftBehind { mut a, mut b, mut c, held, journal, id, _world } = an_owner_that_is_left_behind(mode, true).await;
    let stored = async || {
        let records = journal.read(&id_of("Witness", id), ReadRange::all()).await.expect("it answers").records;
        (journal.head(&id_of("Witness", id)).await.expect("it answers"), records)
    };
    let before = stored().await;
    assert_eq!(before.1.len(), 1, "the new owner's event, and none of the former one");

    held.through.send_replace(true);
    let fenced = |event| match event {
        Event::EntityFenced { entity, fenced } => Some((entity.as_str().to_owned(), fenced.stored)),
        _ => None,
    };
    let refused = event("its claim is refused", &mut c.events, fenced).await;
    assert_eq!(refused, (id.to_string(), before.0.generation), "by the new owner's generation");
    until("the message waits for a home again", || c.region.counters().buffered == 1).await;
    assert_eq!(c.handled(), 0, "it handles nothing");
    assert_eq!(stored().await, before, "nor does it store anything");
    increment(&a.region, id..id + 1);
    assert_eq!(get_at_last(&a.region, id).await, 2);
    for owner in [&mut a, &mut b] {
        let noticed = owner.happened().into_iter().filter_map(fenced).count();
        assert_eq!(noticed, 0, "the new owner notices nothing");
    }
    assert_eq!((c.handled(), stored().await.1.len()), (0, 2));
}

/// sharding 81, mode persistence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_81_an_owner_that_was_left_behind_stores_nothing_and_homes_are_in_a_journal() {
    an_owner_that_was_left_behind_stores_nothing(StateStoreMode::Persistence).await;
}

/// sharding 81, mode ddata.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_81_an_owner_that_was_left_behind_stores_nothing_and_homes_are_replicated() {
    an_owner_that_was_left_behind_stores_nothing(StateStoreMode::Ddata).await;
}

/// sharding 96: of the rules that keep a second owner out, the last one is that claims carry their generation. Without
/// it the owner that was left behind handles the message, beside the present owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_without_its_generation_is_noticed() {
    let LeftBehind { c, held, .. } = &an_owner_that_is_left_behind(StateStoreMode::Ddata, false).await;
    held.through.send_replace(true);
    until("both owners handle messages", || c.handled() > 0).await;
}

const IDS: usize = 6;

/// Time since 1970.
fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970")
}

impl World {
    /// The generation of the last claim of each entity.
    async fn generations(&self) -> Vec<Generation> {
        let mut generations = Vec::new();
        for id in 0..IDS {
            let head = self.stores.journal.head(&id_of("Witness", id)).await.expect("it answers");
            generations.push(head.generation.expect("it was claimed"));
        }
        generations
    }
}

/// A cluster of two lives until each entity has its event, and ends as a whole: the replicated homes are gone. No claim
/// is refused meanwhile, since generations are above the journal's from the start.
async fn a_whole_life(world: &World, expected: i64) {
    let (mut a, mut b) = (Host::join(world, "a:1").await, Host::join(world, "b:1").await);
    increment(&b.region, 0..IDS);
    for id in 0..IDS {
        assert_eq!(get_at_last(&b.region, id).await, expected, "witness {id}");
    }
    let refused = |event: &Event| {
        matches!(event, Event::EntityFenced { .. } | Event::Region(RegionEvent::GenerationBehind { .. }))
    };
    for node in [&mut a, &mut b] {
        let refused: Vec<_> = node.happened().into_iter().filter(refused).collect();
        assert!(refused.is_empty(), "{refused:?}");
    }
    for node in [b, a] {
        within("it ends", node.sharding.cluster().expect("it has one").shutdown()).await;
    }
}

/// sharding 82: the journals outlive the cluster, its homes do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_82_entities_start_under_larger_generations_after_a_full_stop() {
    let world = World::in_mode(StateStoreMode::Ddata);
    a_whole_life(&world, 1).await;
    let before = world.generations().await;
    // Wait: epochs are counted in seconds, and only the clock distinguishes the second life from the first.
    until("the clock goes on", || before.iter().all(|generation| generation.epoch() < now().as_secs())).await;
    a_whole_life(&world, 2).await;
    let after = world.generations().await;
    assert!(before.iter().zip(&after).all(|(before, after)| before < after), "{before:?}, then {after:?}");
}

/// sharding 82: the journal was written under epochs of a clock that was a year ahead of the nodes' clocks now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_82_a_clock_set_back_by_a_year_costs_one_restart_of_the_coordinator() {
    let world = World::in_mode(StateStoreMode::Ddata);
    a_whole_life(&world, 1).await;
    let epoch = (now() + Duration::from_secs(365 * 24 * 60 * 60)).as_secs();
    for id in 0..IDS {
        let (id, under) =
            (id_of("Witness", id), Under::Generation(Generation::new(epoch, 1 + id as u64).expect("in range")));
        let claimed = world.stores.journal.claim(&id, WriterUuid::from_u128(1), under).await;
        claimed.expect("it is larger than any before");
    }
    let before = world.generations().await;

    let (mut a, mut b) = (Host::join(&world, "a:1").await, Host::join(&world, "b:1").await);
    for id in 0..IDS {
        // One ask, which is not repeated: messages that wait for the restart are answered.
        assert_eq!(get(&b.region, id).await, 1, "witness {id}");
    }
    // Wait long enough for a coordinator to stop once more, if it would.
    tokio::time::sleep(4 * world.sharding.coordinator_failure_backoff).await;
    assert_eq!(get(&a.region, 0).await, 1);
    let (at_a, at_b) = (a.happened(), b.happened());
    let all: Vec<_> = at_a.iter().chain(&at_b).collect();
    assert!(all.iter().any(|event| matches!(event, Event::EntityFenced { .. })), "{all:?}");
    let is_behind = |event: &&&Event| matches!(event, Event::Region(RegionEvent::GenerationBehind { stored, own }) if stored > own && stored.epoch() == epoch);
    assert!(all.iter().any(|event| is_behind(&event)), "{all:?}");
    let epochs: Vec<_> = all
        .iter()
        .filter_map(|event| match event {
            Event::Coordinator(CoordinatorEvent::Active { epoch, .. }) => Some(*epoch),
            _ => None,
        })
        .collect();
    assert_eq!(epochs.len(), 2, "it starts again once: {epochs:?}");
    assert!(epochs[0] < epoch && epochs[1] > epoch, "{epochs:?} around {epoch}");
    let after = world.generations().await;
    assert!(before.iter().zip(&after).all(|(before, after)| before < after), "{before:?}, then {after:?}");
}
