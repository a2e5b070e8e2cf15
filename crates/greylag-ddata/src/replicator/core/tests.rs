//! Two idle replicators: how many entries they examine, and what long work does in one step.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use greylag_crdt::{DotSource, GCounter, Markers, Performed, ReplicaId, ReplicatedData, UpdateCx, WriterKey};

use super::ReplicatorCore;
use crate::api::effect::Effect;
use crate::api::input::Input;
use crate::api::key::{Key, KeyId};
use crate::api::level::{ReadLevel, WriteLevel};
use crate::api::settings::ReplicatorSettings;
use crate::data::envelope::{Content, Envelope};
use crate::data::tree::touched;
use crate::data::types::TypeTable;
use crate::membership::replicas::{Replica, ReplicaStatus, Replicas};
use crate::messages::message::{Message, ReadReply};

const KEYS: usize = 1_000;

struct World {
    now: Instant,
    wall_ms: i64,
    cores: [ReplicatorCore; 2],
    /// The kinds of the messages since they were last taken, and the size of the longest.
    kinds: BTreeSet<&'static str>,
    longest: usize,
    /// The most markers that a replicator forgot in one input.
    most_forgotten: u64,
}

fn address(at: usize) -> UniqueAddress {
    format!("n{at}:1#{}", at + 1).parse().expect("an address")
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        let settings = ReplicatorSettings {
            expire_keys_after_inactivity: [("cache-*".to_owned(), Duration::from_secs(3_600))].into(),
            ..ReplicatorSettings::default()
        };
        let core = |at: usize| {
            ReplicatorCore::new(settings.clone(), TypeTable::new(), address(at), DotSource::new(), at as u64, now)
        };
        let mut world =
            Self { now, wall_ms: 0, cores: [core(0), core(1)], kinds: BTreeSet::new(), longest: 0, most_forgotten: 0 };
        for at in 0..2 {
            let other =
                Replica { address: address(1 - at), status: ReplicaStatus::Up, reachable: true, age: at as u64 };
            let others = [other].into_iter().collect();
            let replicas = Replicas { own_status: Some(ReplicaStatus::Up), others, ..Replicas::default() };
            world.handle(at, Input::Replicas(Arc::new(replicas)));
        }
        world
    }

    fn key(number: usize) -> Key<GCounter> {
        let kind = if number.is_multiple_of(2) { "cache" } else { "key" };
        Key::new(format!("{kind}-{number}")).expect("a key")
    }

    fn increment(&mut self, at: usize, number: usize) {
        let (mut out, level) = (Vec::new(), WriteLevel::Local);
        let (now, wall_ms, key) = (self.now, self.wall_ms, Self::key(number));
        let increment = |counter: &mut GCounter, cx: &mut UpdateCx<'_>| counter.increment(cx, 1);
        let done = self.cores[at].update(now, wall_ms, 1, &key, level, GCounter::new, increment, &mut out);
        done.expect("an increment");
        self.deliver(at, out);
    }

    fn handle(&mut self, at: usize, input: Input) {
        let (mut out, before) = (Vec::new(), self.cores[at].stats().markers_forgotten);
        self.cores[at].handle(self.now, input, &mut out);
        self.most_forgotten = self.most_forgotten.max(self.cores[at].stats().markers_forgotten - before);
        self.deliver(at, out);
    }

    fn deliver(&mut self, from: usize, out: Vec<Effect>) {
        for effect in out {
            if let Effect::Send { message, .. } = effect {
                self.kinds.insert(message.kind());
                self.longest = self.longest.max(message.encoded_len());
                self.handle(1 - from, Input::Received { from: address(from), message });
            }
        }
    }

    /// Lets time pass as drivers do: each machine gets a tick at each of its deadlines.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let due = [0, 1].map(|at| (self.cores[at].next_deadline(), at));
            let Some((Some(at_time), at)) = due.into_iter().filter(|(time, _)| time.is_some()).min() else { return };
            if at_time > end {
                return;
            }
            self.wall_ms += i64::try_from(at_time.saturating_duration_since(self.now).as_millis()).unwrap_or(0);
            self.now = self.now.max(at_time);
            self.handle(at, Input::Wall(self.wall_ms));
            self.handle(at, Input::Tick);
        }
    }
}

