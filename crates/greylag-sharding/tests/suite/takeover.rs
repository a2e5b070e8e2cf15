//! Sharding scenarios 27, 86, 91 and 93: a coordinator takes over, or closes a region, while messages between it and
//! the regions are late or lost.
//!
//! The machines of one coordinator and of two regions, wired to each other: N runs the coordinator and may host, O
//! hosts. Everything arrives at once and in order, except for control messages that a test holds back or drops. Shards
//! start and stop at once, and after every step at most one of the regions has the shard.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::machines::{config, fingerprint, up};
use greylag_core::{DeadLetterReason, Generation, UniqueAddress};
use greylag_sharding::Omissions;
use greylag_sharding::ids::{RegionId, ShardId};
use greylag_sharding::machine::coordinator::{
    Coordinator, CoordinatorConfig, CoordinatorState, Effect as Decision, Input as Fact, StateEvent, StopReason,
    StoredState,
};
use greylag_sharding::machine::membership::Members;
use greylag_sharding::machine::message::{
    AgreementOutcome, Attempt, CoordinatorId, CoordinatorMessage, FromCoordinator, Home, RegionMessage,
};
use greylag_sharding::machine::region::{Effect, Input, MessageInfo, Region, Route, Token};
use greylag_sharding::settings::ShardingSettings;

const O: usize = 0;
const N: usize = 1;

/// A message under way.
#[derive(Debug)]
enum Packet {
    /// To a region.
    Order(usize, FromCoordinator),
    /// To the coordinator.
    Word(usize, RegionMessage),
    /// Between regions.
    Peer(usize, Input),
}

struct Node {
    region: Region,
    route: Route,
    live: Option<Generation>,
    starts: u32,
}

