//! How messages, answers and their contents find their formats, between two nodes, and what an asker hears of a
//! mistake. Sharding scenario 110.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use greylag_cluster::{Cluster, ClusterSettings};
use greylag_codec::{cbor, json};
use greylag_core::{
    Codec, CodecId, DecodeError, EncodeError, EntityError, Manifest, NotStoredReason, Registry, ReplyTo, Uid,
    UniqueAddress,
};
use greylag_persistence::{Ctx, DurableState, Effect, EventSourced, StateEffect, StoredCodec, Stores};
use greylag_sharding::fingerprint::Mismatch;
use greylag_sharding::{
    AskError, Entity, EntityCtx, EntityKey, EntityRef, EntityType, Event, Failure, InitError, Kind, Region,
    RegionEvent, SendError, Sharding, ShardingSettings,
};
use greylag_transport::memory::MemoryNetwork;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const PATIENCE: Duration = Duration::from_secs(60);

struct Node {
    cluster: Cluster,
    sharding: Sharding,
}

impl Node {
    fn address(&self) -> UniqueAddress {
        self.cluster.self_address().clone()
    }
}

/// Two nodes of one cluster: the first asks, the second hosts.
struct TwoNodes {
    asker: Node,
    host: Node,
}

impl TwoNodes {
    async fn new() -> Self {
        static LAST_UID: AtomicU64 = AtomicU64::new(0);
        let network = MemoryNetwork::new();
        let node = async |address: &str, role: &str| {
            let uid = Uid::new(LAST_UID.fetch_add(1, Ordering::Relaxed) + 1).unwrap();
            let remoting = network.node(UniqueAddress::new(address.parse().unwrap(), uid), Arc::new(Registry::new()));
            let settings = ClusterSettings { roles: [role.to_owned()].into(), ..ClusterSettings::test() };
            let cluster = Cluster::start(settings, remoting).await.unwrap();
            let settings = ShardingSettings { number_of_shards: 4, ask_timeout: PATIENCE, ..ShardingSettings::test() };
            let sharding = Sharding::start(cluster.clone(), Some(Stores::in_memory_shared()), settings).await.unwrap();
            cluster.join_seed_nodes(vec!["a:1".parse().unwrap()]).await.unwrap();
            cluster.wait_up().await.unwrap();
            Node { cluster, sharding }
        };
        let asker = node("a:1", "web").await;
        Self { host: node("b:1", "host").await, asker }
    }

    /// Sets a type up on both nodes, hosted by the second; returns the first one's region.
    fn init<M: Send + 'static, K: Kind<M>>(&self, entity_type: impl Fn() -> EntityType<M, K>) -> Region<M> {
        self.host.sharding.init(entity_type().role("host")).unwrap();
        self.asker.sharding.init(entity_type().role("host")).unwrap()
    }
}

/// A type without a codec is refused if there are other nodes, on every node, whether or not it would host.
#[tokio::test]
async fn scenario_110_a_type_without_a_codec_is_refused_when_it_is_set_up() {
    const SHY: EntityKey<u64> = EntityKey::new("Shy");

    struct Shy;
    impl Entity for Shy {
        type Message = u64;

        fn receive(&mut self, _: u64, _: &mut Ctx<'_, u64>) -> Result<(), Failure> {
            Ok(())
        }
    }
    impl EventSourced for Shy {
        type Command = u64;
        type Event = u64;
        type State = u64;

        fn on_command(&mut self, _: &mut Ctx<'_, u64>, _: &u64, _: u64) -> Effect<Self> {
            Effect::none()
        }

        fn apply(_: &mut u64, _: &u64) {}
    }
    impl DurableState for Shy {
        type Command = u64;
        type State = u64;

        fn on_command(&mut self, _: &mut Ctx<'_, u64>, _: &u64, _: u64) -> StateEffect<Self> {
            StateEffect::none()
        }
    }

    let nodes = TwoNodes::new().await;
    let sharding = &nodes.asker.sharding;
    let missing = |refused: Result<Region<u64>, InitError>| match refused.map(|region| region.name().clone()) {
        Err(InitError::NoCodec { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    let shy = || EntityType::new(SHY, |_| Ok(Shy));
    assert_eq!(missing(sharding.init(shy())), "messages");
    assert_eq!(missing(sharding.init(shy().role("host"))), "messages", "a node that only sends needs it, too");
    assert_eq!(missing(sharding.init(SHY.proxy())), "messages");
    let by_events = || EntityType::event_sourced(SHY, |_| Ok(Shy));
    assert_eq!(missing(sharding.init(by_events().commands(json("shy")))), "events");
    assert_eq!(missing(sharding.init(by_events().events(json("shy.event")))), "messages");
    let by_state = || EntityType::durable_state(SHY, |_| Ok(Shy));
    assert_eq!(missing(sharding.init(by_state().commands(json("shy")))), "states");
    let told = sharding.init(shy()).unwrap_err().to_string();
    assert!(told.contains("Shy") && told.contains("local_only()"), "{told}");
    sharding.init(shy().local_only()).expect("it says that no other node is to reach it");
}

/// An answer that its owner cannot encode, or its asker cannot decode.
#[derive(Debug, PartialEq)]
enum FaultyAnswer {
    Fine,
    Unwritable,
    Unreadable,
    /// Its `Serialize` panics.
    Explosive,
}

impl Serialize for FaultyAnswer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fine => "fine".serialize(serializer),
            Self::Unwritable => Err(serde::ser::Error::custom("no ink")),
            Self::Unreadable => "unreadable".serialize(serializer),
            Self::Explosive => panic!("on purpose"),
        }
    }
}

