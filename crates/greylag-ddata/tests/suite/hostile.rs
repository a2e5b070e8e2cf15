//! A hostile member uses other types, sends nonsense, lies, never ends transfers and never answers, against real
//! drivers: its messages are refused, counted and bounded, and all other members are served as before. Source: ddata
//! §9, G11, C8.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use greylag_core::{CodecId, Registry, UniqueAddress};
use greylag_crdt::{Digest, DotSource, GCounter, GSet, KeyRange, OrSet, Part, RangeSum, ReplicaId, ReplicatedData};
use greylag_crdt::{UpdateCx, WriterKey};
use greylag_ddata::{
    Content, Envelope as Entry, Key, KeyId, Membership, MembershipHandle, Message, Offer, Prefix, PruningNews,
    PruningRound, Read, ReadLevel, Replica, ReplicaStatus, Replicas, Replicator, ReplicatorSettings, RoundId,
    Sixteenths, Stats, Sum, TypeTable, WriteLevel,
};
use greylag_transport::memory::MemoryNetwork;
use greylag_transport::{Destination, Envelope, Inbound, Payload, Receiver, Recipient, Remoting};
use prost::Message as _;

const DEADLINE: Duration = Duration::from_secs(20);
const MANIFEST: &str = "gl.ddata/1";
const FRAGMENT: &str = "gl.ddata.fragment/1";

/// Counts the messages that the hostile member gets, and answers none.
#[derive(Default)]
struct MessageCounter {
    counts: Mutex<BTreeMap<usize, usize>>,
}

impl MessageCounter {
    fn messages(&self) -> usize {
        self.counts.lock().unwrap().values().sum()
    }
}

impl Receiver for MessageCounter {
    fn receive(&self, message: Inbound) {
        *self.counts.lock().unwrap().entry(message.payload.len()).or_default() += 1;
    }
}

