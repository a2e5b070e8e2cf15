//! The counterexamples that model checking found (sharding scenarios 85 to 95), and those that reading and testing
//! found (111, 112), each by name.
//!
//! Three regions, O (owner), N (new owner) and P (sender), with the test as their coordinator. Data lanes are queues
//! that the test empties on demand, so every race can be played in any order.

use crate::common::machines;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::machines::up;
use greylag_core::{DeadLetterReason, Generation, UniqueAddress};
use greylag_sharding::fingerprint::Fingerprint;
use greylag_sharding::ids::{RegionId, ShardId};
use greylag_sharding::machine::membership::{MemberPhase, Members, Removal};
use greylag_sharding::machine::message::{
    Attempt, CoordinatorId, CoordinatorMessage, FromCoordinator, Home, Mark, PeerMessage, RegionMessage, Stamp,
};
use greylag_sharding::machine::region::{
    Effect, Input, MessageInfo, Provenance, Region, RegionConfig, RegionEvent, RegionState, Returned, Route, Token,
};
use greylag_sharding::settings::{RememberSettings, ShardingSettings};
use greylag_testkit::deadlines::assert_moved;

const O: usize = 0;
const N: usize = 1;
const P: usize = 2;
/// A little more than the flush timeout of the settings used here.
const PAST_FLUSH: Duration = Duration::from_millis(301);

