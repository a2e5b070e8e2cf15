//! A virtual network on virtual time, drawn from one seed.
//!
//! Nodes are numbers, messages are values of the test's choice. Each ordered pair of nodes has numbered lanes; a lane
//! is first in, first out unless the fault model reorders it, and lanes are independent of each other. Faults (loss,
//! delay, duplication, cuts, crashes, pauses) are drawn from the seed or set by the test. The world on top asks
//! [`Network::step`] for the next event and lets its machines handle it.
//!
//! ```
//! use std::time::Duration;
//! use greylag_testkit::network::{Happening, Link, Network};
//!
//! let mut net = Network::new(7, Link::reliable(Duration::from_millis(5)));
//! let (a, b) = (net.add_node(), net.add_node());
//! net.send(a, b, 0, "hello");
//! net.wake_at(b, Duration::from_secs(1));
//! assert_eq!(net.step(), Some(Happening::Delivered { from: a, to: b, lane: 0, message: "hello" }));
//! assert_eq!(net.step(), Some(Happening::Woken { node: b }));
//! assert_eq!(net.now(), Duration::from_secs(1));
//! ```

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// One process incarnation. A restarted node is a new number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

/// Delay and faults of messages between two nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// The shortest and the longest delay.
    pub delay: (Duration, Duration),
    /// Probability that a message is lost.
    pub loss: f64,
    /// Probability that a message arrives twice.
    pub duplication: f64,
    /// Whether messages of one lane may overtake each other.
    pub reorder: bool,
}

impl Link {
    /// Loses nothing, keeps the order of each lane, and delays each message by exactly `delay`.
    pub fn reliable(delay: Duration) -> Self {
        Self { delay: (delay, delay), loss: 0.0, duplication: 0.0, reorder: false }
    }
}

/// An event of the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening<M> {
    /// A message arrives.
    Delivered {
        /// The sender.
        from: NodeId,
        /// The receiver.
        to: NodeId,
        /// The lane.
        lane: u32,
        /// The message.
        message: M,
    },
    /// The time of a wake-up has come.
    Woken {
        /// The node to wake.
        node: NodeId,
    },
}

#[derive(Debug)]
struct Event<M> {
    at: Duration,
    seq: u64,
    what: Happening<M>,
    /// Number of the wake-up; an event with an older number is void.
    wake: u64,
}

impl<M> PartialEq for Event<M> {
    fn eq(&self, other: &Self) -> bool {
        self.seq == other.seq
    }
}
impl<M> Eq for Event<M> {}
impl<M> PartialOrd for Event<M> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<M> Ord for Event<M> {
    /// Reversed, since the heap yields its greatest element and the earliest event must come first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.seq).cmp(&(self.at, self.seq))
    }
}

#[derive(Debug, Default)]
struct Node {
    crashed: bool,
    paused_until: Option<Duration>,
    wake: u64,
    wake_at: Option<Duration>,
}

/// Counts of messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages handed to [`Network::send`].
    pub sent: u64,
    /// Messages delivered, copies included.
    pub delivered: u64,
    /// Messages lost by chance.
    pub lost: u64,
    /// Messages lost to a cut or a crashed node.
    pub cut: u64,
    /// Second copies made.
    pub duplicated: u64,
}

/// The network, its clock and its random numbers.
#[derive(Debug)]
pub struct Network<M> {
    rng: ChaCha8Rng,
    now: Duration,
    seq: u64,
    queue: BinaryHeap<Event<M>>,
    nodes: Vec<Node>,
    default_link: Link,
    links: BTreeMap<(NodeId, NodeId), Link>,
    cuts: BTreeSet<(NodeId, NodeId)>,
    /// The latest arrival per lane, which keeps the order of a lane.
    arrivals: BTreeMap<(NodeId, NodeId, u32), Duration>,
    counts: Counts,
}

