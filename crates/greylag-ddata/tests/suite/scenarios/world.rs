//! Replicators with an in-memory network: messages arrive at once unless a link is cut, and time passes when the test
//! says so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use greylag_crdt::{DotSource, ReplicatedData, UpdateCx};
use greylag_ddata::{
    DeleteError, Effect, GetError, Input, Key, Message, Notice, Read, ReadLevel, Refusal, Replica, ReplicaStatus,
    Replicas, ReplicatorCore, ReplicatorEvent, ReplicatorSettings, Reply, Snapshot, TypeTable, UpdateError, WriteLevel,
    WriteReply,
};
use greylag_testkit::deadlines::assert_moved;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
/// Long enough for every delta and some rounds.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// The outcome of an update; `None` while it waits.
pub(crate) type Written = Option<Result<(), UpdateError<std::convert::Infallible>>>;

struct Node {
    core: ReplicatorCore,
    address: UniqueAddress,
    status: ReplicaStatus,
}

pub(crate) struct World {
    base: Instant,
    pub(crate) now: Duration,
    nodes: BTreeMap<char, Node>,
    flights: Vec<(UniqueAddress, UniqueAddress, Message)>,
    cut: BTreeSet<(char, char)>,
    /// `(by, of)`: node `by` sees node `of` as unreachable.
    unreachable: BTreeSet<(char, char)>,
    removed: BTreeSet<UniqueAddress>,
    replies: BTreeMap<u64, Reply>,
    /// The notices of subscribers, in order.
    pub(crate) notices: Vec<(char, String, Notice)>,
    pub(crate) events: Vec<ReplicatorEvent>,
    /// Every effect in words, for comparing two runs.
    pub(crate) trace: Vec<String>,
    /// The messages that were sent, with sender and receiver, in order.
    pub(crate) sent: Vec<(char, char, &'static str)>,
    next: u64,
    settings: ReplicatorSettings,
}

impl World {
    /// Voters that know each other and have synchronized.
    pub(crate) fn new(names: &str) -> Self {
        let settings = ReplicatorSettings { gossip_interval: Duration::from_secs(2), ..ReplicatorSettings::default() };
        Self::with(names, settings)
    }

    pub(crate) fn with(names: &str, settings: ReplicatorSettings) -> Self {
        let mut world = Self {
            base: Instant::now(),
            now: Duration::ZERO,
            nodes: BTreeMap::new(),
            flights: Vec::new(),
            cut: BTreeSet::new(),
            unreachable: BTreeSet::new(),
            removed: BTreeSet::new(),
            replies: BTreeMap::new(),
            notices: Vec::new(),
            events: Vec::new(),
            trace: Vec::new(),
            sent: Vec::new(),
            next: 0,
            settings,
        };
        names.chars().for_each(|name| world.start(name, 0, ReplicaStatus::Up));
        world.publish();
        world.run(Duration::from_millis(1));
        world.sent.clear();
        world
    }

    /// Starts a process, which knows no other until `publish`.
    pub(crate) fn start(&mut self, name: char, incarnation: u64, status: ReplicaStatus) {
        let uid = incarnation * 100 + u64::from(name as u8 - b'a') + 1;
        let address: UniqueAddress = format!("{name}:1#{uid}").parse().unwrap();
        let now = self.base + self.now;
        let (settings, types) = (self.settings.clone(), TypeTable::new());
        let core = ReplicatorCore::new(settings, types, address.clone(), DotSource::new(), uid, now);
        self.nodes.insert(name, Node { core, address, status });
    }

    /// Ends a process with everything it holds, and removes it from membership.
    pub(crate) fn crash(&mut self, name: char) {
        let node = self.nodes.remove(&name).unwrap();
        self.removed.insert(node.address);
        self.publish();
    }

    pub(crate) fn publish(&mut self) {
        for own in self.nodes.keys().copied().collect::<Vec<_>>() {
            let others = self.nodes.iter().filter(|(name, _)| **name != own).map(|(name, node)| Replica {
                address: node.address.clone(),
                status: node.status,
                reachable: !self.unreachable.contains(&(own, *name)),
                age: node.address.uid().get(),
            });
            let replicas = Replicas {
                own_status: Some(self.nodes[&own].status),
                own_age: self.nodes[&own].address.uid().get(),
                others: others.collect(),
                removed: self.removed.clone(),
                ..Replicas::default()
            };
            self.input(own, Input::Replicas(Arc::new(replicas)));
        }
    }

