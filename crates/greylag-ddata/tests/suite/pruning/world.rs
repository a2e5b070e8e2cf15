//! A few replicators, a network that does what a test says, and both clocks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use greylag_crdt::{
    CounterOverflow, DotSource, GCounter, LwwMap, OrMap, OrSet, PNCounter, Performed, Plain, PnCounterMap,
    RemovedNodePruning, ReplicaId, ReplicatedData, UpdateCx,
};
use greylag_ddata::{
    DurableSettings, Effect, Envelope, Input, Key, KeyId, Lifecycle, LoadedRecord, Message, ReadReply, Replica,
    ReplicaStatus, Replicas, ReplicatorCore, ReplicatorEvent, ReplicatorSettings, StoreImage, StoreOp, TypeTable,
    WriteLevel,
};
use greylag_testkit::deadlines::assert_moved;

pub(crate) type Set = OrSet<String>;
pub(crate) type Places = LwwMap<String, String>;
pub(crate) type Votes = PnCounterMap<String>;
pub(crate) type Map = OrMap<String, Plain<GCounter>>;

pub(crate) const TICK: Duration = Duration::from_secs(10);
/// Time enough for a round to be announced and spread.
pub(crate) const SPREAD: Duration = Duration::from_secs(30);
/// Time enough for a change to reach all nodes.
pub(crate) const SOON: Duration = Duration::from_secs(3);
/// The life of a marker.
pub(crate) const LIFE: Duration = Duration::from_secs(600);

pub(crate) fn settings() -> ReplicatorSettings {
    ReplicatorSettings {
        gossip_interval: Duration::from_secs(1),
        delta_propagation_interval: Duration::from_millis(100),
        delta_resend_timeout: Duration::from_millis(500),
        pruning_interval: Some(TICK),
        max_pruning_dissemination: SPREAD,
        pruning_marker_time_to_live: LIFE,
        // The life of a round is twice the longer of both lifetimes.
        durable: DurableSettings { pruning_marker_time_to_live: LIFE, ..DurableSettings::default() },
        ..ReplicatorSettings::default()
    }
}

struct Flight {
    from: UniqueAddress,
    to: UniqueAddress,
    message: Message,
}

pub(crate) struct Node {
    pub(crate) core: ReplicatorCore,
    pub(crate) address: UniqueAddress,
    pub(crate) numbers: DotSource,
    status: ReplicaStatus,
    pub(crate) events: Vec<ReplicatorEvent>,
    /// The entries of which subscribers were notified.
    pub(crate) notices: Vec<KeyId>,
}

pub(crate) struct World {
    base: Instant,
    pub(crate) now: Duration,
    pub(crate) settings: ReplicatorSettings,
    pub(crate) nodes: BTreeMap<char, Node>,
    flights: Vec<Flight>,
    /// Pairs of nodes between which nothing is delivered.
    cut: BTreeSet<(char, char)>,
    pub(crate) removed: BTreeSet<UniqueAddress>,
    /// Nodes that are unreachable for all others.
    unreachable: BTreeSet<char>,
    /// The status that one node sees of another, if it differs.
    beliefs: BTreeMap<(char, char), ReplicaStatus>,
    /// The disks, which answer at once.
    pub(crate) disks: BTreeMap<char, StoreImage>,
    /// By how many milliseconds each node's wall clock is ahead.
    clocks: BTreeMap<char, i64>,
    /// The requests that were answered, with their nodes.
    pub(crate) answered: Vec<(char, u64)>,
    /// A check after every input.
    pub(crate) always: Option<Box<dyn Fn(char, &ReplicatorCore)>>,
    next: u64,
}

pub(crate) fn address(name: char, incarnation: u64) -> UniqueAddress {
    format!("{name}:1#{}", incarnation * 100 + u64::from(name as u8 - b'a') + 1).parse().unwrap()
}

pub(crate) fn replica(name: char) -> ReplicaId {
    ReplicaId(address(name, 0).uid().get())
}

/// When each marker of a disk was performed, by entry, removed replica and owner.
type Kept = BTreeMap<(KeyId, ReplicaId, ReplicaId), i64>;

