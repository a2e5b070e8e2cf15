//! The table of which member finds which unreachable.
//!
//! The table has one row per observer, which only the observer itself changes; each row carries a version, so that of
//! two copies the newer whole row wins. A subject is unreachable while any observer finds it so. Source: cluster M7,
//! M8.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use greylag_core::UniqueAddress;

use crate::gossip::shared::Shared;
use crate::testing::side_by_side::side_by_side;

/// An observer's finding about a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// The subject answers.
    Reachable,
    /// The subject does not answer.
    Unreachable,
    /// The subject will never answer again. Final.
    Terminated,
}

/// One entry of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The observer's finding.
    pub status: Status,
    /// The observer's version when it made the record.
    pub version: u64,
}

/// One observer's records, by subject.
pub(crate) type Row = BTreeMap<UniqueAddress, Record>;

/// The rows of all observers.
#[derive(Debug, Clone, Default)]
pub struct Reachability {
    /// Changed by the observer alone; one shared value in all tables that took the row over.
    rows: BTreeMap<UniqueAddress, Shared<Row>>,
    versions: BTreeMap<UniqueAddress, u64>,
    /// Every subject that some observer accuses.
    unreachable: OnceLock<Shared<BTreeSet<UniqueAddress>>>,
}

impl PartialEq for Reachability {
    fn eq(&self, other: &Self) -> bool {
        self.versions == other.versions && self.rows == other.rows
    }
}

impl Eq for Reachability {}

impl Reachability {
    /// Rebuilds a table from a peer's parts.
    pub(crate) fn from_parts(rows: BTreeMap<UniqueAddress, Row>, versions: BTreeMap<UniqueAddress, u64>) -> Self {
        let rows = rows.into_iter().filter(|(_, row)| !row.is_empty());
        let rows = rows.map(|(observer, row)| (observer, row.into())).collect();
        Self { rows, versions, unreachable: OnceLock::new() }
    }

    /// Records the finding of `observer` about `subject`. True if the table changed.
    pub fn set(&mut self, observer: &UniqueAddress, subject: &UniqueAddress, status: Status) -> bool {
        let old = self.status(observer, subject);
        if old == status || old == Status::Terminated {
            return false;
        }
        self.unreachable = OnceLock::new();
        let version = self.versions.entry(observer.clone()).or_insert(0);
        *version = version.saturating_add(1);
        let row = self.rows.entry(observer.clone()).or_default();
        row.insert(subject.clone(), Record { status, version: *version });
        self.drop_idle_row(observer);
        true
    }

    fn drop_idle_row(&mut self, observer: &UniqueAddress) {
        let idle = |row: &Shared<Row>| row.values().all(|record| record.status == Status::Reachable);
        if self.rows.get(observer).is_some_and(idle) {
            self.rows.remove(observer);
        }
    }

    /// Removes all records of `observer`, so that it leaves no stale accusation. True if there were any.
    pub fn clear_row(&mut self, observer: &UniqueAddress) -> bool {
        if self.rows.remove(observer).is_none() {
            return false;
        }
        self.unreachable = OnceLock::new();
        let version = self.versions.entry(observer.clone()).or_insert(0);
        *version = version.saturating_add(1);
        true
    }

    /// The finding of `observer` about `subject`; Reachable without a record.
    pub fn status(&self, observer: &UniqueAddress, subject: &UniqueAddress) -> Status {
        self.rows.get(observer).and_then(|row| row.get(subject)).map_or(Status::Reachable, |record| record.status)
    }

    /// Every accusation: observer, subject, status Unreachable or Terminated.
    pub fn accusations(&self) -> impl Iterator<Item = (&UniqueAddress, &UniqueAddress, Status)> {
        self.rows.iter().flat_map(|(observer, row)| {
            let bad = row.iter().filter(|(_, record)| record.status != Status::Reachable);
            bad.map(move |(subject, record)| (observer, subject, record.status))
        })
    }

    /// Every subject that some observer accuses.
    pub fn unreachable(&self) -> &Shared<BTreeSet<UniqueAddress>> {
        let subjects = || self.accusations().map(|(_, subject, _)| subject.clone()).collect::<BTreeSet<_>>();
        self.unreachable.get_or_init(|| subjects().into())
    }

    /// All subjects that `observer` accuses.
    pub fn accused_by(&self, observer: &UniqueAddress) -> impl Iterator<Item = &UniqueAddress> {
        let row = self.rows.get(observer).into_iter().flatten();
        row.filter(|(_, record)| record.status != Status::Reachable).map(|(subject, _)| subject)
    }

    /// The worst status that any observer gives to `subject`.
    pub fn aggregate(&self, subject: &UniqueAddress) -> Status {
        let records = self.rows.values().filter_map(|row| row.get(subject));
        records.map(|record| record.status).max().unwrap_or(Status::Reachable)
    }

