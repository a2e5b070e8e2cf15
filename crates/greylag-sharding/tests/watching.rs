//! Persistence scenario 77, cluster T30: entities of every kind watch what is registered at another node.

use std::sync::Arc;
use std::time::Duration;

use greylag_cluster::{Cluster, ClusterSettings};
use greylag_codec::json;
use greylag_core::Registry;
use greylag_persistence::{Ctx, Effect, EventSourced, EventSourcedSettings, Stores};
use greylag_sharding::{Entity, EntityCtx, EntityKey, EntityType, Failure, Region, Sharding, ShardingSettings};
use greylag_transport::memory::MemoryNetwork;
use greylag_transport::watch::{Terminated, WatchError, WhyTerminated};
use greylag_transport::{Inbound, Receiver, Recipient};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

const PATIENCE: Duration = Duration::from_secs(30);
const WATCHED: &str = "a receiver of the program";

struct Deaf;

impl Receiver for Deaf {
    fn receive(&self, _: Inbound) {}
}

enum Word {
    Watch(Recipient, greylag_core::UniqueAddress),
    Ended(Result<Terminated, WatchError>),
}

type Told = UnboundedSender<Result<Terminated, WatchError>>;

fn on_word(word: Word, told: &Told, cx: &mut Ctx<'_, Word>) {
    match word {
        Word::Watch(recipient, at) => cx.watch(&recipient, &at, Word::Ended),
        Word::Ended(outcome) => told.send(outcome).unwrap(),
    }
}

struct Plain(Told);

impl Entity for Plain {
    type Message = Word;

    fn receive(&mut self, word: Word, cx: &mut Ctx<'_, Word>) -> Result<(), Failure> {
        on_word(word, &self.0, cx);
        Ok(())
    }
}

struct Keeping(Told);

impl EventSourced for Keeping {
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
    let remoting = network.node(address.parse().unwrap(), Arc::new(Registry::new()));
    Cluster::start(ClusterSettings::test(), remoting).await.unwrap()
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
    // The homes of shards are kept by both.
    let beside = Sharding::start(there.clone(), None, ShardingSettings::test()).await.unwrap();
    for name in ["Plain", "Keeping"] {
        beside.init(EntityKey::<Word>::named(name).proxy().local_only()).unwrap();
    }
    let (told, mut ends) = unbounded_channel();
    let plain = told.clone();
    let plain = EntityType::new(EntityKey::new("Plain"), move |_| Ok(Plain(plain.clone()))).local_only();
    let keeping = EntityType::event_sourced(EntityKey::new("Keeping"), move |_| Ok(Keeping(told.clone())));
    let keeping = keeping.events(json("keeping.event")).local_only();
    let regions: [Region<Word>; 2] = [sharding.init(plain).unwrap(), sharding.init(keeping).unwrap()];
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
        let instance = there.remoting().register(WATCHED, Arc::new(Deaf));
        let recipient = Recipient { instance, ..Recipient::new(WATCHED) };
        region.entity_ref("1").tell(Word::Watch(recipient, there.self_address().clone())).unwrap();
        // Watched or not by then: what has ended before is told at once.
        there.remoting().unregister(WATCHED);
        let ended = end("a receiver").await.unwrap();
        assert!(matches!(ended.why, WhyTerminated::Stopped), "{ended:?}");
    }
}
