//! Shards that an extractor names freely, and inconsistent extractors. Source: sharding §1.1, §1.3, §8.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::nodes::*;
use greylag_codec::json;
use greylag_core::{DeadLetterReason, Registry, ReplyTo};
use greylag_persistence::{Ctx, Stores};
use greylag_sharding::ids::{EntityId, ShardId};
use greylag_sharding::{
    AskError, Entity, EntityKey, EntityType, Event, Extractor, Failure, Region, RememberStore, SendError, Sharding,
    ShardingSettings,
};
use greylag_transport::memory::MemoryNetwork;

const THING: EntityKey<Count> = EntityKey::new("Thing");

/// Counts one message, and answers the count.
type Count = ReplyTo<u64>;

#[derive(Default)]
struct Thing(u64);

impl Entity for Thing {
    type Message = Count;

    fn receive(&mut self, reply_to: Count, _: &mut Ctx<'_, Count>) -> Result<(), Failure> {
        self.0 += 1;
        reply_to.reply(self.0);
        Ok(())
    }
}

/// Ids have the form `tenant/thing`, and each tenant has one shard.
struct ByTenant;

impl Extractor for ByTenant {
    fn shard_id(&self, id: &EntityId) -> Result<ShardId, DeadLetterReason> {
        ShardId::new(id.as_str().split('/').next().unwrap_or_default())
    }

    fn identity(&self) -> (&'static str, u32) {
        ("by-tenant", 1)
    }
}

fn things() -> EntityType<Count> {
    EntityType::new(THING, |_| Ok(Thing::default())).codec(json("thing")).extractor(ByTenant)
}

async fn count(region: &Region<Count>, id: &str) -> Result<u64, AskError> {
    region.entity_ref(id).ask(|reply_to| reply_to).timeout(PATIENCE).await
}

fn tenant(number: usize) -> ShardId {
    ShardId::new(format!("tenant {number} – Genève")).expect("a name")
}

fn thing(number: usize, thing: usize) -> String {
    format!("{}/{thing}", tenant(number).as_str())
}

/// Freely named shards over three nodes: they are found from everywhere, stop by name, and move when a node leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_that_are_named_freely_are_found_stopped_and_moved() {
    const TENANTS: usize = 150;
    let world = World::new();
    let mut nodes = Vec::new();
    for address in ["a:1", "b:1", "c:1"] {
        let sharding = world.newcomer(address, "").await;
        let region = sharding.init(things()).expect("it is set up");
        world.join(sharding.cluster().expect("it has one")).await;
        nodes.push((sharding, region));
    }
    let regions: Vec<_> = nodes.iter().map(|(_, region)| region.clone()).collect();
    for (round, region) in regions.iter().enumerate() {
        for number in 0..TENANTS {
            for at in 0..2 {
                assert_eq!(count(region, &thing(number, at)).await, Ok(round as u64 + 1), "tenant {number}");
            }
        }
    }
    for region in &regions {
        assert_eq!(region.shard_of(&thing(7, 1)), Some(tenant(7)));
        until("every name has a route", || region.shard_homes().values().sum::<usize>() == TENANTS).await;
        assert!(region.is_routed(&tenant(7)) && !region.is_routed(&ShardId::new("nobody").expect("a name")));
        assert_eq!(region.shard_home(&tenant(7)), regions[0].shard_home(&tenant(7)), "all mean the same");
    }
    assert!(regions[0].shard_homes().len() > 1, "they are spread");

    regions[1].stop_shards([tenant(3), tenant(4)]).all().await.expect("they stop");
    assert_eq!(count(&regions[0], &thing(3, 0)).await, Ok(1), "a new incarnation");

    let gone = regions[2].id().node.clone();
    let moved: BTreeSet<_> =
        (0..TENANTS).filter(|at| regions[0].shard_home(&tenant(*at)) == Some(gone.clone())).collect();
    nodes[2].0.cluster().expect("it has one").shutdown().await;
    for number in 0..TENANTS {
        let counted = count(&regions[0], &thing(number, 1)).await.expect("it answers");
        assert!(counted == 1 || !moved.contains(&number), "tenant {number} has moved: {counted}");
    }
    assert!(regions[0].metrics().dropped() == 0);
}

/// sharding §8: an id without a valid shard name is refused with its reason.
#[tokio::test]
async fn an_id_without_a_possible_shard_is_refused() {
    let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    let stores = Some(Stores::in_memory());
    let sharding = Sharding::alone(remoting, stores, ShardingSettings::test()).await.unwrap();
    let region = sharding.init(things()).unwrap();
    let refused = Err(AskError::Send(SendError::Dropped(DeadLetterReason::InvalidShardId)));
    assert_eq!(count(&region, "/nobody's").await, refused, "an empty name");
    assert_eq!(count(&region, &format!("{}/1", "x".repeat(256))).await, refused, "a long name");
    assert_eq!(count(&region, &format!("{}/1", "x".repeat(255))).await, Ok(1));
    assert_eq!(region.shard_of("/nobody's"), None);

    // If entities are remembered in a journal, the shard's name must also fit into a persistence id.
    let remembered = EntityType::new(EntityKey::<Count>::new("Remembered"), |_| Ok(Thing::default()));
    let remembered = remembered.codec(json("thing")).extractor(ByTenant).remember_entities(RememberStore::EventSourced);
    let region = sharding.init(remembered).unwrap();
    assert_eq!(count(&region, &format!("{}/1", "x".repeat(255))).await, refused);
    assert_eq!(count(&region, "acme/1").await, Ok(1));
}

/// Places every id elsewhere once its flag is set.
struct Fickle(Arc<AtomicBool>);

impl Extractor for Fickle {
    fn shard_id(&self, _: &EntityId) -> Result<ShardId, DeadLetterReason> {
        ShardId::new(if self.0.load(Ordering::Relaxed) { "after" } else { "before" })
    }

    fn identity(&self) -> (&'static str, u32) {
        ("fickle", 1)
    }
}

/// sharding §8: an extractor that places an id elsewhere than before would make its entity live twice. The shard that
/// gets a message for the entity drops it.
#[tokio::test]
async fn a_message_for_an_entity_of_another_shard_is_the_dead_letter_wrong_shard() {
    let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    let sharding = Sharding::alone(remoting, None, ShardingSettings::test()).await.unwrap();
    let changed = Arc::new(AtomicBool::new(false));
    let region = sharding.init(things().extractor(Fickle(changed.clone()))).unwrap();
    let mut events = region.subscribe();
    let early = region.entity_ref("one");
    assert_eq!(early.ask(|reply_to| reply_to).timeout(PATIENCE).await, Ok(1));
    changed.store(true, Ordering::Relaxed);
    // The reference has cached its shard.
    let wrong = Err(AskError::Dropped(DeadLetterReason::WrongShard));
    assert_eq!(early.ask(|reply_to| reply_to).timeout(PATIENCE).await, wrong);
    let told = async {
        loop {
            if let Some(Event::EntityMisplaced { shard, entity }) = events.next().await {
                return (shard.to_string(), entity.to_string());
            }
        }
    };
    let told = tokio::time::timeout(PATIENCE, told).await.expect("it is told");
    assert_eq!(told, ("before".to_owned(), "one".to_owned()));
    assert_eq!(region.metrics().dead_letters.get(&DeadLetterReason::WrongShard), Some(&1));
}