struct World {
    now: Instant,
    nodes: [Node; 2],
    coordinator: Coordinator,
    epoch_seen: u64,
    incarnation: u64,
    stored: StoredState,
    wire: VecDeque<Packet>,
    /// Selects the messages of regions that never arrive.
    lost: fn(&RegionMessage) -> bool,
    lost_count: usize,
    prefer: usize,
    tokens: BTreeMap<Token, &'static str>,
    handled: Vec<(usize, &'static str)>,
    dead: Vec<(&'static str, DeadLetterReason)>,
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

fn index(node: &UniqueAddress) -> usize {
    (0..2).find(|n| address(*n) == *node).expect("a node")
}

fn members() -> Arc<Members> {
    // N is the oldest, and so runs the coordinator.
    let facts = |n: usize| up(1 - n as u32);
    Arc::new(Members { members: (0..2).map(|n| (address(n), facts(n))).collect(), ..Members::default() })
}

fn node(n: usize, now: Instant) -> Node {
    Node { region: Region::new(config(region(n)), now), route: Route::Closed, live: None, starts: 0 }
}

fn coordinator(incarnation: u64, decisions: &mut Vec<Decision>) -> Coordinator {
    let config = CoordinatorConfig {
        id: CoordinatorId { node: address(N), incarnation },
        fingerprint: fingerprint(12),
        role: String::new(),
        settings: ShardingSettings::test(),
        down_removal_margin: Duration::from_secs(1),
        max_batch: usize::MAX,
        omissions: Omissions::default(),
    };
    Coordinator::new(config, decisions)
}

impl World {
    /// The coordinator C1 is active, and the shard lives at O.
    fn new() -> Self {
        let now = Instant::now();
        let mut decisions = Vec::new();
        let mut world = Self {
            now,
            nodes: [node(O, now), node(N, now)],
            coordinator: coordinator(1, &mut decisions),
            epoch_seen: 0,
            incarnation: 1,
            stored: StoredState::default(),
            wire: VecDeque::new(),
            lost: |_| false,
            lost_count: 0,
            prefer: O,
            tokens: BTreeMap::new(),
            handled: Vec::new(),
            dead: Vec::new(),
        };
        for n in [O, N] {
            world.tell(n, Input::Membership(members()));
        }
        world.decide(Fact::Agreement(AgreementOutcome::Agreed));
        world.decide(Fact::Membership(members()));
        for decision in decisions {
            world.carry_out(decision);
        }
        world.settle();
        world
    }

    fn hosted_by_o() -> Self {
        let mut world = Self::new();
        world.send(N, "first");
        world.settle();
        assert_eq!(world.handled, [(O, "first")]);
        world.handled.clear();
        world
    }

    fn tell(&mut self, node: usize, input: Input) {
        let mut effects = Vec::new();
        self.nodes[node].region.handle(self.now, input, &mut effects);
        for effect in effects {
            self.execute(node, effect);
        }
        let live = self.nodes.iter().filter(|node| node.live.is_some()).count();
        assert!(live <= 1, "the shard lives twice");
    }

    fn execute(&mut self, node: usize, effect: Effect) {
        match effect {
            Effect::RouteChange { route, .. } => self.nodes[node].route = route,
            Effect::SendCoordinator { to, message } if to == address(N) => {
                self.wire.push_back(Packet::Word(node, message));
            }
            Effect::StartShard { shard, generation } => {
                self.nodes[node].live = Some(generation);
                self.nodes[node].starts += 1;
                self.tell(node, Input::ShardInitialized { shard, generation });
            }
            Effect::StopShard { shard, generation } | Effect::KillShard { shard, generation } => {
                self.nodes[node].live = None;
                self.tell(node, Input::ShardStopped { shard, generation, leftovers: Vec::new() });
            }
            Effect::Deliver { token, .. } => self.handled.push((node, self.tokens[&token])),
            Effect::SendData { to, token, stamp, shard } => {
                let frame = Input::Frame { node: address(node), shard, stamp, message: MessageInfo::of(token) };
                self.wire.push_back(Packet::Peer(index(&to.node), frame));
            }
            Effect::SendMark { to, shard, mark } => {
                let mark = Input::Mark { node: address(node), shard, mark };
                self.wire.push_back(Packet::Peer(index(&to.node), mark));
            }
            Effect::SendPeer { to, message } => {
                let said = Input::FromPeer { node: address(node), message };
                self.wire.push_back(Packet::Peer(index(&to), said));
            }
            Effect::DeadLetter { token, reason, .. } => self.dead.push((self.tokens[&token], reason)),
            _ => {}
        }
    }

    fn decide(&mut self, fact: Fact) {
        let mut decisions = Vec::new();
        self.coordinator.handle(self.now, fact, &mut decisions);
        for decision in decisions {
            self.carry_out(decision);
        }
    }

    fn carry_out(&mut self, decision: Decision) {
        match decision {
            Decision::Read => {
                let state = self.stored.clone();
                self.decide(Fact::Read { state, wall_secs: 5, seen_epoch: self.epoch_seen });
            }
            Decision::Commit { batch, events } => {
                for event in events {
                    match event {
                        StateEvent::EpochStarted(meta) => self.stored.meta = Some(meta),
                        StateEvent::Home { shard, home } => drop(self.stored.homes.insert(shard, home)),
                        // Only a journal keeps the other events.
                        _ => {}
                    }
                }
                self.decide(Fact::Committed { batch });
            }
            Decision::Send { to, message } => self.wire.push_back(Packet::Order(index(&to), message)),
            Decision::CallAllocate { call, shards, view } => {
                let preferred = view.regions.iter().find(|choice| choice.region == region(self.prefer));
                let home = preferred.or(view.regions.first()).map(|choice| choice.region.clone());
                let homes = shards.into_iter().map(|(shard, _)| (shard, home.clone())).collect();
                self.decide(Fact::Allocated { call, homes });
            }
            Decision::CallRebalance { .. } => self.decide(Fact::Rebalance { shards: BTreeSet::new() }),
            Decision::Continue => self.decide(Fact::Continue),
            Decision::Stop(reason) => panic!("the coordinator stopped: {reason:?}"),
            Decision::ReadRemembered | Decision::Remember { .. } => unreachable!("the type remembers no entities"),
            Decision::Event(_) => {}
        }
    }

    fn arrive(&mut self, packet: Packet) {
        match packet {
            Packet::Order(to, message) => self.tell(to, Input::FromCoordinator { node: address(N), message }),
            Packet::Word(_, message) if (self.lost)(&message) => self.lost_count += 1,
            Packet::Word(from, message) => self.decide(Fact::FromRegion { node: address(from), message }),
            Packet::Peer(to, input) => self.tell(to, input),
        }
    }

    fn settle(&mut self) {
        while let Some(packet) = self.wire.pop_front() {
            self.arrive(packet);
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += Duration::from_millis(50);
            for n in [O, N] {
                self.tell(n, Input::Tick);
            }
            self.decide(Fact::Tick);
            self.settle();
        }
    }

    fn send(&mut self, node: usize, message: &'static str) {
        let token = Token(self.tokens.len() as u64);
        self.tokens.insert(token, message);
        // A region with an open route sends past its machine; here a message finds no route, or a home at this node.
        match &self.nodes[node].route {
            Route::Local { .. } => self.handled.push((node, message)),
            _ => self.tell(node, Input::LocalSend { shard: shard(), message: MessageInfo::of(token) }),
        }
    }

    /// Lets another incarnation take over from `stored`. Returns the previous incarnation, which goes on.
    fn fail_over(&mut self) -> Coordinator {
        let mut decisions = Vec::new();
        self.epoch_seen = self.coordinator.epoch();
        self.incarnation += 1;
        let before = std::mem::replace(&mut self.coordinator, coordinator(self.incarnation, &mut decisions));
        self.decide(Fact::Agreement(AgreementOutcome::Agreed));
        self.decide(Fact::Membership(members()));
        for decision in decisions {
            self.carry_out(decision);
        }
        before
    }

    /// N still has the route to O: a message sent there is lost and N learns that, and the next message starts the
    /// shard.
    fn messages_find_the_end_and_then_the_new_home(&mut self) {
        for message in ["m1", "m2"] {
            self.send(N, message);
            self.pass(Duration::from_secs(1));
        }
        assert_eq!(self.handled, [(N, "m2")]);
        assert_eq!(self.dead, [("m1", DeadLetterReason::RegionStopped)]);
    }

    fn owner(&self) -> Option<usize> {
        self.nodes.iter().position(|node| node.live.is_some())
    }

    /// An order of the present coordinator, to be delivered by the test.
    fn order(&self, to: usize, message: CoordinatorMessage) -> Packet {
        let coordinator = CoordinatorId { node: address(N), incarnation: self.incarnation };
        let epoch = self.coordinator.epoch();
        Packet::Order(to, FromCoordinator { coordinator, epoch, to: Some(region(to)), message })
    }
}

/// The state is lost, and O is slow to report that it hosts the shard.
#[test]
fn scenario_86_an_entity_goes_on_where_it_is_when_the_state_is_lost() {
    let mut world = World::hosted_by_o();
    let generation = world.nodes[O].live;
    world.prefer = N;
    world.stored = StoredState::default();
    world.lost = |message| matches!(message, RegionMessage::Register(register) if register.region == region(O));
    world.fail_over();
    world.decide(Fact::FromRegion {
        node: address(N),
        message: RegionMessage::GetShardHome { region: region(N), shards: vec![shard()] },
    });
    world.pass(Duration::from_secs(5));
    assert!(world.lost_count > 1, "it registers again and again");
    assert_eq!((world.coordinator.state(), world.nodes[N].starts), (CoordinatorState::Reconciling, 0));
    world.lost = |_| false;
    world.pass(Duration::from_secs(1));
    assert_eq!(world.coordinator.state(), CoordinatorState::Active);
    world.send(N, "m");
    world.settle();
    assert_eq!((world.handled, world.dead), (vec![(O, "m")], vec![]));
    assert_eq!((world.nodes[O].live, world.nodes[O].starts), (generation, 1), "under the number that it had");
}

/// The `HostShard` of the previous coordinator arrives after its state was lost and O has reported that it hosts
/// nothing.
#[test]
fn scenario_93_a_home_from_before_the_loss_is_found_before_anything_is_allocated() {
    // O takes the old order before the new coordinator's answer, or after it.
    for before_the_answer in [true, false] {
        let mut world = World::new();
        let generation = Generation::new(world.coordinator.epoch(), 1).expect("in range");
        let home = Home::new(shard(), region(O), generation);
        let late = world.order(O, CoordinatorMessage::HostShard(vec![home]));
        world.prefer = N;
        world.stored = StoredState::default();
        world.fail_over();
        world.send(N, "m");
        // Everything arrives except C2's messages to O behind the inquiry.
        let mut held = VecDeque::new();
        while let Some(packet) = world.wire.pop_front() {
            match packet {
                Packet::Order(O, message) if message.message != CoordinatorMessage::RegionInquiry => {
                    held.push_back(Packet::Order(O, message));
                }
                packet => world.arrive(packet),
            }
        }
        assert_eq!(world.coordinator.state(), CoordinatorState::Reconciling, "O's word is from before C2's epoch");
        assert_eq!((world.owner(), world.handled.len()), (None, 0), "nothing is allocated");
        if before_the_answer {
            world.arrive(late);
            world.wire.extend(held);
            world.settle();
        } else {
            world.wire.extend(held);
            world.settle();
            world.arrive(late);
            world.settle();
        }
        world.pass(Duration::from_secs(1));
        let home = if before_the_answer { O } else { N };
        assert_eq!(world.handled, [(home, "m")], "before the answer: {before_the_answer}");
        assert_eq!(world.owner(), Some(home));
        assert_eq!(world.nodes[O].starts + world.nodes[N].starts, 1, "one copy, started once");
    }
}

/// The previous coordinator resumes after a pause and gives an order: the region tells it the newer epoch, and it ends.
#[test]
fn scenario_27_a_coordinator_that_resumes_is_told_of_the_newer_one_and_stops() {
    let mut world = World::hosted_by_o();
    let (shard, generation) = (shard(), world.nodes[O].live.expect("hosted"));
    let attempt = Attempt(generation.as_u64());
    let late = world.order(O, CoordinatorMessage::HandOff { shard, generation, attempt, flush_from: vec![] });
    let mut before = world.fail_over();
    world.settle();
    let epoch = world.coordinator.epoch();
    assert!(epoch > before.epoch());
    world.arrive(late);
    assert_eq!(world.owner(), Some(O), "its order is not obeyed");
    let told: Vec<_> = std::mem::take(&mut world.wire).into();
    let [Packet::Word(O, stale)] = &told[..] else { panic!("one answer, not {told:?}") };
    assert_eq!(*stale, RegionMessage::StaleEpoch { region: region(O), epoch });
    let mut decisions = Vec::new();
    before.handle(world.now, Fact::FromRegion { node: address(O), message: stale.clone() }, &mut decisions);
    assert_eq!(decisions.last(), Some(&Decision::Stop(StopReason::Fenced { by: epoch })));
    decisions.clear();
    let request = RegionMessage::GetShardHome { region: region(N), shards: vec![ShardId::from_index(2)] };
    before.handle(world.now, Fact::FromRegion { node: address(N), message: request }, &mut decisions);
    assert_eq!(decisions, [], "it decides nothing any more");
}

/// The `HandOff` of the previous coordinator arrives when O has registered with the next one.
#[test]
fn scenario_91_a_hand_off_of_the_coordinator_before_ends_nothing() {
    let mut world = World::hosted_by_o();
    let generation = world.nodes[O].live.expect("hosted");
    let attempt = Attempt(generation.as_u64());
    let late = world.order(O, CoordinatorMessage::HandOff { shard: shard(), generation, attempt, flush_from: vec![] });
    world.fail_over();
    world.settle();
    world.arrive(late);
    world.settle();
    assert_eq!((world.owner(), world.nodes[O].starts), (Some(O), 1), "it goes on");
    world.send(N, "m");
    world.settle();
    assert_eq!((world.handled, world.dead), (vec![(O, "m")], vec![]));
}

/// The report that a shard has stopped is lost: the order is repeated, and so is the report.
#[test]
fn scenario_91_a_shard_whose_end_was_not_heard_of_is_hosted_again() {
    let mut world = World::hosted_by_o();
    world.prefer = N;
    world.lost = |message| matches!(message, RegionMessage::ShardStopped { .. });
    world.decide(Fact::Rebalance { shards: [shard()].into() });
    world.settle();
    assert_eq!((world.owner(), world.lost_count), (None, 1));
    world.lost = |_| false;
    world.send(N, "m");
    world.pass(Duration::from_secs(1));
    assert_eq!((world.handled, world.dead), (vec![(N, "m")], vec![]));
}

/// The report that a region has stopped is lost: it is repeated until it is answered.
#[test]
fn scenario_91_the_shard_of_a_region_whose_end_was_not_heard_of_is_hosted_again() {
    let mut world = World::hosted_by_o();
    world.lost = |message| matches!(message, RegionMessage::ShardStopped { .. } | RegionMessage::RegionStopped { .. });
    world.tell(O, Input::Stop);
    world.settle();
    assert_eq!((world.owner(), world.lost_count), (None, 2), "the shard's end and the region's");
    world.lost = |message| matches!(message, RegionMessage::ShardStopped { .. });
    world.pass(Duration::from_secs(1));
    world.messages_find_the_end_and_then_the_new_home();
    assert!(world.nodes[O].region.next_deadline().is_none(), "it was answered");
}

/// The coordinator dies right after a region has closed, without hearing of it: the next coordinator asks.
#[test]
fn scenario_91_the_shard_of_a_region_that_closed_before_a_fail_over_is_hosted_again() {
    let mut world = World::hosted_by_o();
    world.lost = |_| true;
    world.tell(O, Input::Stop);
    world.settle();
    assert_eq!(world.owner(), None);
    assert!(world.stored.homes[&shard()].region == region(O) && !world.stored.homes[&shard()].deallocated);
    world.lost = |_| false;
    world.fail_over();
    world.pass(Duration::from_secs(1));
    world.messages_find_the_end_and_then_the_new_home();
}
