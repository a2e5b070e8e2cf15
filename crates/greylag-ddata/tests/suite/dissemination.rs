//! How much each machine sends: several machines side by side, with every message counted. Source: ddata §4, §11.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use greylag_crdt::{ClockExhausted, DotSource, GCounter, OrSet, ReplicatedData, UpdateCx};
use greylag_ddata::{
    BatchItem, Effect, Input, Key, Lifecycle, Message, Replica, ReplicaStatus, Replicas, ReplicatorCore,
    ReplicatorSettings, StopReason, TypeTable, WriteLevel,
};
use greylag_testkit::deadlines::Steps;

struct World {
    now: Instant,
    cores: Vec<ReplicatorCore>,
    steps: Vec<Steps>,
    /// Whether the machines can reach each other.
    reachable: bool,
    flights: VecDeque<(usize, usize, Message)>,
    /// Every message sent: sender, receiver, message.
    said: Vec<(usize, usize, Message)>,
    /// The most entries, and the most bytes of parts, that one step sent, and the most records that one step took out
    /// of a log.
    most: (usize, usize, usize),
    next: u64,
}

fn address(index: usize) -> UniqueAddress {
    format!("n{index}:1#{}", index + 1).parse().unwrap()
}

fn index_of(address: &UniqueAddress) -> usize {
    address.uid().get() as usize - 1
}

impl World {
    fn new(count: usize, settings: &ReplicatorSettings) -> Self {
        let now = Instant::now();
        let types = TypeTable::new().with::<OrSet<u32>>();
        let core = |index: usize| {
            let seed = index as u64;
            ReplicatorCore::new(settings.clone(), types.clone(), address(index), DotSource::new(), seed, now)
        };
        let (cores, steps) = (0..count).map(|index| (core(index), Steps::default())).unzip();
        let (flights, said) = (VecDeque::new(), Vec::new());
        Self { now, cores, steps, reachable: true, flights, said, most: (0, 0, 0), next: 0 }
    }

    /// Publishes the nodes in `known` to each other.
    fn publish(&mut self, known: &[usize]) {
        for own in known {
            let others: Vec<usize> = known.iter().copied().filter(|other| other != own).collect();
            self.publish_to(*own, &others);
        }
    }

    /// Publishes these others to one node.
    fn publish_to(&mut self, own: usize, others: &[usize]) {
        let others = others.iter().map(|other| Replica {
            address: address(*other),
            status: ReplicaStatus::Up,
            reachable: self.reachable,
            age: *other as u64,
        });
        let up = Some(ReplicaStatus::Up);
        let replicas = Replicas { own_status: up, others: others.collect(), ..Replicas::default() };
        self.input(own, Input::Replicas(Arc::new(replicas)));
    }

    fn input(&mut self, node: usize, input: Input) {
        let (mut out, logged) = (Vec::new(), self.cores[node].log_len());
        let ticks = matches!(input, Input::Tick);
        self.cores[node].handle(self.now, input, &mut out);
        if ticks {
            self.steps[node].assert_end("replicator", self.now, self.cores[node].next_deadline());
        }
        let (mut entries, mut bytes) = (0, 0);
        for effect in &out {
            match effect {
                Effect::Send { message: Message::Gossip { entries: found, .. }, .. } => entries += found.len(),
                Effect::Send { message: Message::Bucket { part, .. }, .. } => bytes += part.bytes.len(),
                _ => {}
            }
        }
        let trimmed = logged.saturating_sub(self.cores[node].log_len());
        self.most = (self.most.0.max(entries), self.most.1.max(bytes), self.most.2.max(trimmed));
        self.perform(node, out);
    }

    fn perform(&mut self, from: usize, effects: Vec<Effect>) {
        for effect in effects {
            if let Effect::Send { to, message, .. } = effect {
                self.said.push((from, index_of(&to), message.clone()));
                self.flights.push_back((from, index_of(&to), message));
            }
        }
    }

    fn update<T: ReplicatedData>(&mut self, node: usize, key: &str, change: impl FnOnce(&mut T, &mut UpdateCx<'_>)) {
        self.next += 1;
        let (mut out, key) = (Vec::new(), Key::<T>::new(key).unwrap());
        let change = |value: &mut T, cx: &mut UpdateCx<'_>| {
            change(value, cx);
            Ok::<_, ClockExhausted>(())
        };
        self.cores[node].update(self.now, 0, self.next, &key, WriteLevel::Local, T::zero, change, &mut out).unwrap();
        self.perform(node, out);
    }