impl<M: Clone> Network<M> {
    /// An empty network at time zero. `link` is the default for all pairs of nodes.
    pub fn new(seed: u64, link: Link) -> Self {
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            now: Duration::ZERO,
            seq: 0,
            queue: BinaryHeap::new(),
            nodes: Vec::new(),
            default_link: link,
            links: BTreeMap::new(),
            cuts: BTreeSet::new(),
            arrivals: BTreeMap::new(),
            counts: Counts::default(),
        }
    }

    /// Time since the start.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Random numbers from the seed, for draws of the test itself.
    pub fn rng(&mut self) -> &mut ChaCha8Rng {
        &mut self.rng
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Starts a node.
    pub fn add_node(&mut self) -> NodeId {
        self.nodes.push(Node::default());
        NodeId(self.nodes.len() - 1)
    }

    /// Sends a message, which may be lost.
    pub fn send(&mut self, from: NodeId, to: NodeId, lane: u32, message: M) {
        self.counts.sent += 1;
        if self.nodes[from.0].crashed || self.nodes[to.0].crashed || self.cuts.contains(&(from, to)) {
            self.counts.cut += 1;
            return;
        }
        let link = self.links.get(&(from, to)).unwrap_or(&self.default_link).clone();
        if from != to && link.loss > 0.0 && self.rng.random_bool(link.loss) {
            self.counts.lost += 1;
            return;
        }
        if from != to && link.duplication > 0.0 && self.rng.random_bool(link.duplication) {
            self.counts.duplicated += 1;
            self.schedule(from, to, lane, &link, message.clone());
        }
        self.schedule(from, to, lane, &link, message);
    }

    fn schedule(&mut self, from: NodeId, to: NodeId, lane: u32, link: &Link, message: M) {
        let (least, most) = link.delay;
        let delay = if from == to || least >= most { least } else { self.rng.random_range(least..=most) };
        let mut at = self.now + if from == to { Duration::ZERO } else { delay };
        if !link.reorder {
            let last = self.arrivals.entry((from, to, lane)).or_default();
            at = at.max(*last);
            *last = at;
        }
        self.push(at, 0, Happening::Delivered { from, to, lane, message });
    }

    /// Wakes a node once at `at` (time since the start); replaces an earlier wake-up of the node.
    pub fn wake_at(&mut self, node: NodeId, at: Duration) {
        let state = &mut self.nodes[node.0];
        if state.wake_at == Some(at) {
            return;
        }
        state.wake += 1;
        state.wake_at = Some(at);
        let wake = state.wake;
        self.push(at.max(self.now), wake, Happening::Woken { node });
    }

    /// Cancels the wake-up of a node.
    pub fn forget_wake(&mut self, node: NodeId) {
        let state = &mut self.nodes[node.0];
        state.wake += 1;
        state.wake_at = None;
    }

    fn push(&mut self, at: Duration, wake: u64, what: Happening<M>) {
        self.seq += 1;
        self.queue.push(Event { at, seq: self.seq, what, wake });
    }

    /// Moves to the next event and returns it; `None` if there will be none.
    pub fn step(&mut self) -> Option<Happening<M>> {
        self.step_until(Duration::MAX)
    }

    /// As [`Network::step`], but stops at `end`: `None` then means that `end` was reached.
    pub fn step_until(&mut self, end: Duration) -> Option<Happening<M>> {
        loop {
            if self.queue.peek().is_none_or(|event| event.at > end) {
                if end != Duration::MAX {
                    self.now = self.now.max(end);
                }
                return None;
            }
            let event = self.queue.pop().expect("peeked above");
            self.now = self.now.max(event.at);
            let (from, node) = match &event.what {
                Happening::Delivered { from, to, .. } => (Some(*from), *to),
                Happening::Woken { node } => (None, *node),
            };
            let state = &mut self.nodes[node.0];
            if state.crashed || from.is_some_and(|from| self.cuts.contains(&(from, node))) {
                self.counts.cut += u64::from(from.is_some());
                continue;
            }
            if let Some(until) = state.paused_until.filter(|until| *until > self.now) {
                // A paused process finds all events when it wakes, in order.
                self.push(until, event.wake, event.what);
                continue;
            }
            if from.is_none() {
                if event.wake != state.wake {
                    continue;
                }
                state.wake_at = None;
            } else {
                self.counts.delivered += 1;
            }
            return Some(event.what);
        }
    }

    /// Sets delay and faults from `from` to `to`.
    pub fn set_link(&mut self, from: NodeId, to: NodeId, link: Link) {
        self.links.insert((from, to), link);
    }

    /// Sets delay and faults of all pairs without a link of their own.
    pub fn set_default_link(&mut self, link: Link) {
        self.default_link = link;
    }

    /// Cuts the way from `from` to `to`: nothing arrives, not even messages under way. The other direction stays.
    pub fn cut(&mut self, from: NodeId, to: NodeId) {
        self.cuts.insert((from, to));
    }

    /// Cuts both ways between every node of one side and every node of the other.
    pub fn partition(&mut self, left: &[NodeId], right: &[NodeId]) {
        for &a in left {
            for &b in right {
                self.cuts.extend([(a, b), (b, a)]);
            }
        }
    }

    /// Whether messages from `from` to `to` are cut.
    pub fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        self.cuts.contains(&(from, to))
    }

    /// Ends all cuts.
    pub fn heal(&mut self) {
        self.cuts.clear();
    }

    /// Ends the cut from `from` to `to`.
    pub fn mend(&mut self, from: NodeId, to: NodeId) {
        self.cuts.remove(&(from, to));
    }

    /// Crashes the node: it receives nothing and is never woken again. A restart is a new node.
    pub fn crash(&mut self, node: NodeId) {
        self.nodes[node.0].crashed = true;
    }

    /// Whether the node has crashed.
    pub fn is_crashed(&self, node: NodeId) -> bool {
        self.nodes[node.0].crashed
    }

    /// Pauses the node for `pause`; messages to it wait meanwhile.
    pub fn pause(&mut self, node: NodeId, pause: Duration) {
        self.nodes[node.0].paused_until = Some(self.now + pause);
    }

    /// Whether the node is paused now.
    pub fn is_paused(&self, node: NodeId) -> bool {
        self.nodes[node.0].paused_until.is_some_and(|until| until > self.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn run(seed: u64, link: Link, messages: u32) -> (Vec<u32>, Counts) {
        let mut net = Network::new(seed, link);
        let (a, b) = (net.add_node(), net.add_node());
        for message in 0..messages {
            net.send(a, b, 0, message);
        }
        let mut arrived = Vec::new();
        while let Some(Happening::Delivered { message, .. }) = net.step() {
            arrived.push(message);
        }
        (arrived, net.counts())
    }

    #[test]
    fn one_seed_is_one_history() {
        let link = Link { delay: (MS, 50 * MS), loss: 0.2, duplication: 0.1, reorder: true };
        let (first, counts) = run(3, link.clone(), 500);
        assert_eq!((first.clone(), counts), run(3, link.clone(), 500));
        assert_ne!(first, run(4, link, 500).0);
        assert!(counts.lost > 50 && counts.duplicated > 10, "{counts:?}");
        assert_eq!(counts.delivered, 500 - counts.lost + counts.duplicated);
    }

    #[test]
    fn a_lane_keeps_its_order_unless_reordering_is_set() {
        let link = Link { delay: (MS, 50 * MS), loss: 0.0, duplication: 0.0, reorder: false };
        assert!(run(1, link.clone(), 200).0.is_sorted());
        assert!(!run(1, Link { reorder: true, ..link }, 200).0.is_sorted());
    }

    #[test]
    fn a_cut_is_one_way_and_drops_messages_in_flight() {
        let mut net = Network::new(0, Link::reliable(MS));
        let (a, b) = (net.add_node(), net.add_node());
        net.send(a, b, 0, 1);
        net.send(b, a, 0, 2);
        net.cut(a, b);
        assert_eq!(net.step(), Some(Happening::Delivered { from: b, to: a, lane: 0, message: 2 }));
        assert_eq!(net.step(), None);
        net.heal();
        net.send(a, b, 0, 3);
        assert_eq!(net.step(), Some(Happening::Delivered { from: a, to: b, lane: 0, message: 3 }));
    }

    #[test]
    fn a_paused_node_receives_its_messages_on_resume_and_a_crashed_one_none() {
        let mut net = Network::new(0, Link::reliable(MS));
        let (a, b, c) = (net.add_node(), net.add_node(), net.add_node());
        net.pause(b, 10 * MS);
        net.crash(c);
        net.send(a, b, 0, 1);
        net.send(a, c, 0, 2);
        net.wake_at(b, 2 * MS);
        assert!(matches!(net.step(), Some(Happening::Delivered { to, .. }) if to == b));
        assert_eq!(net.now(), 10 * MS);
        assert_eq!(net.step(), Some(Happening::Woken { node: b }));
        assert_eq!(net.step(), None);
    }

    #[test]
    fn a_later_wake_up_replaces_an_earlier_one() {
        let mut net: Network<()> = Network::new(0, Link::reliable(MS));
        let a = net.add_node();
        net.wake_at(a, MS);
        net.wake_at(a, 5 * MS);
        assert_eq!(net.step(), Some(Happening::Woken { node: a }));
        assert_eq!(net.now(), 5 * MS);
        net.wake_at(a, 6 * MS);
        net.forget_wake(a);
        assert_eq!(net.step_until(9 * MS), None);
        assert_eq!(net.now(), 9 * MS);
    }
}
