//! The membership machine of one node, [`ClusterCore`], and the machines that it is made of.
//!
//! ```text
//! machine    takes inputs, asks the machines below, and applies every change of the state
//! state      the gossiped state, the shown view, confirmed exits
//! life       stages of this node: joining, member, leaving, Down, ended
//! exchange   gossip targets, merging, counters
//! leader     the leader's actions
//! joining/   join and seeds (the search for a member that lets this node in), identity (what this node says of
//!            itself), address_claims (processes at the addresses of members), foreign_clusters (of the same name)
//! failure/   detection (heartbeats, and which peers to mark), deaths (proofs of death), downing (the resolver or the
//!            user's provider), trust (of this node in itself), quarantines (of removed members)
//! ```

mod exchange;
mod failure;
mod input;
mod joining;
mod leader;
mod life;
mod machine;
mod state;
mod wall_clock;

pub use input::{Command, Effect, Input, LogLevel, Standing};
pub use machine::ClusterCore;
