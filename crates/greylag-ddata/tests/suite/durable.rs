//! Durable entries at machine level: what is acknowledged when, with a disk that answers when the test says so.
//!
//! Replicas `w`, `b` and `c`; a message is delivered when the test hands it over. Source: ddata U3–U5, R12.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use greylag_crdt::{DotSource, GCounter, GSet, ReplicaId, ReplicatedData, UpdateCx};
use greylag_ddata::{
    BatchItem, DeleteError, DeltaItem, DurableSettings, Effect, GetError, Input, Key, Lifecycle, LoadedRecord, Message,
    OnBadRecord, PruningNews, Read, ReadLevel, ReadReply, Refusal, Replica, ReplicaStatus, Replicas, ReplicatorCore,
    ReplicatorEvent, ReplicatorSettings, Reply, RequestError, Sixteenths, StaleStore, Standing, Start, Starts,
    StartsOrDigest, StopReason, StoreError, StoreImage, StoreMeta, StoreOp, Sum, TypeTable, UpdateError, WriteLevel,
    WriteReply,
};

const TIMEOUT: Duration = Duration::from_secs(5);

fn address(name: &str) -> UniqueAddress {
    let uid = 1 + u64::from(name.as_bytes()[0] - b'a');
    format!("{name}:1#{uid}").parse().unwrap()
}

fn no_space() -> StoreError {
    StoreError::Failed { place: "disk".into(), why: "no space".into() }
}

/// One replica, its disk, and the messages it sent since they were last taken.
struct Node {
    core: ReplicatorCore,
    now: Instant,
    wall: i64,
    disk: StoreImage,
    /// The store request that the disk has not answered yet.
    pending: Option<(u64, Vec<StoreOp>)>,
    sent: Vec<(UniqueAddress, Message)>,
    replies: BTreeMap<u64, Reply>,
    events: Vec<ReplicatorEvent>,
    loads: u32,
    aside: Vec<StoreImage>,
    ids: u64,
}

impl Node {
    fn new(name: &str, durable: DurableSettings, disk: StoreImage) -> Self {
        Self::with(name, durable, disk, |settings| settings)
    }

    fn with(
        name: &str,
        durable: DurableSettings,
        disk: StoreImage,
        change: impl FnOnce(ReplicatorSettings) -> ReplicatorSettings,
    ) -> Self {
        let settings = change(ReplicatorSettings { durable, pruning_interval: None, ..ReplicatorSettings::default() });
        let now = Instant::now();
        let types = TypeTable::new().with::<GSet<u64>>();
        let core = ReplicatorCore::new(settings, types, address(name), DotSource::new(), 7, now);
        let (sent, replies, events, aside) = (Vec::new(), BTreeMap::new(), Vec::new(), Vec::new());
        let (wall, pending, loads, ids) = (1_000, None, 0, 0);
        let mut node = Self { core, now, wall, disk, pending, sent, replies, events, loads, aside, ids };
        node.input(Input::Wall(1_000));
        node
    }

    /// A replica that is loaded, knows `others`, and has ended synchronizing.
    fn running(name: &str, others: &[&str], disk: StoreImage) -> Self {
        let mut node = Self::new(name, DurableSettings::of(["*"]), disk);
        node.load();
        node.meets(others);
        node.settle_disk(true);
        // No peer answers the rounds of this replica; `sync_timeout` ends synchronizing.
        node.advance(Duration::from_secs(31));
        // Let the store record the first exchange.
        for other in others {
            node.hears_of(other);
            node.receive(other, Message::DeltaBatch { from_seq: 1, to_seq: 1, items: Vec::new() });
        }
        node.settle_disk(true);
        node.sent.clear();
        assert_eq!(*node.core.lifecycle(), Lifecycle::Running);
        node
    }

    fn meets(&mut self, others: &[&str]) {
        let others = others.iter().zip(1..).map(|(other, age)| {
            let (address, status) = (address(other), ReplicaStatus::Up);
            Replica { address, status, reachable: true, age }
        });
        let replicas =
            Replicas { own_status: Some(ReplicaStatus::Up), others: others.collect(), ..Replicas::default() };
        self.input(Input::Replicas(Arc::new(replicas)));
    }

    /// Receives the standing of another replica that has nothing and knows no start.
    fn hears_of(&mut self, other: &str) {
        let (part, root, pruning) = (Sixteenths::NONE, Sum::default(), PruningNews::default());
        self.receive(other, Message::SyncOpen { round: 1, part, root, pruning });
    }

    fn load(&mut self) {
        let batch = self.disk.load();
        self.input(Input::Loaded(batch.records));
        self.input(Input::LoadDone(batch.meta));
    }

    fn input(&mut self, input: Input) {
        let mut out = Vec::new();
        self.core.handle(self.now, input, &mut out);
        self.take(out);
    }

    fn take(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { to, message, .. } => self.sent.push((to, message)),
                Effect::Reply { id, reply } => drop(self.replies.insert(id, reply)),
                Effect::Event(event) => self.events.push(event),
                Effect::Load => self.loads += 1,
                Effect::LoadAnew => {
                    self.aside.push(std::mem::take(&mut self.disk));
                    self.loads += 1;
                }
                Effect::Store { ticket, ops } => {
                    assert!(self.pending.is_none(), "one at a time");
                    self.pending = Some((ticket, ops));
                }
                Effect::Lifecycle(_) | Effect::Notify { .. } => {}
            }
        }
    }

    fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(at) = self.core.next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.input(Input::Tick);
            if self.pending.is_some() && self.core.next_deadline().is_some_and(|at| at <= self.now) {
                break;
            }
        }
        self.now = self.now.max(end);
    }

    /// Lets the disk answer the pending request.
    fn answer_disk(&mut self, is_ok: bool) {
        let (ticket, ops) = self.pending.take().expect("something was asked of the disk");
        if is_ok {
            ops.into_iter().for_each(|op| self.disk.apply(op));
        }
        let result = if is_ok { Ok(()) } else { Err(no_space()) };
        self.input(Input::Stored { ticket, result });
    }

    fn settle_disk(&mut self, is_ok: bool) {
        while self.pending.is_some() {
            self.answer_disk(is_ok);
        }
    }

    fn update<T: ReplicatedData>(
        &mut self,
        id: &str,
        level: WriteLevel,
        modify: impl FnOnce(&mut T, &mut UpdateCx<'_>),
    ) -> u64 {
        self.ids += 1;
        let (mut out, key) = (Vec::new(), Key::<T>::new(id).unwrap());
        let modify = |value: &mut T, cx: &mut UpdateCx<'_>| {
            modify(value, cx);
            Ok::<_, ()>(())
        };
        self.core.update(self.now, self.wall, self.ids, &key, level, T::zero, modify, &mut out).unwrap();
        self.take(out);
        self.ids
    }

    fn count(&mut self, level: WriteLevel) -> u64 {
        self.update::<GCounter>("c", level, |count, cx| count.increment(cx, 1).unwrap())
    }

    fn add(&mut self, level: WriteLevel, element: u64) -> u64 {
        self.update::<GSet<u64>>("s", level, |set, _| set.add(element))
    }

    fn receive(&mut self, from: &str, message: Message) {
        self.input(Input::Received { from: address(from), message });
    }

    fn ack(&mut self, from: &str, reply: WriteReply) {
        let asked = self.sent.iter().rev().find(|(to, _)| *to == address(from));
        let request = match asked.map(|(_, message)| message) {
            Some(
                Message::DeltaWrite { request, .. } | Message::Write { request, .. } | Message::Check { request, .. },
            ) => *request,
            other => panic!("{from} was not asked: {other:?}"),
        };
        self.receive(from, Message::WriteReply { request, reply });
    }

    /// The answers to writes of peers since they were last taken.
    fn write_replies(&mut self) -> Vec<WriteReply> {
        let sent = std::mem::take(&mut self.sent);
        sent.into_iter()
            .filter_map(|(_, message)| match message {
                Message::WriteReply { reply, .. } => Some(reply),
                _ => None,
            })
            .collect()
    }

    fn result(&self, id: u64) -> Option<Result<(), UpdateError<std::convert::Infallible>>> {
        match self.replies.get(&id)? {
            Reply::Update(result) => Some(result.clone()),
            other => panic!("{other:?}"),
        }
    }

    fn stored<T: ReplicatedData>(&self, id: &str) -> Option<T> {
        let mut node = Self::new("z", DurableSettings::of(["*"]), self.disk.clone());
        node.load();
        node.core.value(&Key::<T>::new(id).unwrap()).cloned()
    }
}

