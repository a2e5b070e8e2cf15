//! Coordinators and regions under every fault that their world allows, drawn from seeds.
//!
//! Checked at every step: I1 no shard lives twice among nodes that share a view, I2 no sender's
//! messages are swapped, I3 every message is accounted for (by the machines' own invariants), and
//! after healing everything answers. Without faults of links and nodes nothing may be dropped at all.
//! All of it over both stores of the coordinators' state.
//!
//! Replay: `GREYLAG_SEED=17 GREYLAG_TRACE=400 cargo test -p greylag-sharding --test simulation one_seed`.
//! `GREYLAG_SEEDS=2000` runs that many seeds instead of the gate's number.
//!
//! Source: sharding §0, §9, scenario 96.

#[path = "simulation/letters.rs"]
mod letters;
#[path = "simulation/world.rs"]
#[allow(dead_code, reason = "applications outside of this crate use the rest")]
mod world;

use std::time::Duration;

use greylag_sharding::Clause;
use letters::Letters;
use world::{Faults, Sabotage, Tally, World};

fn seeds(gate: u64) -> u64 {
    std::env::var("GREYLAG_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(gate)
}

fn run(seed: u64, sabotage: Sabotage) -> Result<Tally, String> {
    World::new(seed, Faults::of(seed), sabotage)
        .run(world::SAFETY, world::PATIENCE)
        .map_err(|what| format!("seed {seed}: {what}"))
}

#[test]
fn promises_hold_under_drawn_faults() {
    let mut total = Tally::default();
    for seed in 0..seeds(200) {
        let tally = run(seed, Sabotage::default()).unwrap_or_else(|violation| panic!("{violation}"));
        total.sent += tally.sent;
        total.handled += tally.handled;
        total.moved += tally.moved;
    }
    assert!(total.handled * 2 > total.sent, "the runs do something: {total:?}");
    assert!(total.moved > 100, "shards move: {total:?}");
}

fn run_over_journal(seed: u64, sabotage: Sabotage) -> Result<Tally, String> {
    World::new(seed, Faults::of(seed), sabotage)
        .over_journal()
        .run(world::SAFETY, world::PATIENCE)
        .map_err(|what| format!("seed {seed}, over a journal: {what}"))
}

/// The same worlds in mode persistence: histories never contradict themselves, even with other writers.
#[test]
fn promises_hold_over_a_journal_under_drawn_faults() {
    let mut total = Tally::default();
    for seed in 0..seeds(200) {
        let tally = run_over_journal(seed, Sabotage::default()).unwrap_or_else(|violation| panic!("{violation}"));
        total.sent += tally.sent;
        total.handled += tally.handled;
        total.moved += tally.moved;
    }
    assert!(total.handled * 2 > total.sent, "the runs do something: {total:?}");
    assert!(total.moved > 100, "shards move: {total:?}");
}

/// Plays seeds over both stores, in turns, so that each kind of faults meets both.
fn over_both(seeds: u64, draw: impl Fn(u64) -> World<Letters>) {
    for seed in 0..seeds {
        let world = if seed / 8 % 2 == 0 { draw(seed) } else { draw(seed).over_journal() };
        play(seed, world);
    }
}

fn play(seed: u64, mut world: World<Letters>) {
    world.run(world::SAFETY, world::PATIENCE).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
}

/// sharding 92: all stored state is lost and the clock is set back behind the first epoch: each node that runs the
/// coordinator restarts it at most once for that, and epochs are above those of all regions.
#[test]
fn scenario_92_a_coordinator_restarts_once_for_what_is_lost() {
    let (mut losses, mut fenced) = (0, 0);
    for seed in 0..seeds(200) {
        let faults = Faults { lost_state: true, late_copies: true, ..Faults::default() };
        let mut world = World::new(seed, faults, Sabotage::default());
        let tally = world.run(world::SAFETY, world::PATIENCE).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        let most = tally.fenced.values().copied().max().unwrap_or(0);
        assert!(most <= tally.losses, "seed {seed}: {:?} restarts after {} losses", tally.fenced, tally.losses);
        (losses, fenced) = (losses + tally.losses, fenced + most);
    }
    assert!(losses > 50 && fenced > 10, "{losses} losses, {fenced} restarts");
}

/// sharding 28: the owner of a shard and the coordinator die within a second, in the middle of the shard's handoff.
/// Survivors host it, without any other node's help, and messages that waited there are handled: all of them, and none
/// twice.
#[test]
fn scenario_28_owner_and_coordinator_die_in_the_midst_of_a_handoff() {
    let faults = Faults { twin_deaths: true, ..Faults::default() };
    for over_journal in [false, true] {
        let mut total = Tally::default();
        for seed in 0..seeds(200) {
            let world = World::new(seed, faults, Sabotage::default());
            let mut world = if over_journal { world.over_journal() } else { world };
            let tally = world.run(world::SAFETY, world::PATIENCE).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
            total.twin_deaths += tally.twin_deaths;
            total.waited += tally.waited;
        }
        assert!(
            total.twin_deaths * 2 > seeds(200) && total.waited > seeds(200),
            "over a journal: {over_journal}: {total:?}"
        );
    }
}

/// sharding 96: with 3 to 50 shards, so that decisions about many shards are under way at once.
#[test]
fn promises_hold_with_many_shards() {
    over_both(seeds(48), |seed| World::new(seed, Faults::of(seed), Sabotage::default()).with_shards(3..=50));
}

/// sharding 75: after healing every shard whose entities are remembered lives, without a message; even after the whole
/// cluster has ended.
#[test]
fn remembered_shards_live_again_under_drawn_faults() {
    for seed in 0..seeds(96) {
        let world = World::new(seed, Faults::with_full_stops(seed), Sabotage::default());
        play(seed, if seed / 8 % 2 == 0 { world.remembering() } else { world.over_journal().remembering() });
    }
}

/// sharding 40: requests to stop shards are answered completely, and messages sent meanwhile are handled.
#[test]
fn promises_hold_while_users_stop_shards() {
    over_both(seeds(96), |seed| World::new(seed, Faults::with_stopped_shards(seed), Sabotage::default()));
}

#[test]
fn a_journal_without_a_fence_is_noticed() {
    let unfenced = Sabotage { unfenced: true, ..Sabotage::default() };
    assert!((0..2000).any(|seed| run_over_journal(seed, unfenced).is_err()));
}

fn run_moved(seed: u64, margin: Duration, moved_name: bool) -> Result<Tally, String> {
    World::new(seed, Faults::MOVED, Sabotage { moved_name, ..Sabotage::default() })
        .with_margin(margin)
        .run(world::SAFETY, world::PATIENCE)
        .map_err(|what| format!("seed {seed}, {margin:?}: {what}"))
}

/// cluster 76: never a shard twice while names of nodes move to other hosts, under all other faults.
#[test]
fn scenario_76_a_name_that_moves_never_makes_a_shard_live_twice() {
    for seed in 0..seeds(100) {
        run_moved(seed, world::MARGIN, false).unwrap_or_else(|violation| panic!("{violation}"));
    }
}

/// cluster 76: a cluster that downs a member because its name has moved runs shards twice, whatever the margin.
#[test]
fn scenario_76_a_member_that_is_downed_for_its_name_is_noticed_whatever_the_margin() {
    for times in [1_u32, 2, 4] {
        let twice =
            |seed| run_moved(seed, times * world::MARGIN, true).err().is_some_and(|what| what.contains("at once"));
        assert!((0..500).any(twice), "{times} times the margin");
        let margin = times * world::MARGIN;
        (0..20).for_each(|seed| drop(run_moved(seed, margin, false).unwrap_or_else(|violation| panic!("{violation}"))));
    }
}

#[test]
fn one_seed() {
    if let Some(seed) = std::env::var("GREYLAG_SEED").ok().and_then(|seed| seed.parse().ok()) {
        run(seed, Sabotage::default()).unwrap_or_else(|violation| panic!("{violation}"));
        run_over_journal(seed, Sabotage::default()).unwrap_or_else(|violation| panic!("{violation}"));
    }
}

/// The first violation found with the rule left out. Only the world's own checkers count.
fn noticed(sabotage: Sabotage) -> Option<String> {
    noticed_from(0, sabotage)
}

/// As [`noticed`], but begins at a seed, since rare violations would make the gate wait.
fn noticed_from(first: u64, sabotage: Sabotage) -> Option<String> {
    let found = (first..2000).find_map(|seed| run(seed, sabotage).err());
    if let Some(violation) = &found {
        // Shown with `--nocapture`, to record which violation each rule prevents.
        std::io::Write::write_all(&mut std::io::stdout(), format!("{sabotage:?}: {}\n", violation.trim()).as_bytes())
            .expect("a terminal");
    }
    found
}

fn without(clause: Clause) -> Sabotage {
    Sabotage { clause: Some(clause), ..Sabotage::default() }
}

#[test]
fn a_missing_flush_mark_is_noticed() {
    assert!(noticed(without(Clause::FlushMark)).is_some());
}

#[test]
fn a_missing_floor_is_noticed() {
    assert!(noticed(without(Clause::Floor)).is_some());
}

#[test]
fn a_forgotten_old_path_is_noticed() {
    assert!(noticed(without(Clause::OldPath)).is_some());
}

#[test]
fn a_missing_leftover_mark_is_noticed() {
    assert!(noticed(without(Clause::LeftoverMark)).is_some());
}

#[test]
fn an_incomplete_inventory_is_noticed() {
    assert!(noticed_from(1000, without(Clause::Inventory)).is_some());
}

#[test]
fn marks_of_other_attempts_are_noticed() {
    assert!(noticed(without(Clause::Attempt)).is_some());
}

#[test]
fn a_missing_margin_is_noticed() {
    assert!(noticed(without(Clause::Margin)).is_some());
}

#[test]
fn a_missing_epoch_fence_is_noticed() {
    assert!(noticed(Sabotage { unfenced: true, ..without(Clause::EpochFence) }).is_some());
}

#[test]
fn a_region_that_keeps_its_incarnation_is_noticed() {
    assert!(noticed(Sabotage { incarnation: true, ..Sabotage::default() }).is_some());
}

#[test]
fn a_missing_generation_check_is_noticed() {
    assert!(noticed(without(Clause::GenerationCheck)).is_some());
}
