//! The real machines of every layer under seeded faults, with checkers that share no code with the machines.
//!
//! A [`World`] puts the machines of one layer, or of all together, on the virtual network of
//! `greylag-testkit`. One seed draws the size of the cluster, the faults and their strengths. A
//! safety phase runs under faults with every invariant checked after each step; then the faults
//! stop, and the cluster must heal and serve. A violation names its seed and the command that
//! replays it.
//!
//! A checker that never failed proves nothing, so a world can be run without one of the clauses that keep its promise
//! ([`Omission`]): the checker must then find a violation.

mod cluster;
mod ddata;
mod delivery;
mod persistence;
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
    /// Generations are compared nowhere: not by the region, nor by the receiver, nor by the journal.
    GenerationCheck,
    /// Stragglers of a route that was left are taken (sharding §2.6).
    Floor,
    /// Routes that were left count as empty (sharding §2.6).
    OldPath,
    /// A new owner does not wait for leftovers (sharding §2.9).
    LeftoverMark,
    /// A flush mark counts whatever try at the handoff it was sent for (sharding §2.2).
    Attempt,
    /// Coordinators of earlier epochs are obeyed, by regions and by the store (sharding §2.1, §2.15).
    EpochFence,
    /// A coordinator decides before every node has spoken (sharding §2.13).
    Inventory,
    /// A region that starts again has the name of the one before (sharding §2.4).
    RegionIncarnation,
    /// An entity's events carry no position of the delivery that caused them (delivery §7).
    DeliveryPosition,
    /// A producer repeats nothing by itself (delivery P8, P9).
    Repeats,
    /// A consumer does not ask for the frames that it misses (delivery C6, C11).
    Resend,
    /// Nothing is repeated and nothing asked for (delivery P8, P9, C6, C11).
    RepeatsAndResend,
    /// Messages that were processed before are delivered again (delivery C8).
    Dedupe,
    /// A producer that was left behind is not told so (delivery C2a).
    FencedAnswer,
    /// The store of a queue takes what controllers write that have lost it (delivery §4.2).
    QueueClaims,
    /// A worker that is gone gives nothing back (delivery W5).
    HandBack,
    /// Work pulling stores confirmations up to a number (delivery W8).
    ExactConfirmations,
    /// A new window is granted at exactly half of the last one (delivery C9).
    HalfWindow,
    /// A merge keeps members that the other side has removed (cluster M9, M29).
    Tombstones,
    /// The leader acts on states that not all members have seen (cluster M17).
    Convergence,
    /// The resolver decides at the first look (cluster S4).
    StableAfter,
    /// Singletons of removed members start elsewhere at once (cluster S14).
    Margin,
    /// A new oldest asks only the latest of its predecessors (cluster P3a).
    Clearance,
    /// A verdict is not checked against what the other side may know (cluster S6, S8).
    Recheck,
    /// A dial that times out counts as refused (cluster S20).
    TimeoutIsRefusal,
    /// A member is Down at once when its name is heard from another host (cluster M25).
    MovedName,
    /// An owner prunes and writes down no marker (ddata Z5).
    Marker,
    /// Deltas do not say what they supersede or remove (ddata K7).
    RemovalContext,
    /// Deltas are joined whatever is missing before them (ddata G5).
    Gap,
    /// What is to be durable is acknowledged before it is flushed (ddata U3).
    DurableFlush,
    /// Deltas carry no markers (ddata Z7).
    DeltaMarkers,
    /// An owner performs before it has collected all members (ddata Z4).
    Collection,
    /// A member is collected that has not shown that it knows the round (ddata Z4).
    Shown,
    /// Collection goes on although a member vanished before it was collected (ddata Z4).
    Afresh,
    /// A store from before the forget horizon is taken (ddata Z9).
    StaleStore,
    /// Markers are forgotten although a member is unreachable (ddata Z9).
    ForgetUnreachable,
    /// A replicator claims what former ones of its process drew (ddata K7).
    StartFloor,
    /// Claims begin at the start floor, and order does not hide it (ddata K7, K8).
    ClaimStart,
    /// Deltas claim numbers that are reserved for renaming (ddata K7, Z6).
    Reserved,
    /// A counter counts on in the slot of its entry's former life (ddata Y4).
    Birth,
    /// A marker does not say to which slot of its owner an amount was moved (ddata Y4).
    MovedTo,
    /// A store is judged by any replica that is not gated itself (ddata Z11).
    OpenJudge,
    /// A store is judged by members that are not current (ddata Z11).
    AnyJudge,
    /// Every replica that has a store makes the start (ddata Z11).
    EveryStart,
    /// Horizons are believed however far ahead they are (ddata Z9).
    Horizon,
    /// A coordinator does not look whether it is fenced before its decision is heard of (sharding §2.15).
    FenceRead,
    /// A coordinator does not read the homes again once its epoch is written (sharding §2.15).
    BucketReRead,
    /// A journal takes appends under any epoch (persistence J3).
    EpochCheck,
    /// A journal takes appends at any number (persistence J3).
    NumberCheck,
    /// A claim without a generation passes whatever epoch it has seen (persistence J4).
    SeenCheck,
    /// A state store takes writes of any revision (persistence §3).
    RevisionCheck,
    /// A refusal counts although an earlier try went unanswered (persistence J10).
    Unanswered,
    /// An entity takes answers that are for an earlier incarnation (persistence §11).
    Incarnation,
    /// Deliveries leave when they are recorded (persistence §6).
    SendBeforeStore,
}