fn store_failed(id: &str) -> Result<(), UpdateError<std::convert::Infallible>> {
    Err(UpdateError::StoreFailed { key: id.into() })
}

/// The delta by which another replica's set gets these elements, and its full state.
fn from_writer(elements: &[u64]) -> (DeltaItem, greylag_ddata::Envelope) {
    let mut writer = Node::new("w", DurableSettings::default(), StoreImage::default());
    writer.meets(&["b"]);
    writer.hears_of("b");
    for element in elements {
        writer.add(WriteLevel::majority(TIMEOUT), *element);
    }
    let mut item = None;
    for (_, message) in std::mem::take(&mut writer.sent) {
        if let Message::DeltaWrite { item: found, .. } = message {
            item = Some(found);
        }
    }
    writer.advance(TIMEOUT / 5);
    let full = writer.sent.into_iter().find_map(|(_, message)| match message {
        Message::Write { envelope, .. } => Some(envelope),
        _ => None,
    });
    (item.unwrap(), full.expect("a peer that does not answer is sent the full state"))
}

/// ddata 39, U4: stored entries are loaded before anything is served; until then the machine refuses requests as
/// overloaded (the driver stashes them), peers get `NotReady`, and the replica does not count.
#[test]
fn scenario_39_everything_is_loaded_before_anything_is_served() {
    let mut before = Node::running("b", &[], StoreImage::default());
    for _ in 0..3 {
        before.count(WriteLevel::Local);
        before.settle_disk(true);
    }
    let mut node = Node::new("b", DurableSettings::of(["*"]), before.disk.clone());
    assert_eq!((node.core.lifecycle(), node.loads), (&Lifecycle::Loading, 1));
    node.meets(&["w"]);
    let id = 90;
    let tag = GCounter::TAG.to_string().into();
    node.input(Input::Get { id, key: "c".into(), tag, level: ReadLevel::Local });
    let overloaded = Reply::Get(Err(GetError::Request(RequestError::Overloaded)));
    assert_eq!(node.replies.remove(&id), Some(overloaded));
    let (item, envelope) = from_writer(&[1]);
    node.receive("w", Message::DeltaWrite { request: 1, item });
    node.receive("w", Message::Write { request: 2, key: "s".into(), envelope });
    node.receive("w", Message::Check { request: 3, key: "s".into(), digest: None });
    assert_eq!(node.write_replies(), vec![WriteReply::Nack(Refusal::NotReady); 3]);
    node.receive("w", Message::Read { request: 4, key: "c".into(), tag: "x".into(), digest: None });
    assert!(matches!(&node.sent[..], [(_, Message::ReadReply { reply: ReadReply::NotReady, .. })]), "{:?}", node.sent);
    node.sent.clear();
    node.advance(Duration::from_secs(600));
    assert_eq!(node.sent, [], "ticks do nothing");
    node.load();
    assert!(matches!(node.core.lifecycle(), Lifecycle::Syncing));
    assert!(node.sent.iter().any(|(_, message)| matches!(message, Message::SyncOpen { .. })), "sync starts");
    node.count(WriteLevel::Local);
    let count = node.core.value(&Key::<GCounter>::new("c").unwrap()).unwrap().value();
    assert_eq!(count, 4);
}

/// ddata 40, U5: loading is retried with growing pauses; then the replicator stops, and its reason names the store.
#[test]
fn scenario_40_an_unreadable_store_stops_the_replicator_and_an_unwritable_one_does_not() {
    let mut node = Node::new("b", DurableSettings::of(["*"]), StoreImage::default());
    for retry in 1..=3 {
        node.input(Input::LoadFailed(no_space()));
        assert_eq!((node.core.lifecycle(), node.loads), (&Lifecycle::Loading, retry));
        node.advance(Duration::from_secs(18));
        assert_eq!(node.loads, retry + 1);
    }
    node.input(Input::LoadFailed(no_space()));
    assert_eq!(*node.core.lifecycle(), Lifecycle::Stopped(StopReason::StoreLoadFailed(no_space())));
    assert!(StopReason::StoreLoadFailed(no_space()).to_string().contains("disk"), "the place is named");

    let mut node = Node::running("b", &[], StoreImage::default());
    let id = node.count(WriteLevel::Local);
    assert_eq!(node.result(id), None, "not before it is flushed");
    node.answer_disk(false);
    assert_eq!(node.result(id), Some(store_failed("c")));
    assert_eq!(node.core.value(&Key::<GCounter>::new("c").unwrap()).unwrap().value(), 1, "it is in memory");
    assert!(matches!(&node.events[..], [ReplicatorEvent::StoreError { unstored: 1, .. }]), "{:?}", node.events);
    // Space returns: the entry is stored without a request.
    node.advance(Duration::from_secs(6));
    node.settle_disk(true);
    assert_eq!(node.stored::<GCounter>("c").unwrap().value(), 1);
    assert_eq!(node.core.unstored(), 0);
}