    fn count(&mut self, node: usize, key: &str) {
        self.update::<GCounter>(node, key, |counter, cx| counter.increment(cx, 1).unwrap());
    }

    /// Delivers the messages under way; messages that follow from them stay under way.
    fn turn(&mut self) {
        for (from, to, message) in std::mem::take(&mut self.flights) {
            self.input(to, Input::Received { from: address(from), message });
        }
        self.go_on();
    }

    /// Does all steps that are due.
    fn go_on(&mut self) {
        for node in 0..self.cores.len() {
            while self.cores[node].next_deadline().is_some_and(|at| at <= self.now) {
                self.input(node, Input::Tick);
            }
        }
    }

    /// Delivers until nothing is under way; messages to `silent` are lost.
    fn settle_but(&mut self, silent: usize) {
        while !self.flights.is_empty() {
            self.flights.retain(|(_, to, _)| *to != silent);
            self.turn();
        }
    }

    /// Delivers until nothing is under way. Returns the number of turns; a turn delivers everything under way at one
    /// time.
    fn settle(&mut self) -> usize {
        let mut turns = 0;
        while !self.flights.is_empty() {
            turns += 1;
            self.turn();
        }
        turns
    }

    /// Runs one round that this node opens; the others do what was due before, and their messages are lost.
    fn round(&mut self, node: usize) -> usize {
        self.now += Duration::from_secs(5);
        (0..self.cores.len()).filter(|other| *other != node).for_each(|other| self.input(other, Input::Tick));
        self.flights.clear();
        self.said.clear();
        self.input(node, Input::Tick);
        self.settle()
    }

    /// Lets time pass, and one node do what is due.
    fn tick(&mut self, node: usize, after: Duration) {
        self.now += after;
        self.input(node, Input::Tick);
    }

    fn set_len(&self, node: usize, key: &str) -> usize {
        self.cores[node].value(&Key::<OrSet<u32>>::new(key).unwrap()).map_or(0, OrSet::len)
    }

    fn are_equal(&self) -> bool {
        self.cores.iter().all(|core| core.root_sum() == self.cores[0].root_sum())
    }
}

fn settings() -> ReplicatorSettings {
    ReplicatorSettings { pruning_interval: None, ..ReplicatorSettings::default() }
}

/// Two nodes that hold the same counters, `keys` many, and have nothing logged for each other.
fn agreed(keys: u32) -> World {
    let mut world = World::new(2, &settings());
    world.publish(&[0]);
    for n in 0..keys {
        world.count(0, &format!("key-{n}"));
    }
    world.publish(&[0, 1]);
    world.settle();
    world.round(0);
    assert!(world.are_equal());
    world
}

fn items(said: &[(usize, usize, Message)]) -> Vec<&BatchItem> {
    let batches = said.iter().filter_map(|(_, _, message)| match message {
        Message::DeltaBatch { items, .. } => Some(items),
        _ => None,
    });
    batches.flatten().collect()
}

/// ddata G4: a burst with more leaves than `max_delta_size` goes as a full state, unless that is more than twice as
/// large: a huge value is never resent because a little was added. Bursts do not grow the log.
#[test]
fn a_burst_goes_as_full_state_only_where_that_is_small() {
    let mut world = World::new(2, &ReplicatorSettings { max_delta_size: 10, ..settings() });
    world.publish(&[0, 1]);
    world.settle();
    world.said.clear();
    for n in 0..40_u32 {
        world.update::<OrSet<u32>>(0, "burst", |set, cx| set.add(cx, n));
    }
    world.tick(0, Duration::from_secs(1));
    assert!(matches!(items(&world.said)[..], [BatchItem::Full { .. }]), "all of it is new");
    world.settle();
    world.update::<OrSet<u32>>(0, "burst", |set, cx| set.add_all(cx, 100..3_000));
    world.tick(0, Duration::from_secs(1));
    world.settle();
    world.said.clear();
    for n in 10_000..10_200_u32 {
        world.update::<OrSet<u32>>(0, "burst", |set, cx| set.add(cx, n));
        assert!(world.cores[0].log_len() <= 64, "joined in place");
    }
    world.tick(0, Duration::from_secs(1));
    assert!(matches!(items(&world.said)[..], [BatchItem::Delta(_)]), "the set is much larger than what is new");
    world.settle();
    assert_eq!(world.set_len(1, "burst"), 40 + 2_900 + 200);
}

