//! A process heard at a member's address: scenarios 75 and 76 of cluster.md.

use std::time::Duration;

use greylag_cluster::*;
use greylag_core::{Uid, UniqueAddress};
use greylag_testkit::network::NodeId;

use crate::seeds;
use crate::world::{MS, SECOND, World};

/// Sends a Join of a process that does not run at the address it names.
fn forge(world: &mut World, at: NodeId, name: &str, host: Option<&str>) {
    let forger = UniqueAddress::new(World::address(name), Uid::new(12).unwrap());
    let message = Message::Join {
        roles: Vec::new(),
        app_version: AppVersion::default(),
        protocol: PROTOCOL,
        cluster_id: 0,
        data_center: "default".into(),
        host_id: host.map(Into::into),
    };
    let received_at = world.now();
    world.input(at, Input::Message { from: forger.clone(), message, received_at });
    let message = Message::InitJoin { to: World::address("a"), protocol: PROTOCOL, config: Default::default() };
    world.input(at, Input::Message { from: forger.clone(), message, received_at });
    world.input(at, Input::PeerHandshake { peer: forger, cluster_id: None });
}

/// The time at which `by` first published a wanted event.
fn first(world: &World, by: NodeId, wanted: impl Fn(&ClusterEvent) -> bool) -> Duration {
    *world.times(by, wanted).first().expect("it was published")
}

/// The time at which `by` removed that member.
fn removed_at(world: &World, by: NodeId, gone: &UniqueAddress) -> Duration {
    let removed =
        |event: &ClusterEvent| matches!(event, ClusterEvent::MemberRemoved { member, .. } if member.address == *gone);
    first(world, by, removed)
}

/// cluster M25, T15: a process that forges a Join, an InitJoin or a Hello changes nothing, whatever host it names.
#[test]
fn scenario_75_a_forged_join_from_a_members_address_downs_nobody() {
    for seed in seeds(10) {
        for policy in [ProofOfDeath::Off, ProofOfDeath::Local, ProofOfDeath::On] {
            let mut world = World::new(seed, ClusterSettings { proof_of_death: policy, ..ClusterSettings::default() });
            let ids = world.cluster(&["a", "b", "c"]);
            for second in 0..6 {
                let host = [None, Some("other"), Some("b")][second % 3];
                forge(&mut world, ids[[0, 2][second % 2]], "b", host);
                world.run_for(SECOND);
                assert_eq!(world.status(ids[1], ids[0]), Some(MemberStatus::Up), "seed {seed}, {policy:?}");
                assert!(world.view(ids[0]).is_reachable(&world.ua(ids[1])), "seed {seed}, {policy:?}");
            }
            assert!(world.agreed(&ids));
        }
    }
}

/// cluster M25, S20 (a), P6: the name of the singleton's host moves to another host while its process is cut off, or
/// after it has died. The member stays Up until the resolver's verdict downs it, its duties start after the margin, and
/// the new process joins within 10 s of the removal.
#[test]
fn scenario_76_a_moved_name_changes_nothing_and_the_member_goes_by_the_verdict() {
    for (seed, dies) in seeds(10).flat_map(|seed| [false, true].map(|dies| (seed, dies))) {
        let (elsewhere, derived) = (Some("elsewhere"), (RemovalMargin::Derive, 20));
        let longer = (RemovalMargin::Fixed(45 * SECOND), 45);
        for (after, host, (setting, margin)) in
            [(0, elsewhere, derived), (2_000, None, longer), (15_000, elsewhere, derived), (40_000, None, derived)]
        {
            let mut world = World::resolver(seed);
            world.settings.down_removal_margin = setting;
            let ids = world.cluster(&["a", "b", "c"]);
            assert_eq!(world.host_of_singleton(), Some(ids[0]));
            if dies {
                world.kill(ids[0]);
            } else {
                world.isolate(&ids[..1], &ids[1..]);
            }
            let began = world.net.now();
            world.run_for(after * MS);
            let old = world.ua(ids[0]);
            let moved = world.start_on("a", host, &["worker"]);
            if !dies {
                world.isolate(&ids[..1], &[ids[1], ids[2], moved]);
            }
            world.join(moved, &["b", "c"]);
            let removed = |world: &World| ids[1..].iter().all(|id| world.view(*id).member(&old).is_none());
            world.run_until(60 * SECOND, removed);
            let clean = world.view(ids[1]).tombstones[&old].clean;
            assert!(!clean, "seed {seed}: nothing proved its death");
            let decided = |event: &ClusterEvent| matches!(event, ClusterEvent::DowningDecision(_));
            let decided = world.times(ids[1], decided).into_iter().chain(world.times(ids[2], decided)).min();
            let decided = decided.expect("the resolver has decided");
            let downed =
                ids[1..].iter().map(|id| first(&world, *id, |event| matches!(event, ClusterEvent::MemberDowned(_))));
            assert!(downed.min() >= Some(decided), "seed {seed}: it was Up until then");
            assert!(
                decided - began >= 23 * SECOND,
                "seed {seed}: detection and `stable_after`, not {:?}",
                decided - began
            );
            assert!(world.host_of_singleton().is_none_or(|host| host == ids[0]), "its margin has just begun");
            world.run_until(10 * SECOND, |world| world.status(moved, ids[1]).is_some());
            world.run_until(60 * SECOND, |world| world.host_of_singleton() == Some(ids[1]));
            let waited = world.net.now() - removed_at(&world, ids[1], &old);
            assert!(waited >= margin * SECOND, "seed {seed}: the margin of S14 is {margin} s, not {waited:?}");
            world.run_until(60 * SECOND, |world| world.agreed(&[ids[1], ids[2], moved]));
        }
    }
}

