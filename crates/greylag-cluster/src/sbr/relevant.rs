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
    /// Who looks; what it says itself always counts.
    node: Option<UniqueAddress>,
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
    /// Somebody is newly Down who is not proven dead: somebody decided.
    pub(super) decided: bool,
}

impl Relevant {
    pub(super) fn of(gossip: &Gossip, node: &UniqueAddress) -> Self {
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
            node: Some(node.clone()),
        }
    }

    /// Who is unreachable and neither Exiting nor Down: only while there are such does an instability
    /// last. Some more than once.
    pub(super) fn open(&self) -> impl Iterator<Item = &UniqueAddress> {
        let status = |subject: &UniqueAddress| self.members.get(subject).map(|member| member.status);
        let is_open = move |subject: &&UniqueAddress| status(subject).is_some_and(|s| s < MemberStatus::Exiting);
        self.records.iter().map(|(_, subject)| subject).filter(is_open)
    }

    /// Source: cluster S4.
    pub(super) fn changes_since(&self, old: &Self) -> Changes {
        let proven = self.dead.difference(&old.dead).next().is_some();
        let (before, now) = (old.accusations(self), self.accusations(self));
        let appeared: BTreeSet<_> = now.subjects().difference(&before.subjects()).copied().collect();
        let healed: BTreeSet<_> = before.subjects().difference(&now.subjects()).copied().collect();
        let (before_heard, now_heard) = (before.in_effect(self.node.as_ref()), now.in_effect(self.node.as_ref()));
        let not_down =
            |address: &&UniqueAddress| self.members.get(address).is_none_or(|m| m.status != MemberStatus::Down);
        let came_back = before_heard.difference(&now_heard).filter(|subject| before.takes_back(&now, subject));
        let healed_open = healed.iter().chain(came_back).any(not_down);
        let downed = self.newly(old, MemberStatus::Down).any(|address| !self.dead.contains(address));
        let up = self.newly(old, MemberStatus::Up).next().is_some();
        let exited = self.newly(old, MemberStatus::Exiting).next().is_some();
        let moved = before_heard != now_heard;
        Changes {
            restarts: !appeared.is_empty() || !healed.is_empty() || moved || downed || up || exited,
            proven,
            unsettled: healed_open
                || appeared.iter().any(not_down)
                || before_heard.symmetric_difference(&now_heard).any(not_down),
            healed: healed_open,
            decided: downed,
        }
    }

    /// The records without what `judge` finds void: an accusation that lapses because its accuser went
    /// Down, died or was removed heals nobody, and a subject that was removed or proven dead has not
    /// come back.
    fn accusations<'a>(&'a self, judge: &Self) -> Accusations<'a> {
        let counts = |observer: &UniqueAddress| {
            judge.members.get(observer).is_some_and(|member| member.status != MemberStatus::Down && !member.dead)
        };
        let here = |subject: &UniqueAddress| judge.members.get(subject).is_some_and(|member| !member.dead);
        let valid = self.records.iter().filter(|(observer, subject)| counts(observer) && here(subject));
        Accusations(valid.map(|(observer, subject)| (observer, subject)).collect())
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

/// Accusations that are not void, observer first.
struct Accusations<'a>(BTreeSet<(&'a UniqueAddress, &'a UniqueAddress)>);

impl<'a> Accusations<'a> {
    fn subjects(&self) -> BTreeSet<&'a UniqueAddress> {
        self.0.iter().map(|(_, subject)| *subject).collect()
    }

    /// Whom somebody accuses who may still be heard: not one whom a member accuses that nobody
    /// accuses. What such a one said last stays in the table when it is cut off, and would hide that
    /// its subjects come back and fall silent again (cluster S11, scenario 73).
    fn in_effect(&self, node: Option<&UniqueAddress>) -> BTreeSet<&'a UniqueAddress> {
        let accused = self.subjects();
        let is_free = |observer: &UniqueAddress| Some(observer) == node || !accused.contains(observer);
        let by_the_free = self.0.iter().filter(|(observer, _)| is_free(observer)).map(|(_, subject)| *subject);
        let silent: BTreeSet<&UniqueAddress> = by_the_free.filter(|subject| Some(*subject) != node).collect();
        self.0.iter().filter(|(observer, _)| !silent.contains(observer)).map(|(_, subject)| *subject).collect()
    }

    /// Somebody who accused `subject` does so no more.
    fn takes_back(&self, now: &Accusations<'_>, subject: &UniqueAddress) -> bool {
        self.0.iter().any(|(observer, accused)| *accused == subject && !now.0.contains(&(*observer, *accused)))
    }
}
