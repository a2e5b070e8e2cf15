//! Random walks of gossip states, and random faults over whole clusters: scenarios 67, 73.

use greylag_cluster::*;
use greylag_testkit::network::Link;
use rand::RngExt;

use crate::world::{MS, SECOND, World};

/// Faults of every kind for a minute, then quiet: never two singletons, no removed member comes back, and the survivors
/// agree. The world checks the first two after every step.
#[test]
fn scenario_73_random_faults_then_quiet() {
    // For a long run: GREYLAG_CLUSTER_SEEDS=1000 cargo test -p greylag-cluster scenario_73
    let seeds = std::env::var("GREYLAG_CLUSTER_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(60);
    for seed in 0..seeds {
        let mut world = World::resolver(seed);
        world.one_host = seed % 3 == 0;
        let names = ["a", "b", "c", "d", "e"];
        let mut ids = world.cluster(&names);
        // Do not draw the exception of P7: an instance on a node that was paused for longer than the margin.
        let lossy = Link { delay: (MS, 40 * MS), loss: 0.02, duplication: 0.02, reorder: false };
        world.net.set_default_link(lossy);
        for _ in 0..4 {
            let index = world.net.rng().random_range(0..ids.len());
            match world.net.rng().random_range(0..6) {
                0 => {
                    let (left, right) = ids.split_at(1 + index % 3);
                    world.isolate(left, right);
                }
                1 => {
                    let pause = SECOND * world.net.rng().random_range(1..12);
                    world.net.pause(ids[index], pause);
                }
                2 => world.kill(ids[index]),
                3 => world.leave(ids[index], ids[index]),
                4 => world.net.heal(),
                _ => {
                    let address = world.ua(ids[index]);
                    if !world.alive().contains(&ids[index]) {
                        ids[index] = world.start(address.address().host());
                        world.join(ids[index], &names);
                    }
                }
            }
            let wait = MS * world.net.rng().random_range(100..15_000);
            world.run_for(wait);
        }
        world.net.heal();
        world.net.set_default_link(Link::reliable(2 * MS));
        world.run_for(120 * SECOND);
        let members: Vec<_> = world.alive().into_iter().filter(|id| !world.view(*id).members.is_empty()).collect();
        assert!(members.is_empty() || world.agreed_by(&members), "seed {seed}:\n{}", world.describe());
    }
}

/// Joins, leaves, downs, removals and merges in any order, on states alone.
#[test]
fn scenario_67_random_gossip_walks() {
    use rand::SeedableRng;
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(67);
    for walk in 0..3000 {
        gossip_walk(&mut rng, walk);
    }
}

fn gossip_walk(rng: &mut rand_chacha::ChaCha8Rng, walk: u32) {
    use greylag_core::UniqueAddress;
    use std::collections::{BTreeMap, BTreeSet};
    let node = |index: usize| -> UniqueAddress { format!("n{index}:1#{}", index + 1).parse().unwrap() };
    let mut first = Gossip::default();
    for index in 0..3 {
        let mut member = Member::joining(node(index), Default::default(), AppVersion::default());
        (member.status, member.up_number) = (MemberStatus::Up, index as u32);
        first.members.insert(member);
    }
    let mut states = [first.clone(), first.clone(), first];
    let mut versions: BTreeMap<String, Gossip> = BTreeMap::new();
    let mut buried: Vec<BTreeSet<UniqueAddress>> = vec![BTreeSet::new(); 3];
    for step in 0..20 {
        let at = rng.random_range(0..3);
        let before = states[at].clone();
        if !before.members.contains_key(&node(at)) {
            continue;
        }
        let mut after = before.clone();
        let target = node(rng.random_range(0..4));
        match rng.random_range(0..6) {
            0 if !after.tombstones.contains_key(&target) && !after.members.contains_key(&target) => {
                let joined = Member::joining(target.clone(), Default::default(), AppVersion::default());
                after.members.insert(joined);
            }
            1 => {
                if let Some(member) = after.members.get_mut(&target).filter(|m| m.status < MemberStatus::Leaving) {
                    member.status = MemberStatus::Leaving;
                }
            }
            2 => {
                if let Some(member) = after.members.get_mut(&target) {
                    member.status = MemberStatus::Down;
                }
            }
            3 if target != node(at) && after.members.get(&target).is_some_and(|m| m.status == MemberStatus::Down) => {
                after.members.remove(&target);
                after.tombstones.insert(target.clone(), Tombstone { wall_ms: step, ..Tombstone::default() });
                let members = after.members.clone();
                after.reachability.retain(|address| members.contains_key(address));
                after.version.retain(|address| members.contains_key(address));
            }
            _ => {
                let other = states[rng.random_range(0..3)].clone();
                if !other.members.contains_key(&node(at)) {
                    continue;
                }
                match before.version.compare(&other.version) {
                    Relation::Same | Relation::After => {}
                    Relation::Before => states[at] = other,
                    Relation::Concurrent => {
                        let merged = before.merged(&other);
                        let mut gossip = merged.gossip;
                        if merged.needs_version {
                            gossip.touch(&node(at), true);
                        }
                        states[at] = gossip;
                    }
                }
                after = before.clone();
            }
        }
        if after != before {
            after.touch(&node(at), true);
            states[at] = after;
        }
        let now = &states[at];
        assert!(now.is_sound(), "walk {walk}");
        buried[at].extend(now.tombstones.keys().cloned());
        for member in &before.members {
            let address = &member.address;
            match now.members.get(address) {
                Some(after) => assert!(after.status >= member.status, "walk {walk}: {address} goes backwards"),
                None => assert!(now.tombstones.contains_key(address), "walk {walk}: {address} vanished"),
            }
        }
        assert!(buried[at].iter().all(|address| !now.members.contains_key(address)), "walk {walk}: back");
        let version = format!("{:?}", now.version);
        let known = versions.entry(version).or_insert_with(|| now.clone());
        assert!(known.same_content(now), "walk {walk}: two states bear one version");
    }
}
