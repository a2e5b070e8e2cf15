//! One node's picture of a partition: the members, the accusations, and which of them count.
//!
//! An indirectly connected node (some members reach it and others do not) shows as both accuser and accused, or as
//! accused although it has seen the newest state. Accusations that outlived their accuser look the same and are removed
//! first.
//!
//! Source: cluster S3, S5, S11.

use std::collections::{BTreeMap, BTreeSet};

use greylag_core::UniqueAddress;

use crate::downing::Verdict;
use crate::membership::member::{Member, MemberStatus};
use crate::testing::omissions::Omissions;

/// An accusation: the observer (first) finds the subject (second) unreachable.
pub type Record = (UniqueAddress, UniqueAddress);

/// The members that have seen the state of the membership, by its versions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeenBy {
    /// Those that have seen the present state.
    pub now: BTreeSet<UniqueAddress>,
    /// Those that have seen any state since the deadline was last reset, by a relevant change.
    pub since: BTreeSet<UniqueAddress>,
    /// Those that have seen, since then, a state with all present accusations.
    pub accused: BTreeSet<UniqueAddress>,
}

/// One node's picture of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// The node whose picture this is.
    pub node: UniqueAddress,
    /// The members that are not proven dead.
    pub members: BTreeMap<UniqueAddress, Member>,
    /// The effective records.
    pub records: BTreeSet<Record>,
    /// The other side: subjects of records, and members that are Down. Never the node itself.
    pub unreachable: BTreeSet<UniqueAddress>,
    pub(super) seen_by: BTreeSet<UniqueAddress>,
    pub(super) exits: BTreeSet<UniqueAddress>,
    /// Whether one member alone accuses others, and all of them have seen that: then they are reached, and the accuser
    /// is sick.
    is_one_against_the_reached: bool,
    pub(super) omissions: Omissions,
}

impl Picture {
    /// Makes a picture; determines which records count.
    pub fn new(
        node: UniqueAddress,
        members: BTreeMap<UniqueAddress, Member>,
        records: BTreeSet<Record>,
        seen_by: SeenBy,
        exits: BTreeSet<UniqueAddress>,
    ) -> Self {
        let valid = |(observer, subject): &Record| {
            members.get(observer).is_some_and(|member| member.status != MemberStatus::Down)
                && members.contains_key(subject)
        };
        let records: BTreeSet<Record> = records.into_iter().filter(valid).collect();
        let observers: BTreeSet<&UniqueAddress> = records.iter().map(|(observer, _)| observer).collect();
        let have_all_seen = records.iter().all(|(_, subject)| seen_by.accused.contains(subject));
        let is_one_against_the_reached = observers.len() == 1 && have_all_seen;
        let records = effective(&node, records, |a| seen_by.now.contains(a), |a| seen_by.since.contains(a));
        let mut picture = Self {
            node,
            members,
            records,
            unreachable: BTreeSet::new(),
            seen_by: seen_by.now,
            exits,
            is_one_against_the_reached,
            omissions: Omissions::default(),
        };
        picture.recompute_unreachable();
        picture
    }

    fn recompute_unreachable(&mut self) {
        let down = self.members.values().filter(|member| member.status == MemberStatus::Down);
        self.unreachable = self.records.iter().map(|(_, subject)| subject.clone()).collect();
        self.unreachable.extend(down.map(|member| member.address.clone()));
        self.unreachable.remove(&self.node);
    }

    /// Whether a member that could be downed is accused.
    pub fn has_anything_to_decide(&self) -> bool {
        let downable: BTreeSet<&UniqueAddress> = self.downable().collect();
        self.records.iter().any(|(_, subject)| downable.contains(subject))
    }

    /// Members that count in majorities, among those with the role. Source: cluster S3.
    pub fn counted<'a>(&'a self, role: Option<&'a str>) -> impl Iterator<Item = &'a Member> {
        self.members
            .values()
            .filter(|member| member.status.is_settled() && !self.exits.contains(&member.address))
            .filter(move |member| member.has_role_or_any(role))
    }

    /// Members that a decision may down.
    pub fn downable(&self) -> impl Iterator<Item = &UniqueAddress> {
        self.members.values().filter(|member| member.status < MemberStatus::Exiting).map(|member| &member.address)
    }

    /// S11 (i): members that are both observer and subject.
    fn accused_accusers(&self) -> BTreeSet<UniqueAddress> {
        let observers: BTreeSet<&UniqueAddress> = self.records.iter().map(|(observer, _)| observer).collect();
        self.records.iter().map(|(_, subject)| subject).filter(|s| observers.contains(s)).cloned().collect()
    }