    /// Removes rows of, and records about, nodes that `keep` rejects.
    pub fn retain(&mut self, keep: impl Fn(&UniqueAddress) -> bool) {
        self.unreachable = OnceLock::new();
        self.versions.retain(|observer, _| keep(observer));
        self.rows.retain(|observer, row| {
            if !row.keys().all(&keep) {
                row.retain(|subject, _| keep(subject));
            }
            keep(observer) && row.values().any(|record| record.status != Status::Reachable)
        });
    }

    /// Merges two tables: per observer the whole row of the side with the higher version. Returns one of the two tables
    /// itself if the result equals it. Rows and records of removed nodes stay; [`Reachability::retain`] removes them.
    /// Source: cluster M8.
    #[must_use]
    pub fn merged(one: &Shared<Self>, other: &Shared<Self>) -> Shared<Self> {
        if Shared::is(one, other) {
            return one.clone();
        }
        let mut merged = Self::default();
        let (mut is_one, mut is_other) = (true, true);
        for (observer, left, right) in side_by_side(one.versions.iter(), other.versions.iter()) {
            is_one &= left >= right;
            is_other &= right >= left;
            let newer = if left >= right { one } else { other };
            if let Some(row) = newer.rows.get(observer) {
                merged.rows.insert(observer.clone(), row.clone());
            }
            merged.versions.extend(left.max(right).map(|version| (observer.clone(), *version)));
        }
        match (is_one, is_other) {
            (true, _) => one.clone(),
            (_, true) => other.clone(),
            _ => merged.into(),
        }
    }

    /// How often `observer` changed its row.
    pub fn version(&self, observer: &UniqueAddress) -> u64 {
        self.versions.get(observer).copied().unwrap_or(0)
    }

    /// The rows, by observer.
    pub fn rows(&self) -> &BTreeMap<UniqueAddress, Shared<Row>> {
        &self.rows
    }

    /// The versions of all observers that ever changed their row.
    pub fn versions(&self) -> &BTreeMap<UniqueAddress, u64> {
        &self.versions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> UniqueAddress {
        format!("{name}:1#1").parse().unwrap()
    }

    /// cluster M3, M7.
    #[test]
    fn scenario_33_all_reachable_rows_go_terminated_stays() {
        let (a, b, c) = (node("a"), node("b"), node("c"));
        let mut table = Reachability::default();
        assert!(!table.set(&a, &b, Status::Reachable), "nothing to say on an empty row");
        assert!(table.set(&a, &b, Status::Unreachable));
        assert!(!table.set(&a, &b, Status::Unreachable), "the same again is no news");
        assert!(table.set(&a, &b, Status::Reachable));
        assert!(table.rows().is_empty() && table.version(&a) == 2, "the row goes, its version stays");
        assert!(table.set(&c, &b, Status::Terminated));
        assert!(!table.set(&c, &b, Status::Reachable), "terminated is final");
        assert!(!table.set(&c, &b, Status::Unreachable), "not even that is less than terminated");
        assert_eq!((table.aggregate(&b), table.aggregate(&a)), (Status::Terminated, Status::Reachable));
        assert!(table.set(&a, &b, Status::Unreachable));
        assert_eq!(table.aggregate(&b), Status::Terminated, "the gravest word of all observers");
    }

    /// cluster M8.
    #[test]
    fn scenario_33_the_newer_whole_row_wins_also_when_it_is_empty() {
        let (a, b, c) = (node("a"), node("b"), node("c"));
        let mut old = Reachability::default();
        old.set(&a, &b, Status::Unreachable);
        let mut new = old.clone();
        new.set(&a, &b, Status::Reachable);
        new.set(&c, &b, Status::Unreachable);
        let (old, new): (Shared<_>, Shared<_>) = (old.into(), new.into());
        for merged in [Reachability::merged(&old, &new), Reachability::merged(&new, &old)] {
            assert!(Shared::is(&merged, &new), "the newer table of the two is taken as it is");
        }
        let mut without_b = Reachability::merged(&old, &new);
        without_b.retain(|node| *node != b);
        assert_eq!((without_b.rows().len(), without_b.version(&a)), (0, 2));
    }

    /// cluster M8: if each of two tables has the newer row of another observer, both newer rows are taken.
    #[test]
    fn scenario_33_of_two_tables_the_newer_row_of_each_observer_is_taken() {
        let (a, b, c) = (node("a"), node("b"), node("c"));
        let mut both = Reachability::default();
        both.set(&a, &b, Status::Unreachable);
        let (mut left, mut right) = (both.clone(), both);
        left.set(&a, &b, Status::Reachable);
        left.set(&a, &c, Status::Unreachable);
        right.set(&c, &b, Status::Terminated);
        let (left, right): (Shared<_>, Shared<_>) = (left.into(), right.into());
        for merged in [Reachability::merged(&left, &right), Reachability::merged(&right, &left)] {
            let said = [(&a, &b), (&a, &c), (&c, &b)].map(|(observer, subject)| merged.status(observer, subject));
            assert_eq!(said, [Status::Reachable, Status::Unreachable, Status::Terminated]);
            assert_eq!((merged.version(&a), merged.version(&c)), (3, 1));
            assert_eq!(merged.rows().values().map(|row| row.len()).sum::<usize>(), 2, "nothing of the older rows");
        }
    }
}
