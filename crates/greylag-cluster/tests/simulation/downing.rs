//! The resolver's strategies, witnesses and notices in whole clusters: acceptance scenarios 47 to 50,
//! 52, 54, 62 and 66 of cluster.md.

use greylag_cluster::*;
use greylag_testkit::network::NodeId;

use crate::seeds;
use crate::world::{SECOND, World};

fn with_strategy(seed: u64, strategy: Strategy) -> World {
    World::new(seed, ClusterSettings::default().with_resolver(SbrSettings::with_strategy(strategy)))
}

fn ended(world: &World, ids: &[NodeId]) -> bool {
    ids.iter().all(|id| world.processes[id].ended.is_some())
}

/// Cuts the first `at` nodes from the rest; checks which side survives and which ends.
fn cut(world: &mut World, ids: &[NodeId], at: usize, first_survive: bool) {
    let (left, right) = ids.split_at(at);
    world.isolate(left, right);
    let (survivors, losers) = if first_survive { (left, right) } else { (right, left) };
    world.run_until(60 * SECOND, |world| ended(world, losers));
    world.run_until(60 * SECOND, |world| world.agreed(survivors));
    assert!(!survivors.iter().any(|id| world.processes[id].ended.is_some()));
}

/// cluster S7.
#[test]
fn scenario_47_static_quorum_in_a_cluster() {
    for seed in seeds(5) {
        let quorum = |quorum_size| Strategy::StaticQuorum { role: None, quorum_size };
        let mut world = with_strategy(seed, quorum(3));
        let ids = world.cluster(&["a", "b", "c", "d", "e"]);
        cut(&mut world, &ids, 3, true);
        let mut small = with_strategy(seed, quorum(3));
        let ids = small.cluster(&["a", "b", "c", "d"]);
        small.isolate(&ids[..2], &ids[2..]);
        small.run_until(60 * SECOND, |world| ended(world, &ids));
    }
}

/// cluster S8: the node that came first is the oldest.
#[test]
fn scenario_48_keep_oldest_in_a_cluster() {
    for seed in seeds(5) {
        let oldest = |down_if_alone| Strategy::KeepOldest { role: None, down_if_alone };
        let mut world = with_strategy(seed, oldest(true));
        let ids = world.cluster(&["e", "a", "b", "c", "d"]);
        cut(&mut world, &ids, 2, true);
        let mut alone = with_strategy(seed, oldest(true));
        let ids = alone.cluster(&["e", "a", "b", "c", "d"]);
        cut(&mut alone, &ids, 1, false);
        let mut kept = with_strategy(seed, oldest(false));
        let ids = kept.cluster(&["e", "a", "b", "c", "d"]);
        cut(&mut kept, &ids, 1, true);
        let mut two = with_strategy(seed, oldest(true));
        let ids = two.cluster(&["b", "a"]);
        cut(&mut two, &ids, 1, true);
    }
}

/// cluster S9.
#[test]
fn a_partition_ends_everybody_under_down_all() {
    let mut world = with_strategy(1, Strategy::DownAll);
    let ids = world.cluster(&["a", "b", "c", "d", "e"]);
    world.isolate(&ids[..1], &ids[1..]);
    world.run_until(60 * SECOND, |world| ended(world, &ids));
}

/// cluster S11, S12: a pair with a broken link is downed, also when a crash happens at the same time.
#[test]
fn scenario_49_a_broken_pair_goes_with_a_crash_or_without() {
    for seed in seeds(10) {
        let mut world = World::resolver(seed);
        let ids = world.cluster(&["a", "b", "c", "d", "e"]);
        world.isolate(&ids[..1], &ids[1..2]);
        let crash = seed % 2 == 1;
        if crash {
            world.kill(ids[2]);
        }
        world.run_until(60 * SECOND, |world| ended(world, &ids[..2]));
        let survivors = if crash { &ids[3..] } else { &ids[2..] };
        world.run_until(60 * SECOND, |world| world.agreed(survivors));
    }
}

/// cluster S11: c accuses b, then both crash; the five others survive.
#[test]
fn scenario_50_two_crashes_of_which_one_accused_the_other_first() {
    for seed in seeds(10) {
        let mut world = World::resolver(seed);
        let ids = world.cluster(&["a", "b", "c", "d", "e", "f", "g"]);
        world.isolate(&ids[1..2], &ids[2..3]);
        let b = world.ua(ids[1]);
        world.run_until(10 * SECOND, |world| world.view(ids[0]).unreachable.contains(&b));
        world.kill(ids[1]);
        world.kill(ids[2]);
        let rest: Vec<NodeId> = [0, 3, 4, 5, 6].map(|index| ids[index]).to_vec();
        world.run_until(80 * SECOND, |world| world.agreed(&rest));
        assert!(!rest.iter().any(|id| world.processes[id].ended.is_some()));
    }
}