/// ddata U5, 88: a store that has lost its end is not retried; it is left as it is, or set aside if the settings say
/// so.
#[test]
fn scenario_88_a_store_that_lost_its_end_stops_the_replicator_or_is_set_aside() {
    let lost = || StoreError::TailLost { place: "disk".into(), expected: 9, found: 7 };
    let image = StoreImage { meta: Some(StoreMeta::default()), ..StoreImage::default() };
    for stale_store in [StaleStore::Refuse, StaleStore::Force] {
        let durable = DurableSettings { stale_store, ..DurableSettings::of(["*"]) };
        let mut node = Node::new("b", durable, image.clone());
        node.input(Input::LoadFailed(lost()));
        let reason = StopReason::StoreTailLost { place: "disk".into(), expected: 9, found: 7 };
        assert!(["disk", "9", "7"].iter().all(|named| reason.to_string().contains(named)), "{reason}");
        assert_eq!(*node.core.lifecycle(), Lifecycle::Stopped(reason), "{stale_store:?}");
        assert_eq!((node.loads, node.aside.len()), (1, 0));
    }
    let durable = DurableSettings { stale_store: StaleStore::Discard, ..DurableSettings::of(["*"]) };
    let mut node = Node::new("b", durable.clone(), image.clone());
    node.input(Input::LoadFailed(lost()));
    assert_eq!((node.core.lifecycle(), &node.aside), (&Lifecycle::Loading, &vec![image]));
    assert!(matches!(&node.events[..], [ReplicatorEvent::StoreError { error: StoreError::TailLost { .. }, .. }]));
    node.load();
    assert_ne!(*node.core.lifecycle(), Lifecycle::Loading, "it goes on without what was stored");
    // If setting aside does not help, the replicator stops after a bounded number of tries.
    let mut node = Node::new("b", durable, StoreImage::default());
    (0..4).for_each(|_| node.input(Input::LoadFailed(lost())));
    assert_eq!(*node.core.lifecycle(), Lifecycle::Stopped(StopReason::StoreLoadFailed(lost())));
}

/// ddata U3: changes that come while a store request is under way share the next one; only the last state is stored.
#[test]
fn pending_changes_of_all_entries_share_one_flush() {
    let mut node = Node::running("b", &[], StoreImage::default());
    let first = node.count(WriteLevel::Local);
    let more: Vec<u64> = (0..100).map(|_| node.count(WriteLevel::Local)).collect();
    let other = node.add(WriteLevel::Local, 1);
    node.answer_disk(true);
    assert_eq!(node.result(first), Some(Ok(())));
    assert!(more.iter().chain([&other]).all(|id| node.result(*id).is_none()), "they are in memory only");
    assert_eq!(node.pending.as_ref().unwrap().1.len(), 2, "one change for each entry");
    node.answer_disk(true);
    assert!(more.iter().chain([&other]).all(|id| node.result(*id) == Some(Ok(()))));
    assert_eq!(node.stored::<GCounter>("c").unwrap().value(), 101);
}

/// ddata 46, R12: remote acknowledgements do not replace the own store; if that fails, this replica does not count and
/// another acknowledgement is needed; too many refusals end the update at once.
#[test]
fn scenario_46_the_own_store_counts_like_any_other() {
    let to_3 = WriteLevel::To { n: 3, timeout: TIMEOUT };
    let mut node = Node::running("b", &["c", "d", "e"], StoreImage::default());
    let id = node.count(to_3);
    let asked: Vec<String> = node.sent.iter().map(|(to, _)| to.to_string()[..1].to_owned()).collect();
    assert_eq!(asked.len(), 2);
    for peer in &asked {
        node.ack(peer, WriteReply::Ack);
    }
    assert_eq!(node.result(id), None, "two remote acknowledgements, and nothing on the own disk");
    node.answer_disk(true);
    assert_eq!(node.result(id), Some(Ok(())));

    let mut node = Node::running("b", &["c", "d", "e"], StoreImage::default());
    let id = node.count(to_3);
    let asked: Vec<String> = node.sent.iter().map(|(to, _)| to.to_string()[..1].to_owned()).collect();
    for peer in &asked {
        node.ack(peer, WriteReply::Ack);
    }
    node.sent.clear();
    node.answer_disk(false);
    assert_eq!(node.result(id), None, "one more is needed");
    let [(next, _)] = &node.sent[..] else { panic!("{:?}", node.sent) };
    let next = next.to_string()[..1].to_owned();
    assert!(!asked.contains(&next));
    node.ack(&next, WriteReply::Ack);
    assert_eq!(node.result(id), Some(Ok(())), "three others hold it");

    let mut node = Node::running("b", &["c", "d", "e"], StoreImage::default());
    let id = node.count(to_3);
    let asked: Vec<String> = node.sent.iter().map(|(to, _)| to.to_string()[..1].to_owned()).collect();
    node.ack(&asked[0], WriteReply::Nack(Refusal::Store));
    assert_eq!(node.result(id), None, "one refusal can be made up for");
    node.answer_disk(false);
    assert_eq!(node.result(id), Some(store_failed("c")), "long before the time is over");
}

/// ddata 46, R12: a replica that could not store the entry does not count; another one makes up for it.
#[test]
fn scenario_46_a_remote_store_that_failed_is_made_up_for() {
    let mut node = Node::running("b", &["c", "d", "e"], StoreImage::default());
    let id = node.count(WriteLevel::To { n: 3, timeout: TIMEOUT });
    let asked: Vec<String> = node.sent.iter().map(|(to, _)| to.to_string()[..1].to_owned()).collect();
    node.answer_disk(true);
    node.ack(&asked[0], WriteReply::Nack(Refusal::Store));
    let next = node.sent.last().map(|(to, _)| to.to_string()[..1].to_owned()).unwrap();
    assert!(!asked.contains(&next), "another replica is asked");
    node.ack(&asked[1], WriteReply::Ack);
    assert_eq!(node.result(id), None);
    node.ack(&next, WriteReply::Ack);
    assert_eq!(node.result(id), Some(Ok(())));
}

