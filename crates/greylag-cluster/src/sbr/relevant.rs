//! What of a state of the membership restarts the resolver's wait, and what its measurement of
//! instability sees.
//!
//! Source: cluster S4, S13, S20.

use std::collections::BTreeSet;

use greylag_core::UniqueAddress;

use super::picture::Record;
use crate::gossip::Gossip;
use crate::member::{Member, MemberStatus};
use crate::members::Members;

/// What of a state matters to the resolver's clocks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Relevant {
    /// Who accuses whom. Observers that are Down, dead or gone do not count, nor do the dead as
    /// subjects.
    records: BTreeSet<Record>,
    members: Members,
    dead: BTreeSet<UniqueAddress>,
}

/// What is different in the newer of two states.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// The deadline of every decision starts over.
    pub(super) restarts: bool,
    /// Somebody was proven dead: decisions that leave this node alive wait again.
    pub(super) proven: bool,
    /// Among members that are not Down, somebody became unreachable or reachable.
    pub(super) unsettled: bool,
    /// Among members that are not Down, somebody became reachable.
    pub(super) healed: bool,
}

impl Relevant {
    pub(super) fn of(gossip: &Gossip) -> Self {
        let counts = |observer: &UniqueAddress| {
            gossip.members.get(observer).is_some_and(|member| !member.dead && member.status != MemberStatus::Down)
        };
        let living = |subject: &UniqueAddress| gossip.members.get(subject).is_some_and(|member| !member.dead);
        let records =
            gossip.reachability.accusations().filter(|(observer, subject, _)| counts(observer) && living(subject));
        Self {
            records: records.map(|(observer, subject, _)| (observer.clone(), subject.clone())).collect(),
            members: gossip.members.clone(),
            dead: gossip.members.values().filter(|member| member.dead).map(|member| member.address.clone()).collect(),
        }
    }

    /// Whether somebody is unreachable who is neither Exiting nor Down: only then does an
    /// instability last.
    pub(super) fn has_open(&self) -> bool {
        let status = |subject: &UniqueAddress| self.members.get(subject).map(|member| member.status);
        self.records.iter().any(|(_, subject)| status(subject).is_some_and(|status| status < MemberStatus::Exiting))
    }

    /// Source: cluster S4.
    pub(super) fn changes_since(&self, old: &Self) -> Changes {
        let proven = self.dead.difference(&old.dead).next().is_some();
        let (before, now) = (old.subjects_judged_by(self), self.subjects_judged_by(self));
        let appeared: BTreeSet<_> = now.difference(&before).collect();
        let healed: BTreeSet<_> = before.difference(&now).collect();
        let not_down = |address: &&&UniqueAddress| {
            self.members.get(address).is_none_or(|member| member.status != MemberStatus::Down)
        };
        let downed = self.newly(old, MemberStatus::Down).any(|address| !self.dead.contains(address));
        let up = self.newly(old, MemberStatus::Up).next().is_some();
        let exited = self.newly(old, MemberStatus::Exiting).next().is_some();
        let healed_open = healed.iter().any(not_down);
        Changes {
            restarts: !appeared.is_empty() || !healed.is_empty() || downed || up || exited,
            proven,
            unsettled: healed_open || appeared.iter().any(not_down),
            healed: healed_open,
        }
    }

    /// Whom these records accuse, without what `judge` finds void: an accusation that lapses because
    /// its accuser went Down, died or was removed heals nobody, and a subject that was removed or
    /// proven dead has not come back.
    fn subjects_judged_by<'a>(&'a self, judge: &Self) -> BTreeSet<&'a UniqueAddress> {
        let counts = |observer: &UniqueAddress| {
            judge.members.get(observer).is_some_and(|member| member.status != MemberStatus::Down && !member.dead)
        };
        let here = |subject: &UniqueAddress| judge.members.get(subject).is_some_and(|member| !member.dead);
        let valid = self.records.iter().filter(|(observer, subject)| counts(observer) && here(subject));
        valid.map(|(_, subject)| subject).collect()
    }

    /// Members that newly are in `status`.
    pub(super) fn newly<'a>(&'a self, old: &'a Self, status: MemberStatus) -> impl Iterator<Item = &'a UniqueAddress> {
        let is_new = move |pair: (Option<&'a Member>, Option<&'a Member>)| match pair {
            (before, Some(now)) if now.status == status && before.is_none_or(|before| before.status != status) => {
                Some(&now.address)
            }
            _ => None,
        };
        old.members.zip(&self.members).filter_map(is_new)
    }
}