/// ddata H2, G10: on idle replicators no tick and no round examines any entry, and messages only say that the sums are
/// the same; even if entries could expire, a subscriber follows all of them, and encodings are dropped.
#[test]
fn an_idle_tick_touches_no_entry() {
    let mut world = World::new();
    world.handle(0, Input::SubscribeAny { subscriber: 1, pattern: "*".into() });
    (0..KEYS).for_each(|number| world.increment(number % 2, number));
    world.pass(Duration::from_secs(60));
    assert_eq!(world.cores[0].root_sum(), world.cores[1].root_sum());
    assert_eq!(world.cores[0].root_sum().count, KEYS as u64);
    let (seen, rounds) = (touched(), world.cores.each_ref().map(|core| core.stats().rounds_opened));
    assert!(seen > KEYS, "a working replicator looks at entries: {seen}");
    (world.kinds, world.longest) = (BTreeSet::new(), 0);
    world.pass(Duration::from_secs(600));
    assert_eq!(touched() - seen, 0, "an idle one looks at none");
    for (core, before) in world.cores.iter().zip(rounds) {
        assert!(core.stats().rounds_opened >= before + 200, "rounds went on");
    }
    assert_eq!(world.kinds, ["SyncOpen", "SyncSame"].into());
    assert!(world.longest < 64, "a pair has less than 128 bytes: {}", world.longest);
    world.handle(
        0,
        Input::Get { id: 2, key: World::key(7).id().clone(), tag: "gl.gcounter/1".into(), level: ReadLevel::Local },
    );
    assert!(touched() > seen, "and one read is counted");
}

/// A counter of 5 under the name of replica 2, as the pruning of replica 99 left it.
fn pruned(performed_at: i64, obsolete_at: i64) -> Envelope {
    let (numbers, writer) = (DotSource::above(9), WriterKey::new(*b"h"));
    let mut value = GCounter::new();
    value.increment(&mut UpdateCx::new(&numbers, ReplicaId(2), &writer, 0), 5).expect("an increment");
    let mut marker = Performed::new(ReplicaId(99), ReplicaId(2));
    marker.moved.set_amount(0, 0, 5);
    (marker.performed_at, marker.obsolete_at) = (performed_at, Some(obsolete_at));
    let mut markers = Markers::new();
    markers.add(&marker);
    let content = Content::Value { tag: GCounter::TAG.to_string().into(), bytes: value.to_untagged_bytes().into() };
    Envelope { markers, ..Envelope::of(content) }
}

/// ddata Z9: a replicator that takes over pruned data without their ended marker can no longer tell old stores apart,
/// and raises its horizon.
#[test]
fn a_marker_that_is_not_kept_raises_the_horizon_as_one_that_is_forgotten() {
    let mut world = World::new();
    world.pass(Duration::from_secs(900));
    let key = World::key(1).id().clone();
    let performed_at = world.wall_ms - 800_000;
    let horizon = |world: &World| world.cores[0].pruning_news().standing.forget_horizon;
    assert_eq!(horizon(&world), None);
    let entries = vec![(key.clone(), pruned(performed_at, performed_at + 1))];
    let message = Message::Gossip { round: None, number: 0, send_back: false, entries };
    world.handle(0, Input::Received { from: address(1), message });
    assert!(world.cores[0].markers(&key).is_empty(), "it has ended");
    assert!(horizon(&world).is_some_and(|horizon| horizon >= performed_at), "{:?}", horizon(&world));
}

/// ddata Z2, H2: markers that end at once are forgotten some at a time, and all in the end.
#[test]
fn markers_are_forgotten_some_at_a_time() {
    let mut world = World::new();
    world.pass(Duration::from_secs(60));
    let keys = world.receive_all(0..2_500, &pruned(world.wall_ms, world.wall_ms + 1));
    world.pass(Duration::from_secs(900));
    let forgotten = world.cores.each_ref().map(|core| core.stats().markers_forgotten);
    assert_eq!((forgotten[0], world.most_forgotten), (2_500, 1_000));
    assert!(keys.iter().all(|key| world.cores[0].markers(key).is_empty()));
}

impl World {
    /// Receives entries from a peer, each with this envelope.
    fn receive_all(&mut self, numbers: std::ops::Range<usize>, envelope: &Envelope) -> Vec<KeyId> {
        let keys: Vec<_> = numbers.map(|number| Self::key(number).id().clone()).collect();
        for keys in keys.chunks(500) {
            let entries = keys.iter().map(|key| (key.clone(), envelope.clone())).collect();
            let message = Message::Gossip { round: None, number: 0, send_back: false, entries };
            self.handle(0, Input::Received { from: address(1), message });
        }
        keys
    }

    /// In how many of these entries the time of a marker satisfies `when`.
    fn performed(&self, keys: &[KeyId], when: impl Fn(i64) -> bool) -> usize {
        let is_so = |key: &&KeyId| self.cores[0].markers(key).iter().any(|marker| when(marker.performed_at));
        keys.iter().filter(is_so).count()
    }
}