/// ddata 72, U3: nothing of an entry is acknowledged while a part of it is not on disk, whether a caller or a peer
/// asks, and whether or not the request changes anything.
#[test]
fn scenario_72_nothing_is_acknowledged_before_it_is_flushed() {
    let (item, envelope) = from_writer(&[1, 5]);
    let digest_of_it = || {
        let mut reader = Node::running("b", &["w"], StoreImage::default());
        let full = BatchItem::Full { key: "s".into(), envelope: envelope.clone() };
        reader.receive("w", Message::DeltaBatch { from_seq: 1, to_seq: 1, items: vec![full] });
        reader.core.digests().remove("s").unwrap()
    };
    let digest = digest_of_it();
    // A batch brings the value; its acknowledgement speaks of memory only.
    let with_batch = || {
        let mut node = Node::running("b", &["w"], StoreImage::default());
        let full = BatchItem::Full { key: "s".into(), envelope: envelope.clone() };
        node.receive("w", Message::DeltaBatch { from_seq: 1, to_seq: 1, items: vec![full] });
        assert!(matches!(&node.sent[..], [(_, Message::DeltaAck { .. })]), "{:?}", node.sent);
        node.sent.clear();
        node
    };
    let ask = |node: &mut Node| {
        node.receive("w", Message::DeltaWrite { request: 1, item: item.clone() });
        node.receive("w", Message::Check { request: 2, key: "s".into(), digest: Some(digest) });
        node.receive("w", Message::Write { request: 3, key: "s".into(), envelope: envelope.clone() });
        node.add(WriteLevel::Local, 5)
    };

    let mut node = with_batch();
    let id = ask(&mut node);
    assert_eq!((node.write_replies(), node.result(id)), (vec![], None), "the append is pending");
    node.answer_disk(true);
    assert_eq!((node.write_replies(), node.result(id)), (vec![WriteReply::Ack; 3], Some(Ok(()))));
    assert_eq!(node.stored::<GSet<u64>>("s").unwrap().len(), 2);

    // The append fails: each request stores first, and is refused if that fails too.
    let mut node = with_batch();
    let id = ask(&mut node);
    node.answer_disk(false);
    assert_eq!((node.write_replies(), node.result(id)), (vec![], None), "it is stored anew for them");
    node.answer_disk(false);
    assert_eq!(node.write_replies(), vec![WriteReply::Nack(Refusal::Store); 3]);
    assert_eq!(node.result(id), Some(store_failed("s")));
    assert!(node.pending.is_none());

    // Asked again after the failure, each request has the entry stored before it is answered.
    let id = ask(&mut node);
    assert_eq!((node.write_replies(), node.result(id)), (vec![], None));
    node.settle_disk(true);
    assert_eq!((node.write_replies(), node.result(id)), (vec![WriteReply::Ack; 3], Some(Ok(()))));
    assert_eq!(node.stored::<GSet<u64>>("s").unwrap().len(), 2);

    // When everything is stored, a request that changes nothing stores nothing.
    let id = ask(&mut node);
    assert_eq!((node.write_replies(), node.result(id)), (vec![WriteReply::Ack; 3], Some(Ok(()))));
    assert!(node.pending.is_none());
}

/// ddata 72: if the replica is killed at any point, everything that was acknowledged is on disk.
#[test]
fn scenario_72_killed_at_any_point_all_that_was_acknowledged_is_on_disk() {
    // The disk answers after each step whose bit is set: always well, or, in half of the schedules, sometimes badly
    // first.
    let mut confirmed = 0;
    for schedule in 0..1_u32 << 9 {
        let mut node = Node::running("b", &["w"], StoreImage::default());
        let mut expected: BTreeMap<u64, u64> = BTreeMap::new();
        for step in 0..8_u64 {
            let id = node.add(WriteLevel::Local, step);
            expected.insert(id, step);
            // A peer asks whether this replica holds the present state.
            let digest = node.core.digests().get("s").copied();
            node.receive("w", Message::Check { request: step, key: "s".into(), digest });
            if schedule & (1 << step) != 0 && node.pending.is_some() {
                node.answer_disk(schedule & (1 << 8) == 0 || step % 3 != 0);
            }
            // If the replica is killed here, this is what the disk holds.
            let on_disk = node.stored::<GSet<u64>>("s").unwrap_or_default();
            for (id, element) in &expected {
                let is_acknowledged = node.result(*id) == Some(Ok(()));
                assert!(!is_acknowledged || on_disk.contains(element), "{schedule:b}: {element} was acknowledged");
            }
            for (_, message) in std::mem::take(&mut node.sent) {
                let Message::WriteReply { request, reply: WriteReply::Ack } = message else { continue };
                let has_all = (0..=request).all(|element| on_disk.contains(&element));
                assert!(has_all, "{schedule:b}: what there was at {request} was confirmed to a peer");
                confirmed += 1;
            }
        }
    }
    assert!(confirmed > 1_000, "peers are answered");
}

/// ddata R13, U3: the state that a read joined is stored before the read is answered.
#[test]
fn a_read_answers_when_what_it_found_is_stored() {
    let (_, envelope) = from_writer(&[1, 5]);
    let mut node = Node::running("b", &["w"], StoreImage::default());
    let tag = GSet::<u64>::TAG.to_string().into();
    node.input(Input::Get { id: 1, key: "s".into(), tag, level: ReadLevel::all(TIMEOUT) });
    let [(_, Message::Read { request, .. })] = &node.sent[..] else { panic!("{:?}", node.sent) };
    let (request, reply) = (*request, ReadReply::Value(envelope));
    node.receive("w", Message::ReadReply { request, reply });
    assert_eq!(node.replies.get(&1), None);
    node.answer_disk(true);
    assert!(matches!(node.replies.get(&1), Some(Reply::Get(Ok(Read::Found(_))))), "{:?}", node.replies);
}

/// ddata U3: with write-behind a change is acknowledged at once, the last state is stored, and failures are not
/// reported to callers.
#[test]
fn changes_written_behind_are_acknowledged_at_once() {
    let interval = Duration::from_secs(3);
    let durable = DurableSettings { write_behind_interval: Some(interval), ..DurableSettings::of(["*"]) };
    let mut node = Node::new("b", durable, StoreImage::default());
    node.load();
    node.meets(&[]);
    node.advance(interval);
    node.settle_disk(true);
    for _ in 0..5 {
        let id = node.count(WriteLevel::Local);
        assert_eq!(node.result(id), Some(Ok(())));
    }
    assert!(node.pending.is_none());
    node.advance(interval);
    assert_eq!(node.pending.as_ref().unwrap().1.len(), 1);
    node.answer_disk(false);
    assert_eq!(node.events.len(), 1, "it is logged");
    node.advance(interval * 4);
    node.settle_disk(true);
    assert_eq!(node.stored::<GCounter>("c").unwrap().value(), 5);
    // A stop writes at once.
    node.count(WriteLevel::Local);
    node.input(Input::Stop(StopReason::ShutDown));
    assert!(!matches!(node.core.lifecycle(), Lifecycle::Stopped(_)));
    node.settle_disk(true);
    assert_eq!(*node.core.lifecycle(), Lifecycle::Stopped(StopReason::ShutDown));
    assert_eq!(node.stored::<GCounter>("c").unwrap().value(), 6);
}

/// ddata U2, H4: a large entry is stored as a snapshot and deltas, and as a new snapshot when the deltas are half of
/// it.
#[test]
fn a_small_change_of_a_large_entry_is_a_small_write() {
    let mut node = Node::running("b", &[], StoreImage::default());
    node.update::<GSet<u64>>("s", WriteLevel::Local, |set, _| {
        (0..20_000).for_each(|element| set.add(element << 32));
    });
    node.settle_disk(true);
    let (mut deltas, mut snapshots) = (0, 0);
    for round in 1..300_u64 {
        node.update::<GSet<u64>>("s", WriteLevel::Local, |set, _| {
            (0..50).for_each(|element| set.add(((round * 50 + element) << 40) | 1));
        });
        for op in &node.pending.as_ref().unwrap().1 {
            match op {
                StoreOp::Delta { bytes, .. } => {
                    assert!(bytes.len() < 1_000, "{}", bytes.len());
                    deltas += 1;
                }
                StoreOp::Put { .. } => snapshots += 1,
                _ => {}
            }
        }
        node.settle_disk(true);
        if round % 90 == 0 {
            let held = node.core.value(&Key::<GSet<u64>>::new("s").unwrap()).unwrap().len();
            assert_eq!(node.stored::<GSet<u64>>("s").unwrap().len(), held);
        }
    }
    assert!(deltas > 280 && (1..5).contains(&snapshots), "{deltas} deltas, {snapshots} snapshots");
}

