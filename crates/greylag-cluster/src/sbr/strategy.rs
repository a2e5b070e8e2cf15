//! Who survives: pure functions of one side's picture of a partition.
//!
//! Each side decides alone, on its own picture, and both must come to fitting verdicts. Members
//! whose status the other side may know one step further are therefore counted for the worse
//! (the pessimistic re-check). Nodes that some reach and others do not are sorted out first.
//!
//! Source: cluster S3, S5, S6, S11, S12.

use std::collections::{BTreeMap, BTreeSet};

use greylag_core::UniqueAddress;

use crate::downing::Verdict;
use crate::member::{Member, MemberStatus};
use crate::settings::Strategy;

/// Somebody (first) finds somebody (second) unreachable.
pub type Record = (UniqueAddress, UniqueAddress);

/// What one node sees of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// Who looks.
    pub node: UniqueAddress,
    /// The members that are not proven dead.
    pub members: BTreeMap<UniqueAddress, Member>,
    /// The effective records.
    pub records: BTreeSet<Record>,
    /// The other side: subjects of records, and members that are Down. Never the node itself.
    pub unreachable: BTreeSet<UniqueAddress>,
    seen_by: BTreeSet<UniqueAddress>,
    exits: BTreeSet<UniqueAddress>,
    /// The pessimistic re-check is left out, for simulations that prove their checkers.
    pub(crate) without_recheck: bool,
}