/// Two honest nodes, a hostile member, and a stranger.
struct Scene {
    honest: [Replicator; 2],
    hostile: Arc<dyn Remoting>,
    /// A process that is no member.
    stranger: Arc<dyn Remoting>,
    victim: UniqueAddress,
    received: Arc<MessageCounter>,
    _memberships: Vec<MembershipHandle>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PbDigest {
    #[prost(fixed64, tag = "1")]
    high: u64,
    #[prost(fixed64, tag = "2")]
    low: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PbFragment {
    #[prost(uint64, tag = "1")]
    transfer: u64,
    #[prost(uint32, tag = "2")]
    index: u32,
    #[prost(uint32, tag = "3")]
    count: u32,
    #[prost(uint64, tag = "4")]
    total_bytes: u64,
    #[prost(message, optional, tag = "5")]
    digest: Option<PbDigest>,
    #[prost(bytes = "bytes", tag = "6")]
    data: Bytes,
}

impl Scene {
    async fn new(settings: ReplicatorSettings) -> Self {
        let network = MemoryNetwork::new();
        // Use own uids for every test, because numbers belong to an incarnation.
        static UIDS: AtomicU64 = AtomicU64::new(1);
        let uid = UIDS.fetch_add(4, Ordering::Relaxed);
        let address = |(n, name)| format!("{name}.hostile:1#{}", uid + n).parse().unwrap();
        let addresses: Vec<UniqueAddress> = (0..).zip(["a", "b", "h", "s"]).map(address).collect();
        let node = |index: usize| network.node(addresses[index].clone(), Arc::new(Registry::new()));
        let (hostile, stranger) = (node(2), node(3));
        let received = Arc::new(MessageCounter::default());
        hostile.register("ddata/ddata", received.clone());
        hostile.register(&format!("{}ddata/ddata", Recipient::BULK_PREFIX), received.clone());
        let mut memberships = Vec::new();
        let mut start = |own: usize| {
            let others = (0..3).filter(|index| *index != own).map(|index| Replica {
                address: addresses[index].clone(),
                // WeaklyUp takes part in deltas and rounds; a voter that never answers would delay requests.
                status: if index == 2 { ReplicaStatus::WeaklyUp } else { ReplicaStatus::Up },
                reachable: true,
                age: index as u64,
            });
            let up = Some(ReplicaStatus::Up);
            let replicas = Replicas { own_status: up, others: others.collect(), ..Replicas::default() };
            let (handle, membership) = Membership::manual(replicas);
            memberships.push(handle);
            Replicator::start(settings.clone(), TypeTable::new(), node(own), membership).unwrap()
        };
        let honest = [start(0), start(1)];
        for node in &honest {
            assert!(node.wait_synced(DEADLINE).await);
        }
        Self { honest, hostile, stranger, victim: addresses[0].clone(), received, _memberships: memberships }
    }

    fn raw(&self, bulk: bool, manifest: &'static str, bytes: Vec<u8>) {
        self.raw_from(&self.hostile, bulk, manifest, bytes);
    }

    fn raw_from(&self, from: &Arc<dyn Remoting>, bulk: bool, manifest: &'static str, bytes: Vec<u8>) {
        let path = if bulk { format!("{}ddata/ddata", Recipient::BULK_PREFIX) } else { "ddata/ddata".to_owned() };
        let envelope = Envelope::new(Recipient::new(path), CodecId::PROST, manifest, bytes);
        // Ignore a full queue, which loses the message.
        drop(from.send(&Destination::Incarnation(self.victim.clone()), envelope.to_uid(self.victim.uid())));
    }

    fn say(&self, message: Message) {
        let payload = Payload::Value(Box::new(message));
        let envelope = Envelope::with_payload(Recipient::new("ddata/ddata"), CodecId::PROST, MANIFEST, payload);
        drop(self.hostile.send(&Destination::Incarnation(self.victim.clone()), envelope.to_uid(self.victim.uid())));
    }

    fn fragment(&self, piece: &PbFragment) {
        self.raw(true, FRAGMENT, piece.encode_to_vec());
    }

    async fn stats(&self) -> Stats {
        self.honest[0].stats().await.unwrap()
    }

    /// Waits until the victim has counted something.
    async fn counted(&self, what: impl Fn(&Stats) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !what(&self.stats().await) {
            assert!(Instant::now() < deadline, "{:?}", self.stats().await);
            tokio::task::yield_now().await;
        }
    }

    /// Checks that the honest two still agree with each other, at once.
    async fn still_serves(&self) {
        let key = Key::<GCounter>::new("honest").unwrap();
        let add = |counter: &mut GCounter, cx: &mut UpdateCx<'_>| counter.increment(cx, 1);
        let before = self.honest[1].get(&key, ReadLevel::majority(DEADLINE)).await.unwrap();
        let before = before.found().map_or(0, |counter| counter.value());
        self.honest[0].update(&key, WriteLevel::To { n: 2, timeout: DEADLINE }, GCounter::new, add).await.unwrap();
        let after = self.honest[1].get(&key, ReadLevel::majority(DEADLINE)).await.unwrap();
        assert_eq!(after.found().map(|counter| counter.value()), Some(before + 1));
    }
}

fn settings() -> ReplicatorSettings {
    ReplicatorSettings { inner_tree_keys: 16, ..ReplicatorSettings::test() }
}

fn entry(value: &impl ReplicatedData, tag: &str) -> Entry {
    let bytes = value.to_untagged_bytes().into();
    let content = Content::Value { tag: tag.into(), bytes };
    Entry::of(content)
}

fn counter(by: u64) -> GCounter {
    let (numbers, writer) = (DotSource::new(), WriterKey::new(*b"h"));
    let mut counter = GCounter::new();
    counter.increment(&mut UpdateCx::new(&numbers, ReplicaId(3), &writer, 0), by).unwrap();
    counter
}

fn set(elements: impl IntoIterator<Item = String>) -> OrSet<String> {
    let (numbers, writer) = (DotSource::new(), WriterKey::new(*b"h"));
    let mut set = OrSet::new();
    set.add_all(&mut UpdateCx::new(&numbers, ReplicaId(3), &writer, 0), elements);
    set
}

/// ddata A5, G14: another type under the same key, unknown types, and bytes that are no value are refused and counted;
/// the entry and everything else stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_type_under_the_same_key() {
    let scene = Scene::new(settings()).await;
    let key = Key::<GCounter>::new("mine").unwrap();
    let add = |counter: &mut GCounter, cx: &mut UpdateCx<'_>| counter.increment(cx, 5);
    scene.honest[0].update(&key, WriteLevel::Local, GCounter::new, add).await.unwrap();
    let set_tag = OrSet::<String>::TAG.to_string();
    let entries: Vec<(KeyId, Entry)> = vec![
        ("mine".into(), entry(&set(["x".to_owned()]), &set_tag)),
        ("unknown".into(), entry(&counter(1), "no.such.type/1")),
        ("broken".into(), entry(&counter(1), &set_tag)),
        ("fine".into(), entry(&counter(7), &GCounter::TAG.to_string())),
    ];
    scene.say(Message::Gossip { round: None, number: 0, send_back: true, entries });
    scene.counted(|stats| (stats.type_mismatches, stats.unknown_types, stats.undecodable) == (1, 1, 1)).await;
    let value = |read: Read<GCounter>| read.found().map(|counter| counter.value());
    assert_eq!(value(scene.honest[0].get(&key, ReadLevel::Local).await.unwrap()), Some(5));
    let fine = Key::<GCounter>::new("fine").unwrap();
    assert_eq!(value(scene.honest[0].get(&fine, ReadLevel::Local).await.unwrap()), Some(7), "the rest is applied");
    assert_eq!(scene.honest[0].keys("", None, 10).await.unwrap(), ["fine".into(), "mine".into()]);
    // Offers in parts are refused in the same way.
    let other = set((0..40).map(|n| format!("{n:02}")));
    for (key, tag) in [("mine", set_tag.as_str()), ("unknown", "no.such.type/1"), ("counter", "gl.gcounter/1")] {
        open_round(&scene, 1);
        scene.say(offer(key, tag, &other, 1));
    }
    scene.counted(|stats| stats.type_mismatches == 2 && stats.unknown_types == 2 && stats.undecodable == 2).await;
    scene.still_serves().await;
}

/// Opens a round that the victim answers.
fn open_round(scene: &Scene, round: u64) {
    let root = Sum { count: 1, total: Digest(u128::from(round)) };
    scene.say(Message::SyncOpen { round, part: Sixteenths::ALL, root, pruning: PruningNews::default() });
}

const ROUND: RoundId = RoundId { opened_by_sender: true, number: 1 };

fn offer(key: &str, tag: &str, value: &OrSet<String>, number: u64) -> Message {
    let ranged = value.ranged().unwrap();
    let head = Entry::of(Content::Value { tag: tag.into(), bytes: Bytes::new() });
    let offer = Offer { head, context: ranged.context_bytes().into(), send_back: true };
    Message::InnerNodes {
        round: ROUND,
        number,
        key: key.into(),
        snapshot: Digest(9),
        offer: Some(Box::new(offer)),
        nodes: vec![(KeyRange::ALL, ranged.whole())],
    }
}

/// ddata §9: bytes that are no message are dropped and counted, on both mailboxes, and the link stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_bytes_are_dropped_and_counted() {
    let scene = Scene::new(settings()).await;
    let mut state = 7_u64;
    for n in 0..2_000_usize {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // The first byte names a field of a type that no message has, so the bytes are never a message by chance.
        let mut bytes = vec![0x0f];
        bytes.extend((0..n % 64).map(|at| (state >> (at % 8 * 8)) as u8));
        scene.raw(n % 2 == 0, if n % 3 == 0 { FRAGMENT } else { MANIFEST }, bytes);
    }
    scene.counted(|stats| stats.malformed == 2_000).await;
    scene.still_serves().await;
}