/// ddata U5: a record that cannot be read stops the replicator, or is moved aside; a record of an unknown type stays in
/// the store, and is served as soon as its type is known.
#[test]
fn bad_records_stop_the_replicator_or_are_moved_aside() {
    let bad = |image: &mut StoreImage| {
        let record = LoadedRecord::Bad { key: "bad".into(), why: "a bit has flipped".into() };
        image.records.insert("bad".into(), record);
    };
    let mut disk = StoreImage::default();
    bad(&mut disk);
    let mut node = Node::new("b", DurableSettings::of(["*"]), disk.clone());
    node.load();
    assert!(matches!(node.core.lifecycle(), Lifecycle::Stopped(StopReason::BadRecord { key, .. }) if &**key == "bad"));
    assert!(node.pending.is_none(), "nothing is written");

    let mut unknown = GSet::<i8>::new();
    unknown.add(7);
    disk.records.insert(
        "u".into(),
        LoadedRecord::Value {
            key: "u".into(),
            tag: GSet::<i8>::TAG.to_string().into(),
            bytes: unknown.to_untagged_bytes().into(),
            markers: greylag_crdt::Markers::new(),
            deltas: Vec::new(),
        },
    );
    let quarantine = DurableSettings { on_bad_record: OnBadRecord::Quarantine, ..DurableSettings::of(["*"]) };
    let mut node = Node::new("b", quarantine, disk);
    node.load();
    node.settle_disk(true);
    let [ReplicatorEvent::RecordQuarantined { key, .. }, ReplicatorEvent::RecordOfUnknownType { key: other, .. }] =
        &node.events[..]
    else {
        panic!("{:?}", node.events)
    };
    assert_eq!((&**key, &**other), ("bad", "u"));
    assert_eq!(node.disk.quarantined.len(), 1);
    assert!(node.disk.records.contains_key("u"), "it is not damaged");
    // Another type does not replace the record; its own type is served as usual.
    let refused = node.core.update(
        node.now,
        0,
        70,
        &Key::<GCounter>::new("u").unwrap(),
        WriteLevel::Local,
        GCounter::new,
        |_, _| Ok::<_, ()>(()),
        &mut Vec::new(),
    );
    assert!(matches!(refused, Err(UpdateError::TypeMismatch { .. })), "{refused:?}");
    node.update::<GSet<i8>>("u", WriteLevel::Local, |set, _| set.add(8));
    node.settle_disk(true);
    assert_eq!(node.stored::<GSet<u64>>("u"), None);
    let held = node.core.value(&Key::<GSet<i8>>::new("u").unwrap()).unwrap();
    assert!(held.contains(&7) && held.contains(&8));
}

/// ddata Z9, U5: a stale store is discarded together with its records of unknown types.
#[test]
fn records_of_unknown_types_are_discarded_with_a_stale_store() {
    let mut disk = StoreImage::default();
    let mut late = GSet::<u8>::zero();
    late.add(7);
    let (tag, bytes) = (GSet::<u8>::TAG.to_string().into(), late.to_untagged_bytes().into());
    let key: greylag_ddata::KeyId = "late".into();
    disk.apply(StoreOp::Put { key: key.clone(), tag, bytes, markers: greylag_crdt::Markers::new() });
    let (written_at, synced_at, removed) = (900, Some(900), [].into());
    disk.apply(StoreOp::Meta(StoreMeta {
        written_at,
        synced_at,
        has_met_others: true,
        removed,
        ..StoreMeta::default()
    }));
    let (on_bad_record, stale_store) = (OnBadRecord::Quarantine, StaleStore::Discard);
    let durable = DurableSettings { on_bad_record, stale_store, ..DurableSettings::of(["*"]) };
    let mut node = Node::new("b", durable, disk);
    node.load();
    node.meets(&["w"]);
    let starts = StartsOrDigest::Listed(Starts::of([Start { maker: ReplicaId(23), base: Some(970) }]));
    let standing = Standing { forget_horizon: Some(950), starts, is_current: true, ..Standing::default() };
    let pruning = PruningNews { rounds: Vec::new(), standing };
    node.receive("w", Message::SyncOpen { round: 1, part: Sixteenths::ALL, root: Sum::default(), pruning });
    let told = node.events.last();
    assert!(matches!(told, Some(ReplicatorEvent::StaleStore { dropped: 1, .. })), "{told:?}");
    node.core.add_type::<GSet<u8>>();
    node.settle_disk(true);
    assert_eq!(node.core.value(&Key::<GSet<u8>>::new("late").unwrap()), None);
    assert!(!node.disk.records.contains_key(&key), "nor is it loaded the next time");
}

/// ddata Z9, Z11: before its gate is open, a store's markers leave with the present as their time: a member that got
/// their former times would forget them before others have heard of them.
#[test]
fn markers_of_a_store_that_passed_leave_as_performed_now() {
    let mut markers = greylag_crdt::Markers::new();
    let mut marker = greylag_crdt::Performed::new(ReplicaId(99), ReplicaId(98));
    (marker.performed_at, marker.obsolete_at) = (890, Some(895));
    markers.add(&marker);
    // Performed so long before the histories parted that all had heard of it.
    let long_ago = -400_000;
    let mut known_to_all = greylag_crdt::Performed::new(ReplicaId(97), ReplicaId(98));
    (known_to_all.performed_at, known_to_all.obsolete_at) = (long_ago, Some(5_000));
    markers.add(&known_to_all);
    let mut held = GSet::<u64>::zero();
    held.add(7);
    let (tag, bytes) = (GSet::<u64>::TAG.to_string().into(), held.to_untagged_bytes().into());
    let mut disk = StoreImage::default();
    disk.apply(StoreOp::Put { key: "s".into(), tag, bytes, markers });
    let (written_at, synced_at, removed) = (900, Some(900), [].into());
    let meta = StoreMeta { written_at, synced_at, has_met_others: true, removed, ..StoreMeta::default() };
    disk.apply(StoreOp::Meta(meta));
    let mut node = Node::new("b", DurableSettings::of(["*"]), disk);
    node.load();
    node.meets(&["w"]);
    let starts = StartsOrDigest::Listed(Starts::of([Start { maker: ReplicaId(23), base: Some(970) }]));
    let standing = Standing { starts, is_current: true, ..Standing::default() };
    let pruning = PruningNews { rounds: Vec::new(), standing };
    node.receive("w", Message::SyncOpen { round: 1, part: Sixteenths::ALL, root: Sum::default(), pruning });
    let is_closed = |node: &Node| node.core.pruning_news().standing.state == greylag_ddata::GateState::Closed;
    assert!(is_closed(&node), "no round is complete");
    let left = node.sent.iter().filter_map(|(_, message)| match message {
        Message::Gossip { entries, .. } => Some(entries),
        _ => None,
    });
    let times: BTreeSet<(i64, Option<i64>)> = left
        .flatten()
        .flat_map(|(_, of)| of.markers.iter().map(|marker| (marker.performed_at, marker.obsolete_at)))
        .collect();
    // The marker's end moves by the 100 ms for which the store was away.
    let life = DurableSettings::of(["*"]).pruning_marker_time_to_live.as_millis();
    let end = node.wall + i64::try_from(life).unwrap();
    assert_eq!(
        times,
        [(long_ago, Some(5_100)), (node.wall, Some(end))].into(),
        "or a receiver would forget it at once"
    );
}