    /// Cuts all links between the two sides.
    pub(crate) fn split(&mut self, one: &str, other: &str) {
        for (a, b) in one.chars().flat_map(|a| other.chars().map(move |b| (a, b))) {
            self.cut.extend([(a, b), (b, a)]);
        }
    }

    pub(crate) fn mend(&mut self) {
        self.cut.clear();
        self.unreachable.clear();
        self.publish();
    }

    pub(crate) fn mend_between(&mut self, one: char, other: char) {
        self.cut.remove(&(one, other));
        self.cut.remove(&(other, one));
    }

    pub(crate) fn finds_unreachable(&mut self, by: char, whom: &str) {
        self.unreachable.extend(whom.chars().map(|of| (by, of)));
        self.publish();
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
            self.trace.push(format!("{name} {effect:?}"));
            match effect {
                Effect::Send { to, message, .. } => {
                    let to_name = to.address().host().chars().next().unwrap();
                    self.sent.push((name, to_name, message.kind()));
                    self.flights.push((from.clone(), to, message));
                }
                Effect::Reply { id, reply } => drop(self.replies.insert(id, reply)),
                Effect::Notify { key, notice, .. } => self.notices.push((name, key.to_string(), notice)),
                Effect::Event(event) => self.events.push(event),
                _ => {}
            }
        }
    }

    /// Delivers until nothing is under way. Messages on a cut link are lost.
    pub(crate) fn settle(&mut self) {
        while !self.flights.is_empty() {
            for (from, to, message) in std::mem::take(&mut self.flights) {
                let name = |address: &UniqueAddress| {
                    self.nodes.iter().find(|(_, node)| node.address == *address).map(|(name, _)| *name)
                };
                let (Some(sender), Some(receiver)) = (name(&from), name(&to)) else { continue };
                if !self.cut.contains(&(sender, receiver)) {
                    self.input(receiver, Input::Received { from, message });
                }
            }
        }
    }

    /// Lets time pass; everything is delivered at once.
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

    /// Begins an update; `written` returns its outcome.
    pub(crate) fn update<T: ReplicatedData>(
        &mut self,
        name: char,
        key: &Key<T>,
        level: WriteLevel,
        modify: impl FnOnce(&mut T, &mut UpdateCx<'_>),
    ) -> u64 {
        self.next += 1;
        let (mut out, now, wall) = (Vec::new(), self.base + self.now, self.now.as_millis() as i64);
        let core = &mut self.nodes.get_mut(&name).unwrap().core;
        let modify = |value: &mut T, cx: &mut UpdateCx<'_>| {
            modify(value, cx);
            Ok::<_, ()>(())
        };
        core.update(now, wall, self.next, key, level, T::zero, modify, &mut out).unwrap();
        self.perform(name, out);
        self.next
    }

    pub(crate) fn get<T: ReplicatedData>(&mut self, name: char, key: &Key<T>, level: ReadLevel) -> u64 {
        self.next += 1;
        let (id, key, tag) = (self.next, key.id().clone(), T::TAG.to_string().into());
        self.input(name, Input::Get { id, key, tag, level });
        id
    }

    pub(crate) fn delete(&mut self, name: char, key: &str, level: WriteLevel) -> u64 {
        self.next += 1;
        let (id, wall_ms) = (self.next, self.now.as_millis() as i64);
        self.input(name, Input::Delete { id, key: key.into(), level, wall_ms });
        id
    }

    pub(crate) fn written(&self, id: u64) -> Written {
        match self.replies.get(&id)? {
            Reply::Update(result) => Some(result.clone()),
            other => panic!("{other:?}"),
        }
    }

    /// Why a delete failed; `None` while it waits, or if it succeeded.
    pub(crate) fn delete_error(&self, id: u64) -> Option<DeleteError> {
        match self.replies.get(&id)? {
            Reply::Delete(result) => result.clone().err(),
            other => panic!("{other:?}"),
        }
    }

