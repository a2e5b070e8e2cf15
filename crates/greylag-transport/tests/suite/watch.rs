//! Watches over a network that loses, doubles and reorders messages, with streams that break and processes that
//! restart: every watch ends exactly once, and, when no message of the watched recipient was lost, never before its
//! last message.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use greylag_testkit::deadlines::assert_moved;
use greylag_transport::TransportSettings;
use greylag_transport::reliable::{
    ReceiverEffect, ReceiverInput, ReliableReceiver, ReliableSender, SenderEffect, SenderInput,
};
use greylag_transport::watch::{WatchEffect, WatchInput, WatchMessage, Watched, Watcher, WhyTerminated};
use proptest::prelude::*;

const PATH: &str = "x";

/// One step of a run.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Another watch begins at node a.
    Watch,
    /// The recipient at node b sends a message to a.
    Speak,
    /// The recipient at node b stops.
    Stop,
    /// One of the frames under way arrives.
    Arrive { which: usize },
    /// One of the frames is lost.
    Lose { which: usize },
    /// One of the frames arrives and stays under way.
    Double { which: usize },
    /// The stream of one side breaks, and another opens.
    Reconnect { side: bool },
    /// Node b restarts, and its former process is removed from the cluster in the end.
    Restart,
    /// Time passes.
    Wait { millis: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Watch),
        3 => Just(Step::Speak),
        1 => Just(Step::Stop),
        12 => (0..50_usize).prop_map(|which| Step::Arrive { which }),
        4 => (0..50_usize).prop_map(|which| Step::Lose { which }),
        4 => (0..50_usize).prop_map(|which| Step::Double { which }),
        2 => any::<bool>().prop_map(|side| Step::Reconnect { side }),
        1 => Just(Step::Restart),
        4 => (1..1500_u64).prop_map(|millis| Step::Wait { millis }),
    ]
}

/// A numbered frame, or the answer to one.
#[derive(Debug, Clone)]
enum Frame {
    Numbered { seq: u64, message: Option<WatchMessage> },
    Ack(u64),
    Nack(u64),
}

/// An item of the ordinary lane from b to a, in order.
#[derive(Debug, Clone)]
enum Spoken {
    Word(u32),
    Flush(u64),
}

struct Node {
    address: UniqueAddress,
    watcher: Watcher,
    sender: ReliableSender<WatchMessage>,
    receiver: ReliableReceiver,
    stream: u64,
}

impl Node {
    fn new(address: &str, peer: &UniqueAddress, now: Instant) -> Self {
        let settings = TransportSettings::new("shop");
        let address: UniqueAddress = address.parse().unwrap();
        let watcher = Watcher::new(address.clone(), settings.termination_flush_timeout);
        let sender = ReliableSender::new(&settings);
        let mut node = Self { address, watcher, sender, receiver: ReliableReceiver::new(), stream: 0 };
        node.meet(peer, now);
        node
    }

    /// Notes that another process runs at the other end.
    fn meet(&mut self, peer: &UniqueAddress, now: Instant) {
        let uid = peer.uid();
        self.sender.handle(now, SenderInput::Incarnation { uid }, &mut Vec::new());
        self.receiver.handle(ReceiverInput::<WatchMessage>::Incarnation { uid }, &mut Vec::new());
        self.stream += 1;
        self.sender.handle(now, SenderInput::Opened { stream: self.stream }, &mut Vec::new());
    }
}