/// A disk with an increment of the counter `c`, that was in touch until shortly before.
fn counted_disk() -> StoreImage {
    let mut node = Node::new("a", DurableSettings::of(["*"]), StoreImage::default());
    node.load();
    node.meets(&[]);
    node.settle_disk(true);
    node.count(WriteLevel::Local);
    node.settle_disk(true);
    let mut disk = node.disk;
    let (written_at, synced_at, removed) = (900, Some(900), [].into());
    let meta = StoreMeta { written_at, synced_at, has_met_others: true, removed, ..StoreMeta::default() };
    disk.apply(StoreOp::Meta(meta));
    disk
}

/// ddata C2, Z11: an update that waits while the store is judged is not confirmed if the store is then discarded with
/// the update's change: a peer would only confirm that it holds no less than nothing.
#[test]
fn a_change_discarded_with_a_store_is_not_confirmed() {
    let to = |n| WriteLevel::To { n, timeout: TIMEOUT };
    for (level, is_deleted) in [(to(2), false), (to(2), true), (WriteLevel::Local, false)] {
        let durable = DurableSettings { stale_store: StaleStore::Discard, ..DurableSettings::of(["*"]) };
        let mut node = Node::new("b", durable, counted_disk());
        node.load();
        node.meets(&["w"]);
        let id = if is_deleted {
            node.ids += 1;
            let (key, wall_ms) = ("c".into(), node.wall);
            node.input(Input::Delete { id: node.ids, key, level, wall_ms });
            node.ids
        } else {
            node.count(level)
        };
        assert!(!node.replies.contains_key(&id), "its gate is closed, or the disk has not answered");
        let starts = StartsOrDigest::Listed(Starts::of([Start { maker: ReplicaId(23), base: Some(970) }]));
        let standing = Standing { forget_horizon: Some(950), starts, is_current: true, ..Standing::default() };
        let pruning = PruningNews { rounds: Vec::new(), standing };
        node.receive("w", Message::SyncOpen { round: 1, part: Sixteenths::ALL, root: Sum::default(), pruning });
        assert!(matches!(node.events.last(), Some(ReplicatorEvent::StaleStore { dropped: 1, .. })));
        while let Some((_, ops)) = node.pending.clone() {
            let before = node.disk.clone();
            cut_after_each(&before, &ops, |left, kept| {
                let meta = left.meta.clone().expect("it was there before");
                let is_old = meta.has_met_others && meta.synced_at <= Some(900);
                assert!(is_old || !left.records.contains_key("c"), "cut after {kept} of {ops:?}: {meta:?}");
            });
            node.answer_disk(true);
        }
        let asks = |(_, message): &(UniqueAddress, Message)| matches!(message, Message::Check { .. });
        assert!(!node.sent.iter().any(asks), "no peer is asked to confirm nothing");
        match node.replies.get(&id) {
            Some(Reply::Update(Err(UpdateError::Timeout { needed: 2, acked: 1, .. }))) if !is_deleted => {}
            Some(Reply::Delete(Err(DeleteError::ReplicationFailed { needed: 2, acked: 1 }))) if is_deleted => {}
            Some(Reply::Update(Err(UpdateError::StoreFailed { .. }))) if level == WriteLevel::Local => {}
            other => panic!("{level:?}: {other:?}"),
        }
    }
}

/// Cuts the store after each of the operations handed to it, and inspects what is left.
fn cut_after_each(disk: &StoreImage, ops: &[StoreOp], mut look: impl FnMut(&StoreImage, usize)) {
    for kept in 0..=ops.len() {
        let mut left = disk.clone();
        ops[..kept].iter().cloned().for_each(|op| left.apply(op));
        look(&left, kept);
    }
}

/// ddata Z9, U1: wherever the store is cut, it has forgotten nothing without the horizon that records it: neither a
/// tombstone dropped by age, nor what a peer with a later horizon has forgotten.
#[test]
fn a_horizon_is_stored_before_what_is_forgotten_because_of_it() {
    let ttl = Duration::from_secs(600);
    let settings = |settings: ReplicatorSettings| ReplicatorSettings { delete_tombstone_ttl: Some(ttl), ..settings };
    let mut node = Node::with("b", DurableSettings::of(["*"]), StoreImage::default(), settings);
    node.load();
    node.meets(&[]);
    node.settle_disk(true);
    node.input(Input::Delete { id: 1, key: "d".into(), level: WriteLevel::Local, wall_ms: 1_000 });
    node.settle_disk(true);
    let before = node.disk.clone();
    node.now += ttl;
    node.input(Input::Wall(1_000 + 600_000));
    let ops = node.pending.clone().expect("the tombstone goes from the store").1;
    let horizon = Some(1_000 + 300_000);
    let mut forgotten = 0;
    cut_after_each(&before, &ops, |left, kept| {
        let knows = left.meta.as_ref().is_some_and(|meta| meta.forget_horizon >= horizon);
        forgotten += usize::from(!left.records.contains_key("d"));
        assert!(left.records.contains_key("d") || knows, "cut after {kept} of {ops:?}");
    });
    assert!(forgotten > 0, "it does go");

    // The same order holds when the first try to store the batch has failed.
    node.answer_disk(false);
    node.advance(Duration::from_secs(6));
    let ops = node.pending.clone().expect("it is tried again").1;
    cut_after_each(&before, &ops, |left, kept| {
        let knows = left.meta.as_ref().is_some_and(|meta| meta.forget_horizon >= horizon);
        assert!(left.records.contains_key("d") || knows, "cut after {kept} of {ops:?}");
    });
}