/// cluster S13: a cut, then another pair cut 2 s later and healed 7 s after that.
#[test]
fn scenario_52_reachability_that_never_rests_ends_everybody_in_time() {
    for seed in seeds(10) {
        let sbr = SbrSettings {
            stable_after: 10 * SECOND,
            down_all_when_unstable: DownAllWhenUnstable::After(7 * SECOND),
            ..SbrSettings::default()
        };
        let mut world = World::new(seed, ClusterSettings::default().with_resolver(sbr));
        let ids = world.cluster(&["a", "b", "c", "d", "e"]);
        let d = world.ua(ids[3]);
        world.isolate(&ids[..3], &ids[3..]);
        world.run_until(10 * SECOND, |world| world.view(ids[0]).unreachable.contains(&d));
        world.run_for(2 * SECOND);
        world.isolate(&ids[1..2], &ids[2..3]);
        world.run_for(7 * SECOND);
        world.net.heal();
        world.isolate(&ids[..3], &ids[3..]);
        let took = world.run_until(60 * SECOND, |world| ended(world, &ids));
        assert!(took < 20 * SECOND, "seed {seed}: {took:?} after the pair healed");
        let reasons: Vec<String> = ids.iter().flat_map(|id| decisions(&world, *id)).collect();
        assert!(reasons.iter().any(|reason| reason.contains("kept changing")), "{reasons:?}");
    }
}

fn decisions(world: &World, id: NodeId) -> Vec<String> {
    let decision = |event: &ClusterEvent| match event {
        ClusterEvent::DowningDecision(decision) => Some(decision.to_string()),
        _ => None,
    };
    world.processes[&id].events.iter().filter_map(|(_, event)| decision(event)).collect()
}

/// cluster S19: b is cut off and removed while it still waits; after the heal one message of a member that it knows is
/// enough.
#[test]
fn scenario_54_the_removed_hears_of_it_from_a_member_that_it_still_knows() {
    for seed in seeds(10) {
        let mut world = World::resolver(seed);
        let patient = SbrSettings { stable_after: 60 * SECOND, ..SbrSettings::default() };
        let quick = world.settings.clone();
        let a = world.start("a");
        world.settings = quick.clone().with_resolver(patient);
        let b = world.start("b");
        world.settings = quick;
        let c = world.start("c");
        world.join(a, &["a"]);
        for id in [b, c] {
            world.join(id, &["a"]);
        }
        world.run_until(30 * SECOND, |world| world.agreed(&[a, b, c]));
        world.isolate(&[b], &[a, c]);
        world.run_until(60 * SECOND, |world| world.agreed_by(&[a, c]));
        assert_eq!(world.processes[&b].ended, None, "it waits longer than the others");
        world.net.heal();
        world.run_until(5 * SECOND, |world| world.has_event(b, |event| *event == ClusterEvent::SelfDowned));
        assert!(decisions(&world, b).is_empty(), "it needed no decision of its own");
    }
}

/// cluster S20 (c): a witness's report takes effect at once everywhere, whatever `downing` is, also if it came before
/// this node knew of the member.
#[test]
fn scenario_62_a_witnessed_death_is_a_clean_removal_and_two_witnesses_change_nothing() {
    for seed in seeds(10) {
        let mut world = World::new(seed, ClusterSettings::default());
        let ids = world.cluster(&["a", "b", "c", "d"]);
        let gone = world.ua(ids[3]);
        world.kill(ids[3]);
        for id in &ids[..2] {
            world.input(*id, Input::DeathWitnessed(gone.clone()));
        }
        world.run_until(5 * SECOND, |world| world.agreed(&ids[..3]));
        for id in &ids[..3] {
            let clean = |event: &&ClusterEvent| matches!(event, ClusterEvent::MemberRemoved { member, clean: true, .. } if member.address == gone);
            let removals = world.processes[id].events.iter().filter(|(_, event)| clean(&event)).count();
            assert_eq!(removals, 1, "two that prove are one removal");
        }
    }
    let mut early = World::new(1, ClusterSettings::default());
    let a = early.start("a");
    let b = early.start("b");
    let gone = early.ua(b);
    early.input(a, Input::DeathWitnessed(gone.clone()));
    early.join(a, &["a"]);
    early.join(b, &["a"]);
    let proven = |event: &ClusterEvent| matches!(event, ClusterEvent::ProvenDead { how: Proof::Witnessed, .. });
    early.run_until(20 * SECOND, |world| world.has_event(a, proven));
    early.run_until(20 * SECOND, |world| world.agreed(&[a]));
}

/// cluster S20, M27: a wrong witness ends a healthy process, but never leads to two instances.
#[test]
fn a_member_wrongly_reported_dead_ends_at_once() {
    for seed in seeds(10) {
        let mut world = World::new(seed, ClusterSettings::default());
        world.tolerate_two = true;
        let ids = world.cluster(&["a", "b", "c"]);
        let accused = world.ua(ids[0]);
        world.input(ids[2], Input::DeathWitnessed(accused));
        world.run_until(SECOND, |world| world.has_event(ids[0], |event| *event == ClusterEvent::SelfDowned));
        world.run_until(20 * SECOND, |world| ended(world, &ids[..1]) && world.agreed(&ids[1..]));
    }
}

/// cluster S20: with `off` refusals prove nothing; with `on` they prove the deaths of all processes.
#[test]
fn scenario_62_off_proves_nothing() {
    let mut world = World::new(1, ClusterSettings { proof_of_death: ProofOfDeath::Off, ..ClusterSettings::default() });
    world.one_host = true;
    let ids = world.cluster(&["a", "b", "c"]);
    world.kill(ids[2]);
    world.run_for(60 * SECOND);
    assert_eq!(world.status(ids[2], ids[0]), Some(MemberStatus::Up));
    assert!(!world.has_event(ids[0], |event| matches!(event, ClusterEvent::ProvenDead { .. })));
}
