//! Many membership machines on one event queue.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::{Duration, Instant};

use greylag_cluster::{
    ClusterCore, ClusterSettings, Command, Effect, Input, Member, MemberStatus, Message, SbrSettings,
};
use greylag_core::{NodeAddress, Uid, UniqueAddress};
use greylag_transport::Destination;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::report::{Change, Cost};

/// Encoding is what a driver does, and would drown what the machines cost: big messages are encoded
/// once in so many, and counted so many times.
const SAMPLED: u64 = 64;
/// Messages that carry no state are all about this long.
const SMALL: u64 = 64;

struct Node {
    core: ClusterCore,
    /// Runs, and belongs to the cluster.
    lives: bool,
    /// When the tick that was queued last is due.
    tick_at: Duration,
    parted: bool,
}

#[derive(Debug)]
enum What {
    Start,
    Tick,
    Message { from: usize, message: Message },
}

/// What is due when; the number keeps equal times in order.
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
    nodes: Vec<Node>,
    by_address: BTreeMap<NodeAddress, usize>,
    queue: BinaryHeap<Reverse<Due>>,
    number: u64,
    base: Instant,
    now: Duration,
    effects: Vec<Effect>,
    messages: u64,
    bytes: u64,
    sampled: u64,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            settings: ClusterSettings::default().with_resolver(SbrSettings::default()),
            nodes: Vec::new(),
            by_address: BTreeMap::new(),
            queue: BinaryHeap::new(),
            number: 0,
            base: Instant::now(),
            now: Duration::ZERO,
            effects: Vec::new(),
            messages: 0,
            bytes: 0,
            sampled: 0,
        }
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

    /// The first node forms the cluster.
    pub(super) fn start_first(&mut self) {
        let first = self.add();
        self.queue(self.now, first, What::Start);
    }

    /// So many more nodes join, spread over a time.
    pub(super) fn join_within(&mut self, count: usize, time: Duration) {
        for number in 0..count {
            let node = self.add();
            let at = self.now + time * u32::try_from(number).expect("few") / u32::try_from(count).expect("few");
            self.queue(at, node, What::Start);
        }
    }

    /// The youngest leaves.
    pub(super) fn leave_one(&mut self) {
        let target = self.nodes.iter().rposition(|node| node.lives).expect("somebody lives");
        let address = self.nodes[target].core.node().clone();
        self.handle(target, Input::Command(Command::Leave(address)));
    }

    /// The youngest crashes, unseen; the first downs it, as an operator would.
    pub(super) fn crash_one(&mut self) {
        let target = self.nodes.iter().rposition(|node| node.lives).expect("somebody lives");
        let address = self.nodes[target].core.node().clone();
        self.nodes[target].lives = false;
        self.handle(0, Input::Command(Command::Down(address)));
    }

    /// Cuts the last so many off from the others.
    pub(super) fn part(&mut self, count: usize) {
        self.nodes.iter_mut().rev().take(count).for_each(|node| node.parted = true);
    }

    pub(super) fn heal(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.parted = false);
    }

    /// Every node that lives is Up in every view, and all states are one.
    pub(super) fn is_settled(&self) -> bool {
        let first = self.nodes[0].core.gossip();
        let living = self.nodes.iter().filter(|node| node.lives).count();
        let up = |member: &Member| member.status == MemberStatus::Up;
        if first.members.len() != living || !first.members.values().all(up) || first.seen.len() != living {
            return false;
        }
        let agrees = |node: &&Node| node.core.gossip().version == first.version && node.core.view().converged;
        self.nodes.iter().filter(|node| node.lives).all(|node| agrees(&node))
    }

    /// Ages are unique.
    pub(super) fn check_ages(&self) -> Result<(), String> {
        let members = &self.nodes[0].core.gossip().members;
        let ages: BTreeSet<u32> = members.values().map(|member| member.up_number).collect();
        if ages.len() == members.len() { Ok(()) } else { Err("two members have one age".into()) }
    }

    /// What happens without any change.
    pub(super) fn observe(&mut self, time: Duration) -> Cost {
        let (messages, bytes, from, begun) = (self.messages, self.bytes, self.now, Instant::now());
        self.run_for(time);
        let members = self.nodes.iter().filter(|node| node.lives).count();
        Cost::new(members, self.now - from, self.messages - messages, self.bytes - bytes, begun.elapsed())
    }

    /// Makes a change, and runs until the leader, which is the first node, finds it converged, and
    /// until everything that follows from it is done and known to all.
    pub(super) fn change(&mut self, name: &str, make: impl FnOnce(&mut Self)) -> Result<Change, String> {
        let (messages, bytes, from, begun) = (self.messages, self.bytes, self.now, Instant::now());
        let patience = Duration::from_secs(120);
        let before = self.nodes[0].core.gossip().version.clone();
        make(self);
        self.run_until(name, patience, |world| {
            let first = &world.nodes[0].core;
            first.gossip().version != before && first.view().converged
        })?;
        let converged = self.now - from;
        self.run_until(name, patience, Self::is_settled)?;
        let members = self.nodes.iter().filter(|node| node.lives).count();
        let cost = Cost::new(members, self.now - from, self.messages - messages, self.bytes - bytes, begun.elapsed());
        Ok(Change { converged, known: self.now - from, cost })
    }

    pub(super) fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.queue.peek().is_some_and(|due| due.0.at <= until) {
            self.step();
        }
        self.now = until;
    }

    /// Runs until `done`, looked at twenty times a second: a leader acts within a second after
    /// convergence, not at once, so that is seen.
    pub(super) fn run_until(
        &mut self,
        what: &str,
        patience: Duration,
        done: impl Fn(&Self) -> bool,
    ) -> Result<(), String> {
        let deadline = self.now + patience;
        while !done(self) {
            if self.now >= deadline {
                let first = self.nodes[0].core.view();
                let count = first.members.len();
                return Err(format!("{what}: not within {patience:?}; the first node knows {count} members"));
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
                // The first three serve as seeds; alone, a node can only found its own cluster.
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
        }
    }

    fn handle(&mut self, index: usize, input: Input) {
        let mut effects = std::mem::take(&mut self.effects);
        let now = self.base + self.now;
        self.nodes[index].core.handle(now, input, &mut effects);
        let mut exits = false;
        for effect in effects.drain(..) {
            match effect {
                Effect::Send { to, message } => self.send(index, &to, message),
                Effect::StartExitingTasks => exits = true,
                Effect::Shutdown(_) => self.nodes[index].lives = false,
                _ => {}
            }
        }
        self.effects = effects;
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

    fn send(&mut self, from: usize, to: &Destination, message: Message) {
        self.count(&message);
        let Some(&node) = self.by_address.get(to.address()) else { return };
        let meant = match to {
            Destination::Incarnation(unique) => self.nodes[node].core.node() == unique,
            Destination::Address(_) => true,
        };
        if meant && self.nodes[from].parted == self.nodes[node].parted {
            let at = self.now + Duration::from_micros(self.rng.random_range(500..1500));
            self.queue(at, node, What::Message { from, message });
        }
    }

    fn count(&mut self, message: &Message) {
        self.messages += 1;
        let carries_state =
            matches!(message, Message::GossipEnvelope { .. } | Message::GossipStatus { .. } | Message::Welcome { .. });
        if !carries_state {
            self.bytes += SMALL;
            return;
        }
        self.sampled += 1;
        if self.nodes.len() < 200 || self.sampled.is_multiple_of(SAMPLED) {
            let times = if self.nodes.len() < 200 { 1 } else { SAMPLED };
            self.bytes += message.to_bytes().len() as u64 * times;
        }
    }

    fn queue(&mut self, at: Duration, node: usize, what: What) {
        self.number += 1;
        self.queue.push(Reverse(Due { at, number: self.number, node, what }));
    }
}
