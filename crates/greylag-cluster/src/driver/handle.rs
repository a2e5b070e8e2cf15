//! What a user of a node holds: the handle on its membership, and what belongs to it.

mod bootstrap;
pub(super) mod cluster;
mod discovery;
mod lifecycle;
mod readiness;
pub(super) mod site;
mod start;
mod witness;

pub use cluster::{Cluster, Target};
pub use discovery::{Discovery, DiscoveryError, SeedList};
pub use readiness::Readiness;
pub use witness::{ChildWitness, DeathWitness, FileWitness};
