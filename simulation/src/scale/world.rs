//! Many membership machines on one event queue.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_cluster::{
    ClusterCore, ClusterEvent, ClusterSettings, Command, Effect, Gossip, Input, Member, MemberStatus, Message,
    SbrSettings,
};
use greylag_core::{NodeAddress, Uid, UniqueAddress};
use greylag_testkit::deadlines::assert_moved;
use greylag_transport::Destination;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Plan;
use super::processor::{Stopwatch, resident_bytes};
use super::report::{Change, Cost};
use super::traffic::Traffic;

/// How messages travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// As values: equal states share memory.
    Values,
    /// As bytes: every node has its own copy.
    Real,
}

struct Node {
    core: ClusterCore,
    /// Whether it runs and belongs to the cluster.
    lives: bool,
    /// Time of its last queued tick.
    tick_at: Duration,
    parted: bool,
}

#[derive(Debug)]
enum What {
    Start,
    Tick,
    Message { from: usize, message: Message },
    Dialled(UniqueAddress),
}

/// An event; the number keeps events of equal time in order.
struct Due {
    at: Duration,
    number: u64,
    node: usize,
    what: What,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// A cluster of one process.
pub(super) struct World {
    rng: ChaCha8Rng,
    settings: ClusterSettings,
    wire: Wire,
    nodes: Vec<Node>,
    /// Only for look-ups, never iterated.
    by_address: HashMap<NodeAddress, usize>,
    queue: BinaryHeap<Reverse<Due>>,
    number: u64,
    base: Instant,
    now: Duration,
    effects: Vec<Effect>,
    traffic: Traffic,
    /// Nodes that were found unreachable although they were not.
    alarms: BTreeSet<UniqueAddress>,
    /// The state before the watched change. `converged_at` is when the leader, which is the first node, found the new
    /// state converged.
    before: Arc<Gossip>,
    converged_at: Option<Duration>,
    /// Whether a member was WeaklyUp at that moment.
    twofold: bool,
    progress: Option<fn(&str)>,
    tell_at: Duration,
    watch: Stopwatch,
}

impl World {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            rng: ChaCha8Rng::seed_from_u64(plan.seed),
            settings: ClusterSettings::default().with_resolver(SbrSettings::default()),
            wire: plan.wire,
            nodes: Vec::new(),
            by_address: HashMap::new(),
            queue: BinaryHeap::new(),
            number: 0,
            base: Instant::now(),
            now: Duration::ZERO,
            effects: Vec::new(),
            traffic: Traffic::default(),
            alarms: BTreeSet::new(),
            before: Arc::default(),
            converged_at: None,
            twofold: false,
            progress: plan.progress,
            tell_at: Duration::ZERO,
            watch: Stopwatch::start(),
        }
    }

    pub(super) fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    pub(super) fn now(&self) -> Duration {
        self.now
    }

    fn add(&mut self) -> usize {
        let index = self.nodes.len();
        let address = NodeAddress::new(&format!("node-{index:05}.example"), 17355).expect("a valid address");
        let uid = Uid::new(self.rng.random_range(1..u64::MAX)).expect("not zero");
        let unique = UniqueAddress::new(address.clone(), uid);
        let core = ClusterCore::new(unique, self.settings.clone(), self.rng.random(), self.base + self.now);
        self.by_address.insert(address, index);
        self.nodes.push(Node { core, lives: true, tick_at: Duration::MAX, parted: false });
        index
    }

    /// Starts the first node, which forms the cluster.
    pub(super) fn start_first(&mut self) {
        let first = self.add();
        self.queue(self.now, first, What::Start);
    }

    /// Starts `count` more nodes, spread over a time.
    pub(super) fn join_within(&mut self, count: usize, time: Duration) {
        for number in 0..count {
            let node = self.add();
            let at = self.now + time * u32::try_from(number).expect("few") / u32::try_from(count).expect("few");
            self.queue(at, node, What::Start);
        }
    }

    fn youngest(&self) -> usize {
        self.nodes.iter().rposition(|node| node.lives).expect("a node lives")
    }

    /// Makes the youngest member leave.
    pub(super) fn leave_one(&mut self) {
        let target = self.youngest();
        let address = self.nodes[target].core.node().clone();
        self.handle(target, Input::Command(Command::Leave(address)));
    }

    /// Kills the youngest member: its connections break, and its kernel refuses new ones.
    pub(super) fn kill_one(&mut self) {
        let target = self.youngest();
        let address = self.nodes[target].core.node().clone();
        self.nodes[target].lives = false;
        for node in 0..self.nodes.len() {
            if self.nodes[node].lives {
                self.handle(node, Input::LinkLost(address.clone()));
            }
        }
    }

    /// Cuts the last `count` nodes off from the others.
    pub(super) fn part(&mut self, count: usize) {
        self.nodes.iter_mut().rev().take(count).for_each(|node| node.parted = true);
    }

    pub(super) fn heal(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.parted = false);
    }

    /// Whether every live node is Up in every view, and all states are equal.
    pub(super) fn is_settled(&self) -> bool {
        let first = self.nodes[0].core.gossip();
        let living = self.living();
        let up = |member: &Member| member.status == MemberStatus::Up;
        if first.members.len() != living || !first.members.values().all(up) || first.seen.len() != living {
            return false;
        }
        let agrees = |node: &Node| node.core.gossip().version == first.version && node.core.view().converged;
        self.nodes.iter().filter(|node| node.lives).all(agrees)
    }

    /// Checks that ages are unique.
    pub(super) fn check_ages(&self) -> Result<(), String> {
        let members = &self.nodes[0].core.gossip().members;
        let ages: BTreeSet<u32> = members.values().map(|member| member.up_number).collect();
        if ages.len() == members.len() { Ok(()) } else { Err("two members have one age".into()) }
    }

    /// Checks that no member was found unreachable although it was not.
    pub(super) fn check_alarms(&self) -> Result<(), String> {
        match self.alarms.first() {
            None => Ok(()),
            Some(first) => Err(format!("{} members were missed that were there, {first} first", self.alarms.len())),
        }
    }

    fn living(&self) -> usize {
        self.nodes.iter().filter(|node| node.lives).count()
    }

    /// Measures the cost of a time without any change.
    pub(super) fn observe(&mut self, time: Duration) -> Cost {
        let (traffic, watch) = (self.traffic, Stopwatch::start());
        self.run_for(time);
        Cost::new(self.living(), time, &self.traffic.since(&traffic), watch.elapsed())
    }

    /// Makes a change, and runs until the leader, which is the first node, finds it converged, and until all its
    /// consequences are known to all.
    pub(super) fn change(&mut self, name: &str, make: impl FnOnce(&mut Self)) -> Result<Change, String> {
        // The leader must have ticked after the last change converged; otherwise it would count its blocked time from
        // that change on (cluster M21).
        self.run_for(Duration::from_secs(2));
        let (traffic, from, watch) = (self.traffic, self.now, Stopwatch::start());
        let time_limit = Duration::from_secs(120);
        self.before = self.nodes[0].core.gossip().clone();
        self.converged_at = None;
        make(self);
        self.run_until(name, time_limit, |world| world.converged_at.is_some() && world.is_settled())?;
        let converged = self.converged_at.expect("waited for") - from;
        let known = self.now - from;
        let cost = Cost::new(self.living(), known, &self.traffic.since(&traffic), watch.elapsed());
        Ok(Change { converged, known, twofold: self.twofold, cost })
    }

    pub(super) fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.queue.peek().is_some_and(|due| due.0.at <= until) {
            self.step();
        }
        self.now = until;
        self.tell_progress();
    }

    fn tell_progress(&mut self) {
        let Some(tell) = self.progress.filter(|_| self.now >= self.tell_at) else { return };
        self.tell_at = self.now + Duration::from_secs(1);
        let (gossip, view) = (self.nodes[0].core.gossip(), self.nodes[0].core.view());
        let up = gossip.members.iter().filter(|member| member.status == MemberStatus::Up).count();
        tell(&format!(
            "{:?}: the first node knows {} members, {up} of them Up, seen by {}{}; {} messages, {} states, \
             {:.1} s of one core, {} MiB",
            self.now,
            gossip.members.len(),
            gossip.seen.len(),
            if view.converged { ", converged" } else { "" },
            self.traffic.messages,
            self.traffic.states,
            self.watch.elapsed().as_secs_f64(),
            resident_bytes().unwrap_or_default() >> 20
        ));
    }

    /// Runs until `done`, which is checked twenty times a second.
    pub(super) fn run_until(
        &mut self,
        what: &str,
        time_limit: Duration,
        done: impl Fn(&Self) -> bool,
    ) -> Result<(), String> {
        let deadline = self.now + time_limit;
        while !done(self) {
            if self.now >= deadline {
                let first = self.nodes[0].core.view();
                let count = first.members.len();
                return Err(format!("{what}: not within {time_limit:?}; the first node knows {count} members"));
            }
            self.run_for(Duration::from_millis(50));
        }
        Ok(())
    }

    fn step(&mut self) {
        let Some(Reverse(due)) = self.queue.pop() else { return };
        self.now = due.at;
        if !self.nodes[due.node].lives {
            return;
        }
        match due.what {
            What::Start => {
                // The first three nodes are the seeds; with itself as the only seed a node founds its own cluster.
                let seeds = (0..self.nodes.len().min(3)).map(|seed| self.nodes[seed].core.node().address().clone());
                let seeds: Vec<_> = if due.node == 0 { seeds.take(1).collect() } else { seeds.collect() };
                self.handle(due.node, Input::WallClock(1_000_000));
                self.handle(due.node, Input::Command(Command::JoinSeeds(seeds)));
            }
            What::Tick => {
                if self.nodes[due.node].tick_at <= self.now {
                    self.nodes[due.node].tick_at = Duration::MAX;
                    self.handle(due.node, Input::Tick);
                }
            }
            What::Message { from, message } => {
                let from = self.nodes[from].core.node().clone();
                let received_at = self.base + self.now;
                self.handle(due.node, Input::Message { from, message, received_at });
            }
            What::Dialled(peer) => {
                let lives = self.nodes[self.by_address[peer.address()]].lives;
                let parted = self.nodes[self.by_address[peer.address()]].parted != self.nodes[due.node].parted;
                let outcome = match (lives, parted) {
                    (_, true) => Input::DialFailed(peer),
                    (true, false) => Input::DialAnswered(peer),
                    (false, false) => Input::DialRefused(peer),
                };
                self.handle(due.node, outcome);
            }
        }
    }

    fn handle(&mut self, index: usize, input: Input) {
        let mut effects = std::mem::take(&mut self.effects);
        let now = self.base + self.now;
        let ticks = matches!(input, Input::Tick);
        self.nodes[index].core.handle(now, input, &mut effects);
        if ticks {
            assert_moved("cluster core", now, self.nodes[index].core.next_deadline());
        }
        let mut exits = false;
        for effect in effects.drain(..) {
            match effect {
                Effect::Send { to, message } => self.send(index, &to, message),
                Effect::Dial(peer) => self.queue(self.now + Duration::from_millis(1), index, What::Dialled(peer)),
                Effect::Publish(ClusterEvent::UnreachableMember(member)) => self.note_alarm(index, member.address),
                Effect::StartExitingTasks => exits = true,
                Effect::Shutdown(_) => self.nodes[index].lives = false,
                _ => {}
            }
        }
        self.effects = effects;
        if index == 0 && self.converged_at.is_none() {
            self.notice_convergence();
        }
        if exits {
            self.handle(index, Input::Command(Command::ExitingTasksDone { clean: true }));
        }
        let node = &mut self.nodes[index];
        if let Some(deadline) = node.core.next_deadline() {
            let at = deadline.saturating_duration_since(self.base).max(self.now);
            if at < node.tick_at {
                node.tick_at = at;
                self.queue(at, index, What::Tick);
            }
        }
    }

    /// Called after every step of the leader, which acts within a second on a converged state.
    fn notice_convergence(&mut self) {
        let (gossip, view) = (self.nodes[0].core.gossip(), self.nodes[0].core.view());
        // The leader removes dead members in the same step in which it finds the state converged.
        let removed = gossip.tombstones.len() > self.before.tombstones.len();
        if removed || (view.converged && gossip.version != self.before.version) {
            self.converged_at = Some(self.now);
            self.twofold = view.members.iter().any(|member| member.status == MemberStatus::WeaklyUp);
        }
    }

    fn note_alarm(&mut self, by: usize, missed: UniqueAddress) {
        let node = &self.nodes[self.by_address[missed.address()]];
        if node.lives && !node.parted && !self.nodes[by].parted {
            self.alarms.insert(missed);
        }
    }

    fn send(&mut self, from: usize, to: &Destination, message: Message) {
        self.traffic.count(&message, self.nodes.len());
        let Some(&node) = self.by_address.get(to.address()) else { return };
        let meant = match to {
            Destination::Incarnation(unique) => self.nodes[node].core.node() == unique,
            Destination::Address(_) => true,
        };
        if meant && self.nodes[from].parted == self.nodes[node].parted {
            let at = self.now + Duration::from_micros(self.rng.random_range(500..1500));
            let message = match self.wire {
                Wire::Values => message,
                Wire::Real => Message::from_bytes(message.manifest(), message.to_bytes()).expect("it was just written"),
            };
            self.queue(at, node, What::Message { from, message });
        }
    }

    fn queue(&mut self, at: Duration, node: usize, what: What) {
        self.number += 1;
        self.queue.push(Reverse(Due { at, number: self.number, node, what }));
    }
}
