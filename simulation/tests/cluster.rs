//! The profiles of the cluster's simulation, a few seeds of each; `cargo xtask sim cluster --seeds 10000` plays many.
//!
//! The world checks at every step and at the end: cluster G1 (one singleton, one surviving side), G2 (all views equal
//! after healing), G3 (no member comes back, no status goes backwards), M4, M6, T15, T23 and T24 over the real
//! associations (cluster C6).

use greylag_simulation::worlds;

fn keeps(profile: &str, seeds: std::ops::Range<u64>) {
    let all = worlds();
    let world = all.iter().find(|world| world.profile == Some(profile)).expect("the profile is registered");
    for seed in seeds {
        if let Err(violation) = world.check(seed, None) {
            panic!("{profile}, seed {seed}: {violation}\n{}", world.explain(seed, None).unwrap_or_default());
        }
    }
}

/// Cluster G1, G2, G3, G4, and C6: a run of every profile.
#[test]
fn every_profile_keeps_its_promises() {
    for profile in worlds().iter().filter_map(|world| world.profile) {
        keeps(profile, 0..1);
    }
}

/// Scenario 64: the leader of a side is paused around its decision.
#[test]
fn scenario_64_the_leader_of_a_side_pauses_around_its_decision() {
    keeps("cut-with-paused-leader", 1..6);
}

/// Scenario 66: one node misses the responses of two or more healthy peers, always the same ones.
#[test]
fn scenario_66_one_sick_node_is_downed_alone() {
    keeps("one-sick-node-steady", 1..4);
}

/// Scenario 66: the same, with other peers every few seconds.
#[test]
fn scenario_66_one_sick_node_that_changes_is_downed_alone() {
    keeps("one-sick-node-changing", 1..4);
}

/// Scenario 66: two crashes 15 to 20 s apart; the members that survived them stay.
#[test]
fn scenario_66_two_crashes_in_sequence_down_no_healthy_member() {
    keeps("crashes-in-sequence", 1..6);
}

/// Scenario 67: gossip states in any order of joins, leaves, downs, removals and merges.
#[test]
fn scenario_67_random_walks_of_gossip_states() {
    let all = worlds();
    let walks = all.iter().find(|world| world.name == "walks").expect("it is registered");
    for seed in 0..1_000 {
        walks.check(seed, None).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
    }
}

/// Scenario 76: a member's name moves to another host, whatever happened to its old process.
#[test]
fn scenario_76_a_name_that_moves_never_makes_two_singletons() {
    keeps("moved-name", 1..25);
}

/// Scenario 71: all nodes are paused together, and continue together.
#[test]
fn scenario_71_all_nodes_suspended_together_go_on() {
    keeps("suspended-all", 1..6);
}

/// Scenario 71: some nodes are paused for 22 to 60 s; at most one side survives, and no member outside of it.
#[test]
fn scenario_71_some_nodes_suspended_leave_one_side() {
    keeps("suspended-some", 1..6);
}

/// Scenario 73: links flap for `stable_after`, then a lasting cut, with deaths just before it.
#[test]
fn scenario_73_flapping_links_then_a_lasting_cut() {
    keeps("flapping-then-cut", 1..6);
}