/// ddata G5, G6: a later update is never visible without the earlier ones of its origin. A full state names the
/// versions that it includes, so that later deltas are accepted and included ones are not missed.
#[test]
fn deltas_are_joined_without_gaps_or_not_at_all() {
    let mut world = World::new(2, &settings());
    world.publish(&[0, 1]);
    world.settle();
    let mut batches = Vec::new();
    for n in 0..3_u32 {
        world.update::<OrSet<u32>>(0, "set", |set, cx| set.add(cx, n));
        world.tick(0, Duration::from_millis(500));
        batches.extend(world.flights.drain(..));
    }
    let deliver = |world: &mut World, at: usize| {
        let (from, to, message) = batches[at].clone();
        world.input(to, Input::Received { from: address(from), message });
        let (_, _, answer) = world.flights.pop_back().unwrap();
        let Message::DeltaAck { nacked, .. } = answer else { panic!("{answer:?}") };
        nacked.iter().map(|nack| nack.have).collect::<Vec<_>>()
    };
    assert_eq!(deliver(&mut world, 2), [0], "two are missing before it");
    assert_eq!(world.set_len(1, "set"), 0, "and nothing shows");
    assert!(deliver(&mut world, 0).is_empty());
    assert_eq!(deliver(&mut world, 2).len(), 1, "one is missing");
    assert_eq!(world.set_len(1, "set"), 1);
    // The full state includes all three versions, so the late delta is acknowledged as known.
    let (_, _, refused) = batches[2].clone();
    let Message::DeltaBatch { from_seq, to_seq, items } = refused else { panic!("a batch") };
    let BatchItem::Delta(item) = &items[0] else { panic!("a delta") };
    let nacked = vec![greylag_ddata::Nacked { key: item.key.clone(), have: item.prev, full: true }];
    world.input(0, Input::Received { from: address(1), message: Message::DeltaAck { from_seq, to_seq, nacked } });
    world.settle();
    assert_eq!(world.set_len(1, "set"), 3);
    assert!(deliver(&mut world, 1).is_empty() && deliver(&mut world, 2).is_empty());
}

/// ddata G8, H6: a peer that is reachable again gets the deltas it missed, batch after batch as it acknowledges, and no
/// full state.
#[test]
fn a_peer_that_was_unreachable_gets_the_deltas_it_missed() {
    let mut world = World::new(2, &ReplicatorSettings { max_delta_elements: 50, ..settings() });
    world.reachable = false;
    world.publish(&[0, 1]);
    // Let `sync_timeout` end the wait for each other.
    world.tick(0, Duration::from_secs(31));
    world.tick(1, Duration::ZERO);
    assert_eq!(*world.cores[0].lifecycle(), Lifecycle::Running);
    for n in 0..2_000 {
        world.count(0, &format!("key-{}", n % 1_000));
    }
    world.flights.clear();
    world.said.clear();
    world.reachable = true;
    world.publish(&[0, 1]);
    world.tick(0, Duration::from_millis(400));
    let window = world.flights.len();
    assert_eq!(window, ReplicatorSettings::default().sync_window, "no more than the window at once");
    world.settle();
    assert!(world.are_equal());
    assert_eq!(world.cores[0].log_len(), 0);
    let full_states = |(_, _, message): &&(usize, usize, Message)| match message {
        Message::Gossip { .. } => true,
        Message::DeltaBatch { items, .. } => items.iter().any(|item| !matches!(item, BatchItem::Delta(_))),
        _ => false,
    };
    assert_eq!(world.said.iter().filter(full_states).count(), 0);
}