/// Counts of a run that broke no promise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Inputs that machines took.
    pub steps: u64,
    /// Faults injected.
    pub faults: u64,
    /// Things checked at the end: purchases applied, replicas equal, members agreed.
    pub checked: u64,
    /// Members downed although no fault touched them and they were on no losing side.
    pub healthy_downed: u64,
    /// Clusters without any member left.
    pub lost: u64,
    /// Overlapping instances and conflicting decisions where the guarantee makes an exception.
    pub excused: u64,
    /// Entries whose amounts of removed replicas were moved to another replica.
    pub performed: u64,
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.faults += other.faults;
        self.checked += other.checked;
        self.healthy_downed += other.healthy_downed;
        self.lost += other.lost;
        self.excused += other.excused;
        self.performed += other.performed;
    }
}

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The promise, with its rule.
    pub promise: &'static str,
    /// What was observed, and when.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.what)
    }
}

/// Plays one seed, perhaps with an omission.
pub type Play = dyn Fn(u64, Option<Omission>) -> Result<Outcome, Violation> + Send + Sync;

/// How a world plays a seed.
pub enum Run {
    /// By a function of the seed.
    Plain(fn(seed: u64, without: Option<Omission>) -> Result<Outcome, Violation>),
    /// As [`Run::Plain`], in one of several arrangements.
    Drawn(Box<Play>),
    /// By a plan of faults that the seed draws, which can be shown and made smaller.
    Planned {
        /// Plays the plan.
        run: Box<Play>,
        /// The plan of a seed that broke a promise, and its smallest part that still does.
        explain: Box<dyn Fn(u64, Option<Omission>) -> String + Send + Sync>,
    },
}

/// One arrangement of machines, faults and checkers.
pub struct World {
    /// Name on the command line.
    pub name: &'static str,
    /// The kind of faults, if the world has named ones.
    pub profile: Option<&'static str>,
    /// Machines and checks of the world, in one line.
    pub about: &'static str,
    /// The omissions that the world supports.
    pub omissions: &'static [Omission],
    /// Runs one seed.
    pub run: Run,
}

/// Every world.
pub fn worlds() -> Vec<World> {
    let mut worlds = cluster::worlds();
    worlds.extend(ddata::worlds());
    worlds.extend(persistence::worlds());
    worlds.extend(sharding::worlds());
    worlds.extend([
        World {
            name: "delivery",
            profile: None,
            about: "producers and consumers: everything once, in order, soon after the faults have stopped, and room comes back",
            omissions: delivery::OMISSIONS,
            run: Run::Plain(delivery::run),
        },
        World {
            name: "purchases",
            profile: None,
            about: "producer, regions, shards, event-sourced customers, journal: every purchase once, in order",
            omissions: &[Omission::GenerationCheck, Omission::DeliveryPosition],
            run: Run::Plain(purchases::run),
        },
    ]);
    worlds
}

impl World {
    /// Plays one seed. A panic of a machine counts as a violation: one of its own invariants is broken.
    ///
    /// # Errors
    ///
    /// The violation.
    pub fn check(&self, seed: u64, without: Option<Omission>) -> Result<Outcome, Violation> {
        match &self.run {
            Run::Plain(run) => guarded("no machine panics", || run(seed, without)),
            Run::Drawn(run) => guarded("no machine panics", || run(seed, without)),
            Run::Planned { run, .. } => run(seed, without),
        }
    }

    /// How a seed leads to its violation, as far as the world can tell.
    pub fn explain(&self, seed: u64, without: Option<Omission>) -> Option<String> {
        match &self.run {
            Run::Plain(_) | Run::Drawn(_) => None,
            Run::Planned { explain, .. } => Some(explain(seed, without)),
        }
    }

    /// The name with the profile.
    pub fn label(&self) -> String {
        self.profile.map_or_else(|| self.name.to_owned(), |profile| format!("{}/{profile}", self.name))
    }
}

/// Turns a panic, of a world's checker or of a machine's own invariant, into a violation of `promise`.
fn guarded(promise: &'static str, run: impl FnOnce() -> Result<Outcome, Violation>) -> Result<Outcome, Violation> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(Violation { promise, what: text.unwrap_or("a panic without words").to_owned() })
    })
}
