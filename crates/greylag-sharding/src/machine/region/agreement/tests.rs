//! Several nodes that compare their roles for a type, with messages that are late and lost.

use std::collections::BTreeSet;
use std::sync::Arc;

use greylag_cluster::AppVersion;
use greylag_core::{NodeAddress, Uid};
use greylag_transport::Lane;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::fingerprint::StateStoreMode;
use crate::ids::RegionId;
use crate::machine::membership::MemberFacts;
use crate::machine::omissions::Omissions;
use crate::settings::ShardingSettings;

const RETRY: Duration = Duration::from_secs(2);

fn node(index: usize) -> UniqueAddress {
    let uid = Uid::new(index as u64 + 1).expect("a uid");
    UniqueAddress::new(NodeAddress::new(&format!("n{index}"), 1).expect("an address"), uid)
}

fn agreement(index: usize, role: &str) -> Agreement {
    let fingerprint = Fingerprint {
        protocol_major: 1,
        type_name: "Cart".into(),
        extractor: ("HashV1".into(), 1),
        number_of_shards: 12,
        remember_entities: false,
        remember_entities_store: "ddata".into(),
        state_store_mode: StateStoreMode::Ddata,
        role: role.into(),
        codec: Vec::new(),
    };
    Agreement::new(&RegionConfig {
        id: RegionId { node: node(index), incarnation: 1 },
        proxy: false,
        coordinator_role: role.into(),
        fingerprint,
        settings: ShardingSettings { retry_interval: RETRY, ..ShardingSettings::default() },
        lane_of: Arc::new(|_| Lane::ordinary(0)),
        omissions: Omissions::default(),
    })
}

struct World {
    now: Instant,
    nodes: Vec<Agreement>,
    members: Members,
    /// Sender, receiver, message.
    under_way: Vec<(usize, usize, PeerMessage)>,
    events: Vec<(usize, RegionEvent)>,
    incarnations: u64,
}

impl World {
    fn new(roles: &[&str]) -> Self {
        let nodes = roles.iter().enumerate().map(|(index, role)| agreement(index, role)).collect();
        let now = Instant::now();
        let (members, under_way, events) = (Members::default(), Vec::new(), Vec::new());
        Self { now, nodes, members, under_way, events, incarnations: 0 }
    }

    fn with(&mut self, index: usize, act: impl FnOnce(&mut Agreement, Instant, &mut Vec<Effect>)) {
        let mut out = Vec::new();
        act(&mut self.nodes[index], self.now, &mut out);
        for effect in out {
            match effect {
                Effect::SendPeer { to, message } => {
                    let to = (0..self.nodes.len()).find(|peer| node(*peer) == to).expect("a node");
                    self.under_way.push((index, to, message));
                }
                Effect::Event(event) => self.events.push((index, event)),
                _ => {}
            }
        }
    }

    fn join(&mut self, index: usize, phase: MemberPhase) {
        let age = self.members.members.len() as u32;
        let facts = MemberFacts {
            phase,
            up_number: age,
            reachable: true,
            roles: BTreeSet::new(),
            app_version: AppVersion::default(),
        };
        self.members.members.insert(node(index), facts);
    }

    /// Every node learns who the members are.
    fn send_members(&mut self) {
        for index in 0..self.nodes.len() {
            self.send_members_to(index);
        }
    }

    fn send_members_to(&mut self, index: usize) {
        let members = self.members.clone();
        self.with(index, |agreement, now, out| agreement.on_members(now, &members, out));
    }

    fn coordinate(&mut self, index: usize, runs: bool) {
        self.incarnations += 1;
        let incarnation = runs.then_some(self.incarnations);
        self.with(index, |agreement, now, out| agreement.on_coordinator(now, incarnation, out));
    }

    fn deliver(&mut self, at: usize) {
        let (from, to, message) = self.under_way.remove(at);
        self.with(to, |agreement, now, out| agreement.on_message(now, &node(from), message, out));
    }

