//! Replicators whose wall clocks differ, with a network that does what a test says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use greylag_crdt::{DotSource, LwwMap, OrSet, ReplicatedData, UpdateCx};
use greylag_ddata::{
    Effect, Input, Key, Message, Notice, Read, ReadLevel, Replica, ReplicaStatus, Replicas, ReplicatorCore,
    ReplicatorEvent, ReplicatorSettings, Reply, TypeTable, UpdateError, WriteLevel,
};
use greylag_testkit::deadlines::assert_moved;

pub(crate) type Set = OrSet<String>;
pub(crate) type Map = LwwMap<String, String>;
/// The outcome of a request that waits for no peer.
pub(crate) type Refused = UpdateError<String>;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
const START: i64 = 1_000_000_000;

struct Node {
    core: ReplicatorCore,
    address: UniqueAddress,
    skew_ms: i64,
}

pub(crate) struct World {
    base: Instant,
    pub(crate) now: Duration,
    nodes: BTreeMap<char, Node>,
    pub(crate) flights: Vec<(UniqueAddress, UniqueAddress, Message)>,
    cut: BTreeSet<(char, char)>,
    replies: BTreeMap<u64, Reply>,
    /// The notices of subscribers, in order.
    pub(crate) notices: Vec<(char, String)>,
    pub(crate) events: Vec<(char, ReplicatorEvent)>,
    next: u64,
}

pub(crate) fn key<T>(id: &str) -> Key<T> {
    Key::new(id).unwrap()
}

/// Settings with short intervals, and with these lifetimes.
pub(crate) fn settings(patterns: &[(&str, u64)]) -> ReplicatorSettings {
    ReplicatorSettings {
        gossip_interval: SECOND,
        delta_propagation_interval: Duration::from_millis(100),
        notify_subscribers_interval: Duration::from_millis(100),
        max_pruning_dissemination: SECOND * 60,
        expire_keys_after_inactivity: patterns
            .iter()
            .map(|(pattern, seconds)| ((*pattern).to_owned(), Duration::from_secs(*seconds)))
            .collect(),
        ..ReplicatorSettings::default()
    }
}

impl World {
    pub(crate) fn new(nodes: &[(char, i64)], settings: &ReplicatorSettings) -> Self {
        let base = Instant::now();
        let mut world = Self {
            base,
            now: Duration::ZERO,
            nodes: BTreeMap::new(),
            flights: Vec::new(),
            cut: BTreeSet::new(),
            replies: BTreeMap::new(),
            notices: Vec::new(),
            events: Vec::new(),
            next: 0,
        };
        for (name, skew_ms) in nodes {
            let uid = u64::from(*name as u8 - b'a') + 1;
            let address: UniqueAddress = format!("{name}:1#{uid}").parse().unwrap();
            let types = TypeTable::new();
            let core = ReplicatorCore::new(settings.clone(), types, address.clone(), DotSource::new(), uid * 7, base);
            world.nodes.insert(*name, Node { core, address, skew_ms: *skew_ms });
            let wall = world.wall(*name);
            world.input(*name, Input::Wall(wall));
        }
        let names: Vec<char> = world.nodes.keys().copied().collect();
        for own in &names {
            let others = world.nodes.iter().filter(|(name, _)| *name != own).map(|(_, node)| Replica {
                address: node.address.clone(),
                status: ReplicaStatus::Up,
                reachable: true,
                age: node.address.uid().get(),
            });
            let own_age = world.nodes[own].address.uid().get();
            let own_status = Some(ReplicaStatus::Up);
            let replicas = Replicas { own_status, own_age, others: others.collect(), ..Replicas::default() };
            world.input(*own, Input::Replicas(Arc::new(replicas)));
        }
        world.settle();
        world
    }

    fn wall(&self, name: char) -> i64 {
        START + self.now.as_millis() as i64 + self.nodes[&name].skew_ms
    }