/// ddata G10: a node opens no round with a peer whose own round it is answering, and opens one once that round has
/// ended or stalled.
#[test]
fn a_peer_whose_round_is_answered_gets_no_other_round() {
    let mut world = agreed(10);
    world.count(0, "new");
    world.flights.clear();
    world.said.clear();
    let interval = settings().gossip_interval;
    // Node 1 opens a round; the sums in node 0's answer stay under way.
    world.tick(1, interval * 2);
    let opens = |world: &World, node: usize| {
        let of = |(from, _, message): &&(usize, usize, Message)| {
            *from == node && matches!(message, Message::SyncOpen { .. })
        };
        world.said.iter().filter(of).count()
    };
    assert_eq!(opens(&world, 1), 1);
    world.turn();
    let answers =
        |(from, _, message): &(usize, usize, Message)| *from == 0 && matches!(message, Message::SyncDiffers { .. });
    assert!(world.said.iter().any(answers), "they differ");
    world.flights.clear();
    world.tick(0, interval * 3 / 2);
    assert_eq!(opens(&world, 0), 0, "the round of node 1 is under way");
    world.tick(0, interval * 3 / 2);
    assert_eq!(opens(&world, 0), 1, "the round of node 1 has stood still for two intervals");
    world.settle();
    assert!(world.are_equal());
}

/// ddata G10, H2: two nodes that agree exchange two messages of less than 128 bytes together, however many keys they
/// hold.
#[test]
fn idling_costs_one_pair_of_messages() {
    for keys in [0, 10, 5_000] {
        let mut world = agreed(keys);
        world.round(0);
        let sizes: Vec<usize> = world.said.iter().map(|(_, _, message)| message.encoded_len()).collect();
        assert_eq!(sizes.len(), 2, "{:?}", world.said);
        assert!(sizes.iter().sum::<usize>() < 128, "{sizes:?} for {keys} keys");
    }
}

impl World {
    /// The peers with which a node opens rounds in so many gossip intervals, in order and with the time since the round
    /// before. `delivers` decides which messages arrive.
    fn opened_by(
        &mut self,
        node: usize,
        intervals: u32,
        delivers: impl Fn(usize, usize) -> bool,
    ) -> Vec<(usize, Duration)> {
        let (mut opened, mut last) = (Vec::new(), self.now);
        self.said.clear();
        let end = self.now + settings().gossip_interval * intervals;
        while let Some(at) = self.cores[node].next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.input(node, Input::Tick);
            while let Some((from, to, message)) = self.flights.pop_front() {
                if delivers(from, to) {
                    self.input(to, Input::Received { from: address(from), message });
                }
            }
            for (from, to, message) in std::mem::take(&mut self.said) {
                if from == node && matches!(message, Message::SyncOpen { .. }) {
                    opened.push((to, self.now - last));
                    last = self.now;
                }
            }
        }
        opened
    }
}

/// ddata G10: every gossip interval, in its own phase, a node opens a round with one reachable peer, and every tenth
/// time with any peer.
#[test]
fn every_interval_one_reachable_peer_and_every_tenth_time_any() {
    let mut world = World::new(4, &settings());
    world.publish(&[0, 1, 2, 3]);
    world.settle();
    let peer = |index: usize| Replica {
        address: address(index),
        status: ReplicaStatus::Up,
        reachable: index != 3,
        age: index as u64,
    };
    let others = (1..4).map(peer).collect();
    let replicas = Replicas { own_status: Some(ReplicaStatus::Up), others, ..Replicas::default() };
    world.input(0, Input::Replicas(Arc::new(replicas)));
    world.opened_by(0, 3, |_, _| true);
    let phases: BTreeSet<Option<Instant>> = world.cores.iter().map(ReplicatorCore::next_deadline).collect();
    assert_eq!(phases.len(), 4, "nodes that start together are out of step");
    let opened = world.opened_by(0, 400, |_, _| true);
    let interval = settings().gossip_interval;
    assert!(opened.iter().all(|(_, after)| (interval.mul_f64(0.9)..=interval.mul_f64(1.1)).contains(after)));
    assert!(opened.len() >= 360, "one each time: {}", opened.len());
    let unreachable: Vec<usize> = (0..opened.len()).filter(|at| opened[*at].0 == 3).collect();
    assert!(unreachable.len() > 5, "now and then the unreachable one: {unreachable:?}");
    assert!(unreachable.iter().all(|at| at % 10 == unreachable[0] % 10), "each tenth time only: {unreachable:?}");
    let first = opened.iter().filter(|(to, _)| *to == 1).count();
    assert!((120..280).contains(&first), "at random: {first} of {}", opened.len());
}

