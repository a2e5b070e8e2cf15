//! The greatest values that the counters of a gossip state can honestly have.
//!
//! The counters of a state only grow, and every member takes the larger of two. So one message with the largest
//! possible number would leave no number to count up to. A number is therefore accepted only as far as members could
//! have counted since 1970. No member reaches this bound by honest work, and the bound grows faster than members count,
//! so members can always count on from a forged number that was accepted. Source: cluster T17, 77.

use crate::gossip::state::Gossip;
use crate::gossip::version::VectorVersion;
use crate::membership::member::Member;

/// Changes by one member that are accepted per millisecond; a member changes its state a few times a second at most.
const CHANGES_PER_MS: u64 = 1024;
/// How far the clock of the judging node may be behind those of others, in ms.
const SLACK_MS: u64 = 24 * 3600 * 1000;

/// The bounds of counters at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CounterBounds {
    changes: u64,
    ups: u32,
}

impl CounterBounds {
    /// The bounds at a time of the wall clock, in ms since 1970.
    pub(crate) fn at(wall_ms: u64) -> Self {
        let ms = wall_ms.saturating_add(SLACK_MS);
        let ups = u32::try_from(ms / 1000).unwrap_or(u32::MAX).min(Member::NOT_UP - 1);
        Self { changes: ms.saturating_mul(CHANGES_PER_MS), ups }
    }

    pub(crate) fn covers_version(self, version: &VectorVersion) -> bool {
        version.iter().all(|(_, count)| count <= self.changes)
    }

    /// Whether all counters of the state are within the bounds.
    pub(crate) fn covers(self, gossip: &Gossip) -> bool {
        let is_numbered_well = |member: &Member| member.up_number == Member::NOT_UP || member.up_number <= self.ups;
        self.covers_version(&gossip.version)
            && gossip.members.values().all(is_numbered_well)
            && gossip.reachability.versions().values().all(|version| *version <= self.changes)
            && gossip.reachability.rows().values().flat_map(|row| row.values()).all(|r| r.version <= self.changes)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use greylag_core::UniqueAddress;

    use super::*;
    use crate::gossip::reachability::{Reachability, Record, Status};

    /// Cluster 77: a member can count on from the largest number that is accepted, and others accept its next number a
    /// moment later.
    #[test]
    fn accepted_counters_leave_room_to_count_on() {
        let now = 1_795_000_000_000;
        let (bounds, later) = (CounterBounds::at(now), CounterBounds::at(now + 1));
        assert!(later.changes > bounds.changes + 1000);
        assert!(CounterBounds::at(now + 1000).ups > bounds.ups);
        let version = |count| [("a:1#1".parse().unwrap(), count)].into_iter().collect::<VectorVersion>();
        assert!(
            bounds.covers_version(&version(bounds.changes)) && !bounds.covers_version(&version(bounds.changes + 1))
        );
        assert!(!bounds.covers_version(&version(u64::MAX)));
        // A hundred changes a second for a hundred years, judged by a clock that starts in 1970.
        assert!(CounterBounds::at(0).covers_version(&version(100 * 86_400 * 800)));
        assert!(CounterBounds::at(u64::MAX).ups < Member::NOT_UP);
    }

    /// Cluster 77: no counter of a member's state is accepted beyond the bounds, those of the accusations included.
    #[test]
    fn every_counter_of_a_state_has_to_lie_within_reach() {
        let bounds = CounterBounds::at(1_795_000_000_000);
        let (a, b): (UniqueAddress, UniqueAddress) = ("a:1#1".parse().unwrap(), "b:1#1".parse().unwrap());
        let state = |row: u64, record: u64| {
            let mut gossip = Gossip::default();
            let record = Record { status: Status::Unreachable, version: record };
            let rows = BTreeMap::from([(a.clone(), BTreeMap::from([(b.clone(), record)]))]);
            gossip.reachability = Reachability::from_parts(rows, BTreeMap::from([(a.clone(), row)])).into();
            bounds.covers(&gossip)
        };
        assert!(state(bounds.changes, bounds.changes));
        assert!(!state(bounds.changes + 1, 1) && !state(1, bounds.changes + 1));
        assert!(!state(u64::MAX, 1) && !state(1, u64::MAX));
    }
}
