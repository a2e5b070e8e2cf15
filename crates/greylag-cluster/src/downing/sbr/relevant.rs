//! The parts of a membership state that restart the resolver's wait, and those that its measurement of instability
//! uses.
//!
//! Source: cluster S4, S13, S20.

use std::collections::BTreeSet;
use std::sync::Arc;

use greylag_core::UniqueAddress;

use super::picture::Record;
use crate::gossip::reachability::Status;
use crate::gossip::state::Gossip;
use crate::membership::member::{Member, MemberStatus};
use crate::membership::members::Members;

/// The parts of a state that matter to the resolver's clocks.
#[derive(Debug, Default)]
pub(super) struct Relevant {
    /// Accusations, as places of observer and subject among the members; sorted. Accusations by observers that are
    /// Down, dead or gone are left out, and those about the dead.
    records: Vec<(usize, usize)>,
    /// Whether some accuser is itself accused.
    is_mutual: bool,
    members: Members,
    dead: BTreeSet<UniqueAddress>,
    /// This node, whose own accusations always count.
    node: Option<UniqueAddress>,
}

/// The differences of a newer state from an older one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Whether the deadline of every decision starts over.
    pub(super) restarts: bool,
    /// Whether a member was proven dead: then decisions that leave this node alive wait again.
    pub(super) proven: bool,
    /// Whether a member that is not Down became unreachable or reachable.
    pub(super) unsettled: bool,
    /// Whether a member that is not Down became reachable.
    pub(super) healed: bool,
    /// Whether a member that is not proven dead is newly Down: some node decided.
    pub(super) decided: bool,
}

impl Relevant {
    pub(super) fn of(gossip: &Gossip, node: &UniqueAddress) -> Self {
        let members = &gossip.members;
        let place = |address| members.places().find(address).filter(|place| !members[*place].dead);
        let mut records = Vec::new();
        for (observer, row) in gossip.reachability.rows() {
            let Some(observer) = place(observer).filter(|place| members[*place].status != MemberStatus::Down) else {
                continue;
            };
            let accused = row.iter().filter(|(_, record)| record.status != Status::Reachable);
            records.extend(accused.filter_map(|(subject, _)| Some((observer, place(subject)?))));
        }
        let dead = members.values().filter(|member| member.dead).map(|member| member.address.clone());
        let dead = if members.summary().any_dead { dead.collect() } else { BTreeSet::new() };
        let accused = subjects(&records, members.len());
        let is_mutual = records.iter().any(|(observer, _)| accused[*observer]);
        Self { records, is_mutual, members: members.clone(), dead, node: Some(node.clone()) }
    }

    /// The accusations, in order.
    pub(super) fn records(&self) -> impl Iterator<Item = Record> {
        let address = |place: usize| self.members[place].address.clone();
        self.records.iter().map(move |(observer, subject)| (address(*observer), address(*subject)))
    }

    /// Whether an observer accuses a member that it did not accuse in `old`.
    pub(super) fn accuses_anew(&self, old: &Self) -> bool {
        let before = old.accusations(self).pairs;
        self.records.iter().any(|pair| before.binary_search(pair).is_err())
    }

