//! The membership machine of one node, [`ClusterCore`], and the machines that it is made of.
//!
//! ```text
//! machine            takes inputs, asks the machines below, and applies every change of the state
//!   life             stages of this node: joining, member, leaving, Down, ended
//!   join, seeds      the search for a member that lets this node in       identity   what this node says of itself
//!   state            the gossiped state, the shown view, confirmed exits  trust      this node's trust in itself
//!   detection        heartbeats, and which peers to mark unreachable      deaths     proofs of death
//!   downing          the resolver or the user's provider                  leader     the leader's actions
//!   exchange         gossip targets, merging, counters                    quarantines  processes to quarantine later
//!   address_claims   processes at the addresses of members                foreign_clusters  clusters of the same name
//! ```

mod address_claims;
mod deaths;
mod detection;
mod downing;
mod exchange;
mod foreign_clusters;
mod identity;
mod input;
mod join;
mod leader;
mod life;
mod machine;
mod quarantines;
mod seeds;
mod state;
mod trust;
mod wall_clock;

pub use input::{Command, Effect, Input, LogLevel, Standing};
pub use machine::ClusterCore;