/// ddata Z2, Z9, H2: a wall clock that went back changes the times of some markers and tombstones at a time, and of all
/// in the end.
#[test]
fn times_are_bounded_some_at_a_time() {
    let mut world = World::new();
    world.wall_ms = 9_000_000;
    (0..2).for_each(|at| world.handle(at, Input::Wall(9_000_000)));
    let keys = world.receive_all(0..2_500, &pruned(9_000_000, 30_600_000));
    let deleted: Vec<KeyId> = (0..2_500).map(|number| format!("deleted-{number}").into()).collect();
    for keys in deleted.chunks(500) {
        let tombstone = Envelope::of(Content::Tombstone { deleted_at: 9_000_000 });
        let entries = keys.iter().map(|key| (key.clone(), tombstone.clone())).collect();
        let message = Message::Gossip { round: None, number: 0, send_back: false, entries };
        world.handle(0, Input::Received { from: address(1), message });
    }
    world.wall_ms = 1_000_000;
    let digests = |world: &World| world.cores[0].digests();
    let before = digests(&world);
    world.handle(0, Input::Wall(1_000_000));
    let is_bounded = |at: i64| at < 1_001_000;
    assert_eq!(world.performed(&keys, is_bounded), 1_000, "one step");
    assert_eq!(digests(&world), before, "no tombstone so far");
    let steps = || Some(world.now + Duration::from_millis(1));
    assert_eq!(world.cores[0].next_deadline(), steps());
    let (mut most, mut last) = (0, before.clone());
    for _ in 0..20 {
        world.now += Duration::from_millis(1);
        world.handle(0, Input::Tick);
        let now = digests(&world);
        most = most.max(deleted.iter().filter(|key| now[*key] != last[*key]).count());
        last = now;
    }
    assert_eq!(world.performed(&keys, is_bounded), 2_500);
    assert!((1..=1_000).contains(&most), "{most} tombstones in one step");
    assert!(deleted.iter().all(|key| last[key] != before[key]), "all of them");
    assert!(world.cores[0].next_deadline() > Some(world.now + Duration::from_millis(1)), "it is done");
}

/// ddata Z2, Z9, H2: when a gate opens, markers are renewed some at a time, and none is forgotten before that.
#[test]
fn markers_are_renewed_some_at_a_time_and_not_forgotten_before() {
    let mut world = World::new();
    world.pass(Duration::from_secs(60));
    let keys = world.receive_all(0..2_500, &pruned(world.wall_ms, world.wall_ms + 1));
    // The tick after this one would forget all of them.
    world.pass(Duration::from_secs(299));
    assert_eq!(world.cores[0].stats().markers_forgotten, 0);
    let (now, opened_at) = (world.now, world.wall_ms);
    world.cores[0].on_gate_opened(now, i64::MIN);
    assert_eq!(world.performed(&keys, |at| at >= opened_at), 1_000, "one step");
    let waiting =
        keys.iter().find(|key| world.cores[0].markers(key).iter().all(|marker| marker.performed_at < opened_at));
    let (tag, mut out) = (GCounter::TAG.to_string().into(), Vec::new());
    let read = Message::Read { request: 1, key: waiting.expect("1,500 wait").clone(), tag, digest: None };
    world.cores[0].handle(now, Input::Received { from: address(1), message: read }, &mut out);
    let answer = out.iter().find_map(|effect| match effect {
        Effect::Send { message: Message::ReadReply { reply: ReadReply::Value(envelope), .. }, .. } => Some(envelope),
        _ => None,
    });
    let times = answer.expect("it answers").markers.iter().map(|marker| marker.performed_at).collect::<Vec<_>>();
    assert_eq!(times, [opened_at], "one that waits leaves as performed then");
    world.now += Duration::from_secs(120);
    world.wall_ms += 120_000;
    world.handle(0, Input::Wall(world.wall_ms));
    assert_eq!(world.performed(&keys, |at| at >= opened_at), 2_000, "the second, and a pruning tick with it");
    assert_eq!(world.cores[0].stats().markers_forgotten, 0, "what is not renewed yet is not forgotten");
    world.pass(Duration::from_secs(1));
    assert_eq!(world.performed(&keys, |at| at >= opened_at), 2_500);
    world.pass(Duration::from_secs(600));
    assert_eq!(world.cores[0].stats().markers_forgotten, 0, "they live as if performed when it opened");
}

/// ddata Z2, Z9: markers that must stay, because their entries still name the removed replica, neither keep later
/// markers from being forgotten nor stop pruning.
#[test]
fn markers_that_stay_keep_no_others_from_being_forgotten() {
    let mut world = World::new();
    world.pass(Duration::from_secs(60));
    let ended = world.wall_ms + 1;
    let mut named = pruned(world.wall_ms, ended);
    let (numbers, writer) = (DotSource::above(9), WriterKey::new(*b"r"));
    let mut value = GCounter::new();
    value.increment(&mut UpdateCx::new(&numbers, ReplicaId(99), &writer, 0), 7).expect("an increment");
    named.content = Content::Value { tag: GCounter::TAG.to_string().into(), bytes: value.to_untagged_bytes().into() };
    world.receive_all(0..1_500, &named);
    let behind = world.receive_all(1_500..2_500, &pruned(world.wall_ms, ended + 1));
    // Pass the first tick at which markers may be forgotten; the named replicas are performed later.
    world.pass(Duration::from_secs(430));
    assert!(behind.iter().all(|key| world.cores[0].markers(key).is_empty()), "those behind are forgotten");
    assert_eq!(world.cores[0].stats().markers_forgotten, 1_000);
    world.pass(Duration::from_secs(900));
    assert!(world.cores[0].stats().performed >= 1_500, "pruning goes on");
}