    pub(crate) fn input(&mut self, name: char, input: Input) {
        let (mut out, now) = (Vec::new(), self.base + self.now);
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
                Effect::Send { to, message, .. } => self.flights.push((from.clone(), to, message)),
                Effect::Reply { id, reply } => {
                    let former = self.replies.insert(id, reply);
                    assert_eq!(former, None, "request {id} was answered already");
                }
                Effect::Event(event) => self.events.push((name, event)),
                Effect::Notify { key, notice, .. } => {
                    let told = match notice {
                        Notice::Value(value) => format!("{key} {value:?}"),
                        Notice::Deleted => format!("{key} deleted"),
                        Notice::Expired => format!("{key} expired"),
                    };
                    self.notices.push((name, told));
                }
                _ => {}
            }
        }
    }

    pub(crate) fn cut(&mut self, one: char, other: char) {
        self.cut.extend([(one, other), (other, one)]);
    }

    pub(crate) fn mend(&mut self) {
        self.cut.clear();
    }

    fn name_of(&self, address: &UniqueAddress) -> char {
        self.nodes.iter().find(|(_, node)| node.address == *address).map(|(name, _)| *name).unwrap()
    }

    /// Delivers the messages under way that `passes` selects; messages that follow from them stay under way.
    pub(crate) fn deliver(&mut self, passes: impl Fn(char, char, &Message) -> bool) {
        for (from, to, message) in std::mem::take(&mut self.flights) {
            let (sender, receiver) = (self.name_of(&from), self.name_of(&to));
            if self.cut.contains(&(sender, receiver)) {
                continue;
            }
            if passes(sender, receiver, &message) {
                self.input(receiver, Input::Received { from, message });
            } else {
                self.flights.push((from, to, message));
            }
        }
    }

    pub(crate) fn settle(&mut self) {
        for _ in 0..10_000 {
            if self.flights.is_empty() {
                return;
            }
            self.deliver(|_, _, _| true);
        }
        panic!("messages never end");
    }

    /// Lets time pass for the clocks, while no node does anything.
    pub(crate) fn skip(&mut self, by: Duration) {
        self.now += by;
    }

    /// Lets time pass; everything due is done, and everything sent is delivered at once.
    pub(crate) fn run(&mut self, by: Duration) {
        let end = self.now + by;
        self.settle();
        loop {
            let due = self.nodes.iter().filter_map(|(name, node)| Some((node.core.next_deadline()?, *name))).min();
            let Some((at, name)) = due.filter(|(at, _)| *at <= self.base + end) else { break };
            self.now = self.now.max(at.saturating_duration_since(self.base));
            self.input(name, Input::Tick);
            self.settle();
        }
        self.now = end;
    }

    pub(crate) fn update<T: ReplicatedData>(
        &mut self,
        name: char,
        id: &str,
        level: WriteLevel,
        modify: impl FnOnce(&mut T, &mut UpdateCx<'_>),
    ) -> Result<u64, Refused> {
        self.next += 1;
        let (mut out, now, wall) = (Vec::new(), self.base + self.now, self.wall(name));
        let core = &mut self.nodes.get_mut(&name).unwrap().core;
        let modify = |value: &mut T, cx: &mut UpdateCx<'_>| {
            modify(value, cx);
            Ok::<_, String>(())
        };
        let done = core.update(now, wall, self.next, &key(id), level, T::zero, modify, &mut out);
        self.perform(name, out);
        done.map(|()| self.next)
    }

    pub(crate) fn add(&mut self, name: char, id: &str, element: &str) {
        let add = |set: &mut Set, cx: &mut UpdateCx<'_>| set.add(cx, element.to_owned());
        self.update(name, id, WriteLevel::Local, add).unwrap();
    }

    pub(crate) fn put(&mut self, name: char, id: &str, field: &str) {
        let put = |map: &mut Map, cx: &mut UpdateCx<'_>| map.put(cx, field.to_owned(), "v".to_owned()).unwrap();
        self.update(name, id, WriteLevel::Local, put).unwrap();
    }

    pub(crate) fn get<T: ReplicatedData>(&mut self, name: char, id: &str, level: ReadLevel) -> u64 {
        self.next += 1;
        let (number, tag) = (self.next, T::TAG.to_string().into());
        self.input(name, Input::Get { id: number, key: id.into(), tag, level });
        number
    }

    /// The result of a local read of a set, in a word.
    pub(crate) fn read(&mut self, name: char, id: &str) -> String {
        let number = self.get::<Set>(name, id, ReadLevel::Local);
        match &self.replies[&number] {
            Reply::Get(Ok(Read::Found(value))) => value.to::<Set>().unwrap().iter().map(String::as_str).collect(),
            Reply::Get(Ok(Read::NotFound)) => "nothing".into(),
            Reply::Get(Ok(Read::Deleted)) => "deleted".into(),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn delete(&mut self, name: char, id: &str) {
        self.delete_at(name, id, WriteLevel::Local);
    }

    pub(crate) fn delete_at(&mut self, name: char, id: &str, level: WriteLevel) -> u64 {
        self.next += 1;
        let (number, wall_ms) = (self.next, self.wall(name));
        self.input(name, Input::Delete { id: number, key: id.into(), level, wall_ms });
        number
    }

    pub(crate) fn subscribe(&mut self, name: char, pattern: &str) {
        let tag = Set::TAG.to_string().into();
        self.input(name, Input::Subscribe { subscriber: 1, pattern: pattern.into(), tag });
    }

    pub(crate) fn reply(&self, id: u64) -> Option<&Reply> {
        self.replies.get(&id)
    }

    pub(crate) fn core(&self, name: char) -> &ReplicatorCore {
        &self.nodes[&name].core
    }

    /// Every field of a map, in a word.
    pub(crate) fn fields(&self, name: char, id: &str) -> String {
        let map = self.core(name).value(&key::<Map>(id)).cloned().unwrap_or_default();
        map.iter().map(|(field, _)| field.as_str()).collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn all_equal(&self) {
        let digests: Vec<_> = self.nodes.values().map(|node| node.core.digests()).collect();
        assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "all hold the same: {digests:?}");
    }

    pub(crate) fn told(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices).into_iter().map(|(_, told)| told).collect()
    }
}