enum Item {
    Frame(RegionId, Stamp, &'static str),
    Mark(RegionId, Mark),
}

struct Node {
    region: Region,
    published: Route,
    tokens: BTreeMap<Token, &'static str>,
    /// Messages delivered and not handled yet; a node that is not busy handles messages at once.
    inbox: Vec<(&'static str, Provenance)>,
    busy: bool,
    /// Starts of the shard that the driver has not reported ready.
    starting: Option<Generation>,
    ending: Option<Generation>,
    starts: u32,
    kills: u32,
}

struct Harness {
    now: Instant,
    nodes: Vec<Node>,
    lanes: BTreeMap<(usize, usize), VecDeque<Item>>,
    peer: VecDeque<(usize, usize, PeerMessage)>,
    told: Vec<(usize, RegionMessage)>,
    handled: Vec<(usize, &'static str)>,
    dead: Vec<(&'static str, DeadLetterReason)>,
    tokens: u64,
    /// The node of the coordinator.
    coordinator: usize,
    epoch: u64,
}

fn shard() -> ShardId {
    ShardId::from_index(1)
}

fn address(node: usize) -> UniqueAddress {
    format!("n{node}:1#{}", node + 1).parse().expect("an address")
}

fn region(node: usize) -> RegionId {
    RegionId { node: address(node), incarnation: 1 }
}

fn generation(seq: u64) -> Generation {
    Generation::new(7, seq).expect("in range")
}

fn home(owner: usize, seq: u64) -> Home {
    Home::new(shard(), region(owner), generation(seq))
}

/// A home that follows another generation.
fn home_after(owner: usize, seq: u64, ended: u64) -> Home {
    Home { previous: Some(generation(ended)), ..home(owner, seq) }
}

fn leftover_mark(from: usize, seq: u64) -> Mark {
    Mark::Leftover { generation: generation(seq), from: region(from) }
}

fn config(node: usize) -> RegionConfig {
    machines::config(region(node))
}

/// All three members, except those that were downed and removed.
fn members_without(removed: &[usize], at: Instant) -> Arc<Members> {
    let members = (0..3).filter(|n| !removed.contains(n)).map(|n| (address(n), up(n as u32))).collect();
    let removed = removed.iter().map(|n| (address(*n), Removal { at, clean: false })).collect();
    Arc::new(Members { members, removed })
}

impl Harness {
    fn new() -> Self {
        let now = Instant::now();
        let mut harness = Self {
            now,
            nodes: Vec::new(),
            lanes: BTreeMap::new(),
            peer: VecDeque::new(),
            told: Vec::new(),
            handled: Vec::new(),
            dead: Vec::new(),
            tokens: 0,
            coordinator: O,
            epoch: 7,
        };
        let members = members_without(&[], now);
        for node in 0..3 {
            harness.nodes.push(Node {
                region: Region::new(config(node), now),
                published: Route::Closed,
                tokens: BTreeMap::new(),
                inbox: Vec::new(),
                busy: false,
                starting: None,
                ending: None,
                starts: 0,
                kills: 0,
            });
            harness.tell(node, Input::Membership(members.clone()));
            harness.coordinate(node, CoordinatorMessage::RegisterAck { serial: 1 });
        }
        harness
    }

    fn tell(&mut self, node: usize, input: Input) {
        let mut effects = Vec::new();
        let ticks = matches!(input, Input::Tick);
        self.nodes[node].region.handle(self.now, input, &mut effects);
        if ticks {
            assert_moved("region", self.now, self.nodes[node].region.next_deadline());
        }
        for effect in effects {
            self.execute(node, effect);
        }
    }

    fn execute(&mut self, node: usize, effect: Effect) {
        let index = |region: &RegionId| (0..3).find(|n| address(*n) == region.node).expect("a node");
        match effect {
            Effect::RouteChange { route, .. } => self.nodes[node].published = route,
            Effect::Deliver { token, provenance, .. } => {
                let message = self.nodes[node].tokens.remove(&token).expect("named once");
                self.push(node, message, provenance);
            }
            Effect::SendData { to, token, stamp, .. } => {
                let message = self.nodes[node].tokens.remove(&token).expect("named once");
                self.lanes.entry((node, index(&to))).or_default().push_back(Item::Frame(to, stamp, message));
            }
            Effect::SendMark { to, mark, .. } => {
                self.lanes.entry((node, index(&to))).or_default().push_back(Item::Mark(to, mark));
            }
            Effect::SendPeer { to, message } => {
                let to = (0..3).find(|n| address(*n) == to).expect("a node");
                self.peer.push_back((node, to, message));
            }
            Effect::SendCoordinator { message, .. } => self.told.push((node, message)),
            Effect::StartShard { generation, .. } => {
                self.nodes[node].starting = Some(generation);
                self.nodes[node].starts += 1;
            }
            Effect::StopShard { generation, .. } => self.nodes[node].ending = Some(generation),
            Effect::KillShard { generation, .. } => {
                self.nodes[node].ending = Some(generation);
                self.nodes[node].kills += 1;
            }
            Effect::DeadLetter { token, reason, .. } => {
                let message = self.nodes[node].tokens.remove(&token).expect("named once");
                self.dead.push((message, reason));
            }
            _ => {}
        }
    }

    fn push(&mut self, node: usize, message: &'static str, provenance: Provenance) {
        if self.nodes[node].busy {
            self.nodes[node].inbox.push((message, provenance));
        } else {
            self.handled.push((node, message));
        }
    }

    fn coordinate(&mut self, node: usize, message: CoordinatorMessage) {
        let coordinator = CoordinatorId { node: address(self.coordinator), incarnation: self.epoch };
        let message = FromCoordinator { coordinator, epoch: self.epoch, to: Some(region(node)), message };
        self.tell(node, Input::FromCoordinator { node: address(self.coordinator), message });
    }

    /// Makes a newer coordinator on the same node take all registrations.
    fn fail_over(&mut self) {
        self.epoch += 1;
        for node in 0..3 {
            self.coordinate(node, CoordinatorMessage::RegisterAck { serial: 1 });
        }
    }

    fn send(&mut self, node: usize, message: &'static str) {
        match self.nodes[node].published.clone() {
            Route::Local { .. } => self.push(node, message, Provenance::Own),
            Route::Remote { region: to, generation } => {
                let stamp = Stamp { generation, origin: region(node), first: generation, hops: 0, leftover: false };
                let peer = (0..3).find(|n| address(*n) == to.node).expect("a node");
                self.lanes.entry((node, peer)).or_default().push_back(Item::Frame(to, stamp, message));
            }
            Route::Closed => {
                let token = self.token(node, message);
                self.tell(node, Input::LocalSend { shard: shard(), message: MessageInfo::of(token) });
            }
        }
    }

    fn token(&mut self, node: usize, message: &'static str) -> Token {
        self.tokens += 1;
        let token = Token(self.tokens);
        self.nodes[node].tokens.insert(token, message);
        token
    }

    /// Delivers a frame that no lane held: `first` and `seq` are the generations by which it left and is addressed.
    fn frame(&mut self, from: usize, to: usize, message: &'static str, first: u64, seq: u64, leftover: bool) {
        let (first, generation) = (generation(first), generation(seq));
        let stamp = Stamp { generation, origin: region(from), first, hops: 0, leftover };
        let message = MessageInfo::of(self.token(to, message));
        self.tell(to, Input::Frame { node: address(from), shard: shard(), stamp, message });
    }

    /// Delivers everything on one data lane.
    fn arrive(&mut self, from: usize, to: usize) {
        while let Some(item) = self.lanes.entry((from, to)).or_default().pop_front() {
            let node = address(from);
            match item {
                Item::Frame(meant, stamp, message) => {
                    assert_eq!(meant, region(to));
                    let token = self.token(to, message);
                    self.tell(to, Input::Frame { node, shard: shard(), stamp, message: MessageInfo::of(token) });
                }
                Item::Mark(meant, mark) => {
                    assert_eq!(meant, region(to));
                    self.tell(to, Input::Mark { node, shard: shard(), mark });
                }
            }
        }
    }

    /// Delivers everything, on every lane, until nothing is under way.
    fn settle(&mut self) {
        while self.lanes.values().any(|lane| !lane.is_empty()) || !self.peer.is_empty() {
            for (from, to) in self.lanes.keys().copied().collect::<Vec<_>>() {
                self.arrive(from, to);
            }
            self.echoes();
        }
    }

    /// Delivers the control messages between regions.
    fn echoes(&mut self) {
        while let Some((from, to, message)) = self.peer.pop_front() {
            self.tell(to, Input::FromPeer { node: address(from), message });
        }
    }

    fn host(&mut self, home: Home) {
        let owner = (0..3).find(|n| region(*n) == home.region).expect("a node");
        self.coordinate(owner, CoordinatorMessage::HostShard(vec![home]));
    }

    fn route(&mut self, node: usize, home: Home) {
        self.coordinate(node, CoordinatorMessage::ShardHomes(vec![home]));
    }

    fn ready(&mut self, node: usize) {
        let generation = self.nodes[node].starting.take().expect("it is starting");
        self.tell(node, Input::ShardInitialized { shard: shard(), generation });
    }

    /// Ends the shard's task; messages that it has not handled are leftovers.
    fn stopped(&mut self, node: usize) {
        let generation = self.nodes[node].ending.take().expect("it is ending");
        let inbox = std::mem::take(&mut self.nodes[node].inbox);
        let mut leftovers = Vec::new();
        for (message, provenance) in inbox {
            leftovers.push(Returned { message: MessageInfo::of(self.token(node, message)), provenance });
        }
        self.tell(node, Input::ShardStopped { shard: shard(), generation, leftovers });
    }

    fn begin(&mut self, node: usize, owner: usize, seq: u64, attempt: u64) {
        let (generation, owner) = (generation(seq), region(owner));
        let message = CoordinatorMessage::BeginHandOff { shard: shard(), generation, attempt: Attempt(attempt), owner };
        self.coordinate(node, message);
    }

    fn hand_off(&mut self, owner: usize, seq: u64, attempt: u64, flush_from: &[usize]) {
        let flush_from = flush_from.iter().map(|n| region(*n)).collect();
        let generation = generation(seq);
        let message = CoordinatorMessage::HandOff { shard: shard(), generation, attempt: Attempt(attempt), flush_from };
        self.coordinate(owner, message);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for node in 0..3 {
            self.tell(node, Input::Tick);
        }
    }

    /// O hosts at generation 1, and P knows it.
    fn owned_by_o() -> Self {
        let mut harness = Self::new();
        harness.host(home(O, 1));
        harness.ready(O);
        harness.route(P, home(O, 1));
        harness
    }

    /// Removes O from the membership, and with it the coordinator, which goes on at N.
    fn remove_o(&mut self) {
        for node in [N, P] {
            self.tell(node, Input::Membership(members_without(&[O], self.now)));
        }
        self.coordinator = N;
        self.epoch += 1;
        for node in [N, P] {
            self.coordinate(node, CoordinatorMessage::RegisterAck { serial: 1 });
        }
    }

    /// Hands back the frames that the transport of one node has not written to another one.
    fn hand_back(&mut self, node: usize, peer: usize) {
        let mut frames = Vec::new();
        for item in std::mem::take(self.lanes.entry((node, peer)).or_default()) {
            if let Item::Frame(_, stamp, message) = item {
                frames.push((shard(), stamp, MessageInfo::of(self.token(node, message))));
            }
        }
        self.tell(node, Input::HandedBack { node: address(peer), frames });
    }

    /// How often a node has asked for the home.
    fn asks(&self, node: usize) -> usize {
        let asks = |(n, message): &&(usize, RegionMessage)| {
            *n == node && matches!(message, RegionMessage::GetShardHome { .. })
        };
        self.told.iter().filter(asks).count()
    }

    fn messages(&self) -> Vec<&'static str> {
        self.handled.iter().map(|(_, message)| *message).collect()
    }

    fn last_told(&self, node: usize, wanted: impl Fn(&RegionMessage) -> bool) -> Option<&RegionMessage> {
        self.told.iter().rev().find(|(n, message)| *n == node && wanted(message)).map(|(_, message)| message)
    }

    fn has_said_stopped(&self, node: usize, seq: u64) -> bool {
        self.told.iter().any(|(n, message)| {
            *n == node && matches!(message, RegionMessage::ShardStopped { generation: g, .. } if *g == generation(seq))
        })
    }

    fn has_acked_flushed(&self, node: usize) -> bool {
        let ack = self.last_told(node, |message| matches!(message, RegionMessage::BeginHandOffAck { .. }));
        matches!(ack, Some(RegionMessage::BeginHandOffAck { flushed: true, .. }))
    }
}

/// C1's handoff ended the shard at O, C1 died before its commit, and C2 believes the old home.
#[test]
fn scenario_85_an_ended_generation_does_not_start_again() {
    let mut harness = Harness::owned_by_o();
    harness.hand_off(O, 1, 1, &[]);
    harness.stopped(O);
    assert!(harness.has_said_stopped(O, 1));
    harness.fail_over();
    harness.told.clear();
    harness.send(O, "m");
    harness.route(O, home(O, 1));
    assert_eq!(harness.nodes[O].starts, 1, "O starts nothing");
    assert!(harness.has_said_stopped(O, 1), "and says why, so that C2 allocates anew");
    let next = home_after(N, 2, 1);
    harness.host(next.clone());
    harness.ready(N);
    harness.route(O, next);
    harness.settle();
    assert_eq!(harness.handled, [(N, "m")]);
}

/// m1 waits in O's shard when the handoff begins; P's mark has passed and P buffers m2.
#[test]
fn scenario_87_leftovers_come_first_whichever_lane_is_faster() {
    for p_first in [true, false] {
        for failover in [true, false] {
            let mut harness = Harness::owned_by_o();
            harness.nodes[O].busy = true;
            harness.send(P, "m1");
            harness.arrive(P, O);
            harness.begin(P, O, 1, 1);
            assert!(harness.has_acked_flushed(P));
            harness.send(P, "m2");
            harness.hand_off(O, 1, 1, &[P]);
            assert!(harness.nodes[O].ending.is_none(), "the mark is awaited");
            harness.arrive(P, O);
            harness.stopped(O);
            let left = |m: &RegionMessage| matches!(m, RegionMessage::ShardStopped { leftovers: true, .. });
            assert!(harness.last_told(O, left).is_some());
            if failover {
                harness.fail_over();
            }
            let next = Home { leftovers_from: Some(region(O)), ..home_after(N, 2, 1) };
            harness.host(next);
            harness.ready(N);
            // After a failover the coordinator does not know the attempt, and P has to probe.
            let flushed = (!failover).then_some(Attempt(1));
            harness.route(P, Home { flushed, ..home(N, 2) });
            harness.route(O, home(N, 2));
            if p_first {
                harness.arrive(P, N);
                harness.arrive(P, O);
            }
            harness.arrive(O, N);
            harness.settle();
            assert_eq!(harness.messages(), ["m1", "m2"], "P first: {p_first}, failover: {failover}");
            assert_eq!(harness.dead, []);
        }
    }
}

/// O has handed the shard over to N without P: m1 is on its way to O when P learns of N.
fn p_is_left_out(harness: &mut Harness) {
    harness.send(P, "m1");
    harness.hand_off(O, 1, 1, &[]);
    harness.stopped(O);
    harness.host(home_after(N, 2, 1));
    harness.ready(N);
    harness.route(O, home(N, 2));
}

#[test]
fn scenario_88_late_registration_and_a_table_push() {
    let mut harness = Harness::owned_by_o();
    p_is_left_out(&mut harness);
    harness.route(P, home(N, 2));
    harness.send(P, "m2");
    harness.arrive(P, N);
    harness.settle();
    assert_eq!((harness.messages(), harness.dead.len()), (vec!["m1", "m2"], 0));
}

#[test]
fn scenario_88_a_late_begin_hand_off_of_a_proxy() {
    let mut harness = Harness::owned_by_o();
    p_is_left_out(&mut harness);
    // This ack is not awaited any more, so P is in no `flush_from`.
    harness.begin(P, O, 1, 1);
    harness.route(P, home(N, 2));
    harness.send(P, "m2");
    harness.arrive(P, N);
    harness.settle();
    assert_eq!((harness.messages(), harness.dead.len()), (vec!["m1", "m2"], 0));
}

#[test]
fn scenario_88_a_lost_ack_and_the_repeat() {
    let mut harness = Harness::owned_by_o();
    harness.send(P, "m1");
    harness.begin(P, O, 1, 1);
    harness.told.clear();
    harness.begin(P, O, 1, 1);
    assert!(harness.has_acked_flushed(P), "the repeat gets the same ack, although the route is closed by now");
    harness.send(P, "m2");
    harness.hand_off(O, 1, 1, &[P]);
    assert!(harness.nodes[O].ending.is_none(), "O waits for the mark behind m1");
    harness.arrive(P, O);
    harness.stopped(O);
    harness.host(home_after(N, 2, 1));
    harness.ready(N);
    harness.route(P, Home { flushed: Some(Attempt(1)), ..home(N, 2) });
    harness.settle();
    assert_eq!((harness.messages(), harness.dead.len()), (vec!["m1", "m2"], 0));
}

#[test]
fn scenario_88_begin_hand_off_of_a_newer_generation() {
    let mut harness = Harness::owned_by_o();
    p_is_left_out(&mut harness);
    harness.begin(P, N, 2, 2);
    let ack = harness.last_told(P, |message| matches!(message, RegionMessage::BeginHandOffAck { .. }));
    assert!(matches!(ack, Some(RegionMessage::BeginHandOffAck { flushed: false, .. })), "it never sent at 2");
    harness.send(P, "m2");
    // The handoff is given up, and P is told the home N once more.
    harness.route(P, home(N, 2));
    harness.arrive(P, N);
    harness.settle();
    assert_eq!((harness.messages(), harness.dead.len()), (vec!["m1", "m2"], 0));
}

#[test]
fn scenario_88_the_sender_becomes_the_owner() {
    let mut harness = Harness::owned_by_o();
    harness.send(P, "m1");
    harness.hand_off(O, 1, 1, &[]);
    harness.stopped(O);
    harness.host(home_after(P, 2, 1));
    harness.ready(P);
    harness.send(P, "m2");
    assert_eq!(harness.messages(), [""; 0], "its own route opens behind the old path");
    harness.route(O, home(P, 2));
    harness.settle();
    harness.send(P, "m3");
    assert_eq!((harness.messages(), harness.dead.len()), (vec!["m1", "m2", "m3"], 0));
}

/// The lane to O is down for longer than marks are awaited: m1 arrives after m2 has been handled.
#[test]
fn scenario_89_a_late_message_is_a_gap_and_never_a_swap() {
    let mut harness = Harness::owned_by_o();
    harness.send(P, "m1");
    harness.begin(P, O, 1, 1);
    harness.send(P, "m2");
    harness.hand_off(O, 1, 1, &[P]);
    harness.pass(PAST_FLUSH);
    harness.stopped(O);
    harness.host(home_after(N, 2, 1));
    harness.ready(N);
    harness.route(O, home(N, 2));
    harness.route(P, Home { flushed: Some(Attempt(1)), ..home(N, 2) });
    harness.arrive(P, N);
    assert_eq!(harness.messages(), ["m2"]);
    harness.settle();
    assert_eq!(harness.messages(), ["m2"]);
    assert_eq!(harness.dead, [("m1", DeadLetterReason::RouteStraggler)]);
}

#[test]
fn scenario_89_the_probe_times_out_too() {
    let mut harness = Harness::owned_by_o();
    p_is_left_out(&mut harness);
    harness.route(P, home(N, 2));
    harness.send(P, "m2");
    harness.pass(PAST_FLUSH);
    harness.arrive(P, N);
    assert_eq!(harness.messages(), ["m2"], "the new route opens without the echo");
    harness.settle();
    assert_eq!(harness.messages(), ["m2"]);
    assert_eq!(harness.dead, [("m1", DeadLetterReason::RouteStraggler)]);
}

#[test]
fn scenario_89_over_two_moves_in_a_row() {
    let mut harness = Harness::owned_by_o();
    p_is_left_out(&mut harness);
    harness.route(P, home(N, 2));
    harness.send(P, "m2");
    harness.pass(PAST_FLUSH);
    harness.arrive(P, N);
    // N's floor ends with N's hosting; the new owner only knows the generation before.
    harness.hand_off(N, 2, 2, &[]);
    harness.stopped(N);
    harness.host(home_after(O, 3, 2));
    harness.ready(O);
    harness.route(N, home(O, 3));
    harness.settle();
    assert_eq!(harness.messages(), ["m2"]);
    assert_eq!(harness.dead, [("m1", DeadLetterReason::RouteStraggler)]);
}

#[test]
fn scenario_90_marks_of_another_attempt_and_older_homes_count_for_nothing() {
    let mut harness = Harness::owned_by_o();
    harness.begin(P, O, 1, 1);
    harness.arrive(P, O);
    harness.fail_over();
    harness.hand_off(O, 1, 9, &[P]);
    assert!(harness.nodes[O].ending.is_none(), "C1's mark is not C2's");
    harness.begin(P, O, 1, 9);
    harness.arrive(P, O);
    harness.stopped(O);
    harness.host(home_after(N, 2, 1));
    harness.ready(N);
    harness.route(P, Home { flushed: Some(Attempt(9)), ..home(N, 2) });
    harness.route(P, home(O, 1));
    assert_eq!(harness.nodes[P].published, Route::Remote { region: region(N), generation: generation(2) });
}

#[test]
fn scenario_91_a_hand_off_of_a_shard_that_is_not_here_is_answered() {
    let mut harness = Harness::new();
    harness.hand_off(O, 1, 1, &[P]);
    assert!(!harness.has_said_stopped(O, 1), "what P has sent may still come");
    harness.host(home(O, 1));
    harness.pass(PAST_FLUSH);
    assert!(harness.has_said_stopped(O, 1));
    harness.host(home(O, 1));
    assert_eq!(harness.nodes[O].starts, 0, "a HostShard that comes later starts nothing");
}

/// The first leftover is taken after the wait for leftovers has timed out; the shard fails; the second comes.
#[test]
fn scenario_94_a_leftover_after_its_time_is_dead() {
    let mut harness = Harness::owned_by_o();
    harness.nodes[O].busy = true;
    harness.send(P, "m1");
    harness.send(P, "m2");
    harness.arrive(P, O);
    harness.hand_off(O, 1, 1, &[]);
    harness.stopped(O);
    harness.nodes[N].busy = true;
    harness.host(Home { leftovers_from: Some(region(O)), ..home_after(N, 2, 1) });
    harness.ready(N);
    harness.route(O, home(N, 2));
    let second = harness.lanes.get_mut(&(O, N)).expect("leftovers were sent").remove(1).expect("there are two");
    harness.arrive(O, N);
    harness.pass(PAST_FLUSH);
    let inbox = std::mem::take(&mut harness.nodes[N].inbox);
    let mut unprocessed = Vec::new();
    for (message, provenance) in inbox {
        unprocessed.push(Returned { message: MessageInfo::of(harness.token(N, message)), provenance });
    }
    harness.tell(N, Input::ShardFailed { shard: shard(), generation: generation(2), unprocessed });
    harness.lanes.entry((O, N)).or_default().push_back(second);
    harness.settle();
    harness.nodes[N].busy = false;
    harness.pass(Duration::from_millis(200));
    harness.ready(N);
    assert_eq!(harness.messages(), ["m1"]);
    assert_eq!(harness.dead, [("m2", DeadLetterReason::HandOffStraggler)]);
}

/// The handoff reaches a shard that has not begun to serve, with marks and leftovers still to come.
#[test]
fn scenario_95_a_hand_off_during_the_start_loses_nothing() {
    let mut harness = Harness::owned_by_o();
    harness.nodes[O].busy = true;
    harness.send(P, "m1");
    harness.arrive(P, O);
    harness.begin(P, O, 1, 1);
    harness.hand_off(O, 1, 1, &[P]);
    harness.arrive(P, O);
    harness.stopped(O);
    harness.host(Home { leftovers_from: Some(region(O)), ..home_after(N, 2, 1) });
    harness.route(P, Home { flushed: Some(Attempt(1)), ..home(N, 2) });
    harness.send(P, "m2");
    harness.begin(P, N, 2, 2);
    harness.hand_off(N, 2, 2, &[P]);
    harness.stopped(N);
    assert!(!harness.has_said_stopped(N, 2), "P's mark and O's leftovers are still to come");
    harness.route(O, home(N, 2));
    harness.settle();
    assert!(harness.has_said_stopped(N, 2));
    harness.nodes[O].busy = false;
    harness.host(Home { leftovers_from: Some(region(N)), ..home_after(O, 3, 2) });
    harness.ready(O);
    harness.send(P, "m3");
    harness.route(P, Home { flushed: Some(Attempt(2)), ..home(O, 3) });
    harness.route(N, home(O, 3));
    harness.settle();
    assert_eq!((harness.messages(), harness.dead.len()), (vec!["m1", "m2", "m3"], 0));
}

/// The home of generation 2 never starts, since N shuts down or the order to host is lost, and yet P sends to it. The
/// messages that wait at N are leftovers of that generation and go ahead of P's messages to the next one (found by the
/// simulation: seed 5215 of the world `sharding`, in which an owner that was handed off before it served took them in
/// the order of arrival).
#[test]
fn scenario_95_an_owner_that_never_starts_keeps_the_order() {
    for is_leaving in [true, false] {
        let mut harness = Harness::owned_by_o();
        harness.begin(P, O, 1, 1);
        harness.hand_off(O, 1, 1, &[P]);
        harness.arrive(P, O);
        harness.stopped(O);
        harness.send(N, "n");
        if is_leaving {
            harness.tell(N, Input::GracefulShutdown);
            harness.told.clear();
            harness.host(home_after(N, 2, 1));
            let asks = |message: &RegionMessage| matches!(message, RegionMessage::GracefulShutdownReq { .. });
            assert!(harness.last_told(N, asks).is_some(), "it wants to be rid of the shard");
        }
        harness.route(P, Home { flushed: Some(Attempt(1)), ..home(N, 2) });
        harness.send(P, "m1");
        harness.begin(P, N, 2, 2);
        harness.hand_off(N, 2, 2, &[P]);
        assert!(!harness.has_said_stopped(N, 2), "P's mark is to come, behind m1");
        harness.arrive(P, N);
        let left = |m: &RegionMessage| matches!(m, RegionMessage::ShardStopped { leftovers: true, .. });
        assert!(harness.last_told(N, left).is_some());
        assert_eq!(harness.nodes[N].starts, 0);
        harness.host(Home { leftovers_from: Some(region(N)), ..home_after(O, 3, 2) });
        harness.ready(O);
        harness.route(P, Home { flushed: Some(Attempt(2)), ..home(O, 3) });
        harness.send(P, "m2");
        harness.arrive(P, O);
        assert_eq!(harness.messages(), [""; 0], "O waits for what N has left");
        harness.route(N, home(O, 3));
        harness.settle();
        assert_eq!((harness.messages(), harness.dead.len()), (vec!["n", "m1", "m2"], 0), "leaving: {is_leaving}");
    }
}

/// P knows that N has the shard and waits for the echo from O when a message for a still newer home at P itself comes:
/// sent to N that message would come back behind later ones (found by the simulation: seed 127494 of the world
/// `sharding`).
#[test]
fn scenario_88_a_planned_home_falls_when_a_newer_one_is_heard_of() {
    let mut harness = Harness::owned_by_o();
    p_is_left_out(&mut harness);
    harness.route(P, home(N, 2));
    harness.send(P, "m2");
    harness.frame(O, P, "newer", 3, 3, false);
    harness.settle();
    assert_eq!(harness.nodes[P].published, Route::Closed, "it asks for the home of generation 3");
    assert_eq!(harness.messages(), ["m1"]);
    harness.host(home_after(P, 3, 2));
    harness.ready(P);
    assert_eq!((harness.messages(), harness.dead.len()), (vec!["m1", "m2", "newer"], 0));
}

/// A late order to begin a handoff that has ended reaches P while it waits for the echo, which is lost (seed 57790).
#[test]
fn scenario_88_a_late_begin_hand_off_does_not_stop_the_clock() {
    let mut harness = Harness::owned_by_o();
    p_is_left_out(&mut harness);
    harness.route(P, home(N, 2));
    harness.begin(P, O, 1, 1);
    harness.pass(PAST_FLUSH);
    assert_eq!(harness.nodes[P].published, Route::Remote { region: region(N), generation: generation(2) });
}

/// O has heard of a newer home than P's but knows no home itself: P is told nevertheless (seed 25777).
#[test]
fn a_sender_hears_of_a_newer_home_from_a_region_without_one() {
    let mut harness = Harness::owned_by_o();
    harness.hand_off(O, 1, 1, &[]);
    harness.stopped(O);
    harness.route(O, home(N, 2));
    harness.begin(O, N, 2, 2);
    harness.send(P, "m");
    harness.arrive(P, O);
    harness.echoes();
    assert_eq!(harness.nodes[P].published, Route::Closed, "P leaves the old route and asks");
}

/// P's message waited at a region that knew no home, and was passed on with the generation of the home that came: too
/// old there, it still shows that P uses an older home (seed 171 of many shards).
#[test]
fn a_sender_hears_of_a_newer_home_from_the_owner_that_dropped_what_another_region_passed_on() {
    let mut harness = Harness::owned_by_o();
    harness.hand_off(O, 1, 1, &[]);
    harness.stopped(O);
    harness.host(home_after(N, 3, 2));
    harness.ready(N);
    harness.frame(P, N, "passed on", 1, 3, false);
    assert_eq!(harness.dead, [("passed on", DeadLetterReason::RouteStraggler)]);
    harness.echoes();
    assert_eq!(harness.nodes[P].published, Route::Closed, "P leaves the old route and asks");
    harness.route(P, home(N, 3));
    harness.pass(PAST_FLUSH);
    let open = Route::Remote { region: region(N), generation: generation(3) };
    assert_eq!(harness.nodes[P].published, open);
    harness.frame(P, N, "later still", 1, 3, false);
    harness.echoes();
    assert_eq!(harness.nodes[P].published, open, "a route to the owner stays as it is");
}

/// Messages that wait at an owner that ends before it serves pass the next owner unchecked, so they are checked here
/// (seed 45061).
#[test]
fn scenario_94_messages_that_an_unserved_owner_would_not_take_are_no_leftovers() {
    let mut harness = Harness::owned_by_o();
    harness.host(Home { leftovers_from: Some(region(O)), ..home_after(N, 2, 1) });
    harness.frame(P, N, "of no former owner", 1, 2, true);
    harness.frame(P, N, "new", 2, 2, false);
    harness.frame(P, N, "old", 1, 2, false);
    harness.tell(N, Input::Mark { node: address(O), shard: shard(), mark: leftover_mark(O, 2) });
    harness.hand_off(N, 2, 2, &[]);
    harness.stopped(N);
    let expected =
        [("of no former owner", DeadLetterReason::HandOffStraggler), ("old", DeadLetterReason::RouteStraggler)];
    assert_eq!(harness.dead, expected);
    assert_eq!(harness.nodes[N].region.counters().buffered, 1, "the newer one goes on");
}

/// A node that P does not know as the coordinator's yet gives orders under a newer epoch. P would not believe its ack,
/// so P does not ask for one: each registration is answered by the table, which is an order too (found by the
/// simulation).
#[test]
fn orders_of_a_node_that_may_not_coordinate_are_not_answered() {
    let mut harness = Harness::owned_by_o();
    let registers = |harness: &Harness| {
        harness.told.iter().filter(|(n, m)| *n == P && matches!(m, RegionMessage::Register(_))).count()
    };
    let before = registers(&harness);
    (harness.coordinator, harness.epoch) = (N, harness.epoch + 1);
    harness.route(P, home(N, 2));
    assert_eq!(
        (registers(&harness), &harness.nodes[P].published),
        (before, &Route::Remote { region: region(O), generation: generation(1) })
    );
    harness.coordinator = O;
    harness.route(P, home(N, 2));
    assert_eq!(registers(&harness), before + 1, "the ack of one that may is asked for");
}

/// A copy of the home from before the handoff reaches P behind the order to close its route: messages sent to it now
/// would reach O behind P's mark. Sent after the attempt was given up, or by another coordinator, the same home is
/// valid.
#[test]
fn scenario_88_a_copy_of_the_home_does_not_open_the_route_behind_the_mark() {
    let open = Route::Remote { region: region(O), generation: generation(1) };
    let attempt = |n| Attempt(generation(n).as_u64());
    for given_up in [None, Some(1), Some(2), Some(3)] {
        let mut harness = Harness::owned_by_o();
        harness.begin(P, O, 1, attempt(2).0);
        harness.route(P, Home { given_up: given_up.map(attempt), ..home(O, 1) });
        let expected = if given_up < Some(2) { Route::Closed } else { open.clone() };
        assert_eq!(harness.nodes[P].published, expected, "given up: {given_up:?}");
        harness.fail_over();
        harness.route(P, home(O, 1));
        assert_eq!(harness.nodes[P].published, open);
    }
}

/// A late order of an older handoff does not make P forget that it has closed its route for a newer one (seed 67432).
#[test]
fn scenario_88_a_late_order_of_an_older_handoff_does_not_let_a_copy_of_the_home_open_the_route() {
    let attempt = |n| Attempt(generation(n).as_u64());
    let mut harness = Harness::owned_by_o();
    harness.begin(P, O, 1, attempt(2).0);
    harness.route(P, Home { flushed: Some(attempt(2)), ..home(N, 3) });
    assert_eq!(harness.nodes[P].published, Route::Remote { region: region(N), generation: generation(3) });
    harness.begin(P, N, 3, attempt(4).0);
    harness.begin(P, O, 1, attempt(2).0);
    harness.route(P, home(N, 3));
    assert_eq!(harness.nodes[P].published, Route::Closed);
}

/// N is handed off without ever having been told to host: messages that wait there from before are no leftovers, since
/// N does not know what was handled meanwhile, and the next owner takes leftovers unchecked (seed 10057).
#[test]
fn scenario_94_an_owner_that_was_never_told_makes_no_leftover_of_what_is_older() {
    let mut harness = Harness::owned_by_o();
    harness.frame(P, N, "old", 1, 1, false);
    harness.frame(P, N, "new", 3, 3, false);
    harness.hand_off(N, 3, 1, &[]);
    assert_eq!(harness.dead, [("old", DeadLetterReason::RouteStraggler)]);
    assert_eq!(harness.nodes[N].region.counters().buffered, 1, "the newer one goes on");
}

/// Messages that a sender has sent under an older generation than a leftover must not follow it.
#[test]
fn scenario_94_messages_older_than_a_leftover_come_too_late() {
    let mut harness = Harness::owned_by_o();
    harness.hand_off(O, 1, 1, &[]);
    harness.stopped(O);
    harness.host(Home { leftovers_from: Some(region(P)), ..home_after(N, 3, 1) });
    harness.frame(P, N, "older", 1, 3, false);
    harness.frame(P, N, "leftover", 2, 3, true);
    harness.tell(N, Input::Mark { node: address(P), shard: shard(), mark: leftover_mark(P, 3) });
    harness.ready(N);
    assert_eq!(
        (harness.messages(), harness.dead),
        (vec!["leftover"], vec![("older", DeadLetterReason::RouteStraggler)])
    );
}

/// N was handed off before it served: O, the owner again, waits for its leftovers, and N waits for the echo of a probe that
/// waits at O (found by the simulation: seed 3388 of the world `sharding`).
#[test]
fn scenario_95_leftovers_do_not_wait_for_a_probe_that_waits_for_them() {
    let mut harness = Harness::owned_by_o();
    harness.route(N, home(O, 1));
    harness.begin(P, O, 1, 1);
    harness.hand_off(O, 1, 1, &[P]);
    harness.arrive(P, O);
    harness.stopped(O);
    harness.host(home_after(N, 2, 1));
    harness.ready(N);
    harness.send(N, "n1");
    harness.arrive(N, O);
    harness.route(P, Home { flushed: Some(Attempt(1)), ..home(N, 2) });
    harness.send(P, "p1");
    harness.begin(P, N, 2, 2);
    harness.hand_off(N, 2, 2, &[P]);
    harness.arrive(P, N);
    harness.stopped(N);
    assert!(harness.has_said_stopped(N, 2), "its probe waits at O, which has no route");
    harness.host(Home { leftovers_from: Some(region(N)), ..home_after(O, 3, 2) });
    harness.ready(O);
    assert_eq!(harness.messages(), [""; 0], "O waits for p1");
    harness.route(N, home(O, 3));
    harness.settle();
    assert_eq!(harness.messages(), ["p1", "n1"], "without any timeout");
    assert_eq!(harness.dead, []);
}

/// The same while the shard starts again after a failure, with the messages that it gave back waiting.
#[test]
fn scenario_95_a_hand_off_during_the_restart_loses_nothing() {
    // The handoff comes when the shard waits for its restart, or when it starts again.
    for starting in [false, true] {
        let mut harness = Harness::owned_by_o();
        harness.nodes[O].busy = true;
        for message in ["m1", "m2"] {
            harness.send(P, message);
        }
        harness.arrive(P, O);
        let mut unprocessed = Vec::new();
        for (message, provenance) in std::mem::take(&mut harness.nodes[O].inbox) {
            unprocessed.push(Returned { message: MessageInfo::of(harness.token(O, message)), provenance });
        }
        harness.tell(O, Input::ShardFailed { shard: shard(), generation: generation(1), unprocessed });
        harness.send(P, "m3");
        harness.begin(P, O, 1, 1);
        harness.send(P, "m4");
        if starting {
            harness.pass(Duration::from_millis(100));
            assert_eq!(harness.nodes[O].starts, 2);
        }
        harness.hand_off(O, 1, 1, &[P]);
        if starting {
            harness.stopped(O);
        }
        assert!(!harness.has_said_stopped(O, 1), "P's mark is still to come, behind m3");
        harness.pass(Duration::from_millis(150));
        assert_eq!(harness.nodes[O].starts, if starting { 2 } else { 1 }, "what is handed off does not start again");
        harness.arrive(P, O);
        assert!(harness.has_said_stopped(O, 1));
        harness.host(Home { leftovers_from: Some(region(O)), ..home_after(N, 2, 1) });
        harness.ready(N);
        harness.route(P, Home { flushed: Some(Attempt(1)), ..home(N, 2) });
        harness.arrive(P, N);
        harness.route(O, home(N, 2));
        harness.settle();
        assert_eq!(harness.messages(), ["m1", "m2", "m3", "m4"], "starting: {starting}");
        assert_eq!(harness.dead, [], "starting: {starting}");
    }
}

/// Found by the workspace's simulation: after a loss of numbering a shard lives on under its small generation through a
/// coordinator that counts from above it again. No entity in it can claim.
#[test]
fn scenario_82_a_shard_whose_number_the_journal_has_passed_ends_and_is_allocated_anew() {
    let mut harness = Harness::owned_by_o();
    harness.tell(O, Input::Fenced { shard: shard(), generation: generation(1), stored: Some(generation(9)) });
    assert_eq!(
        harness.nodes[O].ending,
        Some(generation(1)),
        "the epoch is known, the number is too small all the same"
    );
    harness.stopped(O);
    assert!(harness.has_said_stopped(O, 1));
    harness.host(home(O, 10));
    harness.ready(O);
    assert_eq!(harness.nodes[O].published, Route::Local { generation: generation(10) });
}

/// sharding §4.6: a journal that names ever higher epochs makes the coordinator restart once a minute at most.
#[test]
fn scenario_82_an_epoch_of_the_journal_is_adopted_once_a_minute() {
    let mut harness = Harness::owned_by_o();
    let number = |epoch| Generation::new(epoch, 1).expect("in range");
    let fenced = |own, stored| Input::Fenced { shard: shard(), generation: own, stored: Some(number(stored)) };
    harness.tell(O, fenced(generation(1), 100));
    harness.stopped(O);
    harness.epoch = 149;
    harness.fail_over();
    harness.host(Home { generation: number(150), ..home(O, 1) });
    harness.ready(O);
    harness.tell(O, fenced(number(150), 200));
    assert_eq!(harness.nodes[O].ending, None, "it is told of, and changes nothing");
    harness.pass(Duration::from_secs(60));
    harness.tell(O, fenced(number(150), 300));
    assert_eq!(harness.nodes[O].ending, Some(number(150)));
}

/// The coordinator allocates once more before it hears of the journal's generations, so that the shard is fenced twice:
/// messages that waited in it the first time are not too old the second time (found by the clock that was set back,
/// `ownership.rs`).
#[test]
fn scenario_82_messages_in_a_shard_that_is_fenced_twice_are_handled() {
    for next_owner in [O, N] {
        let mut harness = Harness::owned_by_o();
        harness.send(P, "m1");
        harness.nodes[O].busy = true;
        harness.arrive(P, O);
        for (number, next, owner) in [(1, 2, O), (2, 10, next_owner)] {
            harness
                .tell(O, Input::Fenced { shard: shard(), generation: generation(number), stored: Some(generation(9)) });
            harness.stopped(O);
            let left = |m: &RegionMessage| matches!(m, RegionMessage::ShardStopped { leftovers: true, .. });
            assert!(harness.last_told(O, left).is_some());
            harness.nodes[O].busy = number == 1;
            let home = Home { leftovers_from: Some(region(O)), ..home_after(owner, next, number) };
            harness.host(home.clone());
            harness.ready(owner);
            harness.route(O, home);
        }
        harness.route(P, home(next_owner, 10));
        harness.send(P, "m2");
        harness.settle();
        assert_eq!((harness.handled, harness.dead), (vec![(next_owner, "m1"), (next_owner, "m2")], vec![]));
    }
}

/// A newer writer of the same generation (an answer was lost, say) is no reason to move.
#[test]
fn scenario_81_a_newer_writer_of_the_same_generation_only_asks_for_the_home() {
    let mut harness = Harness::owned_by_o();
    for stored in [None, Some(generation(1))] {
        harness.tell(O, Input::Fenced { shard: shard(), generation: generation(1), stored });
        assert_eq!(harness.nodes[O].ending, None);
    }
    assert!(harness.last_told(O, |message| matches!(message, RegionMessage::GetShardHome { .. })).is_some());
}

/// The owner's process is killed, and the coordinator names it as the home until it is removed.
#[test]
fn scenario_111_messages_handed_back_by_the_transport_wait_for_the_next_home() {
    for times in [1, 7, 8, 9, 30] {
        let mut harness = Harness::owned_by_o();
        harness.send(P, "m1");
        harness.send(P, "m2");
        for _ in 0..times {
            harness.hand_back(P, O);
            harness.route(P, home(O, 1));
        }
        harness.send(P, "m3");
        harness.remove_o();
        harness.hand_back(P, O);
        harness.host(home_after(N, 2, 1));
        harness.ready(N);
        harness.route(P, home(N, 2));
        harness.settle();
        assert_eq!(harness.messages(), ["m1", "m2", "m3"], "{times} times");
        assert_eq!(harness.dead, [], "{times} times");
    }
}

/// The region asks again for an unreachable home with a growing wait, and does not take the home.
#[test]
fn scenario_111_the_region_asks_again_and_does_not_circle() {
    let mut harness = Harness::owned_by_o();
    harness.send(P, "m");
    harness.hand_back(P, O);
    let mut waits = Vec::new();
    for _ in 0..7 {
        let asked = harness.asks(P);
        harness.route(P, home(O, 1));
        assert!(harness.lanes[&(P, O)].is_empty(), "nothing is sent to a process that nothing reaches");
        let before = harness.now;
        while harness.asks(P) == asked {
            harness.pass(Duration::from_millis(10));
        }
        waits.push((harness.now - before).as_millis());
    }
    let retry = ShardingSettings::test().retry_interval.as_millis();
    let expected = [100, 200, 400, 800, 1_600, 3_200, 6_400].map(|wait| retry.min(wait));
    assert_eq!(waits, expected);
}

/// A message forwarded by another region keeps its number of hops, however often it is handed back.
#[test]
fn scenario_111_a_hand_back_adds_no_hop() {
    let mut harness = Harness::owned_by_o();
    let stamp = Stamp { generation: generation(1), origin: region(N), first: generation(1), hops: 3, leftover: false };
    let token = harness.token(P, "forwarded");
    let frame = Input::Frame { node: address(N), shard: shard(), stamp, message: MessageInfo::of(token) };
    harness.tell(P, frame);
    harness.hand_back(P, O);
    harness.remove_o();
    harness.route(P, home(N, 2));
    let sent = harness.lanes[&(P, N)].iter().find_map(|item| match item {
        Item::Frame(_, stamp, "forwarded") => Some((stamp.hops, stamp.first)),
        _ => None,
    });
    assert_eq!(sent, Some((4, generation(1))));
}

/// A message that was forwarded too often has its own dead-letter reason, not that of a failed start.
#[test]
fn scenario_111_a_message_that_circles_has_a_reason_of_its_own() {
    for (hops, dead) in [(7, false), (8, false), (9, true), (u8::MAX, true)] {
        let mut harness = Harness::owned_by_o();
        let stamp = Stamp { generation: generation(1), origin: region(N), first: generation(1), hops, leftover: false };
        for node in [O, P] {
            let token = harness.token(node, "circling");
            let stamp = stamp.clone();
            harness
                .tell(node, Input::Frame { node: address(N), shard: shard(), stamp, message: MessageInfo::of(token) });
        }
        let expected = if dead { vec![("circling", DeadLetterReason::RouteLoop); 2] } else { Vec::new() };
        assert_eq!(harness.dead, expected, "at the owner and on the way to it, {hops} hops");
        assert_eq!(harness.handled.is_empty(), dead, "{hops} hops");
    }
}

/// A message that never left counts as sent when it leaves: allocations meanwhile do not make it a straggler.
#[test]
fn scenario_111_a_message_that_never_left_takes_the_generation_of_its_new_route() {
    let mut harness = Harness::owned_by_o();
    harness.send(P, "m");
    harness.hand_back(P, O);
    harness.remove_o();
    harness.host(home_after(N, 3, 2));
    harness.ready(N);
    harness.route(P, home(N, 3));
    harness.settle();
    assert_eq!((harness.messages(), harness.dead), (vec!["m"], Vec::new()));
}

/// The same for a route that was left before: no message is on it any more.
#[test]
fn scenario_112_an_old_path_to_a_removed_node_is_empty_once_it_was_handed_back() {
    let mut harness = Harness::owned_by_o();
    harness.send(P, "m1");
    harness.begin(P, O, 1, 1);
    harness.send(P, "m2");
    harness.hand_back(P, O);
    harness.remove_o();
    harness.host(home_after(N, 2, 1));
    harness.ready(N);
    harness.route(P, home(N, 2));
    harness.settle();
    assert_eq!(harness.messages(), ["m1", "m2"]);
}

/// The owner is gone: the reports of transport and cluster come in either order.
#[test]
fn scenario_112_the_route_is_free_at_once_in_both_orders() {
    for handed_back_first in [true, false] {
        let mut harness = Harness::owned_by_o();
        if handed_back_first {
            harness.hand_back(P, O);
        }
        harness.remove_o();
        harness.send(P, "m");
        harness.host(home_after(N, 2, 1));
        harness.ready(N);
        harness.route(P, home(N, 2));
        if !handed_back_first {
            harness.settle();
            assert_eq!(harness.messages(), [""; 0], "the transport may still hold older messages");
            harness.hand_back(P, O);
        }
        harness.settle();
        assert_eq!(harness.messages(), ["m"], "handed back first: {handed_back_first}");
    }
}

/// Without a hand-back by the transport, the wait is `flush_timeout`.
#[test]
fn scenario_112_a_removal_without_a_hand_back_waits_for_the_flush_timeout() {
    let mut harness = Harness::owned_by_o();
    harness.remove_o();
    harness.send(P, "m");
    harness.host(home_after(N, 2, 1));
    harness.ready(N);
    harness.route(P, home(N, 2));
    harness.settle();
    assert_eq!(harness.messages(), [""; 0]);
    harness.pass(PAST_FLUSH);
    harness.settle();
    assert_eq!(harness.messages(), ["m"]);
}

/// Sharding §2.1: messages of a process that is no member, or that speaks for another one, move no route.
#[test]
fn scenario_103_a_stranger_moves_no_route() {
    let stranger: UniqueAddress = "x:1#99".parse().expect("an address");
    let mut harness = Harness::owned_by_o();
    let before = harness.nodes[P].published.clone();
    let told = harness.told.len();
    let stale = PeerMessage::StaleRoute(vec![(shard(), generation(9))]);
    harness.tell(P, Input::FromPeer { node: stranger.clone(), message: stale });
    let coordinator = CoordinatorId { node: stranger.clone(), incarnation: 1 };
    let orders = [CoordinatorMessage::ShardHomes(vec![home(N, 9)]), CoordinatorMessage::RegisterAck { serial: 1 }];
    for message in orders {
        let message = FromCoordinator { coordinator: coordinator.clone(), epoch: 99, to: None, message };
        // From the non-member itself, and from a member that names the non-member.
        harness.tell(P, Input::FromCoordinator { node: stranger.clone(), message: message.clone() });
        harness.tell(P, Input::FromCoordinator { node: address(N), message });
    }
    assert_eq!(harness.nodes[P].published, before);
    assert_eq!(harness.told.len(), told, "it is told nothing");
    harness.send(P, "m");
    harness.settle();
    assert_eq!(harness.messages(), ["m"]);
    // The previous coordinator is still obeyed: none of these messages raised the epoch.
    harness.route(P, home(N, 2));
    assert!(matches!(&harness.nodes[P].published, Route::Closed), "it leaves O and probes the path");
}

impl Harness {
    /// How often a node has said that it accepts a generation of the shard.
    fn started(&self, node: usize, seq: u64) -> usize {
        let accepts = |(n, message): &&(usize, RegionMessage)| {
            *n == node
                && matches!(message, RegionMessage::ShardStarted { shards, .. } if shards[..] == [(shard(), generation(seq))])
        };
        self.told.iter().filter(accepts).count()
    }
}

/// A region sends nothing to a coordinator before its node is Up, however long it waits and however many messages wait.
#[test]
fn scenario_17_a_region_whose_node_is_not_up_registers_with_nobody() {
    let mut harness = Harness::new();
    let mut members = Members::clone(&members_without(&[], harness.now));
    members.members.get_mut(&address(P)).expect("a member").phase = MemberPhase::Joining;
    harness.nodes[P].region = Region::new(config(P), harness.now);
    harness.told.clear();
    harness.tell(P, Input::Membership(Arc::new(members)));
    harness.send(P, "m");
    (0..20).for_each(|_| harness.pass(Duration::from_secs(1)));
    assert!(harness.told.iter().all(|(node, _)| *node != P), "{:?}", harness.told);
    assert_eq!(harness.nodes[P].region.counters().buffered, 1);
    harness.tell(P, Input::Membership(members_without(&[], harness.now)));
    assert!(harness.last_told(P, |message| matches!(message, RegionMessage::Register(_))).is_some(), "at once");
}

/// The shard comes back to a former owner, whose earlier hosting has not ended yet: the new hosting starts once, after
/// it.
#[test]
fn scenario_34_a_shard_that_comes_back_starts_after_the_former_one_has_ended() {
    let mut harness = Harness::owned_by_o();
    assert_eq!((harness.started(O, 1), harness.nodes[O].starts), (1, 1));
    harness.hand_off(O, 1, 1, &[]);
    assert_eq!(harness.nodes[O].ending, Some(generation(1)), "it has begun to stop");
    let back = Home { previous: Some(generation(1)), ..home(O, 2) };
    for _ in 0..3 {
        harness.host(back.clone());
        harness.pass(Duration::from_secs(1));
    }
    harness.send(O, "m");
    assert_eq!((harness.started(O, 2), harness.nodes[O].starts), (0, 1), "the former one still lives");
    assert!(!harness.has_said_stopped(O, 1));
    harness.stopped(O);
    assert!(harness.has_said_stopped(O, 1));
    assert_eq!((harness.started(O, 2), harness.nodes[O].starts), (1, 2));
    assert_eq!(harness.nodes[O].starting, Some(generation(2)), "without any traffic");
    harness.ready(O);
    assert_eq!((harness.started(O, 2), harness.nodes[O].starts), (1, 2));
    assert_eq!((harness.handled, harness.dead), (vec![(O, "m")], vec![]));
}

/// A region without shards ends at once.
#[test]
fn scenario_47_a_region_without_shards_ends_at_once() {
    let mut harness = Harness::owned_by_o();
    harness.tell(N, Input::GracefulShutdown);
    assert_eq!(harness.nodes[N].region.state(), RegionState::Stopped);
    assert!(harness.last_told(N, |message| matches!(message, RegionMessage::RegionStopped { .. })).is_some());
}

/// A shard that has begun to stop in order goes on so, even if its region changes how it ends: entities handle their
/// stop message. Only leftovers for another owner become dead letters.
#[test]
fn scenario_51_a_shard_that_stops_in_order_is_not_killed_for_want_of_another_region() {
    let ends: [fn(&mut Harness); 2] = [
        |harness| harness.coordinate(O, CoordinatorMessage::StopHere),
        |harness| harness.tell(O, Input::Membership(members_that_prepare(harness.now))),
    ];
    for (ends, reason) in ends.into_iter().zip([DeadLetterReason::NoOtherRegion, DeadLetterReason::RegionStopped]) {
        let mut harness = Harness::owned_by_o();
        harness.nodes[O].busy = true;
        harness.send(O, "m");
        harness.tell(O, Input::GracefulShutdown);
        harness.hand_off(O, 1, 1, &[]);
        assert_eq!(harness.nodes[O].ending, Some(generation(1)));
        ends(&mut harness);
        assert_eq!((harness.nodes[O].region.state(), harness.nodes[O].kills), (RegionState::Stopping, 0));
        harness.stopped(O);
        assert_eq!((harness.nodes[O].region.state(), harness.dead), (RegionState::Stopped, vec![("m", reason)]));
    }
}

/// All three members are there, and the cluster prepares to end.
fn members_that_prepare(at: Instant) -> Arc<Members> {
    let mut members = Members::clone(&members_without(&[], at));
    members.members.values_mut().for_each(|member| member.phase = MemberPhase::Preparing);
    Arc::new(members)
}

/// In a cluster that prepares to end no region stops sending to a shard, and a region that ends hands nothing over.
#[test]
fn scenario_50_a_region_of_a_cluster_that_prepares_to_end_hands_nothing_over() {
    let mut harness = Harness::owned_by_o();
    let members = members_that_prepare(harness.now);
    (0..3).for_each(|node| harness.tell(node, Input::Membership(members.clone())));
    harness.told.clear();
    harness.begin(P, O, 1, 1);
    assert!(harness.told.is_empty(), "nothing is acked");
    harness.send(P, "m");
    harness.settle();
    assert_eq!(harness.handled, [(O, "m")], "the route stays");
    harness.tell(O, Input::GracefulShutdown);
    assert_eq!(harness.nodes[O].region.state(), RegionState::Stopping);
    assert_eq!(harness.nodes[O].ending, Some(generation(1)), "it stops its shard by its own word");
    harness.stopped(O);
    assert_eq!(harness.nodes[O].region.state(), RegionState::Stopped);
    let asks = |message: &RegionMessage| matches!(message, RegionMessage::GracefulShutdownReq { .. });
    assert!(harness.last_told(O, asks).is_none(), "it asked for no handoff");
    assert!(harness.last_told(O, |message| matches!(message, RegionMessage::RegionStopped { .. })).is_some());
}

/// A region that was handing its shards over stops waiting for that once the cluster prepares to end.
#[test]
fn scenario_50_a_region_that_hands_over_ends_where_it_is_when_the_cluster_prepares_to_end() {
    let mut harness = Harness::owned_by_o();
    harness.tell(O, Input::GracefulShutdown);
    assert_eq!((harness.nodes[O].region.state(), harness.nodes[O].ending), (RegionState::ShuttingDown, None));
    let members = members_that_prepare(harness.now);
    harness.tell(O, Input::Membership(members));
    assert_eq!(harness.nodes[O].ending, Some(generation(1)));
    harness.stopped(O);
    assert_eq!(harness.nodes[O].region.state(), RegionState::Stopped);
}

/// The last hosting region stops without a handoff: later messages are dropped because no other region can host,
/// including messages that the shard gives back; a region that is stopped at once gives that as the reason instead.
#[test]
fn scenario_51_late_messages_of_the_last_region_say_that_no_other_one_could_host() {
    let ends = |order: fn(&mut Harness)| {
        let mut harness = Harness::owned_by_o();
        harness.nodes[O].busy = true;
        harness.send(O, "queued");
        harness.tell(O, Input::GracefulShutdown);
        order(&mut harness);
        harness.send(O, "late");
        harness.stopped(O);
        harness.send(O, "after");
        harness.dead
    };
    use DeadLetterReason::{NoOtherRegion, RegionStopped};
    let last = ends(|harness| harness.coordinate(O, CoordinatorMessage::StopHere));
    assert_eq!(last, [("late", NoOtherRegion), ("queued", NoOtherRegion), ("after", RegionStopped)]);
    let at_once = ends(|harness| harness.tell(O, Input::Stop));
    assert_eq!(at_once, [("late", RegionStopped), ("queued", RegionStopped), ("after", RegionStopped)]);
}

/// However many shards the last region hosts, and whether or not their entities are remembered: it ends in the same
/// instant as the last of them, with the default settings, and no earlier message goes to another region.
#[test]
fn scenario_51_the_last_region_ends_in_the_instant_in_which_its_last_shard_has() {
    for enabled in [false, true] {
        let now = Instant::now();
        let remember = RememberSettings { enabled, ..RememberSettings::default() };
        let settings = ShardingSettings { remember, ..ShardingSettings::default() };
        let mut region = Region::new(RegionConfig { settings, ..config(O) }, now);
        let mut handle = |input| {
            let mut effects = Vec::new();
            region.handle(now, input, &mut effects);
            (region.state(), effects)
        };
        let order = |message| {
            let coordinator = CoordinatorId { node: address(O), incarnation: 7 };
            let message = FromCoordinator { coordinator, epoch: 7, to: Some(self::region(O)), message };
            Input::FromCoordinator { node: address(O), message }
        };
        handle(Input::Membership(members_without(&[N, P], now)));
        handle(order(CoordinatorMessage::RegisterAck { serial: 1 }));
        let shards: Vec<_> = (1..=5).map(ShardId::from_index).collect();
        for shard in &shards {
            let home = Home::new(shard.clone(), self::region(O), generation(1));
            handle(order(CoordinatorMessage::HostShard(vec![home])));
            handle(Input::ShardInitialized { shard: shard.clone(), generation: generation(1) });
        }
        handle(Input::GracefulShutdown);
        let (state, effects) = handle(order(CoordinatorMessage::StopHere));
        let stops = effects.iter().filter(|effect| matches!(effect, Effect::StopShard { .. })).count();
        assert_eq!((state, stops), (RegionState::Stopping, 5));
        for (number, shard) in shards.iter().enumerate() {
            let late = MessageInfo::of(Token(number as u64));
            let (_, effects) = handle(Input::LocalSend { shard: shard.clone(), message: late });
            let reason = effects.iter().find_map(|effect| match effect {
                Effect::DeadLetter { reason, .. } => Some(*reason),
                _ => None,
            });
            assert_eq!(reason, Some(DeadLetterReason::NoOtherRegion));
            let ended = Input::ShardStopped { shard: shard.clone(), generation: generation(1), leftovers: Vec::new() };
            let (state, effects) = handle(ended);
            let is_last = number == 4;
            assert_eq!(state == RegionState::Stopped, is_last, "after {} shards", number + 1);
            assert_eq!(effects.contains(&Effect::Stopped), is_last);
        }
    }
}

/// With the default settings: one warning after ten seconds, and each message ends after ten seconds of its own.
#[test]
fn scenario_108_ten_seconds_without_a_host_are_reported_once() {
    let start = Instant::now();
    let fingerprint = Fingerprint { role: "carts".into(), ..config(P).fingerprint };
    let settings = ShardingSettings::default();
    let mut region = Region::new(RegionConfig { proxy: true, fingerprint, settings, ..config(P) }, start);
    let mut seen = Vec::new();
    let mut tell = |millis: u64, input| {
        let mut effects = Vec::new();
        region.handle(start + Duration::from_millis(millis), input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Event(RegionEvent::NoHost { role }) => seen.push((millis, format!("no {role}"))),
                Effect::DeadLetter { token, reason, .. } => seen.push((millis, format!("{} is {reason}", token.0))),
                _ => {}
            }
        }
    };
    tell(0, Input::Membership(members_without(&[], start)));
    tell(1_000, Input::LocalSend { shard: shard(), message: MessageInfo::of(Token(1)) });
    for step in 1..=600 {
        tell(100 * step, Input::Tick);
        if step == 50 {
            tell(5_000, Input::LocalSend { shard: shard(), message: MessageInfo::of(Token(2)) });
        }
    }
    let expected = [(10_000, "no carts"), (11_000, "1 is NoHost"), (15_000, "2 is NoHost")];
    assert_eq!(seen, expected.map(|(millis, what)| (millis, what.to_owned())));
}