impl Picture {
    /// Sorts out which records count. `seen_since`: who has seen the state at any time since the
    /// last relevant change.
    ///
    /// Accusations of an observer that is itself accused, and that nobody heard since, are stale:
    /// without this two crashes in sequence would look like an indirect connection, and take the
    /// whole cluster down. Source: cluster S11.
    pub fn new(
        node: UniqueAddress,
        members: BTreeMap<UniqueAddress, Member>,
        records: BTreeSet<Record>,
        seen_by: &BTreeSet<UniqueAddress>,
        seen_since: &BTreeSet<UniqueAddress>,
        exits: BTreeSet<UniqueAddress>,
    ) -> Self {
        let valid = |(observer, subject): &Record| {
            members.get(observer).is_some_and(|member| member.status != MemberStatus::Down)
                && members.contains_key(subject)
        };
        let mut records: BTreeSet<Record> = records.into_iter().filter(valid).collect();
        if seen_by.contains(&node) {
            let mut living = seen_by.clone();
            let accused = |address: &UniqueAddress| records.iter().any(|(o, s)| seen_by.contains(o) && s == address);
            living.extend(seen_since.iter().filter(|address| !accused(address)).cloned());
            let stale: BTreeSet<UniqueAddress> = records
                .iter()
                .filter(|(observer, subject)| living.contains(observer) && !living.contains(subject))
                .map(|(_, subject)| subject.clone())
                .collect();
            records.retain(|(observer, _)| !stale.contains(observer));
        }
        let mut picture = Self {
            node,
            members,
            records,
            unreachable: BTreeSet::new(),
            seen_by: seen_by.clone(),
            exits,
            without_recheck: false,
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

    /// Whether anybody who could be downed is accused.
    pub fn has_anything_to_decide(&self) -> bool {
        let downable: BTreeSet<&UniqueAddress> = self.downable().collect();
        self.records.iter().any(|(_, subject)| downable.contains(subject))
    }

    /// Members whose number decides, among those with the role. Source: cluster S3.
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

    /// (i): both observer and subject.
    fn accused_accusers(&self) -> BTreeSet<UniqueAddress> {
        let observers: BTreeSet<&UniqueAddress> = self.records.iter().map(|(observer, _)| observer).collect();
        self.records.iter().map(|(_, subject)| subject).filter(|s| observers.contains(s)).cloned().collect()
    }

    /// (ii): marked unreachable by somebody, yet it has seen the current state; and who marked it.
    fn accused_witnesses(&self) -> BTreeSet<UniqueAddress> {
        let seen = self.records.iter().filter(|(_, subject)| self.seen_by.contains(subject));
        seen.flat_map(|(observer, subject)| [observer.clone(), subject.clone()]).collect()
    }

    /// Nodes that some reach and others do not. Source: cluster S11.
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

    /// Whom a verdict downs, those of S12 aside. Source: cluster S5.
    pub fn nodes_to_down(&self, verdict: Verdict) -> BTreeSet<UniqueAddress> {
        let wanted = |address: &&UniqueAddress| match verdict {
            Verdict::DownUnreachable => self.unreachable.contains(*address),
            Verdict::DownReachable => !self.unreachable.contains(*address),
            Verdict::DownAll => true,
            Verdict::DownSelf => **address == self.node,
            Verdict::DownIndirectlyConnected => false,
        };
        let mut nodes: BTreeSet<UniqueAddress> = self.downable().filter(wanted).cloned().collect();
        if verdict == Verdict::DownSelf {
            nodes.insert(self.node.clone());
        }
        nodes
    }

    /// What the strategy is asked again, once the indirectly connected are out: without the records
    /// among them, and without those about members that leave anyway.
    fn without_indirect_records(&self) -> Self {
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

/// The node that all records have in common, if at least two others are concerned, or if it is the
/// only one that accuses: it is sick, and takes nobody with it. Source: cluster S11 (iii).
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

/// The verdict of a strategy.
pub fn decide(picture: &Picture, strategy: &Strategy) -> Verdict {
    if !picture.indirectly_connected().is_empty() {
        return Verdict::DownIndirectlyConnected;
    }
    match strategy {
        Strategy::KeepMajority { role } => keep_majority(picture, role.as_deref()),
    }
}

/// The bigger side survives; of equal sides the one with the lowest address. Source: cluster S6.
fn keep_majority(picture: &Picture, role: Option<&str>) -> Verdict {
    let (theirs, ours): (BTreeSet<&UniqueAddress>, BTreeSet<&UniqueAddress>) =
        picture.counted(role).map(|member| &member.address).partition(|address| picture.unreachable.contains(*address));
    if theirs.is_empty() && ours.is_empty() {
        Verdict::DownAll
    } else if !outnumbers(&ours, &theirs) {
        Verdict::DownReachable
    } else if picture.without_recheck || survives_doubt(picture, role) {
        Verdict::DownUnreachable
    } else {
        Verdict::DownAll
    }
}

/// Addresses are sorted, so the lowest is the first.
fn outnumbers(ours: &BTreeSet<&UniqueAddress>, theirs: &BTreeSet<&UniqueAddress>) -> bool {
    ours.len() > theirs.len() || (ours.len() == theirs.len() && ours.first() < theirs.first())
}

/// Whether the own side would win even if the other side knew more: our Leaving members may be
/// Exiting there, its Joining ones Up, and its Leaving ones Exiting.
fn survives_doubt(picture: &Picture, role: Option<&str>) -> bool {
    let with_role = || {
        let members = picture.members.values().filter(|member| !picture.exits.contains(&member.address));
        members.filter(|member| member.has_role_or_any(role))
    };
    let ours: BTreeSet<&UniqueAddress> = with_role()
        .filter(|m| !picture.unreachable.contains(&m.address))
        .filter(|m| m.status.is_settled() && m.status != MemberStatus::Leaving)
        .map(|m| &m.address)
        .collect();
    let theirs = |with_leaving: bool| -> BTreeSet<&UniqueAddress> {
        with_role()
            .filter(|m| picture.unreachable.contains(&m.address) && m.status < MemberStatus::Exiting)
            .filter(|m| with_leaving || m.status != MemberStatus::Leaving)
            .map(|m| &m.address)
            .collect()
    };
    let (all, without_leaving) = (theirs(true), theirs(false));
    if ours.len() != all.len() {
        return ours.len() > all.len();
    }
    let lowest = |side: &BTreeSet<&UniqueAddress>| side.is_empty() || ours.first() < side.first();
    !ours.is_empty() && lowest(&all) && lowest(&without_leaving)
}

/// The nodes a verdict downs, and the verdict that remains. Source: cluster S5, S12.
pub fn resolve(
    picture: &Picture,
    strategy: &Strategy,
    verdict: Verdict,
    limit: Option<f64>,
) -> (Verdict, BTreeSet<UniqueAddress>) {
    if verdict != Verdict::DownIndirectlyConnected {
        return (verdict, picture.nodes_to_down(verdict));
    }
    let indirect = picture.indirectly_connected();
    let downable: BTreeSet<UniqueAddress> = picture.downable().cloned().collect();
    let mut downed: BTreeSet<UniqueAddress> = indirect.intersection(&downable).cloned().collect();
    let others_are_gone =
        picture.unreachable.iter().any(|address| downable.contains(address) && !indirect.contains(address));
    if others_are_gone {
        let rest = picture.without_indirect_records();
        let again = decide(&rest, strategy);
        if again == Verdict::DownIndirectlyConnected {
            return (Verdict::DownAll, downable);
        }
        downed.extend(rest.nodes_to_down(again));
    }
    if limit.is_some_and(|limit| downed.len() as f64 > limit * downable.len() as f64) {
        return (Verdict::DownAll, downable);
    }
    (verdict, downed)
}