impl<'de> Deserialize<'de> for FaultyAnswer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "fine" => Ok(Self::Fine),
            _ => Err(serde::de::Error::custom("no glasses")),
        }
    }
}

#[derive(Serialize, Deserialize)]
enum Question {
    Nothing,
    Fine(ReplyTo<FaultyAnswer>),
    Unwritable(ReplyTo<FaultyAnswer>),
    Unreadable(ReplyTo<FaultyAnswer>),
    Explosive(ReplyTo<FaultyAnswer>),
    /// Holds a reference to an entity of a type that only the asker has.
    Holds(EntityRef<Question>, ReplyTo<FaultyAnswer>),
    /// The same, with the token in front of the unreadable reference.
    HoldsLast(ReplyTo<FaultyAnswer>, EntityRef<Question>),
}

struct Clerk;

impl Entity for Clerk {
    type Message = Question;

    fn receive(&mut self, question: Question, _: &mut Ctx<'_, Question>) -> Result<(), Failure> {
        match question {
            Question::Nothing => {}
            Question::Fine(to) | Question::Holds(_, to) | Question::HoldsLast(to, _) => to.reply(FaultyAnswer::Fine),
            Question::Unwritable(to) => to.reply(FaultyAnswer::Unwritable),
            Question::Unreadable(to) => to.reply(FaultyAnswer::Unreadable),
            Question::Explosive(to) => to.reply(FaultyAnswer::Explosive),
        }
        Ok(())
    }
}

const CLERK: EntityKey<Question> = EntityKey::new("Clerk");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_110_an_asker_hears_which_type_has_no_way_and_on_which_node() {
    let nodes = TwoNodes::new().await;
    for format in ["json", "cbor"] {
        let key = || EntityKey::named(format!("Clerk by {format}"));
        let clerks = nodes.init(|| {
            let clerks = EntityType::new(key(), |_| Ok(Clerk));
            if format == "json" { clerks.codec(json("clerk")) } else { clerks.codec(cbor("clerk")) }
        });
        let clerk = clerks.entity_ref("1");
        assert_eq!(clerk.ask(Question::Fine).await, Ok(FaultyAnswer::Fine), "no reply type is registered");
        for (question, place, word) in [
            (Question::Unwritable as fn(_) -> _, nodes.host.address(), "no ink"),
            (Question::Explosive, nodes.host.address(), "panicked"),
            (Question::Unreadable, nodes.asker.address(), "no value of this type"),
        ] {
            let AskError::Codec { type_name, node, cause } = clerk.ask(question).await.unwrap_err() else {
                panic!("it ends at once, and by its codec")
            };
            assert_eq!((type_name.as_str(), &node), (std::any::type_name::<FaultyAnswer>(), &place), "{format}");
            assert!(cause.contains(word), "{format}: {cause}");
        }
    }
}

/// Collects the log of the nodes of this file.
struct Log;

