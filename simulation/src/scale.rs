//! Big clusters: how membership behaves as it grows, in virtual time, bytes and processor time.
//!
//! Only the membership machines run, each node's real `ClusterCore`, over links that take a
//! millisecond or so and lose nothing. What is measured: how long a cluster takes to form, what it
//! sends at rest and during a change, how long a change takes to be known to all, and what that
//! costs the machine that plays all nodes at once.
//!
//! Source: cluster G2, C5; scenario 36.

mod report;
mod world;

use std::time::{Duration, Instant};

pub use report::{Cost, Report};
use world::World;

/// Measures a cluster of so many members.
///
/// # Errors
/// What did not come about, and after how long.
pub fn measure(members: usize, seed: u64) -> Result<Report, String> {
    let begun = Instant::now();
    let mut world = World::new(seed);
    world.start_first();
    let patience = Duration::from_secs(600);
    // A few first, as an operator would; then the others within ten seconds, a thousand a second at most.
    let founders = members.min(10);
    world.join_within(founders, Duration::from_secs(1));
    world.run_until("the first form", patience, World::is_settled)?;
    let wave = Duration::from_secs(10).max(Duration::from_millis(members as u64));
    let from = world.now();
    world.join_within(members - founders, wave);
    world.run_until("all have joined", patience, World::is_settled)?;
    let forming = world.now() - from;
    world.check_ages()?;

    let rest = world.observe(Duration::from_secs(30));
    let joining = world.change("one joins", |world| world.join_within(1, Duration::ZERO))?;
    let leaving = world.change("one leaves", World::leave_one)?;
    let crashing = world.change("one crashes and is downed", World::crash_one)?;
    Ok(Report { members, forming, rest, joining, leaving, crashing, took: begun.elapsed() })
}

/// Sixty virtual seconds with a partition of a tenth of the members that heals in time. Yields the
/// virtual and the real time of it.
///
/// # Errors
/// As [`measure`].
pub fn partition(members: usize, seed: u64) -> Result<(Duration, Duration), String> {
    let mut world = World::new(seed);
    world.start_first();
    world.join_within(members, Duration::from_secs(10));
    world.run_until("all have joined", Duration::from_secs(600), World::is_settled)?;
    let (begun, from) = (Instant::now(), world.now());
    world.run_for(Duration::from_secs(10));
    world.part(members / 10);
    world.run_for(Duration::from_secs(12));
    world.heal();
    world.run_for(Duration::from_secs(38));
    let (virtual_time, took) = (world.now() - from, begun.elapsed());
    world.run_until("all agree again", Duration::from_secs(120), World::is_settled)?;
    Ok((virtual_time, took))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// cluster 36, G2: 10 → 100 members; the figures for more are in docs/benchmarks.md.
    #[test]
    fn scenario_36_a_hundred_members_form_one_cluster_within_the_budget() {
        let report = measure(100, 1).expect("it forms");
        assert!(report.joining.converged <= Duration::from_secs(8), "{report:?}");
        assert!(report.leaving.converged <= Duration::from_secs(8), "{report:?}");
        assert!(report.crashing.converged <= Duration::from_secs(8), "{report:?}");
    }
}