fn kept(disk: &StoreImage) -> Kept {
    let of = |(key, record): (&KeyId, &LoadedRecord)| match record {
        LoadedRecord::Value { markers, .. } => {
            let named = |marker: &Performed| ((key.clone(), marker.removed, marker.owner), marker.performed_at);
            markers.iter().map(named).collect()
        }
        _ => Vec::new(),
    };
    disk.records.iter().flat_map(of).collect()
}

/// Applies an op of a batch, and checks that wherever a crash cuts the batch, the disk records the horizon of every
/// marker that is gone. Source: ddata Z9.
fn apply(disk: &mut StoreImage, op: StoreOp, spread: Duration) {
    let before = kept(disk);
    disk.apply(op);
    let after = kept(disk);
    let is_gone = |at: &(KeyId, ReplicaId, ReplicaId)| disk.records.contains_key(&at.0) && !after.contains_key(at);
    let forgotten = before.iter().filter(|(at, _)| is_gone(at)).map(|(_, performed_at)| *performed_at).max();
    let horizon = disk.meta.as_ref().and_then(|meta| meta.forget_horizon);
    let needed = forgotten.map(|at| at + spread.as_millis() as i64);
    assert!(horizon >= needed, "the disk forgot a marker: horizon {horizon:?}, needed {needed:?}");
}

fn key<T: ReplicatedData>(id: &str) -> Key<T> {
    Key::new(id).unwrap()
}

impl World {
    pub(crate) fn new(names: &str) -> Self {
        Self::with(names, settings())
    }

    /// A world in which every entry is durable.
    pub(crate) fn durable(names: &str) -> Self {
        let mut settings = settings();
        settings.durable.keys = vec!["*".into()];
        Self::with(names, settings)
    }

    pub(crate) fn with(names: &str, settings: ReplicatorSettings) -> Self {
        let mut world = Self {
            base: Instant::now(),
            now: Duration::ZERO,
            disks: BTreeMap::new(),
            settings,
            nodes: BTreeMap::new(),
            flights: Vec::new(),
            cut: BTreeSet::new(),
            removed: BTreeSet::new(),
            unreachable: BTreeSet::new(),
            beliefs: BTreeMap::new(),
            clocks: BTreeMap::new(),
            answered: Vec::new(),
            always: None,
            next: 0,
        };
        names.chars().for_each(|name| world.start(name, 0, ReplicaStatus::Up));
        world.publish();
        world.settle();
        world
    }

    /// Starts a process; others know it after `publish`.
    pub(crate) fn start(&mut self, name: char, incarnation: u64, status: ReplicaStatus) {
        self.start_with(name, incarnation, status, DotSource::new());
    }

    /// Starts a replicator in a process that has drawn numbers before.
    pub(crate) fn start_with(&mut self, name: char, incarnation: u64, status: ReplicaStatus, numbers: DotSource) {
        let address = address(name, incarnation);
        let types = TypeTable::new().with::<Map>();
        let now = self.base + self.now;
        let seed = address.uid().get();
        let core = ReplicatorCore::new(self.settings.clone(), types, address.clone(), numbers.clone(), seed, now);
        self.nodes.insert(name, Node { core, address, numbers, status, events: Vec::new(), notices: Vec::new() });
        let wall = self.wall_ms(name);
        self.input(name, Input::Wall(wall));
    }

    fn wall_ms(&self, name: char) -> i64 {
        self.now.as_millis() as i64 + self.clocks.get(&name).copied().unwrap_or(0)
    }

    /// Sets a node's wall clock so many milliseconds ahead.
    pub(crate) fn set_clock(&mut self, name: char, ahead_ms: i64) {
        self.clocks.insert(name, ahead_ms);
        let wall = self.wall_ms(name);
        self.input(name, Input::Wall(wall));
    }

    /// Starts a node's process again, with what is on its disk, and publishes it.
    pub(crate) fn restart(&mut self, name: char, incarnation: u64) {
        self.start(name, incarnation, ReplicaStatus::Up);
        self.publish();
        self.settle();
    }

