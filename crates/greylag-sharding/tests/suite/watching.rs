//! Persistence scenario 77, cluster T30: entities of every kind watch recipients of another node.

use std::sync::Arc;
use std::time::Duration;

use greylag_cluster::{Cluster, ClusterSettings};
use greylag_codec::json;
use greylag_core::{Registry, ReplyTo};
use greylag_persistence::{Ctx, Effect, EventSourced, EventSourcedSettings, Stores};
use greylag_sharding::{
    DirectRef, Entity, EntityCtx, EntityKey, EntityType, Failure, Region, Sharding, ShardingSettings,
};
use greylag_transport::memory::MemoryNetwork;
use greylag_transport::watch::{Terminated, WatchError, WhyTerminated};
use greylag_transport::{Inbound, Receiver, Recipient};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

const PATIENCE: Duration = Duration::from_secs(30);
const WATCHED: &str = "a receiver of the program";

struct DiscardReceiver;

impl Receiver for DiscardReceiver {
    fn receive(&self, _: Inbound) {}
}

enum Word {
    Watch(Recipient, greylag_core::UniqueAddress),
    WatchEntity(DirectRef),
    Ended(Result<Terminated, WatchError>),
}

type OutcomeSender = UnboundedSender<Result<Terminated, WatchError>>;

fn on_word(word: Word, outcomes: &OutcomeSender, cx: &mut Ctx<'_, Word>) {
    match word {
        Word::Watch(recipient, at) => cx.watch(&recipient, &at, Word::Ended),
        Word::WatchEntity(entity) => cx.watch_entity(&entity, Word::Ended),
        Word::Ended(outcome) => outcomes.send(outcome).unwrap(),
    }
}

struct Plain(OutcomeSender);

impl Entity for Plain {
    type Message = Word;

    fn receive(&mut self, word: Word, cx: &mut Ctx<'_, Word>) -> Result<(), Failure> {
        on_word(word, &self.0, cx);
        Ok(())
    }
}

struct PersistentWatcher(OutcomeSender);

impl EventSourced for PersistentWatcher {
    type Command = Word;
    type Event = ();
    type State = ();

    fn settings(&self, _: &EventSourcedSettings) -> EventSourcedSettings {
        EventSourcedSettings::test()
    }

    fn on_command(&mut self, cx: &mut Ctx<'_, Word>, (): &(), word: Word) -> Effect<Self> {
        on_word(word, &self.0, cx);
        Effect::none()
    }

    fn apply((): &mut (), (): &()) {}
}

async fn node(network: &MemoryNetwork, address: &str) -> Cluster {
    node_with(network, address, &[]).await
}

async fn node_with(network: &MemoryNetwork, address: &str, roles: &[&str]) -> Cluster {
    let remoting = network.node(address.parse().unwrap(), Arc::new(Registry::new()));
    let mut settings = ClusterSettings::test();
    settings.roles = roles.iter().map(ToString::to_string).collect();
    Cluster::start(settings, remoting).await.unwrap()
}

async fn join(cluster: &Cluster) {
    cluster.join_seed_nodes(vec!["a:1".parse().unwrap()]).await.unwrap();
    cluster.wait_up().await.unwrap();
}

#[tokio::test]
async fn scenario_77_entities_of_every_kind_watch() {
    let network = MemoryNetwork::new();
    let (here, there) = (node(&network, "a:1#3301").await, node(&network, "b:1#3302").await);
    let stores = Some(Stores::in_memory_shared());
    let sharding = Sharding::start(here.clone(), stores, ShardingSettings::test()).await.unwrap();
    // Both nodes keep the homes of shards.
    let beside = Sharding::start(there.clone(), None, ShardingSettings::test()).await.unwrap();
    for name in ["Plain", "PersistentWatcher"] {
        beside.init(EntityKey::<Word>::named(name).proxy().local_only()).unwrap();
    }
    let (outcomes, mut ends) = unbounded_channel();
    let plain = outcomes.clone();
    let plain = EntityType::new(EntityKey::new("Plain"), move |_| Ok(Plain(plain.clone()))).local_only();
    let persistent = EntityType::event_sourced(EntityKey::new("PersistentWatcher"), move |_| {
        Ok(PersistentWatcher(outcomes.clone()))
    });
    let persistent = persistent.events(json("persistent.event")).local_only();
    let regions: [Region<Word>; 2] = [sharding.init(plain).unwrap(), sharding.init(persistent).unwrap()];
    join(&here).await;
    join(&there).await;
    here.wait_for(|view| view.members.len() == 2).await.unwrap();
    let mut end = async |what: &str| tokio::time::timeout(PATIENCE, ends.recv()).await.expect(what).unwrap();

    for region in &regions {
        let word = Word::Watch(Recipient::new(WATCHED), "c:1#3303".parse().unwrap());
        region.entity_ref("1").tell(word).unwrap();
        assert_eq!(end("a stranger").await, Err(WatchError::NotAMember("c:1#3303".parse().unwrap())));
    }
    for region in &regions {
        let instance = there.remoting().register(WATCHED, Arc::new(DiscardReceiver));
        let recipient = Recipient { instance, ..Recipient::new(WATCHED) };
        region.entity_ref("1").tell(Word::Watch(recipient, there.self_address().clone())).unwrap();
        // The watch may come later: an end before it is reported at once.
        there.remoting().unregister(WATCHED);
        let ended = end("a receiver").await.unwrap();
        assert!(matches!(ended.why, WhyTerminated::Stopped), "{ended:?}");
    }
}

