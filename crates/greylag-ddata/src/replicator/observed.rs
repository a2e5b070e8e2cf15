//! Metrics and events of the machine. Source: ddata R6, I3.

use std::time::Instant;

use super::{ReplicatorCore, TypeConflict};
use crate::effect::Effect;
use crate::entries::Entry;
use crate::event::ReplicatorEvent;
use crate::metrics::Metrics;
use crate::pruning;

impl ReplicatorCore {
    /// The metrics; those that only a driver can measure are zero.
    pub fn metrics(&mut self) -> Metrics {
        let totals = self.entries.totals;
        let blocked = self.pruning.has_something_to_do(&self.entries.index);
        Metrics {
            keys: totals.values,
            tombstones: totals.tombstones,
            bytes: totals.bytes,
            log_records: self.log.len(),
            log_lag: self.log.lag(),
            stats: self.stats,
            sent: self.sent.clone(),
            received: self.received.clone(),
            in_flight: self.writes.len() + self.reads.len(),
            subscribers: self.subscriptions.len(),
            conflicts: self.conflicts().len(),
            pruning_blocked_by: blocked.then(|| pruning::unreachable(&self.replicas).cloned()).flatten(),
            ..Metrics::default()
        }
    }

    /// Entries that peers hold under another type, with the peer heard last. At most 1,024 are remembered. Source:
    /// ddata R6, A5.
    pub fn conflicts(&mut self) -> Vec<TypeConflict> {
        let entries = &self.entries;
        self.conflicts.standing(|key| entries.get(key).and_then(Entry::value).map(crate::types::AnyData::tag))
    }

    /// Reports peers that fell silent, except unreachable ones, whose silence is expected.
    pub(super) fn tick_unanswered(&mut self, now: Instant, out: &mut Vec<Effect>) {
        for peer in self.unanswered.on_tick(now) {
            if self.replicas.other(&peer).is_some_and(|replica| replica.reachable) {
                out.push(Effect::Event(ReplicatorEvent::PeerSilent { peer }));
            }
        }
    }
}
