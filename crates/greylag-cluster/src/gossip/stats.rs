//! Counts of the gossip that reached a node, by outcome.
//!
//! Source: cluster M14, §6 (`publish_stats_interval`).

use std::collections::BTreeMap;

/// Why gossip was ignored. Source: cluster M14.
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
    /// The received state does not have this node among its members.
    WithoutUs,
    /// The state is that of another cluster.
    ForeignCluster,
    /// A Welcome that this node did not request, or that was for another node.
    UnaskedWelcome,
    /// The state bears numbers that no member can have counted up to.
    BeyondReach,
}

/// Counters since this node started.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GossipStats {
    /// States received and accepted.
    pub received: u64,
    /// Of `received`: states equal to ours.
    pub same: u64,
    /// Of `received`: states newer than ours.
    pub newer: u64,
    /// Of `received`: states older than ours.
    pub older: u64,
    /// Of `received`: states merged with ours.
    pub merged: u64,
    /// States that broke an invariant and were repaired (cluster M4).
    pub repaired: u64,
    /// Statuses received: versions alone, in place of states.
    pub statuses: u64,
    /// Gossip ignored, by reason.
    pub ignored: BTreeMap<IgnoredGossip, u64>,
}

impl GossipStats {
    pub(crate) fn ignore(&mut self, why: IgnoredGossip) {
        let count = self.ignored.entry(why).or_default();
        *count = count.saturating_add(1);
    }
}