    /// S11 (ii): members that are marked unreachable, yet have seen the current state or, if one member alone accuses
    /// others, all its accusations; and their observers.
    fn accused_witnesses(&self) -> BTreeSet<UniqueAddress> {
        let is_reached = |subject| self.is_one_against_the_reached || self.seen_by.contains(subject);
        let seen = self.records.iter().filter(|(_, subject)| is_reached(subject));
        seen.flat_map(|(observer, subject)| [observer.clone(), subject.clone()]).collect()
    }

    /// The indirectly connected members: some members reach them and others do not. Source: cluster S11.
    pub fn indirectly_connected(&self) -> BTreeSet<UniqueAddress> {
        let mut set = self.accused_accusers();
        set.extend(self.accused_witnesses());
        let between: BTreeSet<Record> =
            self.records.iter().filter(|(o, s)| set.contains(o) && set.contains(s)).cloned().collect();
        match common_node(&between) {
            Some(sick) => BTreeSet::from([sick]),
            None => set,
        }
    }

    /// The members that a verdict downs, without those of S12. Source: cluster S5.
    pub fn nodes_to_down(&self, verdict: Verdict) -> BTreeSet<UniqueAddress> {
        let wanted = |address: &&UniqueAddress| match verdict {
            Verdict::DownUnreachable | Verdict::AcquireLeaseAndDownUnreachable { .. } => {
                self.unreachable.contains(*address)
            }
            Verdict::DownReachable | Verdict::ReverseDownIndirectlyConnected => !self.unreachable.contains(*address),
            Verdict::DownAll => true,
            Verdict::DownSelf => **address == self.node,
            Verdict::DownIndirectlyConnected | Verdict::AcquireLeaseAndDownIndirectlyConnected | Verdict::Custom => {
                false
            }
        };
        self.downable().filter(wanted).cloned().collect()
    }

    /// The picture for the strategy's second decision, without the indirectly connected members: without the records
    /// among them, and without those about members that leave anyway.
    pub(super) fn without_indirect_records(&self) -> Self {
        let (accusers, witnesses) = (self.accused_accusers(), self.accused_witnesses());
        let within = |set: &BTreeSet<UniqueAddress>, (o, s): &Record| set.contains(o) && set.contains(s);
        let downable: BTreeSet<UniqueAddress> = self.downable().cloned().collect();
        let mut rest = self.clone();
        rest.records.retain(|record| {
            let between = within(&accusers, record) || within(&witnesses, record);
            !between && downable.contains(&record.0) && downable.contains(&record.1)
        });
        rest.recompute_unreachable();
        rest
    }
}

/// The records between members that count for `node`.
///
/// Accusations of an observer that is itself accused, and that no member has heard since, are stale: if they counted,
/// two crashes in sequence would look like an indirect connection, and down the whole cluster. Source: cluster S11.
pub(super) fn effective(
    node: &UniqueAddress,
    mut records: BTreeSet<Record>,
    sees: impl Fn(&UniqueAddress) -> bool,
    saw: impl Fn(&UniqueAddress) -> bool,
) -> BTreeSet<Record> {
    if sees(node) {
        let accused: BTreeSet<&UniqueAddress> =
            records.iter().filter(|(observer, _)| sees(observer)).map(|(_, subject)| subject).collect();
        let lives = |address: &UniqueAddress| sees(address) || (saw(address) && !accused.contains(address));
        let stale: BTreeSet<UniqueAddress> = records
            .iter()
            .filter(|(observer, subject)| lives(observer) && !lives(subject))
            .map(|(_, subject)| subject.clone())
            .collect();
        records.retain(|(observer, _)| !stale.contains(observer));
    }
    records
}

/// The node that all records have in common, if at least two other nodes are concerned, or if it is the only accuser:
/// that node is sick, and only it is downed. Source: cluster S11 (iii).
pub fn common_node(records: &BTreeSet<Record>) -> Option<UniqueAddress> {
    let (first, second) = records.first()?;
    let is_sick = |candidate: &UniqueAddress| {
        let in_all = records.iter().all(|(o, s)| o == candidate || s == candidate);
        let endpoints = records.iter().flat_map(|(o, s)| [o, s]);
        let others: BTreeSet<&UniqueAddress> = endpoints.filter(|address| *address != candidate).collect();
        in_all && (others.len() >= 2 || records.iter().all(|(o, _)| o == candidate))
    };
    [first, second].into_iter().find(|candidate| is_sick(candidate)).cloned()
}