/// ddata G10: a node opens no second round with a peer while its first one is open.
#[test]
fn no_round_is_opened_with_a_peer_that_has_one() {
    let mut world = World::new(3, &settings());
    world.publish(&[0, 1, 2]);
    world.settle();
    world.opened_by(0, 3, |_, _| true);
    // Node 1's answers get lost: the round with node 1 lasts until it is given up.
    let opened = world.opened_by(0, 200, |from, _| from != 1);
    let to_it: Vec<usize> = (0..opened.len()).filter(|at| opened[*at].0 == 1).collect();
    assert!(to_it.len() > 20 && to_it.windows(2).all(|pair| pair[1] > pair[0] + 1), "{to_it:?}");
    let others = opened.iter().filter(|(to, _)| *to == 2).count();
    assert!(others > to_it.len(), "others have rounds meanwhile");
}

/// ddata G9, G10, H5: a hundred differences are found and exchanged in seven round trips.
#[test]
fn a_hundred_differences_take_few_trips() {
    let mut world = agreed(8_000);
    world.publish(&[0]);
    world.publish(&[1]);
    for n in 0..100 {
        world.count(0, &format!("key-{}", n * 73));
    }
    world.publish(&[0, 1]);
    let turns = world.round(0);
    assert!(world.are_equal());
    assert!(turns <= 14, "{turns} half trips");
    let compared = world.said.iter().filter(|(_, _, message)| !matches!(message, Message::Gossip { .. }));
    let bytes: usize = compared.map(|(_, _, message)| message.encoded_len()).sum();
    assert!(bytes <= 128 * 1024, "{bytes} bytes of sums and listings");
}

/// ddata G13: a new node asks each peer for a share and gets every entry once. Entries that peers would send on their
/// own wait until the shares are complete, and then nothing differs any more.
#[test]
fn a_new_node_gets_every_entry_once() {
    let mut world = World::new(4, &settings());
    world.publish(&[0, 1, 2]);
    world.settle();
    for n in 0..3_000 {
        world.count(0, &format!("key-{n}"));
    }
    for _ in 0..20 {
        world.tick(0, Duration::from_millis(400));
        world.settle();
    }
    world.said.clear();
    // The peers learn of the new node when it learns of them, and open rounds towards it at once.
    world.now += Duration::from_secs(5);
    world.publish(&[0, 1, 2, 3]);
    assert!(world.said.iter().any(|(_, to, message)| *to == 3 && matches!(message, Message::SyncOpen { .. })));
    world.settle();
    assert_eq!(*world.cores[3].lifecycle(), Lifecycle::Running);
    assert!(world.are_equal());
    let mut sent: BTreeMap<usize, usize> = BTreeMap::new();
    for (from, to, message) in &world.said {
        if let Message::Gossip { entries, .. } = message {
            assert_eq!(*to, 3);
            *sent.entry(*from).or_default() += entries.len();
        }
    }
    assert_eq!(sent.values().sum::<usize>(), 3_000, "{sent:?}");
    assert!(sent.len() == 3 && sent.values().all(|count| (800..1_200).contains(count)), "shares alike: {sent:?}");
    let lists_keys = |(_, _, message): &(usize, usize, Message)| matches!(message, Message::SyncList { keys, .. } if !keys.is_empty());
    assert!(!world.said.iter().any(lists_keys), "an empty node is streamed to without lists");
}

/// ddata G10: a round is complete once everything that differed at its start is exchanged, whatever changes meanwhile.
#[test]
fn a_round_ends_though_changes_go_on() {
    let mut world = agreed(2_000);
    world.publish(&[0]);
    world.publish(&[1]);
    (0..500).for_each(|n| world.count(0, &format!("key-{n}")));
    world.publish(&[0, 1]);
    world.now += Duration::from_secs(5);
    world.input(1, Input::Tick);
    world.flights.clear();
    world.said.clear();
    world.input(0, Input::Tick);
    world.flights.retain(|(_, _, message)| !matches!(message, Message::DeltaBatch { .. }));
    let is_done =
        |(from, _, message): &(usize, usize, Message)| *from == 0 && matches!(message, Message::SyncDone { .. });
    for turn in 0..40 {
        (0..2).for_each(|node| world.count(node, &format!("new-{node}-{turn}")));
        world.turn();
        if world.said.iter().any(is_done) {
            return assert!(!world.are_equal(), "there are newer changes");
        }
    }
    panic!("it never ends");
}