impl Log {
    fn lines() -> MutexGuard<'static, Vec<u8>> {
        static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());
        LINES.lock().unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Self::lines().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The asker hears which message was not decoded, and where; that node logs which type it lacks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_110_a_reference_to_a_type_that_the_reader_lacks_ends_its_message() {
    tracing_subscriber::fmt().with_writer(|| Log).with_ansi(false).try_init().unwrap();
    const ONLY_HERE: EntityKey<Question> = EntityKey::new("Only here");

    let nodes = TwoNodes::new().await;
    let clerk = nodes.init(|| EntityType::new(CLERK, |_| Ok(Clerk)).codec(json("clerk"))).entity_ref("1");
    let here = nodes.asker.sharding.init(EntityType::new(ONLY_HERE, |_| Ok(Clerk)).codec(json("only.here"))).unwrap();
    let message_type = std::any::type_name::<Question>().to_owned();
    let undecodable = AskError::Undecodable { message_type, node: nodes.host.address() };
    // First through the region's machine, then straight from an admitted origin: the asker hears the same.
    for _ in 0..2 {
        let unread = clerk.ask(|to| Question::Holds(here.entity_ref("1"), to)).await;
        assert_eq!(unread.unwrap_err(), undecodable);
        let unread = clerk.ask(|to| Question::HoldsLast(to, here.entity_ref("1"))).await;
        assert_eq!(unread.unwrap_err(), undecodable, "not what the token says that was read before the mistake");
    }
    let told = undecodable.to_string();
    assert!(told.contains("Question") && told.contains("b:1"), "{told}");
    let log = String::from_utf8_lossy(&Log::lines()).into_owned();
    let missing = log.lines().find(|line| line.contains("a type that is not set up here"));
    assert!(missing.is_some_and(|line| line.contains("\"Only here\"")), "{log}");
    for question in [Question::Holds as fn(_, _) -> _, |of, to| Question::HoldsLast(to, of)] {
        assert_eq!(clerk.ask(|to| question(clerk.clone(), to)).await, Ok(FaultyAnswer::Fine));
    }
}

/// sharding 109: one type by two codecs without a common name. The later node is refused when it registers. On one
/// thread, so that the region does not run before its events are subscribed to.
#[tokio::test]
async fn scenario_109_a_node_with_another_codec_is_refused_and_told_so() {
    let nodes = TwoNodes::new().await;
    let clerks = |name| EntityType::new(CLERK, |_| Ok(Clerk)).codec(json(name)).role("host");
    let first = nodes.host.sharding.init(clerks("clerk.a")).unwrap();
    assert_eq!(first.entity_ref("1").ask(Question::Fine).await, Ok(FaultyAnswer::Fine));
    let later = nodes.asker.sharding.init(clerks("clerk.b")).unwrap();
    let mut events = later.subscribe();
    let refused = async {
        loop {
            if let Event::Region(RegionEvent::Refused(mismatch)) = events.next().await.unwrap() {
                return mismatch;
            }
        }
    };
    let Mismatch { field, expected, got } = tokio::time::timeout(PATIENCE, refused).await.unwrap();
    assert_eq!(field, "codec");
    assert!(expected.contains("clerk.a") && got.contains("clerk.b"), "{expected} and {got}");
    let clerk = later.entity_ref("1");
    assert_eq!(clerk.tell(Question::Nothing), Err(SendError::Refused));
    assert_eq!(clerk.ask(Question::Fine).await, Err(AskError::Send(SendError::Refused)), "and it does not time out");
    assert_eq!(first.entity_ref("1").ask(Question::Fine).await, Ok(FaultyAnswer::Fine), "the first one goes on");
}

/// serde tries the variants of an untagged enum one after the other: tokens are decoded that no handler ever sees.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_serde_read_in_vain_leaves_the_answer_to_the_handler() {
    const GUESSER: EntityKey<Guess> = EntityKey::new("Guesser");

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Guess {
        Number { to: ReplyTo<u64>, what: u64 },
        Word { to: ReplyTo<u64>, what: String },
    }

    struct Guesser;
    impl Entity for Guesser {
        type Message = Guess;

        fn receive(&mut self, guess: Guess, _: &mut Ctx<'_, Guess>) -> Result<(), Failure> {
            match guess {
                Guess::Number { to, what } => to.reply(what),
                Guess::Word { to, what } => to.reply(what.len() as u64),
            }
            Ok(())
        }
    }

    let nodes = TwoNodes::new().await;
    let guesser = nodes.init(|| EntityType::new(GUESSER, |_| Ok(Guesser)).codec(json("guess"))).entity_ref("1");
    assert_eq!(guesser.ask(|to| Guess::Number { to, what: 7 }).await, Ok(7));
    assert_eq!(guesser.ask(|to| Guess::Word { to, what: "four".to_owned() }).await, Ok(4));
}