/// cluster M25, S20 (a): several names move in clusters of three to seven. The new processes join within 10 s of the
/// removal of the old ones, and the singleton starts after the margin.
#[test]
fn scenario_76_several_moved_names_join_when_their_members_are_removed() {
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    for seed in seeds(10) {
        let size = 3 + seed as usize % 5;
        let mut world = World::resolver(seed);
        let ids = world.cluster(&names[..size]);
        // The losing side hosts the singleton.
        let (lost, rest) = ids.split_at((size - 1) / 2);
        world.isolate(lost, rest);
        world.run_for((seed as u32 * 7_919 % 30_000) * MS);
        let mut moved = Vec::new();
        for (name, host) in names[..lost.len()].iter().zip([None, Some("elsewhere"), None]) {
            let id = world.start_on(name, host, &["worker"]);
            moved.push(id);
            let others: Vec<NodeId> = rest.iter().chain(&moved).copied().collect();
            world.isolate(lost, &others);
            world.join(id, &names[lost.len()..size]);
        }
        let old: Vec<UniqueAddress> = lost.iter().map(|id| world.ua(*id)).collect();
        let gone = |world: &World| old.iter().all(|ua| world.view(rest[0]).member(ua).is_none());
        world.run_until(60 * SECOND, gone);
        assert!(old.iter().all(|ua| !world.view(rest[0]).tombstones[ua].clean), "seed {seed}: nothing proved a death");
        world.run_until(10 * SECOND, |world| moved.iter().all(|id| world.status(*id, rest[0]).is_some()));
        world.run_until(40 * SECOND, |world| world.host_of_singleton() == Some(rest[0]));
        let last = old.iter().map(|ua| removed_at(&world, rest[0], ua)).max().unwrap();
        assert!(world.net.now() - last >= 20 * SECOND, "seed {seed}");
        let all: Vec<NodeId> = rest.iter().chain(&moved).copied().collect();
        world.run_until(30 * SECOND, |world| world.agreed(&all));
    }
}

/// cluster T15, M25, M33: a member that is still reached by its streams stays Up, the new process waits, and both sides
/// report this.
#[test]
fn scenario_76_a_member_that_is_reached_stays_and_the_new_process_waits() {
    for seed in seeds(5) {
        for downing in [true, false] {
            let mut world = if downing { World::resolver(seed) } else { World::new(seed, ClusterSettings::default()) };
            let ids = world.cluster(&["a", "b", "c"]);
            let moved = world.start_on("b", Some("elsewhere"), &["worker"]);
            world.join(moved, &["a", "c"]);
            world.run_for(60 * SECOND);
            assert!(ids.iter().all(|id| world.status(ids[1], *id) == Some(MemberStatus::Up)), "seed {seed}");
            assert!(world.processes[&moved].core.view().members.is_empty(), "seed {seed}");
            let (holder, claimant) = (world.ua(ids[1]), world.ua(moved));
            let held = ClusterEvent::AddressHeld { holder: holder.clone(), claimant: claimant.clone() };
            for id in [ids[0], ids[2]] {
                let told = world.processes[&id].events.iter().filter(|(_, event)| *event == held).count();
                assert_eq!(told, 1, "seed {seed}: once per claimant");
                let shown = world.processes[&id].core.health(world.now()).held_addresses;
                assert_eq!(shown, [HeldAddress { holder: holder.clone(), claimant: claimant.clone() }]);
            }
            // An operator, who knows that the old process is dead or ends it, downs the member.
            world.kill(ids[1]);
            world.down(ids[0], ids[1]);
            world.run_until(30 * SECOND, |world| world.agreed(&[ids[0], moved, ids[2]]));
            assert_eq!(world.processes[&ids[0]].core.health(world.now()).held_addresses, []);
        }
    }
}

/// cluster S20 (a), M28: with the same host, with `on` or with a witness there is no wait and no margin.
#[test]
fn scenario_76_the_same_host_on_and_a_witness_need_no_wait() {
    for seed in seeds(5) {
        for how in ["same host", "on", "witness"] {
            let mut world = World::resolver(seed);
            if how == "on" {
                world.settings.proof_of_death = ProofOfDeath::On;
            }
            let ids = world.cluster(&["a", "b", "c"]);
            let old = world.ua(ids[0]);
            world.kill(ids[0]);
            let host = if how == "same host" { "a" } else { "elsewhere" };
            let moved = world.start_on("a", Some(host), &["worker"]);
            world.join(moved, &["b", "c"]);
            if how == "witness" {
                world.input(ids[1], Input::DeathWitnessed(old.clone()));
            }
            world.run_until(12 * SECOND, |world| world.agreed(&[ids[1], ids[2], moved]));
            assert!(world.view(ids[1]).tombstones[&old].clean, "seed {seed}, {how}");
            assert_eq!(world.host_of_singleton(), Some(ids[1]), "seed {seed}, {how}: without a margin");
        }
    }
}

/// cluster S20 (a): with `off` an answer proves nothing, not even on the same host.
#[test]
fn scenario_76_under_off_the_same_host_waits_too() {
    for seed in seeds(3) {
        let mut world = World::resolver(seed);
        world.settings.proof_of_death = ProofOfDeath::Off;
        let ids = world.cluster(&["a", "b", "c"]);
        let old = world.ua(ids[1]);
        world.kill(ids[1]);
        let again = world.start("b");
        world.join(again, &["a", "c"]);
        world.run_for(15 * SECOND);
        assert_eq!(world.view(ids[0]).member(&old).map(|member| member.status), Some(MemberStatus::Up), "seed {seed}");
        world.run_until(60 * SECOND, |world| world.agreed(&[ids[0], again, ids[2]]));
        assert!(!world.view(ids[0]).tombstones[&old].dead, "seed {seed}");
    }
}