/// The number of entries sent in rounds and from the log, by sender and receiver.
fn entries_sent(said: &[(usize, usize, Message)]) -> BTreeMap<(usize, usize), usize> {
    let mut sent = BTreeMap::new();
    for (from, to, message) in said {
        let count = match message {
            Message::Gossip { entries, .. } => entries.len(),
            Message::DeltaBatch { items, .. } => items.len(),
            _ => 0,
        };
        if count > 0 {
            *sent.entry((*from, *to)).or_default() += count;
        }
    }
    sent
}

/// ddata G8, G13: members know a node for a while before its replicator starts, and it meets them one after the other.
/// It gets every entry once: from the first member that it meets, in a round, and not from the log as well.
#[test]
fn a_node_that_meets_its_sources_one_by_one_gets_every_entry_once() {
    // Small messages make catching up take a while, in which others open rounds, too.
    let mut world = World::new(3, &ReplicatorSettings { max_delta_elements: 20, ..settings() });
    // The others begin their history before they hear of the third node.
    world.publish_to(0, &[1]);
    world.publish_to(1, &[0]);
    world.settle();
    world.publish_to(0, &[1, 2]);
    world.publish_to(1, &[0, 2]);
    for n in 0..3_000 {
        world.count(0, &format!("key-{n}"));
    }
    // The third node is a member and does not run: messages to it are lost.
    for _ in 0..20 {
        world.tick(0, Duration::from_millis(400));
        world.settle_but(2);
    }
    assert!(world.cores[0].log_len() >= 3_000, "the log keeps what a member has not acknowledged");
    world.said.clear();
    world.publish_to(2, &[0]);
    // The second source turns up after some messages, and time passes for all.
    for turn in 0..200 {
        world.turn();
        if turn == 3 {
            world.publish_to(2, &[0, 1]);
        }
        for node in 0..3 {
            world.tick(node, Duration::from_millis(33));
        }
    }
    world.settle();
    assert!(world.are_equal());
    assert_eq!(*world.cores[2].lifecycle(), Lifecycle::Running);
    let sent = entries_sent(&world.said);
    assert_eq!(sent, BTreeMap::from([((0, 2), 3_000)]), "by (from, to)");
    assert_eq!(world.cores[0].log_len(), 0, "the round was as good as an acknowledgement");
    assert_eq!(world.most.2, 512, "and made room in steps");
    // From then on the node gets deltas as every peer does.
    world.said.clear();
    world.count(0, "key-1");
    world.tick(0, Duration::from_millis(400));
    world.settle();
    assert!(world.are_equal());
    let is_batch =
        |(_, to, message): &&(usize, usize, Message)| *to == 2 && matches!(message, Message::DeltaBatch { .. });
    assert_eq!(world.said.iter().filter(is_batch).count(), 1);
}