/// ddata Z9, U1: with whatever message a member's data come, the horizon that the member told is stored before them.
#[test]
fn a_horizon_is_stored_before_the_data_of_the_member_that_told_it() {
    let (item, envelope) = from_writer(&[1]);
    let tag = || GSet::<u64>::TAG.to_string().into();
    let full = BatchItem::Full { key: "s".into(), envelope: envelope.clone() };
    let gossip =
        Message::Gossip { round: None, number: 0, send_back: false, entries: vec![("s".into(), envelope.clone())] };
    let reply = |request| Message::ReadReply { request, reply: ReadReply::Value(envelope.clone()) };
    let deleted = |request| Message::WriteReply { request, reply: WriteReply::Deleted { deleted_at: 1_000 } };
    type Told<'a> = &'a dyn Fn(u64) -> Message;
    let messages: [Told<'_>; 6] = [
        &|request| Message::Write { request, key: "s".into(), envelope: envelope.clone() },
        &|request| Message::DeltaWrite { request, item: item.clone() },
        &|_| Message::DeltaBatch { from_seq: 1, to_seq: 1, items: vec![full.clone()] },
        &|_| gossip.clone(),
        &reply,
        &deleted,
    ];
    for message in messages {
        let mut node = Node::running("b", &["w"], StoreImage::default());
        // This replica makes requests, so that messages which answer one are accepted.
        node.input(Input::Get { id: 70, key: "s".into(), tag: tag(), level: ReadLevel::all(TIMEOUT) });
        node.add(WriteLevel::all(TIMEOUT), 7);
        node.settle_disk(true);
        let asked = |node: &Node, is_read: bool| {
            let of = |message: &Message| matches!(message, Message::Read { .. }) == is_read;
            node.sent.iter().filter(|(_, message)| of(message)).find_map(|(_, message)| message.request()).unwrap()
        };
        let message = message(asked(&node, matches!(message(0), Message::ReadReply { .. })));
        let standing = Standing { forget_horizon: Some(900), number: 1 << 40, ..Standing::default() };
        let pruning = PruningNews { rounds: Vec::new(), standing };
        node.receive("w", Message::SyncOpen { round: 9, part: Sixteenths::NONE, root: Sum::default(), pruning });
        node.settle_disk(true);
        let (before, told) = (node.disk.clone(), format!("{message:?}"));
        node.receive("w", message);
        let ops = node.pending.clone().expect("the entry is stored").1;
        cut_after_each(&before, &ops, |left, kept| {
            let knows = left.meta.as_ref().is_some_and(|meta| meta.forget_horizon == Some(900));
            let is_as_before = left.records.get("s") == before.records.get("s");
            assert!(knows || is_as_before, "{told}: cut after {kept} of {ops:?}");
        });
        node.answer_disk(true);
        assert_ne!(node.disk.records.get("s"), before.records.get("s"), "{told} has changed something");
    }
}

/// ddata Z9: while a change could not be stored, no later time in touch is stored, because it would vouch for the
/// missing change; and the store is not asked again and again for that.
#[test]
fn a_time_in_touch_is_not_stored_without_what_the_rounds_brought() {
    let mut node = Node::running("b", &["w"], StoreImage::default());
    node.settle_disk(true);
    let first = node.disk.meta.clone().unwrap().synced_at;
    node.wall += 50_000;
    node.now += Duration::from_secs(50);
    node.input(Input::Wall(node.wall));
    let entries = vec![("s".into(), from_writer(&[1]).1)];
    node.receive("w", Message::Gossip { round: None, number: 0, send_back: false, entries });
    // A first complete round changes the time in touch.
    for _ in 0..3 {
        node.advance(Duration::from_secs(3));
        for (_, message) in std::mem::take(&mut node.sent) {
            let Message::SyncOpen { round, pruning, .. } = message else { continue };
            let standing = Standing { starts: pruning.standing.starts, is_current: true, ..Standing::default() };
            node.receive("w", Message::SyncSame { round, pruning: PruningNews { rounds: Vec::new(), standing } });
        }
    }
    assert!(node.core.pruning_news().standing.synced_at > first, "a round is complete");
    node.answer_disk(false);
    let mut asked = 0;
    while let Some((_, ops)) = node.pending.clone() {
        asked += 1;
        assert!(asked < 9, "a disk that fails is left in peace for a while");
        if ops.iter().all(|op| matches!(op, StoreOp::Meta(_))) {
            node.answer_disk(true);
        } else {
            node.answer_disk(false);
        }
        let is_kept = node.disk.records.contains_key("s");
        assert!(is_kept || node.disk.meta.clone().unwrap().synced_at == first, "{:?}", node.disk.meta);
    }
    node.advance(Duration::from_secs(6));
    node.settle_disk(true);
    assert!(node.disk.records.contains_key("s"));
    let last = node.disk.meta.clone().unwrap().synced_at;
    assert!(last > first, "{first:?} {last:?}");
}

/// ddata U5, U1: a disk that fails is asked again after a pause and not at once, even if only the own record is to be
/// stored; and it is asked again without a request.
#[test]
fn a_disk_that_fails_is_left_in_peace_for_a_while() {
    let mut node = Node::new("b", DurableSettings::of(["*"]), StoreImage::default());
    node.load();
    node.meets(&[]);
    for _ in 0..3 {
        let ops = node.pending.clone().expect("it is told that there is a replicator").1;
        assert!(matches!(ops[..], [StoreOp::Meta(_)]), "{ops:?}");
        node.answer_disk(false);
        assert!(node.pending.is_none(), "not at once");
        node.advance(Duration::from_secs(4));
        assert!(node.pending.is_none(), "nor soon");
        node.advance(Duration::from_secs(2));
    }
}

/// ddata Z9, U1: after a failure the store does not record the later time in touch that was in the same batch; nor does
/// it become older than it was.
#[test]
fn a_time_in_touch_that_could_not_be_stored_is_not_stored_alone() {
    let (written_at, synced_at, removed) = (900, Some(900), [].into());
    let meta = StoreMeta { written_at, synced_at, has_met_others: true, removed, ..StoreMeta::default() };
    let disk = StoreImage { meta: Some(meta), ..StoreImage::default() };
    let mut node = Node::new("b", DurableSettings::of(["*"]), disk.clone());
    node.load();
    node.meets(&["w"]);
    // A current member lets the store pass, and a round with that member is complete.
    let number = 1 << 40;
    let starts = StartsOrDigest::Listed(Starts::of([Start { maker: ReplicaId(23), base: Some(970) }]));
    let standing = Standing { starts, number, is_current: true, ..Standing::default() };
    let news = || PruningNews { rounds: Vec::new(), standing: standing.clone() };
    node.receive("w", Message::SyncOpen { round: 1, part: Sixteenths::NONE, root: Sum::default(), pruning: news() });
    node.add(WriteLevel::Local, 1);
    node.answer_disk(true);
    for (_, message) in std::mem::take(&mut node.sent) {
        if let Message::SyncOpen { round, part: Sixteenths::ALL, .. } = message {
            node.receive("w", Message::SyncSame { round, pruning: news() });
        }
    }
    assert!(!node.core.is_gate_closed(), "the round has opened it");
    let later = node.core.pruning_news().standing.synced_at;
    assert!(later > synced_at, "{later:?}");
    while node.pending.is_some() {
        node.answer_disk(false);
    }
    let ops = {
        node.count(WriteLevel::Local);
        node.pending.clone().expect("another entry is to be stored").1
    };
    assert!(matches!(ops.last(), Some(StoreOp::Meta(_))), "{ops:?}");
    node.answer_disk(true);
    let kept = node.disk.meta.clone().unwrap().synced_at;
    assert!(!node.disk.records.contains_key("s"), "the first entry is not stored");
    assert_eq!(kept, synced_at, "neither later nor older than it was");
    node.advance(Duration::from_secs(6));
    node.settle_disk(true);
    assert!(node.disk.records.contains_key("s") && node.disk.meta.clone().unwrap().synced_at >= later);
}