    /// Lets a peer refuse every write that was sent to it and not delivered.
    pub(crate) fn refuse_all(&mut self, name: char, peer: char, refusal: Refusal) {
        let peer = self.nodes[&peer].address.clone();
        let asked = self.flights.iter().filter(|(_, to, _)| *to == peer).filter_map(|(_, _, message)| match message {
            Message::Write { request, .. } | Message::DeltaWrite { request, .. } => Some(*request),
            _ => None,
        });
        for request in asked.collect::<Vec<_>>() {
            let message = Message::WriteReply { request, reply: WriteReply::Nack(refusal) };
            self.input(name, Input::Received { from: peer.clone(), message });
        }
    }

    /// Takes the next batch of deltas of a node; the batch does not arrive.
    pub(crate) fn batch_of(&mut self, name: char) -> Message {
        loop {
            let found = self.flights.iter().find(|(_, _, message)| matches!(message, Message::DeltaBatch { .. }));
            if let Some((_, _, message)) = found {
                let message = message.clone();
                self.flights.clear();
                return message;
            }
            self.now = self.core(name).next_deadline().expect("something is to be sent") - self.base;
            self.input(name, Input::Tick);
        }
    }

    /// The requests under way from one node to another.
    pub(crate) fn requests_to(&self, from: char, to: char) -> Vec<u64> {
        let (from, to) = (&self.nodes[&from].address, &self.nodes[&to].address);
        let sent = self.flights.iter().filter(|(sender, receiver, _)| sender == from && receiver == to);
        let request = |message: &Message| match message {
            Message::Write { request, .. } | Message::DeltaWrite { request, .. } => Some(*request),
            _ => None,
        };
        sent.filter_map(|(_, _, message)| request(message)).collect()
    }

    /// The numbers of the requests under way from a node.
    pub(crate) fn requests_from(&self, from: char) -> Vec<u64> {
        let others = self.nodes.keys().filter(|name| **name != from);
        others.flat_map(|to| self.requests_to(from, *to)).collect()
    }

    /// Tells a node that the transport refused the message of a request.
    pub(crate) fn send_failed(&mut self, name: char, to: char, request: u64) {
        let to = self.nodes[&to].address.clone();
        self.input(name, Input::SendFailed { to, request: Some(request) });
    }

    pub(crate) fn receive(&mut self, name: char, from: char, message: Message) {
        let from = self.nodes[&from].address.clone();
        self.input(name, Input::Received { from, message });
    }

    pub(crate) fn deleted(&self, id: u64) -> bool {
        matches!(self.replies.get(&id), Some(Reply::Delete(Ok(()))))
    }

    /// The result of a read; `None` while the read waits.
    pub(crate) fn found(&self, id: u64) -> Option<Result<Read<Snapshot>, GetError>> {
        match self.replies.get(&id)? {
            Reply::Get(result) => Some(result.clone()),
            other => panic!("{other:?}"),
        }
    }

    /// The value that was read.
    pub(crate) fn value_of<T: ReplicatedData>(&self, id: u64) -> T {
        match self.found(id) {
            Some(Ok(Read::Found(value))) => value.to().expect("the type asked for"),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn core(&self, name: char) -> &ReplicatorCore {
        &self.nodes[&name].core
    }

    pub(crate) fn held<T: ReplicatedData>(&self, name: char, key: &Key<T>) -> T {
        self.core(name).value(key).cloned().unwrap_or_else(T::zero)
    }

    pub(crate) fn all_equal(&self) {
        let digests: Vec<_> = self.nodes.values().map(|node| node.core.digests()).collect();
        assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "all hold the same");
    }

    /// The receivers of a node's messages of this kind, in order of their names.
    pub(crate) fn sent_by(&self, name: char, kind: &str) -> String {
        let sent = self.sent.iter().filter(|(from, _, what)| *from == name && *what == kind);
        let mut whom: Vec<char> = sent.map(|(_, to, _)| *to).collect();
        whom.sort_unstable();
        whom.into_iter().collect()
    }
}