    pub(crate) fn lifecycle(&self, name: char) -> &Lifecycle {
        self.nodes[&name].core.lifecycle()
    }

    /// Gives every node the other ones.
    pub(crate) fn publish(&mut self) {
        for own in self.nodes.keys().copied().collect::<Vec<_>>() {
            let others = self.nodes.iter().filter(|(name, _)| **name != own).map(|(name, node)| Replica {
                address: node.address.clone(),
                status: self.beliefs.get(&(own, *name)).copied().unwrap_or(node.status),
                reachable: !self.unreachable.contains(name) && !self.unreachable.contains(&own),
                age: node.address.uid().get(),
            });
            let replicas = Replicas {
                own_status: Some(self.nodes[&own].status),
                own_age: self.nodes[&own].address.uid().get(),
                others: others.collect(),
                unmet: BTreeSet::new(),
                removed: self.removed.clone(),
            };
            self.input(own, Input::Replicas(Arc::new(replicas)));
        }
    }

    pub(crate) fn believe(&mut self, own: char, other: char, status: ReplicaStatus) {
        self.beliefs.insert((own, other), status);
        self.publish();
    }

    pub(crate) fn set_reachable(&mut self, name: char, reachable: bool) {
        if reachable {
            self.unreachable.remove(&name);
        } else {
            self.unreachable.insert(name);
        }
        self.publish();
    }

    /// Ends a process; its messages under way are lost.
    pub(crate) fn kill(&mut self, name: char) -> Node {
        let node = self.nodes.remove(&name).unwrap();
        self.flights.retain(|flight| flight.from != node.address && flight.to != node.address);
        node
    }

    /// Stops a process for a while: it does nothing and gets nothing until `go_on`.
    pub(crate) fn pause(&mut self, name: char) -> Node {
        self.kill(name)
    }

    /// Continues a paused process.
    pub(crate) fn go_on(&mut self, name: char, node: Node) {
        self.nodes.insert(name, node);
        let wall = self.wall_ms(name);
        self.input(name, Input::Wall(wall));
    }

    /// Ends a process, and lets membership remove it.
    pub(crate) fn remove(&mut self, name: char) -> Node {
        let node = self.kill(name);
        self.removed.insert(node.address.clone());
        self.publish();
        node
    }

    /// Moves a process with its disk into a world of its own: it is cut off from all others for good, and has removed
    /// them.
    pub(crate) fn apart(&mut self, name: char, node: Node) -> Self {
        let mut apart = Self::with("", self.settings.clone());
        (apart.base, apart.now) = (self.base, self.now);
        apart.removed = self.nodes.values().map(|other| other.address.clone()).collect();
        apart.disks.extend(self.disks.get(&name).cloned().map(|disk| (name, disk)));
        apart.go_on(name, node);
        apart.publish();
        apart
    }

    pub(crate) fn cut(&mut self, one: char, other: char) {
        self.cut.extend([(one, other), (other, one)]);
    }

    /// As `cut`, with the pair in one word.
    pub(crate) fn cut_both(&mut self, pair: &str) {
        let mut names = pair.chars();
        self.cut(names.next().unwrap(), names.next().unwrap());
    }

    pub(crate) fn mend(&mut self) {
        self.cut.clear();
    }

    pub(crate) fn input(&mut self, name: char, input: Input) {
        let mut out = Vec::new();
        let now = self.base + self.now;
        let ticks = matches!(input, Input::Tick);
        self.nodes.get_mut(&name).unwrap().core.handle(now, input, &mut out);
        if ticks {
            assert_moved("replicator", now, self.nodes[&name].core.next_deadline());
        }
        self.perform(name, out);
    }