/// Node 0 is a, the watching one; node 1 is b, with the watched recipient.
struct World {
    now: Instant,
    nodes: [Node; 2],
    /// Numbered frames under way, each with the receiving node and the sending process; they arrive in any order.
    frames: Vec<(usize, UniqueAddress, Frame)>,
    lane: VecDeque<Spoken>,
    /// The instance of the recipient at b, if it runs.
    running: Option<u64>,
    instances: u64,
    words: u32,
    heard: u32,
    /// For each watch: its ends, each with the number of words heard by then.
    watches: BTreeMap<u64, Vec<(WhyTerminated, u32)>>,
    said_at_stop: BTreeMap<u64, u32>,
    /// Whether words may be missing: the lane broke, or the flush was not waited for.
    has_lost_words: bool,
    restarts: u64,
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        let (a, b): (UniqueAddress, UniqueAddress) = ("a:1#1".parse().unwrap(), "b:1#2".parse().unwrap());
        let nodes = [Node::new("a:1#1", &b, now), Node::new("b:1#2", &a, now)];
        let mut world = Self {
            now,
            nodes,
            frames: Vec::new(),
            lane: VecDeque::new(),
            running: Some(1),
            instances: 1,
            words: 0,
            heard: 0,
            watches: BTreeMap::new(),
            said_at_stop: BTreeMap::new(),
            has_lost_words: false,
            restarts: 0,
        };
        world.tell_members([].into());
        world
    }

    fn tell_members(&mut self, tombstones: std::collections::BTreeSet<UniqueAddress>) {
        let members: std::collections::BTreeSet<_> = self.nodes.iter().map(|node| node.address.clone()).collect();
        for side in 0..2 {
            let input = WatchInput::Members { members: members.clone(), tombstones: tombstones.clone() };
            self.watcher(side, input);
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Watch => {
                let id = self.watches.len() as u64;
                self.watches.insert(id, Vec::new());
                let recipient = Watched { node: self.nodes[1].address.clone(), path: PATH.into(), instance: 0 };
                self.watcher(0, WatchInput::Watch { id, recipient, non_members: false });
            }
            Step::Speak if self.running.is_some() => {
                self.words += 1;
                self.lane.push_back(Spoken::Word(self.words));
            }
            Step::Stop => self.stop(),
            Step::Arrive { which } => self.arrive(which),
            Step::Double { which } => {
                if let Some(frame) = self.pick(which).cloned() {
                    self.frames.push(frame);
                    self.arrive(which);
                }
            }
            Step::Lose { which } => {
                if !self.frames.is_empty() {
                    let which = which % self.frames.len();
                    self.frames.remove(which);
                }
            }
            Step::Reconnect { side } => self.reconnect(usize::from(side)),
            Step::Restart => self.restart(),
            Step::Wait { millis } => self.wait(Duration::from_millis(millis)),
            Step::Speak => {}
        }
    }

    fn stop(&mut self) {
        if let Some(instance) = self.running.take() {
            self.said_at_stop.insert(instance, self.words);
            self.watcher(1, WatchInput::Stopped { path: PATH.into(), instance });
        }
    }

    fn pick(&self, which: usize) -> Option<&(usize, UniqueAddress, Frame)> {
        (!self.frames.is_empty()).then(|| &self.frames[which % self.frames.len()])
    }

    /// Delivers one frame, or the next item of the ordinary lane, which keeps its order.
    fn arrive(&mut self, which: usize) {
        if which.is_multiple_of(3)
            && let Some(spoken) = self.lane.pop_front()
        {
            match spoken {
                Spoken::Word(word) => self.heard = word,
                Spoken::Flush(flush) => self.watcher(1, WatchInput::Flushed { flush }),
            }
            return;
        }
        if self.frames.is_empty() {
            return;
        }
        let (side, from, frame) = self.frames.remove(which % self.frames.len());
        match frame {
            Frame::Numbered { seq, message } => {
                let mut effects = Vec::new();
                let input = ReceiverInput::Arrived { from: from.uid(), seq, message };
                self.nodes[side].receiver.handle(input, &mut effects);
                for effect in effects {
                    match effect {
                        ReceiverEffect::Deliver(message) => {
                            let current = if side == 1 { self.running } else { None };
                            self.watcher(side, WatchInput::Message { from: from.clone(), message, current });
                        }
                        ReceiverEffect::Ack { seq } => self.answer(side, Frame::Ack(seq)),
                        ReceiverEffect::Nack { seq } => self.answer(side, Frame::Nack(seq)),
                    }
                }
            }
            Frame::Ack(seq) => self.sender(side, SenderInput::Ack { from: from.uid(), seq }),
            Frame::Nack(seq) => self.sender(side, SenderInput::Nack { from: from.uid(), seq }),
        }
    }

    fn answer(&mut self, side: usize, frame: Frame) {
        self.frames.push((1 - side, self.nodes[side].address.clone(), frame));
    }

    fn reconnect(&mut self, side: usize) {
        if side == 1 && !self.lane.is_empty() {
            // The items on b's ordinary stream are lost with it, flushes included.
            self.lane.clear();
            self.has_lost_words = true;
        }
        let stream = self.nodes[side].stream;
        self.nodes[side].stream += 1;
        self.sender(side, SenderInput::Closed { stream });
        self.sender(side, SenderInput::Opened { stream: stream + 1 });
    }

    fn restart(&mut self) {
        self.restarts += 1;
        let before = self.nodes[1].address.clone();
        let address = format!("b:1#{}", 2 + self.restarts);
        self.nodes[1] = Node::new(&address, &self.nodes[0].address, self.now);
        let after = self.nodes[1].address.clone();
        self.nodes[0].meet(&after, self.now);
        // Frames on a stream to the old process end with that stream.
        self.frames.retain(|(side, ..)| *side == 0);
        self.lane.clear();
        self.has_lost_words = true;
        self.instances += 1;
        self.running = Some(self.instances);
        self.watcher(0, WatchInput::PeerHandshake(after));
        self.tell_members([before].into());
    }

    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            let deadlines = self.nodes.iter().enumerate().flat_map(|(side, node)| {
                let watcher = node.watcher.next_deadline().map(|at| (at, side, true));
                watcher.into_iter().chain(node.sender.next_deadline().map(|at| (at, side, false)))
            });
            let Some((at, side, is_watcher)) = deadlines.min().filter(|(at, ..)| *at <= until) else { break };
            self.now = self.now.max(at);
            if is_watcher {
                // The notice leaves by its timeout, although words may still be on their way.
                self.has_lost_words |= !self.lane.is_empty();
                self.watcher(side, WatchInput::Tick);
            } else {
                self.sender(side, SenderInput::Tick);
            }
        }
        self.now = until;
    }

    fn sender(&mut self, side: usize, input: SenderInput<WatchMessage>) {
        let mut effects = Vec::new();
        let ticks = matches!(input, SenderInput::Tick);
        self.nodes[side].sender.handle(self.now, input, &mut effects);
        if ticks {
            assert_moved("reliable sender", self.now, self.nodes[side].sender.next_deadline());
        }
        for effect in effects {
            let frame = match effect {
                SenderEffect::Write { seq, message } => Frame::Numbered { seq, message: Some(message) },
                SenderEffect::WriteSkip { seq } => Frame::Numbered { seq, message: None },
                SenderEffect::GaveUp { .. } => panic!("nothing is given up so soon"),
                SenderEffect::Connect | SenderEffect::Rewind | SenderEffect::Drop { .. } => continue,
            };
            self.frames.push((1 - side, self.nodes[side].address.clone(), frame));
        }
    }

    fn watcher(&mut self, side: usize, input: WatchInput) {
        let mut effects = Vec::new();
        let ticks = matches!(input, WatchInput::Tick);
        self.nodes[side].watcher.handle(self.now, input, &mut effects);
        if ticks {
            assert_moved("watcher", self.now, self.nodes[side].watcher.next_deadline());
        }
        for effect in effects {
            match effect {
                WatchEffect::Send { to, message } => {
                    self.sender(side, SenderInput::Send { target: to.uid(), message });
                }
                WatchEffect::Flush { flush, .. } => self.lane.push_back(Spoken::Flush(flush)),
                WatchEffect::Terminated { id, terminated } => self.end(id, terminated.why),
                WatchEffect::Refused { .. } => panic!("b is a member"),
            }
        }
    }

    fn end(&mut self, id: u64, why: WhyTerminated) {
        let ends = self.watches.get_mut(&id).expect("it was watched");
        ends.push((why, self.heard));
        assert_eq!(ends.len(), 1, "watch {id} ended twice: {ends:?}");
        if why == WhyTerminated::Stopped && !self.has_lost_words {
            let said = self.said_at_stop.values().max().copied().unwrap_or(0);
            assert!(self.heard >= said, "watch {id} ended after word {} of {said}", self.heard);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Cluster T28, T30.
    #[test]
    fn every_watch_ends_once_and_after_the_last_words(steps in proptest::collection::vec(step(), 1..150)) {
        let mut world = World::new();
        steps.into_iter().for_each(|step| world.run(step));
        // From here on lose nothing, and stop the recipient.
        world.stop();
        for round in 0..200 {
            (0..20).for_each(|which| world.arrive(which + round));
            world.wait(Duration::from_millis(500));
        }
        for (id, ends) in &world.watches {
            prop_assert_eq!(ends.len(), 1, "watch {} of {:?}", id, &world.watches);
        }
    }
}