/// ddata R14: local updates that wait for their disk do not count as requests to others, however many they are.
#[test]
fn local_updates_that_wait_for_the_disk_do_not_count_as_remote_requests() {
    let settings = |settings| ReplicatorSettings { max_in_flight: 3, ..settings };
    let mut node = Node::with("b", DurableSettings::of(["*"]), StoreImage::default(), settings);
    node.load();
    node.meets(&["w"]);
    node.hears_of("w");
    let ids: Vec<u64> = (0..5).map(|_| node.count(WriteLevel::Local)).collect();
    assert!(ids.iter().all(|id| node.result(*id).is_none()), "all wait");
    let far: Vec<u64> = (0..3).map(|_| node.count(WriteLevel::To { n: 2, timeout: TIMEOUT })).collect();
    let key = Key::<GCounter>::new("c").unwrap();
    let level = WriteLevel::To { n: 2, timeout: TIMEOUT };
    let change = |count: &mut GCounter, cx: &mut UpdateCx<'_>| count.increment(cx, 1);
    let refused = node.core.update(node.now, 1_000, 99, &key, level, GCounter::new, change, &mut Vec::new());
    assert!(matches!(refused, Err(UpdateError::Request(RequestError::Overloaded))), "{refused:?}");
    node.settle_disk(true);
    assert!(ids.iter().all(|id| node.result(*id) == Some(Ok(()))));
    assert!(far.iter().all(|id| node.result(*id).is_none()));
}

/// ddata U1, Z9: the own record is written after the entries that it speaks of, and again if that failed.
#[test]
fn the_own_record_is_written_last_and_retried_until_written() {
    let mut node = Node::new("b", DurableSettings::of(["*"]), StoreImage::default());
    node.load();
    node.meets(&[]);
    node.count(WriteLevel::Local);
    node.answer_disk(false);
    node.count(WriteLevel::Local);
    let ops = node.pending.clone().expect("it tries again").1;
    assert!(ops.len() > 1 && matches!(ops.last(), Some(StoreOp::Meta(_))), "{ops:?}");
    node.settle_disk(true);
    assert!(node.disk.meta.is_some());
}

/// The kinds of messages that this replicator sent since they were last taken, without those that show its standing.
fn exchanged(node: &mut Node) -> Vec<&'static str> {
    let sent = std::mem::take(&mut node.sent).into_iter();
    let is_standing = |message: &Message| {
        matches!(message, Message::SyncOpen { .. } | Message::SyncSame { .. } | Message::SyncDiffers { .. })
    };
    sent.filter(|(_, message)| !is_standing(message)).map(|(_, message)| message.kind()).collect()
}

/// ddata Z11: a store that says that it never met others is accepted without a judgement. So nothing of an entry leaves
/// before the store records an exchange, whichever side begins, also with write-behind.
#[test]
fn no_entry_leaves_before_the_store_says_that_there_was_an_exchange() {
    let says_so = |node: &Node| node.disk.meta.as_ref().is_some_and(|meta| meta.has_met_others);
    let behind = DurableSettings { write_behind_interval: Some(TIMEOUT), ..DurableSettings::of(["*"]) };
    for durable in [DurableSettings::of(["*"]), DurableSettings::of(["other"]), behind] {
        let is_behind = durable.write_behind_interval.is_some();
        let mut node = Node::new("b", durable, StoreImage::default());
        node.load();
        node.meets(&["w"]);
        node.advance(TIMEOUT);
        node.settle_disk(true);
        node.hears_of("w");
        node.sent.clear();
        node.count(WriteLevel::majority(TIMEOUT));
        assert_eq!((exchanged(&mut node), says_so(&node)), (vec![], false));
        // The record comes first in the batch: wherever the store is cut, an entry of this batch lies behind the
        // record.
        let ops = node.pending.clone().expect("the store is told at once").1;
        assert!(matches!(&ops[0], StoreOp::Meta(meta) if meta.has_met_others), "{ops:?}");
        // Messages held back for a store that failed count as lost; their protocol sends them again.
        node.answer_disk(false);
        assert_eq!((exchanged(&mut node), node.core.stats().unsent), (vec![], 1));
        node.advance(TIMEOUT + Duration::from_secs(1));
        node.settle_disk(true);
        assert!(says_so(&node), "the store was told again");
        node.count(WriteLevel::majority(TIMEOUT));
        assert!(exchanged(&mut node).contains(&"DeltaWrite"), "behind {is_behind}");
    }
}

/// ddata Z11: messages held back for the store leave in the order of sending, including answers to a peer.
#[test]
fn messages_held_for_the_first_exchange_leave_in_order() {
    let mut node = Node::new("b", DurableSettings::of(["*"]), StoreImage::default());
    node.load();
    node.meets(&["w"]);
    node.advance(Duration::from_secs(31));
    node.settle_disk(true);
    node.count(WriteLevel::Local);
    node.answer_disk(true);
    node.hears_of("w");
    node.sent.clear();
    let tag: Arc<str> = GCounter::TAG.to_string().into();
    node.receive("w", Message::Read { request: 5, key: "c".into(), tag, digest: None });
    node.receive("w", Message::Write { request: 6, key: "s".into(), envelope: from_writer(&[1]).1 });
    assert_eq!(exchanged(&mut node), Vec::<&str>::new());
    assert!(node.stored::<GSet<u64>>("s").is_none());
    node.answer_disk(true);
    assert_eq!(exchanged(&mut node), ["ReadReply"]);
    node.answer_disk(true);
    assert_eq!(exchanged(&mut node), ["WriteReply"]);
    assert!(node.stored::<GSet<u64>>("s").is_some());
    assert_eq!(node.core.stats().unsent, 0);
}

/// ddata Z11: at most 8 MiB of messages are held back for the store. A message beyond counts as lost, and is sent
/// again.
#[test]
fn messages_held_for_the_first_exchange_are_bounded() {
    let mut node = Node::new("b", DurableSettings::of(["*"]), StoreImage::default());
    node.load();
    node.meets(&["w"]);
    node.advance(Duration::from_secs(31));
    node.settle_disk(true);
    node.update::<GSet<String>>("large", WriteLevel::Local, |set, _| set.add("x".repeat(1_000_000)));
    node.answer_disk(true);
    node.hears_of("w");
    node.sent.clear();
    let tag: Arc<str> = GSet::<String>::TAG.to_string().into();
    for request in 1..=10 {
        node.receive("w", Message::Read { request, key: "large".into(), tag: tag.clone(), digest: None });
    }
    assert_eq!((exchanged(&mut node), node.core.stats().unsent), (vec![], 2));
    node.answer_disk(true);
    assert_eq!((exchanged(&mut node), node.core.stats().unsent), (vec!["ReadReply"; 8], 2));
}
