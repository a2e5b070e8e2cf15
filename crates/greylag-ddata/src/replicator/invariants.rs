//! Checks what must hold after every input. Compiled in debug builds and, by the feature `invariants`, in the
//! simulation's. Expensive invariants are checked in some states only. Source: ddata O5.

use super::ReplicatorCore;
use crate::read::Lifecycle;

impl ReplicatorCore {
    /// Panics if an invariant is violated.
    pub(super) fn check_invariants(&self) {
        if !cfg!(any(debug_assertions, feature = "invariants")) {
            return;
        }
        self.log.check_invariants();
        self.entries.check_invariants(&self.types, self.stats.reused_ids == 0);
        self.subscriptions.check_invariants();
        let asks_itself = self.writes.values().any(|write| write.quorum.awaits(&self.own))
            || self.reads.values().any(|read| read.quorum.awaits(&self.own));
        assert!(!asks_itself, "a replicator never asks itself");
        assert!(self.in_flight() <= self.settings.max_in_flight, "requests in flight are bounded");
        let is_stopped = matches!(self.lifecycle, Lifecycle::Stopped(_));
        assert!(!is_stopped || (self.writes.is_empty() && self.reads.is_empty()), "who has stopped has answered all");
    }
}
