//! The measurement of instability: since when reachability has not come to rest, and the accusations seen meanwhile.
//!
//! The measurement begins with the first member that falls silent and ends when no unreachable member could still be
//! downed. A decision ends the measurement at the deciding node. The other nodes see the decision as members that are
//! Down; their measurement continues, as if it had begun with the first of the members that are still open. If it began
//! anew instead, the losing side would outlive the margin of the winning side whenever one of its members downs itself.
//!
//! Source: cluster S13.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use greylag_core::UniqueAddress;

use super::picture::Record;
use super::relevant::Changes;

/// An instability that has not come to rest.
#[derive(Debug)]
pub(super) struct Unstable {
    pub(super) since: Instant,
    pub(super) changed_at: Instant,
    /// When an unreachable member last came back.
    healed_at: Option<Instant>,
    /// The effective records.
    records: BTreeSet<Record>,
    /// Records that existed since the beginning and no longer do, each with the time when it last did.
    gone: BTreeMap<Record, Instant>,
    looked_at: Instant,
    /// The members that are unreachable and could be downed, each with the time since when without interruption.
    open: BTreeMap<UniqueAddress, Instant>,
}

impl Unstable {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            changed_at: now,
            healed_at: None,
            records: BTreeSet::new(),
            gone: BTreeMap::new(),
            looked_at: now,
            open: BTreeMap::new(),
        }
    }

    /// Handles a new state: the members that are open in it and the records that count.
    pub(super) fn on_state<'a>(
        &mut self,
        now: Instant,
        changes: Changes,
        open: impl Iterator<Item = &'a UniqueAddress>,
        records: BTreeSet<Record>,
    ) {
        if changes.unsettled {
            self.changed_at = now;
        }
        if changes.healed {
            self.healed_at = Some(now);
        }
        let before = std::mem::replace(&mut self.records, records);
        let gone = before.into_iter().filter(|record| !self.records.contains(record));
        self.gone.extend(gone.map(|record| (record, self.looked_at)));
        self.looked_at = now;
        let before = std::mem::take(&mut self.open);
        self.open = open.map(|member| (member.clone(), before.get(member).copied().unwrap_or(now))).collect();
        if changes.decided {
            self.forget_decided();
        }
    }

    /// Handles a new state in which the open members and the records are unchanged.
    pub(super) fn on_same(&mut self, now: Instant) {
        self.looked_at = now;
    }

    fn forget_decided(&mut self) {
        let Some(since) = self.open.values().min().copied().filter(|since| *since > self.since) else { return };
        self.since = since;
        self.healed_at = self.healed_at.filter(|at| *at >= since);
        self.gone.retain(|_, last| *last >= since);
    }

    /// Source: cluster S13.
    pub(super) fn check_invariants(&self) {
        debug_assert!(self.open.values().all(|at| self.since <= *at), "it began with the first of the open members");
        debug_assert!(self.healed_at.is_none_or(|at| self.since <= at), "what healed before it began is forgotten");
        debug_assert!(self.gone.values().all(|last| self.since <= *last), "records from before it began are forgotten");
    }

    /// Whether an unreachable member came back since the beginning.
    pub(super) fn has_healed(&self) -> bool {
        self.healed_at.is_some()
    }

    /// The effective records that existed at any time since the beginning, between members that `counts` accepts.
    pub(super) fn records_between(&self, counts: impl Fn(&UniqueAddress) -> bool) -> BTreeSet<Record> {
        self.records
            .iter()
            .chain(self.gone.keys())
            .filter(|(observer, subject)| counts(observer) && counts(subject))
            .cloned()
            .collect()
    }
}
