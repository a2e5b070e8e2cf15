//! Replicators under faults drawn from a seed; the world and what it checks are told in `world`.
//!
//! `GREYLAG_SIM_SEEDS=from..to` runs other seeds.

mod world;

use world::World;

#[test]
fn replicas_agree_after_every_history() {
    let seeds = std::env::var("GREYLAG_SIM_SEEDS").ok();
    let seeds = seeds.and_then(|text| {
        let (from, to) = text.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    let (mut acknowledged, mut failed, mut repaired, mut in_parts, mut performed, mut again) = (0, 0, 0, 0, 0, 0);
    for seed in seeds.unwrap_or(0..120_u64) {
        let mut world = World::run(seed);
        world.check_healed();
        world.check_serves();
        acknowledged += world.acknowledged;
        failed += world.failed;
        repaired += world.repaired();
        in_parts += world.repaired_in_parts();
        let pruned = world.performed();
        performed += pruned.0;
        again += pruned.1;
    }
    // A simulation in which nothing fails, or nothing has to be repaired, proves nothing.
    assert!(acknowledged > 100 && failed > 10 && repaired > 10, "{acknowledged} {failed} {repaired}");
    assert!(in_parts > 100, "{in_parts} values repaired in parts");
    assert!(performed > 100, "{performed} entries performed, {again} again");
}

#[test]
fn who_has_caught_up_holds_everything() {
    (0..40).for_each(World::check_catch_up);
}

#[test]
fn a_seed_is_one_history() {
    let (one, other) = (World::run(11), World::run(11));
    assert_eq!(one.net.counts(), other.net.counts());
    assert_eq!(one.digests(), other.digests());
}