    fn perform(&mut self, name: char, effects: Vec<Effect>) {
        let from = self.nodes[&name].address.clone();
        for effect in effects {
            match effect {
                Effect::Send { to, message, .. } => self.flights.push(Flight { from: from.clone(), to, message }),
                Effect::Event(event) => self.nodes.get_mut(&name).unwrap().events.push(event),
                // No store in these tests loses its end.
                Effect::LoadAnew => unreachable!("no store said that it had lost its end"),
                Effect::Reply { id, .. } => self.answered.push((name, id)),
                Effect::Notify { key, .. } => self.nodes.get_mut(&name).unwrap().notices.push(key),
                Effect::Load => {
                    let batch = self.disks.entry(name).or_default().load();
                    self.input(name, Input::Loaded(batch.records));
                    self.input(name, Input::LoadDone(batch.meta));
                }
                Effect::Store { ticket, ops } => {
                    let disk = self.disks.entry(name).or_default();
                    let spread = self.settings.max_pruning_dissemination;
                    ops.into_iter().for_each(|op| apply(disk, op, spread));
                    self.input(name, Input::Stored { ticket, result: Ok(()) });
                }
                _ => {}
            }
        }
        if let Some(always) = &self.always {
            always(name, &self.nodes[&name].core);
        }
    }

    fn name_of(&self, address: &UniqueAddress) -> Option<char> {
        self.nodes.iter().find(|(_, node)| node.address == *address).map(|(name, _)| *name)
    }

    /// Delivers the messages under way that `passes` selects; messages that follow from them stay under way.
    pub(crate) fn deliver(&mut self, passes: impl Fn(char, char, &Message) -> bool) {
        for Flight { from, to, message } in std::mem::take(&mut self.flights) {
            let (Some(sender), Some(receiver)) = (self.name_of(&from), self.name_of(&to)) else { continue };
            if self.cut.contains(&(sender, receiver)) {
                continue;
            }
            if passes(sender, receiver, &message) {
                self.input(receiver, Input::Received { from, message });
            } else {
                self.flights.push(Flight { from, to, message });
            }
        }
    }

    /// Lets all standings of one node to another, for a while, have a horizon so many milliseconds ahead of the other's
    /// clock.
    pub(crate) fn says_horizon(&mut self, from: char, to: char, ahead_ms: i64) {
        for _ in 0..40 {
            let end = self.now + Duration::from_millis(500);
            while self.tick_before(end) {}
            self.now = end;
            while !self.flights.is_empty() {
                let horizon = Some(self.wall_ms(to).saturating_add(ahead_ms));
                for at in 0..self.flights.len() {
                    let ends = (self.name_of(&self.flights[at].from), self.name_of(&self.flights[at].to));
                    if let Message::SyncOpen { pruning, .. }
                    | Message::SyncSame { pruning, .. }
                    | Message::SyncDiffers { pruning, .. } = &mut self.flights[at].message
                        && ends == (Some(from), Some(to))
                    {
                        pruning.standing.forget_horizon = horizon;
                    }
                }
                self.deliver(|_, _, _| true);
            }
        }
    }

    /// Whether a message of this kind is under way.
    pub(crate) fn is_under_way(&self, one: char, other: char, kind: &str) -> bool {
        let is_it = |flight: &Flight| {
            let ends = (self.name_of(&flight.from), self.name_of(&flight.to));
            ends == (Some(one), Some(other)) && flight.message.kind() == kind
        };
        self.flights.iter().any(is_it)
    }

    /// Lets one node alone hear that another is removed, while that one goes on.
    pub(crate) fn hears_of_removal(&mut self, by: char, whom: char) {
        let others = self.nodes.iter().filter(|(name, _)| **name != by && **name != whom).map(|(_, node)| Replica {
            address: node.address.clone(),
            status: node.status,
            reachable: true,
            age: node.address.uid().get(),
        });
        let own = &self.nodes[&by];
        let replicas = Replicas {
            own_status: Some(own.status),
            own_age: own.address.uid().get(),
            others: others.collect(),
            unmet: BTreeSet::new(),
            removed: [self.nodes[&whom].address.clone()].into(),
        };
        self.input(by, Input::Replicas(Arc::new(replicas)));
    }

    /// Loses all messages under way.
    pub(crate) fn lose(&mut self) {
        self.flights.clear();
    }