    /// Whether no member is accused.
    pub(super) fn is_quiet(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether some accuser is itself accused. Only then does it depend on the members that have seen the state which
    /// records count (cluster S11).
    pub(super) fn is_mutual(&self) -> bool {
        self.is_mutual
    }

    /// The members that are unreachable and neither Exiting nor Down: an instability lasts only while
    /// there are such members.
    pub(super) fn open(&self) -> impl Iterator<Item = &UniqueAddress> {
        let subjects = if self.is_quiet() { Vec::new() } else { subjects(&self.records, self.members.len()) };
        let accused = self.members.iter().zip(subjects);
        let open = accused.filter(|(member, is_accused)| *is_accused && member.status < MemberStatus::Exiting);
        open.map(|(member, _)| &member.address)
    }

    /// Source: cluster S4.
    pub(super) fn changes_since(&self, old: &Self) -> Changes {
        let proven = self.dead.difference(&old.dead).next().is_some();
        let node = self.node.as_ref().and_then(|node| self.members.places().find(node));
        let (before, now) = (old.accusations(self), self.accusations(self));
        let (accused_before, accused_now) = (before.subjects(), now.subjects());
        let (before_heard, now_heard) = (before.in_effect(node), now.in_effect(node));
        let (mut appeared, mut healed, mut unsettled, mut healed_open) = (false, false, false, false);
        let any_accused = !before.pairs.is_empty() || !now.pairs.is_empty();
        for (place, member) in self.members.iter().enumerate().filter(|_| any_accused) {
            let appears = accused_now[place] && !accused_before[place];
            let heals = accused_before[place] && !accused_now[place];
            let came_back = before_heard[place] && !now_heard[place] && before.withdraws(&now, place);
            appeared |= appears;
            healed |= heals;
            if member.status != MemberStatus::Down {
                healed_open |= heals || came_back;
                unsettled |= appears || before_heard[place] != now_heard[place];
            }
        }
        let downed = self.newly(old, MemberStatus::Down).any(|address| !self.dead.contains(address));
        let up = self.newly(old, MemberStatus::Up).next().is_some();
        let exited = self.newly(old, MemberStatus::Exiting).next().is_some();
        let moved = before_heard != now_heard;
        Changes {
            restarts: appeared || healed || moved || downed || up || exited,
            proven,
            unsettled: unsettled || healed_open,
            healed: healed_open,
            decided: downed,
        }
    }

    /// The records without those that `judge` finds void: an accusation that lapses because its accuser went Down, died
    /// or was removed does not make its subject reachable, and a subject that was removed or proven dead has not come
    /// back. Indexed by places among the judge's members, whose order is the same.
    fn accusations(&self, judge: &Self) -> Accusations {
        let (own, places) = (self.members.places(), judge.members.places());
        let here = |place: usize| {
            let place = if Arc::ptr_eq(own, places) { Some(place) } else { places.find(own.address(place)) };
            place.filter(|place| !judge.members[*place].dead)
        };
        let counts = |place: &usize| judge.members[*place].status != MemberStatus::Down;
        let valid = |(observer, subject): &(usize, usize)| Some((here(*observer).filter(counts)?, here(*subject)?));
        Accusations { pairs: self.records.iter().filter_map(valid).collect(), members: judge.members.len() }
    }

    /// Members whose status is newly `status`.
    pub(super) fn newly<'a>(&'a self, old: &'a Self, status: MemberStatus) -> impl Iterator<Item = &'a UniqueAddress> {
        let is_new = move |pair: (Option<&'a Member>, Option<&'a Member>)| match pair {
            (before, Some(now)) if now.status == status && before.is_none_or(|before| before.status != status) => {
                Some(&now.address)
            }
            _ => None,
        };
        old.members.differences(&self.members).filter_map(is_new)
    }
}

/// For each of `members` places, whether it is accused.
fn subjects(pairs: &[(usize, usize)], members: usize) -> Vec<bool> {
    let mut subjects = vec![false; members];
    pairs.iter().for_each(|(_, subject)| subjects[*subject] = true);
    subjects
}

/// Accusations that are not void, by places, observer first; sorted.
struct Accusations {
    pairs: Vec<(usize, usize)>,
    members: usize,
}

impl Accusations {
    fn subjects(&self) -> Vec<bool> {
        subjects(&self.pairs, self.members)
    }

    /// Whether each place is accused by an accuser that may still be heard. An accuser is certainly silent if a member
    /// that is itself not accused (or is this node) accuses it. The last accusations of a silent member stay in the
    /// table, and would hide that its subjects come back and fall silent again (cluster S11, scenario 73).
    fn in_effect(&self, node: Option<usize>) -> Vec<bool> {
        let accused = self.subjects();
        let mut silent = vec![false; self.members];
        for (observer, subject) in &self.pairs {
            let is_free = Some(*observer) == node || !accused[*observer];
            silent[*subject] |= is_free && Some(*subject) != node;
        }
        let mut heard = vec![false; self.members];
        for (observer, subject) in &self.pairs {
            heard[*subject] |= !silent[*observer];
        }
        heard
    }

    /// Whether an observer that accused `subject` here does not in `now`.
    fn withdraws(&self, now: &Self, subject: usize) -> bool {
        self.pairs.iter().any(|pair| pair.1 == subject && now.pairs.binary_search(pair).is_err())
    }
}