/// A message that is no serde type: the token travels as bytes, the answer by its own codec.
struct Double(u64, ReplyTo<u64>);

struct ByHand;

impl Codec<Double> for ByHand {
    fn id(&self) -> CodecId {
        CodecId::FIRST_USER
    }

    fn manifest(&self, _: &Double) -> Manifest {
        "double".into()
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec!["double".into()]
    }

    fn encode(&self, Double(number, reply_to): &Double, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        buffer.extend_from_slice(&number.to_be_bytes());
        buffer.extend_from_slice(&ReplyTo::with(json::<u64>("doubled")).write(reply_to));
        Ok(())
    }

    fn decode(&self, manifest: &str, mut bytes: Bytes) -> Result<Double, DecodeError> {
        let number = bytes.try_get_u64().map_err(|error| DecodeError::malformed(manifest, error))?;
        let token = ReplyTo::with(json::<u64>("doubled")).read(&bytes);
        Ok(Double(number, token.map_err(|error| DecodeError::malformed(manifest, error))?))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_travels_by_the_codec_that_its_token_was_written_with() {
    const DOUBLER: EntityKey<Double> = EntityKey::new("Doubler");

    struct Doubler;
    impl Entity for Doubler {
        type Message = Double;

        fn receive(&mut self, Double(number, to): Double, _: &mut Ctx<'_, Double>) -> Result<(), Failure> {
            to.reply(2 * number);
            Ok(())
        }
    }

    let nodes = TwoNodes::new().await;
    let doublers = nodes.init(|| EntityType::new(DOUBLER, |_| Ok(Doubler)).codec(ByHand));
    assert_eq!(doublers.entity_ref("1").ask(|to| Double(21, to)).await, Ok(42));
}

/// Values that belong to a running process are refused when they would be stored, and the asker hears it.
#[tokio::test]
async fn neither_a_reference_nor_a_token_can_be_stored() {
    const PERSISTER: EntityKey<PersistReference> = EntityKey::new("ReferencePersister");

    struct PersistReference(ReplyTo<()>);

    #[derive(Serialize, Deserialize)]
    enum PersistedReference {
        Me(EntityRef<()>),
        Token(ReplyTo<()>),
    }

    struct ReferencePersister;
    impl EventSourced for ReferencePersister {
        type Command = PersistReference;
        type Event = PersistedReference;
        type State = ();

        fn on_command(
            &mut self,
            cx: &mut Ctx<'_, PersistReference>,
            (): &(),
            PersistReference(to): PersistReference,
        ) -> Effect<Self> {
            let other = cx.entity_ref(EntityKey::new("Other"), "1");
            Effect::<Self>::persist(PersistedReference::Me(other)).then_reply(to, |()| ())
        }

        fn apply((): &mut (), _: &PersistedReference) {}
    }

    let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    let sharding =
        Sharding::alone(remoting.clone(), Some(Stores::in_memory()), ShardingSettings::test()).await.unwrap();
    sharding.init(EntityType::event_sourced(PERSISTER, |_| Ok(ReferencePersister)).events(json("hoarded"))).unwrap();
    let refused = sharding.entity_ref(PERSISTER, "1").ask(PersistReference).await.unwrap_err();
    let AskError::Entity(EntityError::NotStored(NotStoredReason::Rejected(why))) = refused else {
        panic!("{refused:?}")
    };
    assert!(why.contains("a reference to an entity cannot be stored"), "{why}");

    let ask = remoting.open_ask(PATIENCE);
    let token = ReplyTo::new(ask.address, remoting.reply_port());
    let why = StoredCodec::new(json("hoarded")).encode(&PersistedReference::Token(token)).unwrap_err().to_string();
    assert!(why.contains("a reply token cannot be stored"), "{why}");
}