const MORTAL: EntityKey<Fate> = EntityKey::new("Mortal");

/// Commands that decide how a watched entity ends.
#[derive(Serialize, Deserialize)]
enum Fate {
    Address(ReplyTo<DirectRef>),
    /// Answers its address and fails, in one handler.
    AddressAndFail(ReplyTo<DirectRef>),
    Stop,
    Fail,
    Passivate,
}

struct Mortal;

impl Entity for Mortal {
    type Message = Fate;

    fn receive(&mut self, fate: Fate, cx: &mut Ctx<'_, Fate>) -> Result<(), Failure> {
        match fate {
            Fate::Address(reply_to) => reply_to.reply(cx.direct_ref().expect("it lives in a shard")),
            Fate::AddressAndFail(reply_to) => {
                reply_to.reply(cx.direct_ref().expect("it lives in a shard"));
                return Err(Failure::new("as told"));
            }
            Fate::Stop => cx.stop(),
            Fate::Fail => return Err(Failure::new("as told")),
            Fate::Passivate => cx.passivate(),
        }
        Ok(())
    }
}

/// cluster T30, sharding §4.11: an entity at another node is watched by the address that it gave, until that
/// incarnation has ended, in any way; the next incarnation has another address.
#[tokio::test]
async fn an_entity_is_watched_by_its_address_until_its_incarnation_ends() {
    let network = MemoryNetwork::new();
    let (here, there) = (node(&network, "a:1#3311").await, node_with(&network, "b:1#3312", &["mortal"]).await);
    let mortals = || EntityType::new(MORTAL, |_| Ok(Mortal)).codec(json("fate")).role("mortal");
    let (sharding, beside) = (
        Sharding::start(here.clone(), None, ShardingSettings::test()).await.unwrap(),
        Sharding::start(there.clone(), None, ShardingSettings::test()).await.unwrap(),
    );
    let (outcomes, mut ends) = unbounded_channel();
    let watchers = EntityType::new(EntityKey::new("Plain"), move |_| Ok(Plain(outcomes.clone()))).local_only();
    let watcher = sharding.init(watchers.role("")).unwrap();
    beside.init(EntityKey::<Word>::named("Plain").proxy().local_only()).unwrap();
    let (mortal, hosting) = (sharding.init(mortals()).unwrap(), beside.init(mortals()).unwrap());
    join(&here).await;
    join(&there).await;
    here.wait_for(|view| view.members.len() == 2).await.unwrap();
    let mortal = mortal.entity_ref("m");
    let address = async || mortal.ask(Fate::Address).timeout(PATIENCE).await.unwrap();
    let watch = |entity: &DirectRef| watcher.entity_ref("w").tell(Word::WatchEntity(entity.clone())).unwrap();
    let mut end = async |what: &str| {
        let ended = tokio::time::timeout(PATIENCE, ends.recv()).await.expect(what).unwrap();
        ended.expect("a member").why
    };

    let mut seen = std::collections::BTreeSet::new();
    for (what, fate) in [("stop", Fate::Stop), ("failure", Fate::Fail), ("passivation", Fate::Passivate)] {
        let entity = address().await;
        assert!(entity.node == *there.self_address() && seen.insert(entity.clone()), "a new incarnation");
        watch(&entity);
        assert_eq!(address().await, entity, "it is alive");
        mortal.tell(fate).unwrap();
        assert_eq!(end(what).await, WhyTerminated::Stopped, "{what}");
        // The id reaches the next incarnation; an earlier end is reported at once.
        assert_ne!(address().await, entity);
        watch(&entity);
        assert_eq!(end("it has ended before").await, WhyTerminated::Stopped);
    }
    let failed = mortal.ask(Fate::AddressAndFail).timeout(PATIENCE).await.unwrap();
    watch(&failed);
    assert_eq!(end("failure in the same handler").await, WhyTerminated::Stopped);
    // The entity is killed with its shard.
    watch(&address().await);
    address().await;
    hosting.stop().await;
    assert_eq!(end("kill").await, WhyTerminated::Stopped);
    assert!(ends.try_recv().is_err(), "each is told once");
}
