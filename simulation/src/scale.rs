//! Big clusters: how membership scales, in virtual time, bytes and processor time.
//!
//! Only the membership machines run, each node's real `ClusterCore`, over links that take a millisecond or so and lose
//! nothing. Measured are: how long a cluster takes to form, how much it sends at rest and during a change, how long a
//! change takes to be known to all, and how much processor time that costs a member.
//!
//! Messages travel as values: a state that many nodes hold is then in memory once, with everything derived from it,
//! like the parts that a real node shares between states after it has read them. [`Wire::Real`] encodes every message
//! and decodes it again, so that nodes share nothing and each pays for all of it: slower to run, and the honest figure
//! of one node.
//!
//! Source: cluster G2, C5; scenario 36.

mod processor;
mod report;
mod traffic;
mod world;

use std::time::Duration;

use processor::{Stopwatch, resident_bytes};
pub use report::{Change, Changes, Cost, Report};
pub use world::Wire;
use world::World;

/// The measurement.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Count of members.
    pub members: usize,
    /// Seed of the random numbers.
    pub seed: u64,
    /// How messages travel.
    pub wire: Wire,
    /// Count of changes of each kind.
    pub changes: usize,
    /// Called every virtual second with a line about the progress.
    pub progress: Option<fn(&str)>,
}

/// Limit for each phase.
const TIME_LIMIT: Duration = Duration::from_secs(600);

/// Measures a cluster.
///
/// # Errors
/// A phase that did not end, and its limit; two members of one age; a member that was found unreachable although it was
/// not.
pub fn measure(plan: Plan) -> Result<Report, String> {
    let Plan { members, .. } = plan;
    let mut world = World::new(&plan);
    world.start_first();
    // A few members first, as an operator would; then all others within ten seconds (scenario 36).
    let founders = members.min(10) - 1;
    world.join_within(founders, Duration::from_secs(1));
    world.run_until("the first form", TIME_LIMIT, World::is_settled)?;
    let (watch, from, wave) = (Stopwatch::start(), world.now(), Duration::from_secs(10));
    world.join_within(members - founders - 1, wave);
    world.run_until("all have joined", TIME_LIMIT, World::is_settled)?;
    let forming = world.now() - from;
    let forming_processor = watch.elapsed();
    world.check_ages()?;
    let before = resident_bytes();
    let rest = world.observe(Duration::from_secs(30));

    let mut changes = |name, make: fn(&mut World)| -> Result<Changes, String> {
        (0..plan.changes).map(|_| world.change(name, make)).collect::<Result<_, _>>().map(Changes)
    };
    let joining = changes("one joins", |world| world.join_within(1, Duration::ZERO))?;
    let leaving = changes("one leaves", World::leave_one)?;
    let dying = changes("one is killed", World::kill_one)?;
    world.check_alarms()?;
    Ok(Report {
        members,
        forming,
        after_last: forming.saturating_sub(wave),
        forming_processor,
        rest,
        joining,
        leaving,
        dying,
        biggest: world.traffic().biggest,
        memory: before.map(|bytes| bytes / members as u64),
    })
}

/// Figures of a partition.
#[derive(Debug, Clone, Copy)]
pub struct Parted {
    /// Virtual time of the measurement.
    pub time: Duration,
    /// Processor time of all members together.
    pub processor: Duration,
    /// Time from the end of the partition until all agreed again.
    pub healing: Duration,
    /// Size of the biggest message.
    pub biggest: u64,
}

/// Measures sixty virtual seconds with a partition of a tenth of the members that heals in time.
///
/// # Errors
/// As [`measure`].
pub fn partition(plan: Plan) -> Result<Parted, String> {
    let Plan { members, .. } = plan;
    let mut world = World::new(&plan);
    world.start_first();
    world.join_within(members - 1, Duration::from_secs(10));
    world.run_until("all have joined", TIME_LIMIT, World::is_settled)?;
    let (watch, from) = (Stopwatch::start(), world.now());
    world.run_for(Duration::from_secs(10));
    world.part(members / 10);
    world.run_for(Duration::from_secs(12));
    world.heal();
    let healed = world.now();
    let rest = Duration::from_secs(38);
    let again = world.run_until("all agree again", Duration::from_secs(120), World::is_settled).map(|()| world.now());
    world.run_for(rest.saturating_sub(world.now() - healed));
    let (time, processor) = (world.now() - from, watch.elapsed());
    Ok(Parted { time, processor, healing: again? - healed, biggest: world.traffic().biggest })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// cluster 36, G2: 10 → 100 members; the figures for more are in docs/benchmarks.md.
    #[test]
    fn scenario_36_a_hundred_members_form_one_cluster_within_the_budget() {
        let plan = Plan { members: 100, seed: 1, wire: Wire::Values, changes: 1, progress: None };
        let report = measure(plan).expect("it forms, every age is given once, and no living node is missed");
        assert!(report.slowest() <= report.budget().expect("there is one for a hundred"), "{report:?}");
    }

    /// The figures do not depend on how messages travel.
    #[test]
    fn messages_that_are_encoded_and_read_again_change_nothing() {
        let run = |wire| {
            let plan = Plan { members: 20, seed: 3, wire, changes: 1, progress: None };
            let report = measure(plan).expect("it forms");
            let times = [&report.joining, &report.leaving, &report.dying].map(|changes| changes.0[0]);
            (report.forming, times.map(|change| (change.converged, change.known, change.cost.messages.to_bits())))
        };
        assert_eq!(run(Wire::Values), run(Wire::Real));
    }
}