/// ddata H3, H9: whatever a new node lacks, no step sends much, and no message holds more than the receiver may handle
/// in one step: others are served in between, on both sides.
#[test]
fn no_step_of_catching_up_is_long() {
    let mut world = World::new(2, &ReplicatorSettings { inner_tree_keys: 1_000, ..settings() });
    world.publish(&[0]);
    for n in 0..5_000 {
        world.count(0, &format!("key-{n}"));
    }
    world.update::<OrSet<u32>>(0, "large", |set, cx| set.add_all(cx, 0..30_000));
    world.publish(&[0, 1]);
    world.settle();
    assert!(world.are_equal());
    let (entries, bytes, _) = world.most;
    assert!((1..128).contains(&entries), "{entries} entries in one step");
    assert!((1..=17 * 1_024).contains(&bytes), "{bytes} bytes of parts in one step");
    let large = |(_, _, message): &&(usize, usize, Message)| match message {
        Message::Gossip { entries, .. } => entries.len() > 64,
        Message::Bucket { part, .. } => part.bytes.len() > 17 * 1_024,
        Message::SyncList { prefixes, keys, .. } => prefixes.len() + keys.len() > 1_024,
        _ => false,
    };
    assert_eq!(world.said.iter().filter(large).count(), 0);
    // The window is as wide as ever: as much is under way as eight messages of 500 entries hold.
    let begins = world.said.iter().position(|(_, _, message)| matches!(message, Message::Gossip { .. }));
    let unanswered = world.said[begins.unwrap_or(0)..].iter().take_while(|(from, _, _)| *from == 0);
    let sent: usize = unanswered
        .map(|(_, _, message)| if let Message::Gossip { entries, .. } = message { entries.len() } else { 0 })
        .sum();
    assert!((3_500..=4_100).contains(&sent), "{sent}");
    // Deltas come in small batches, too.
    world.said.clear();
    for n in 0..1_000 {
        world.count(0, &format!("key-{n}"));
    }
    world.tick(0, Duration::from_millis(400));
    world.settle();
    assert!(world.are_equal());
    let batches = world.said.iter().filter_map(|(_, _, message)| match message {
        Message::DeltaBatch { items, .. } => Some(items.len()),
        _ => None,
    });
    assert_eq!(batches.max(), Some(128));
}

/// ddata G3, G7: full states and their ids fill a batch up to `max_message_bytes`; of entries without room the peer
/// gets hints.
#[test]
fn a_batch_of_full_states_is_no_longer_than_a_message_may_be() {
    let limit = 4 * 1_024;
    let short = ReplicatorSettings { delta_enabled: false, max_message_bytes: limit, ..settings() };
    let mut world = World::new(2, &short);
    world.publish(&[0, 1]);
    world.settle();
    world.said.clear();
    for n in 0..10_u32 {
        let id = format!("{n}{}", "-".repeat(200));
        world.update::<OrSet<u32>>(0, &id, |set, cx| set.add_all(cx, 0..200));
    }
    world.tick(0, Duration::from_secs(1));
    let batches = world.said.iter().filter(|(_, _, message)| matches!(message, Message::DeltaBatch { .. }));
    let lengths: Vec<usize> = batches.map(|(_, _, message)| message.encoded_len()).collect();
    let items = items(&world.said);
    let in_full = items.iter().filter(|item| matches!(item, BatchItem::Full { .. })).count();
    let hints = items.iter().filter(|item| matches!(item, BatchItem::Hint { .. })).count();
    assert!(in_full > 1 && hints > 1 && in_full + hints == 10, "{in_full} in full, {hints} hints, {lengths:?} bytes");
    assert!(lengths.iter().all(|length| *length <= limit), "{lengths:?}");
}

/// ddata G12, O1: a replica that is offered a large value computes its own sums in steps, with a millisecond between
/// two of them, so that other inputs are handled.
#[test]
fn a_large_value_is_summed_up_with_pauses() {
    let mut world = World::new(2, &ReplicatorSettings { inner_tree_keys: 1_000, ..settings() });
    world.publish(&[0, 1]);
    world.settle();
    world.update::<OrSet<u32>>(0, "large", |set, cx| set.add_all(cx, 0..2_000));
    world.update::<OrSet<u32>>(1, "large", |set, cx| set.add_all(cx, 0..30_000));
    world.now += Duration::from_secs(5);
    world.go_on();
    // Keep only the round that node 0 opened.
    world.flights.retain(|(from, _, _)| *from == 0);
    let mut offers = 0;
    while world.set_len(0, "large") < 30_000 {
        let Some((from, to, message)) = world.flights.pop_front() else {
            world.now = world.cores.iter().filter_map(ReplicatorCore::next_deadline).min().unwrap();
            world.go_on();
            continue;
        };
        if matches!(message, Message::DeltaBatch { .. } | Message::DeltaAck { .. }) {
            continue;
        }
        let is_offer = to == 1 && matches!(&message, Message::InnerNodes { offer: Some(_), .. });
        world.input(to, Input::Received { from: address(from), message });
        if is_offer {
            offers += 1;
            let pause = Duration::from_millis(1);
            assert_eq!(world.cores[1].next_deadline(), Some(world.now + pause), "it goes on after a pause");
        }
    }
    assert!(offers > 0 && world.set_len(1, "large") == 30_000);
}