    fn deliver_all(&mut self) {
        while !self.under_way.is_empty() {
            self.deliver(0);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for index in 0..self.nodes.len() {
            self.with(index, Agreement::on_tick);
            let next = self.nodes[index].next_deadline();
            assert!(next.is_none_or(|next| next > self.now), "the deadline of n{index} moves");
        }
    }

    /// Roles under which a coordinator may decide.
    fn granted(&self) -> BTreeSet<&str> {
        self.nodes.iter().filter(|node| node.granted).map(|node| node.fingerprint.role.as_str()).collect()
    }

    fn is_refused(&self, index: usize) -> bool {
        matches!(self.nodes[index].outcome, AgreementOutcome::Refused(_))
    }
}

#[test]
fn a_coordinator_waits_for_the_answer_of_every_reachable_member() {
    let mut world = World::new(&["a", "a", "a"]);
    (0..3).for_each(|index| world.join(index, MemberPhase::Up));
    world.send_members();
    world.under_way.clear();
    world.coordinate(0, true);
    let asked: Vec<_> = world.under_way.drain(..).map(|(_, to, _)| to).collect();
    assert_eq!(asked, [1, 2]);
    assert!(world.granted().is_empty());
    world.pass(RETRY);
    world.under_way.retain(|(from, to, _)| (*from, *to) == (0, 1));
    world.deliver_all();
    assert!(world.granted().is_empty(), "n2 has not answered");
    world.members.members.get_mut(&node(2)).expect("a member").reachable = false;
    world.send_members_to(0);
    assert_eq!(world.granted(), ["a"].into(), "an unreachable member is not waited for");
}

#[test]
fn of_two_sides_the_active_one_stays_and_of_two_that_start_the_role_that_sorts_first() {
    for a_is_active in [true, false] {
        let mut world = World::new(&["b", "a"]);
        world.join(0, MemberPhase::Up);
        world.send_members();
        if a_is_active {
            world.coordinate(0, true);
            assert_eq!(world.granted(), ["b"].into(), "it is alone");
        }
        world.join(1, MemberPhase::Up);
        world.send_members();
        world.coordinate(1, true);
        if !a_is_active {
            world.coordinate(0, true);
        }
        world.deliver_all();
        let loser = usize::from(a_is_active);
        assert!(world.is_refused(loser) && !world.is_refused(1 - loser));
        assert_eq!(world.granted(), [if a_is_active { "b" } else { "a" }].into());
        let AgreementOutcome::Refused(mismatch) = world.nodes[loser].outcome() else { unreachable!("seen above") };
        let side = |index: usize| format!("{} (on n{index}:1)", ["b", "a"][index]);
        assert_eq!((&mismatch.expected, &mismatch.got), (&side(1 - loser), &side(loser)));
    }
}

/// A third node whose side was refused refuses no other node, although neither of these two is active.
#[test]
fn a_refused_side_refuses_no_other_node() {
    let mut world = World::new(&["c", "a", "c"]);
    world.join(0, MemberPhase::Up);
    world.send_members();
    world.coordinate(0, true);
    world.join(1, MemberPhase::Up);
    world.join(2, MemberPhase::Up);
    world.send_members();
    world.coordinate(1, true);
    world.deliver_all();
    assert!(world.is_refused(1), "c is active at n0");
    world.pass(CONFLICT_RETRY);
    world.deliver_all();
    world.pass(RETRY);
    world.deliver_all();
    assert!(!world.is_refused(2), "n1 has given way to n0");
}

#[test]
fn two_active_sides_that_meet_are_reported_and_both_go_on() {
    let mut world = World::new(&["a", "b"]);
    (0..2).for_each(|index| world.join(index, MemberPhase::Up));
    for index in 0..2 {
        let mut alone = world.members.clone();
        alone.members.get_mut(&node(1 - index)).expect("a member").reachable = false;
        world.with(index, |agreement, now, out| agreement.on_members(now, &alone, out));
        world.coordinate(index, true);
    }
    world.under_way.clear();
    assert_eq!(world.granted(), ["a", "b"].into());
    world.send_members();
    world.pass(RETRY);
    world.deliver_all();
    assert!(!world.is_refused(0) && !world.is_refused(1));
    let told: Vec<_> =
        world.events.iter().map(|(index, event)| (*index, matches!(event, RegionEvent::Disputed(_)))).collect();
    assert_eq!(told, [(1, true), (0, true)]);
    assert!((0..2).all(|index| world.nodes[index].dispute().is_some()));
    world.members.members.remove(&node(1));
    world.send_members_to(0);
    assert_eq!(world.nodes[0].dispute(), None, "the other side is gone");
}

/// Answers from before a side was refused do not count afterwards: the side asks anew.
#[test]
fn a_side_that_is_refused_no_more_asks_again_before_it_decides() {
    let mut world = World::new(&["b", "a", "c"]);
    world.join(0, MemberPhase::Up);
    world.send_members();
    world.coordinate(0, true);
    (1..3).for_each(|index| world.join(index, MemberPhase::Up));
    world.send_members();
    world.coordinate(1, true);
    world.deliver_all();
    assert!(world.is_refused(1));
    // n2 hears that n1 was refused, and goes on when n0 is gone.
    world.members.members.remove(&node(0));
    world.coordinate(0, false);
    world.send_members_to(2);
    world.coordinate(2, true);
    world.deliver_all();
    assert_eq!(world.granted(), ["c"].into());
    world.send_members_to(1);
    assert_eq!(world.granted(), ["c"].into(), "n1 decides nothing on the answers of its former round");
    world.deliver_all();
    assert_eq!(world.granted(), ["c"].into());
    assert!(world.is_refused(1));
}

/// An answer to a sender that this node does not know would let the sender decide, while this node decides without it.
#[test]
fn a_sender_that_is_not_known_is_not_answered() {
    let mut world = World::new(&["b", "a"]);
    world.join(0, MemberPhase::Up);
    world.send_members_to(0);
    world.join(1, MemberPhase::Up);
    world.send_members_to(1);
    world.coordinate(1, true);
    world.deliver_all();
    assert!(world.granted().is_empty(), "n0 does not know n1, and says nothing");
    world.coordinate(0, true);
    assert_eq!(world.granted(), ["b"].into(), "n0 knows no other member");
    world.send_members_to(0);
    world.pass(RETRY);
    world.deliver_all();
    assert_eq!(world.granted(), ["b"].into());
    assert!(world.is_refused(1));
}

/// However messages are delayed, lost and repeated, and whenever coordinators start, end and members join: two sides whose
/// members all reach each other are never both active. In the end one is.
#[test]
fn two_sides_that_reach_each_other_are_never_both_active() {
    for seed in 0..3_000 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let roles: Vec<_> = (0..rng.random_range(2..=4)).map(|_| ["a", "b", "c"][rng.random_range(0..3)]).collect();
        let mut world = World::new(&roles);
        let mut running = vec![false; roles.len()];
        for _ in 0..rng.random_range(10..80) {
            let index = rng.random_range(0..roles.len());
            match rng.random_range(0..10) {
                0 if !world.members.contains(&node(index)) => {
                    world.join(index, MemberPhase::Joining);
                    world.send_members_to(index);
                }
                1 if world.members.contains(&node(index)) => {
                    world.join(index, MemberPhase::Up);
                    world.send_members_to(index);
                }
                // Views are late: each node learns of members in its own time, but of itself first.
                2 => world.send_members_to(index),
                3 if world.nodes[index].is_up => {
                    running[index] = rng.random_bool(0.8);
                    world.coordinate(index, running[index]);
                }
                4 => world.pass(RETRY * rng.random_range(1..20)),
                5 if !world.under_way.is_empty() => {
                    drop(world.under_way.remove(rng.random_range(0..world.under_way.len())));
                }
                6 if !world.under_way.is_empty() => {
                    let copy = world.under_way[rng.random_range(0..world.under_way.len())].clone();
                    world.under_way.push(copy);
                }
                _ if !world.under_way.is_empty() => world.deliver(rng.random_range(0..world.under_way.len())),
                _ => {}
            }
            assert!(world.granted().len() < 2, "seed {seed}: {roles:?}");
        }
        settle(&mut world, &mut running);
        assert_eq!(world.granted().len(), 1, "seed {seed}: {roles:?}");
    }
}

/// All join, one coordinator of each role runs on, and nothing is lost any more.
fn settle(world: &mut World, running: &mut [bool]) {
    (0..running.len()).for_each(|index| world.join(index, MemberPhase::Up));
    world.send_members();
    let roles: BTreeSet<_> = world.nodes.iter().map(|node| node.fingerprint.role.clone()).collect();
    for role in roles {
        let of_role = (0..running.len()).filter(|index| world.nodes[*index].fingerprint.role == role);
        let of_role: Vec<_> = of_role.collect();
        if !of_role.iter().any(|index| running[*index]) {
            world.coordinate(of_role[0], true);
        }
    }
    for _ in 0..6 {
        world.deliver_all();
        world.pass(CONFLICT_RETRY);
    }
    world.deliver_all();
}
