//! The real machines of every layer under seeded faults, with checkers apart from the code.
//!
//! A [`World`] puts the machines of one layer, or of all together, on the virtual network of
//! `greylag-testkit`. One seed draws the size of the cluster, the faults and their strengths. A
//! safety phase runs under faults with every invariant checked after each step; then the faults
//! stop, and the cluster must heal and serve. A violation names its seed and the command that
//! replays it.
//!
//! A checker that never failed proves nothing, so a world can be run without one of the clauses
//! that keep its promise ([`Omission`]): it must then find a violation.

mod cluster;
mod ddata;
mod delivery;
mod purchases;
pub mod scale;
mod sharding;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A clause that can be left out, to see that the checkers notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
pub enum Omission {
    /// Regions acknowledge a handoff without flushing the lane to the owner (sharding §2.9).
    FlushMark,
    /// Nobody compares generations: not the region, not the receiver, not the journal.
    GenerationCheck,
    /// An entity's events carry no position of the delivery that caused them (delivery §7).
    DeliveryPosition,
}

/// What a run that kept its promises did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Inputs that machines took.
    pub steps: u64,
    /// Faults injected.
    pub faults: u64,
    /// Things checked at the end: purchases applied, replicas equal, members agreed.
    pub checked: u64,
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.faults += other.faults;
        self.checked += other.checked;
    }
}

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which promise, by its rule.
    pub promise: &'static str,
    /// What was seen, and when.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.what)
    }
}

/// One arrangement of machines, faults and checkers.
pub struct World {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is made of and what it checks, in a line.
    pub about: &'static str,
    /// The omissions that it knows.
    pub omissions: &'static [Omission],
    /// Runs one seed.
    pub run: fn(seed: u64, without: Option<Omission>) -> Result<Outcome, Violation>,
}

/// Every world.
pub fn worlds() -> Vec<World> {
    vec![
        World {
            name: "cluster",
            about: "membership, detector, resolver and singleton: one view, one singleton, nobody resurrected",
            omissions: &[],
            run: cluster::run,
        },
        World {
            name: "ddata",
            about: "replicators: equal after healing, acknowledged means held, causal order",
            omissions: &[],
            run: ddata::run,
        },
        World {
            name: "sharding",
            about: "regions and coordinators: no shard lives twice, no order swapped, all answers after healing",
            omissions: &[Omission::FlushMark, Omission::GenerationCheck],
            run: sharding::run,
        },
        World {
            name: "delivery",
            about: "producers and consumers: everything once, in order, soon after the faults have stopped",
            omissions: &[Omission::DeliveryPosition],
            run: delivery::run,
        },
        World {
            name: "purchases",
            about: "producer, regions, shards, event-sourced customers, journal: every purchase once, in order",
            omissions: &[Omission::GenerationCheck, Omission::DeliveryPosition],
            run: purchases::run,
        },
    ]
}

impl World {
    /// Runs one seed. A machine that panics broke a promise too: an invariant of its own.
    ///
    /// # Errors
    ///
    /// The promise that was broken.
    pub fn check(&self, seed: u64, without: Option<Omission>) -> Result<Outcome, Violation> {
        guarded("no machine panics", || (self.run)(seed, without))
    }
}

/// A panic within, of a world's checker or of a machine's own, is a violation of `promise`.
fn guarded(promise: &'static str, run: impl FnOnce() -> Result<Outcome, Violation>) -> Result<Outcome, Violation> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(Violation { promise, what: text.unwrap_or("a panic without words").to_owned() })
    })
}