/// ddata G10: made-up sums and lists lead to an exchange that its window bounds, since it is never acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_digests_and_no_acknowledgement() {
    let scene = Scene::new(settings()).await;
    let tasks = (0..4).map(|task| {
        let node = scene.honest[0].clone();
        tokio::spawn(async move {
            for n in (task..4_000).step_by(4) {
                let key = Key::<GCounter>::new(format!("key-{n}")).unwrap();
                let add = |counter: &mut GCounter, cx: &mut UpdateCx<'_>| counter.increment(cx, 1);
                node.update(&key, WriteLevel::Local, GCounter::new, add).await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let before = scene.received.messages();
    open_round(&scene, 1);
    let prefix = |nibble: u64| Prefix::new(nibble << 60, 1).unwrap();
    for number in 1..200 {
        let sum = Sum { count: 3, total: Digest(number.into()) };
        let parents = (0..16).map(|nibble| (prefix(nibble), vec![sum; 16])).collect();
        scene.say(Message::SyncNodes { round: ROUND, number, parents });
    }
    scene.still_serves().await;
    let sent = scene.received.messages() - before;
    // Allow the window, an acknowledgement for each message, and the deltas and writes of others.
    assert!(sent < 200 + 200, "{sent} messages to who acknowledges nothing");
}

/// ddata G11: transfers that contradict themselves are aborted and counted, transfers that never end are bounded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fragments_that_never_end() {
    let scene = Scene::new(ReplicatorSettings { max_entry_bytes: 1024 * 1024, ..settings() }).await;
    let piece = |transfer, index, total_bytes| PbFragment {
        transfer,
        index,
        count: 1_000,
        total_bytes,
        digest: Some(PbDigest { high: 1, low: 2 }),
        data: Bytes::from(vec![7; 1_000]),
    };
    // Four may be under way; the next ones are refused, and so is one that is too large on its own.
    (0..104).for_each(|transfer| scene.fragment(&piece(transfer, 0, 1_000_000)));
    scene.fragment(&piece(900, 0, u64::MAX));
    scene.counted(|stats| stats.transfers_aborted == 101).await;
    // A repeated fragment, one out of range, one with another size: each ends one of the four.
    scene.fragment(&piece(0, 0, 1_000_000));
    scene.fragment(&piece(1, 1_000, 1_000_000));
    scene.fragment(&piece(2, 1, 999_999));
    scene.counted(|stats| stats.transfers_aborted == 104).await;
    // The whole does not match its announced digest.
    scene.fragment(&PbFragment { count: 1, total_bytes: 1_000, ..piece(1_000, 0, 0) });
    scene.counted(|stats| stats.transfers_aborted == 105).await;
    // Fragments of a process that is no member are not buffered: not even a transfer beyond the limit is checked.
    let strangers = scene.stats().await.from_strangers;
    for transfer in 0..10 {
        scene.raw_from(&scene.stranger, true, FRAGMENT, piece(transfer, 0, 1_000_000).encode_to_vec());
    }
    scene.counted(|stats| stats.from_strangers == strangers + 10).await;
    assert_eq!(scene.stats().await.transfers_aborted, 105);
    scene.still_serves().await;
}

/// ddata G12: parts that were not asked for, or that are malformed, end the exchange of that value and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_that_make_no_sense() {
    let scene = Scene::new(settings()).await;
    let theirs = set((0..40).map(|n| format!("{n:02}")));
    let tag = OrSet::<String>::TAG.to_string();
    let bucket = |number, part| Message::Bucket { round: ROUND, number, key: "k".into(), snapshot: Digest(9), part };
    let whole = theirs.ranged().unwrap().part(&KeyRange::ALL, 1 << 20).unwrap();
    let elsewhere = KeyRange { from: Some(vec![1, b'x']), to: None };
    let odd = [
        Part { range: elsewhere, ..whole.clone() },
        Part { bytes: vec![1, 2, 3], ..whole.clone() },
        Part {
            bytes: set(["x".to_owned()]).ranged().unwrap().part(&KeyRange::ALL, 99).unwrap().bytes,
            ..whole.clone()
        },
    ];
    for (index, part) in odd.into_iter().enumerate().take(2) {
        open_round(&scene, 1);
        scene.say(offer("k", &tag, &theirs, 1));
        scene.say(bucket(2, part));
        scene.counted(|stats| stats.transfers_aborted == index as u64 + 1).await;
    }
    open_round(&scene, 1);
    scene.say(offer("k", &tag, &theirs, 1));
    let nodes = vec![(KeyRange::ALL, RangeSum { count: 1, total: Digest(1) })];
    let (key, snapshot) = ("k".into(), Digest(9));
    scene.say(Message::InnerNodes { round: ROUND, number: 2, key, snapshot, offer: None, nodes });
    scene.counted(|stats| stats.transfers_aborted == 3).await;
    assert!(scene.honest[0].keys("k", None, 1).await.unwrap().is_empty(), "nothing of it is held");
    // The same value, sent correctly, is accepted.
    open_round(&scene, 1);
    scene.say(offer("k", &tag, &theirs, 1));
    scene.say(bucket(2, whole));
    scene.counted(|stats| stats.repaired_in_parts == 1).await;
    assert_eq!(scene.honest[0].keys("k", None, 1).await.unwrap(), ["k".into()]);
    scene.still_serves().await;
}

/// ddata G3, G11: a great many keys from one member are handled message by message, and others are served in between; a
/// message with more items than allowed is malformed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_great_many_keys() {
    let scene = Scene::new(settings()).await;
    let (tag, value) = (GSet::<String>::TAG.to_string(), GSet::<String>::new());
    let keys = 20_000;
    for from in (0..keys).step_by(500) {
        let entries = (from..from + 500).map(|n| (format!("flood-{n}").into(), entry(&value, &tag))).collect();
        scene.say(Message::Gossip { round: None, number: 0, send_back: false, entries });
    }
    scene.still_serves().await;
    let deadline = Instant::now() + DEADLINE;
    while scene.honest[0].metrics().await.unwrap().keys < keys {
        assert!(Instant::now() < deadline);
        tokio::task::yield_now().await;
    }
    let entries = (0..10_001).map(|n| (format!("more-{n}").into(), entry(&value, &tag))).collect();
    scene.say(Message::Gossip { round: None, number: 0, send_back: false, entries });
    scene.counted(|stats| stats.malformed == 1).await;
    assert!(scene.honest[0].keys("more", None, 1).await.unwrap().is_empty());
    scene.still_serves().await;
}

/// ddata Z3, G11: a great many pruning rounds are bounded in the same way; as many as allowed are accepted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_great_many_rounds_of_pruning() {
    let scene = Scene::new(settings()).await;
    let round =
        |removed| PruningRound { removed: ReplicaId(removed), epoch: 1, owner: ReplicaId(7), created_at: i64::MAX };
    let told = |count: u64| PruningNews {
        rounds: (1_000..1_000 + count).map(round).collect(),
        standing: greylag_ddata::Standing::default(),
    };
    scene.say(Message::SyncSame { round: 1, pruning: told(8_193) });
    scene.counted(|stats| stats.malformed == 1).await;
    scene.say(Message::SyncSame { round: 1, pruning: told(8_192) });
    scene.still_serves().await;
    scene.counted(|stats| stats.malformed == 1).await;
}

/// ddata G8: the log for a member that acknowledges nothing is bounded, and others get everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_never_acknowledges_delays_no_other() {
    let scene = Scene::new(ReplicatorSettings { delta_log_max_entries: 100, ..settings() }).await;
    let key = Key::<OrSet<String>>::new("set").unwrap();
    for n in 0..1_000 {
        let add = move |set: &mut OrSet<String>, cx: &mut UpdateCx<'_>| {
            set.add(cx, n.to_string());
            Ok::<_, ()>(())
        };
        scene.honest[0].update(&key, WriteLevel::Local, OrSet::new, add).await.unwrap();
    }
    assert!(scene.honest[0].metrics().await.unwrap().log_records <= 100);
    let deadline = Instant::now() + DEADLINE;
    loop {
        let read = scene.honest[1].get(&key, ReadLevel::Local).await.unwrap();
        if read.found().is_some_and(|set| set.len() == 1_000) {
            break;
        }
        assert!(Instant::now() < deadline);
        tokio::task::yield_now().await;
    }
    scene.still_serves().await;
}