    /// Delivers until nothing is under way.
    pub(crate) fn settle(&mut self) {
        for _ in 0..10_000 {
            if self.flights.is_empty() {
                return;
            }
            self.deliver(|_, _, _| true);
        }
        panic!("messages never end");
    }

    /// Runs the next tick that is due by `end`, without delivering anything. Returns whether there was one.
    pub(crate) fn tick_before(&mut self, end: Duration) -> bool {
        let due = self.nodes.iter().filter_map(|(name, node)| Some((node.core.next_deadline()?, *name))).min();
        let Some((at, name)) = due.filter(|(at, _)| *at <= self.base + end) else { return false };
        self.now = self.now.max(at.saturating_duration_since(self.base));
        self.input(name, Input::Tick);
        true
    }

    /// Lets time pass; everything is delivered at once.
    pub(crate) fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        self.settle();
        while self.tick_before(end) {
            self.settle();
        }
        self.now = end;
    }

    /// Lets time pass until the condition holds.
    pub(crate) fn advance_until(&mut self, limit: Duration, mut is_so: impl FnMut(&Self) -> bool) {
        let end = self.now + limit;
        while !is_so(self) {
            assert!(self.tick_before(end), "it never came to that");
            self.settle();
        }
    }

    pub(crate) fn update<T: ReplicatedData>(
        &mut self,
        name: char,
        id: &str,
        modify: impl FnOnce(&mut T, &mut UpdateCx<'_>) -> Result<(), CounterOverflow>,
    ) {
        self.update_at(name, id, WriteLevel::Local, modify);
    }

    /// Updates an entry, and sends the delta to all at once.
    pub(crate) fn update_everywhere<T: ReplicatedData>(
        &mut self,
        name: char,
        id: &str,
        modify: impl FnOnce(&mut T, &mut UpdateCx<'_>) -> Result<(), CounterOverflow>,
    ) {
        self.update_at(name, id, WriteLevel::all(Duration::from_secs(5)), modify);
    }

    fn update_at<T: ReplicatedData>(
        &mut self,
        name: char,
        id: &str,
        level: WriteLevel,
        modify: impl FnOnce(&mut T, &mut UpdateCx<'_>) -> Result<(), CounterOverflow>,
    ) {
        self.next += 1;
        let (mut out, now, wall) = (Vec::new(), self.base + self.now, self.wall_ms(name));
        let node = self.nodes.get_mut(&name).unwrap();
        node.core.update(now, wall, self.next, &key(id), level, T::zero, modify, &mut out).unwrap();
        self.perform(name, out);
    }

    pub(crate) fn add(&mut self, name: char, id: &str, element: &str) {
        self.update::<Set>(name, id, |set, cx| {
            set.add(cx, element.to_owned());
            Ok(())
        });
    }

    pub(crate) fn delete(&mut self, name: char, id: &str) {
        self.next += 1;
        let (id, wall_ms) = (id.into(), self.wall_ms(name));
        self.input(name, Input::Delete { id: self.next, key: id, level: WriteLevel::Local, wall_ms });
    }

    /// Adds an element, and sends the delta to all at once.
    pub(crate) fn add_everywhere(&mut self, name: char, id: &str, element: &str) {
        self.update_everywhere::<Set>(name, id, |set, cx| {
            set.add(cx, element.to_owned());
            Ok(())
        });
    }

    /// Increments a counter, and sends the delta to all at once.
    pub(crate) fn count_everywhere(&mut self, name: char, id: &str, by: u64) {
        self.update_everywhere::<GCounter>(name, id, |counter, cx| counter.increment(cx, by));
    }

    /// Whether an owner has begun to go through entries and pauses between two steps.
    pub(crate) fn is_between_steps(&self, name: char) -> bool {
        let soon = self.base + self.now + Duration::from_millis(1);
        self.performed(name).0 == 0
            && self.nodes[&name].core.is_performing()
            && self.nodes[&name].core.next_deadline() <= Some(soon)
    }

    pub(crate) fn take(&mut self, name: char, id: &str, element: &str) {
        self.update::<Set>(name, id, |set, cx| {
            assert!(set.remove(cx, element), "{element} is there");
            Ok(())
        });
    }

    pub(crate) fn count(&mut self, name: char, id: &str, by: u64) {
        self.update::<GCounter>(name, id, |counter, cx| counter.increment(cx, by));
    }

    pub(crate) fn value<T: ReplicatedData>(&self, name: char, id: &str) -> T {
        self.nodes[&name].core.value(&key::<T>(id)).cloned().unwrap_or_else(T::zero)
    }

    /// The elements of a set, in a word.
    pub(crate) fn set(&self, name: char, id: &str) -> String {
        self.value::<Set>(name, id).iter().map(String::as_str).collect()
    }

    pub(crate) fn counter(&self, name: char, id: &str) -> u128 {
        self.value::<GCounter>(name, id).value()
    }

    /// Checks that every node holds this set.
    pub(crate) fn all_hold(&self, id: &str, elements: &str) {
        for name in self.nodes.keys() {
            assert_eq!(self.set(*name, id), elements, "{id} at {name}");
        }
        self.all_equal();
    }

    /// Checks that every node counts this much.
    pub(crate) fn all_count(&self, id: &str, value: u128) {
        for name in self.nodes.keys() {
            assert_eq!(self.counter(*name, id), value, "{id} at {name}");
        }
        self.all_equal();
    }

    fn all_equal(&self) {
        let digests: Vec<_> = self.nodes.values().map(|node| node.core.digests()).collect();
        assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "all hold the same");
    }

    /// Whether data at some node name a replica.
    pub(crate) fn is_named<T: ReplicatedData>(&self, id: &str, replica: ReplicaId) -> bool {
        self.nodes.keys().any(|name| {
            let value = self.value::<T>(*name, id);
            value.pruning().is_some_and(|pruning: &dyn RemovedNodePruning| pruning.modified_by().contains(&replica))
        })
    }

    /// The envelope that a node would send of an entry.
    pub(crate) fn envelope(&mut self, name: char, id: &str) -> Envelope {
        let asker = self.nodes.iter().find(|(other, _)| **other != name).map(|(_, node)| node.address.clone()).unwrap();
        let mut out = Vec::new();
        let now = self.base + self.now;
        let node = self.nodes.get_mut(&name).unwrap();
        let types = [Set::TAG, GCounter::TAG, PNCounter::TAG, Map::TAG, Places::TAG, Votes::TAG];
        for tag in types.map(|tag| tag.to_string()) {
            let message = Message::Read { request: 1, key: id.into(), tag: tag.into(), digest: None };
            node.core.handle(now, Input::Received { from: asker.clone(), message }, &mut out);
        }
        let found = out.into_iter().find_map(|effect| match effect {
            Effect::Send { message: Message::ReadReply { reply: ReadReply::Value(envelope), .. }, .. } => {
                Some(envelope)
            }
            _ => None,
        });
        found.expect("a value")
    }

    /// Lets a copy of an entry turn up at a node, as from a store that returned, or in a message that was under way for
    /// long.
    pub(crate) fn turns_up(&mut self, name: char, id: &str, envelope: &Envelope) {
        let other = self.nodes.iter().find(|(other, _)| **other != name).map(|(_, node)| node.address.clone()).unwrap();
        let message =
            Message::Gossip { round: None, number: 0, send_back: false, entries: vec![(id.into(), envelope.clone())] };
        self.input(name, Input::Received { from: other, message });
    }

    /// Lets time pass until an entry names the removed replica nowhere.
    pub(crate) fn until_pruned<T: ReplicatedData>(&mut self, id: &str, removed: ReplicaId) {
        let limit = SPREAD + TICK * 12;
        self.advance_until(limit, |world| !world.is_named::<T>(id, removed));
        self.advance(Duration::from_secs(3));
    }

    /// How many entries a node performed, and how many of them again.
    pub(crate) fn performed(&self, name: char) -> (u64, u64) {
        let stats = self.nodes[&name].core.stats();
        (stats.performed, stats.performed_again)
    }
}