/// ddata G7, H9: large states that a peer asks for after hints go one message at a time.
#[test]
fn states_requested_after_hints_go_in_steps() {
    let mut world =
        World::new(2, &ReplicatorSettings { eager_full_state_bytes: 0, delta_enabled: false, ..settings() });
    world.publish(&[0, 1]);
    world.settle();
    for n in 0..300 {
        world.count(0, &format!("key-{n}"));
    }
    world.most = (0, 0, 0);
    world.tick(0, Duration::from_millis(400));
    world.settle();
    assert!(world.are_equal());
    assert!(items(&world.said).iter().any(|item| matches!(item, BatchItem::Hint { .. })));
    assert!((1..=64).contains(&world.most.0), "{} entries in one step", world.most.0);
}

/// ddata G15: a replicator that stops waits until a voter has the entries for which it got only hints, even if the
/// voter's request for them is lost.
#[test]
fn an_orderly_stop_waits_for_large_entries() {
    let mut world =
        World::new(2, &ReplicatorSettings { eager_full_state_bytes: 0, delta_enabled: false, ..settings() });
    world.publish(&[0, 1]);
    world.settle();
    world.round(0);
    world.update::<OrSet<u32>>(0, "key", |set, cx| set.add_all(cx, 0..50_000));
    world.input(0, Input::Stop(StopReason::ShutDown));
    world.flights.retain(|(_, _, message)| matches!(message, Message::DeltaBatch { .. }));
    assert!(items(&world.said).iter().any(|item| matches!(item, BatchItem::Hint { .. })));
    world.turn();
    world.flights.retain(|(_, _, message)| matches!(message, Message::DeltaAck { .. }));
    assert_eq!(world.flights.len(), 1, "what is hinted at is acknowledged, and the question for it is lost");
    world.turn();
    assert!(!matches!(world.cores[0].lifecycle(), Lifecycle::Stopped(_)), "no peer has it yet");
    world.settle();
    assert_eq!(*world.cores[0].lifecycle(), Lifecycle::Stopped(StopReason::ShutDown));
    assert_eq!(world.set_len(1, "key"), 50_000);
}

/// ddata G14: a difference that an exchange does not end is suppressed for a while.
#[test]
fn a_difference_that_stays_is_not_exchanged_again_and_again() {
    let mut world = World::new(2, &settings());
    world.publish(&[0]);
    world.publish(&[1]);
    world.count(0, "key");
    world.update::<OrSet<u32>>(1, "key", |set, cx| set.add(cx, 1));
    world.publish(&[0, 1]);
    world.flights.clear();
    let mut entries = Vec::new();
    for _ in 0..45 {
        world.round(0);
        let gossip = world.said.iter().filter(|(_, _, message)| matches!(message, Message::Gossip { .. }));
        entries.push(gossip.count());
    }
    assert!(entries[..4].iter().sum::<usize>() > 0 && entries[4..25].iter().sum::<usize>() == 0, "{entries:?}");
    assert!(entries[25..].iter().sum::<usize>() > 0, "after so many rounds it is tried again: {entries:?}");
}

/// ddata G8, G11: a batch in fragments gets the time that fragments take before it is resent; a peer that is reachable
/// again gets it at once.
#[test]
fn a_fragmented_batch_is_not_resent_at_once() {
    let mut world = World::new(2, &ReplicatorSettings { max_message_bytes: 4_096, ..settings() });
    world.publish(&[0, 1]);
    world.settle();
    world.said.clear();
    world.update::<OrSet<u32>>(0, "big", |set, cx| set.add_all(cx, 0..5_000));
    let sent = |world: &World| items(&world.said).len();
    for _ in 0..12 {
        world.tick(0, Duration::from_secs(2));
        world.flights.clear();
    }
    assert_eq!(sent(&world), 1);
    world.tick(0, Duration::from_secs(10));
    world.flights.clear();
    assert_eq!(sent(&world), 2, "half a minute is enough");
    world.reachable = false;
    world.publish(&[0, 1]);
    world.reachable = true;
    world.publish(&[0, 1]);
    world.tick(0, Duration::from_secs(1));
    assert_eq!(sent(&world), 3);
    world.settle();
    assert_eq!(world.set_len(1, "big"), 5_000);
}
