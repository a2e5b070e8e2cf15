//! What became of the gossip that reached a node.
//!
//! Source: cluster M14, §6 (`publish_stats_interval`).

use std::collections::BTreeMap;

/// Why a gossip was not taken. Source: cluster M14.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IgnoredGossip {
    /// This node is no member.
    NotJoined,
    /// The gossip waited in the inbox for longer than `gossip_time_to_live`.
    TooOld,
    /// The gossip was for another incarnation.
    NotForUs,
    /// The sender is no member.
    FromNonMember,
    /// This node finds the sender unreachable.
    FromUnreachable,
    /// The received state has this node not among its members.
    WithoutUs,
    /// The state is that of another cluster.
    ForeignCluster,
    /// A Welcome that this node did not ask for, or that was for another node.
    UnaskedWelcome,
    /// The state bears numbers that no member can have counted up to.
    BeyondReach,
}

/// Counters since this node started.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GossipStats {
    /// States received and taken.
    pub received: u64,
    /// Of those, the same as ours.
    pub same: u64,
    /// Newer than ours.
    pub newer: u64,
    /// Older than ours.
    pub older: u64,
    /// Merged with ours.
    pub merged: u64,
    /// Broke an invariant and were repaired (cluster M4).
    pub repaired: u64,
    /// Versions alone, in place of states.
    pub statuses: u64,
    /// Not taken, by reason.
    pub ignored: BTreeMap<IgnoredGossip, u64>,
}

impl GossipStats {
    pub(crate) fn ignore(&mut self, why: IgnoredGossip) {
        let count = self.ignored.entry(why).or_default();
        *count = count.saturating_add(1);
    }
}
