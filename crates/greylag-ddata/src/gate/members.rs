//! The latest standing of each known member, and which members have answered. Source: ddata Z11.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use greylag_core::UniqueAddress;
use greylag_crdt::ReplicaId;

use super::standing::GateState;
use super::starts::Starts;

/// The standing of a replicator, with its starts resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemberStanding {
    pub(crate) replica: ReplicaId,
    pub(crate) forget_horizon: Option<i64>,
    pub(crate) synced_at: Option<i64>,
    pub(crate) starts: Starts,
    pub(crate) state: GateState,
    pub(crate) is_current: bool,
}

impl MemberStanding {
    pub(crate) fn is_refused(&self) -> bool {
        self.state == GateState::Refused
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state == GateState::Closed
    }

    /// The time that the order compares: of a closed replicator its time in touch, of an open one its horizon.
    pub(crate) fn time(&self) -> i64 {
        let time = if self.is_closed() { self.synced_at } else { self.forget_horizon };
        time.unwrap_or(i64::MIN)
    }

    /// The key of the order: the replicator with the least one makes the start.
    pub(crate) fn rank(&self) -> (bool, Reverse<i64>, ReplicaId) {
        (self.starts.is_empty(), Reverse(self.time()), self.replica)
    }

    /// Whether this replicator is passed over where a gate is closed, as long as another may make the start: because it
    /// forgot alone, or has no time to compare.
    pub(crate) fn is_passed_over(&self) -> bool {
        match self.state {
            GateState::Closed => self.forget_horizon > self.synced_at,
            GateState::Open => !self.is_current && self.forget_horizon.is_none(),
            GateState::Refused => true,
        }
    }

    /// Whether this replicator is current only by the start of a new history: a member that does not know the start
    /// need not accept that.
    pub(crate) fn is_current_without_base(&self) -> bool {
        self.is_current && self.starts.latest().is_some_and(|latest| latest.base.is_none())
    }

    /// Whether this replicator is current in the history of the latest of `starts`.
    pub(crate) fn went_on_from(&self, starts: &Starts) -> bool {
        self.is_current && starts.latest().is_some_and(|latest| self.starts.contains(latest))
    }

    /// Whether a replicator that knows `starts` accepts this one as current.
    pub(crate) fn is_current_for(&self, starts: &Starts) -> bool {
        let latest = self.starts.latest();
        self.is_current && !self.is_refused() && latest.is_some_and(|at| at.base.is_some() || starts.contains(at))
    }
}

#[derive(Debug, Clone, Default)]
struct Member {
    standing: Option<MemberStanding>,
    /// The greatest number of a standing of this member: a standing with a smaller number was overtaken.
    latest: u64,
    /// Whether the member has answered since all members were asked last.
    has_answered: bool,
    /// Whether the member came before this replicator in order when it was last heard.
    came_before: bool,
}

/// All other known members.
#[derive(Debug, Default)]
pub(crate) struct Members(BTreeMap<UniqueAddress, Member>);

impl Members {
    /// Replaces the known members. Returns whether that is a change.
    pub(crate) fn set(&mut self, known: &BTreeSet<UniqueAddress>) -> bool {
        let is_same = self.0.len() == known.len() && self.0.keys().eq(known);
        self.0.retain(|member, _| known.contains(member));
        for member in known {
            self.0.entry(member.clone()).or_default();
        }
        !is_same
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = &UniqueAddress> {
        self.0.keys()
    }

    pub(crate) fn standing_of(&self, member: &UniqueAddress) -> Option<&MemberStanding> {
        self.0.get(member)?.standing.as_ref()
    }

    /// Notes that a standing with this number arrived. Returns whether it is news: no later standing of the member came
    /// before.
    pub(crate) fn is_news(&mut self, member: &UniqueAddress, number: u64) -> bool {
        let Some(known) = self.0.get_mut(member) else { return true };
        let is_news = number >= known.latest;
        known.latest = known.latest.max(number);
        is_news
    }

    /// Sets a member's standing.
    pub(crate) fn set_standing(&mut self, member: &UniqueAddress, standing: MemberStanding, came_before: bool) {
        if let Some(known) = self.0.get_mut(member) {
            known.standing = Some(standing);
            known.came_before = came_before;
        }
    }

    /// Notes that a member answered. The answer counts only if the member's standing is known.
    pub(crate) fn note_answer(&mut self, member: &UniqueAddress) {
        if let Some(known) = self.0.get_mut(member) {
            known.has_answered |= known.standing.is_some();
        }
    }

    /// Forgets a member's standing, so that it has to answer again.
    pub(crate) fn forget(&mut self, member: &UniqueAddress) {
        if let Some(known) = self.0.get_mut(member) {
            known.standing = None;
            known.has_answered = false;
        }
    }

    /// Forgets all answers, because every member is asked again.
    pub(crate) fn forget_answers(&mut self) {
        self.0.values_mut().for_each(|member| member.has_answered = false);
    }

    /// The members that have not answered.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = &UniqueAddress> {
        self.0.iter().filter(|(_, member)| !member.has_answered).map(|(address, _)| address)
    }

    /// The members that were heard and are not refused.
    pub(crate) fn unrefused(&self) -> impl Iterator<Item = &MemberStanding> {
        self.0.values().filter_map(|member| member.standing.as_ref()).filter(|standing| !standing.is_refused())
    }

    /// Whether a member that is not refused came before this replicator in order when it was last heard.
    pub(crate) fn any_came_before(&self) -> bool {
        self.0
            .values()
            .any(|member| member.came_before && member.standing.as_ref().is_some_and(|standing| !standing.is_refused()))
    }

    /// The members that are refused.
    pub(crate) fn refused(&self) -> impl Iterator<Item = &UniqueAddress> {
        let is_refused = |member: &Member| member.standing.as_ref().is_some_and(MemberStanding::is_refused);
        self.0.iter().filter(move |(_, member)| is_refused(member)).map(|(address, _)| address)
    }

    /// Whether a condition holds for all members except refused ones; it does not hold for a member that was never
    /// heard.
    pub(crate) fn all(&self, is_so: impl Fn(&MemberStanding) -> bool) -> bool {
        let holds = |standing: &MemberStanding| standing.is_refused() || is_so(standing);
        self.0.values().all(|member| member.standing.as_ref().is_some_and(holds))
    }
}
