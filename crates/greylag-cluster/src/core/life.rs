//! The stages of this node's own life: joining, member, leaving or Down, ended.
//!
//! ```text
//! Idle --join--> Joining --welcome--> Member --exit tasks done, or Down for a few ticks--> Ended
//! ```
//!
//! Source: cluster M23 to M28.

use std::time::{Duration, Instant};

use super::Standing;
use super::joining::join::JoinProcess;
use super::state::State;
use crate::membership::shutdown::ShutdownReason;

/// Leader ticks for which a Down node spreads the news before it ends.
const DOWNED_TICKS: u32 = 4;

/// The stage of this node's life.
#[derive(Debug)]
enum Stage {
    Idle,
    Joining(Box<JoinProcess>),
    Member,
    Ended,
}

/// The stage of this node's own exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exiting {
    NotYet,
    /// The exit tasks run; this node marks nothing seen meanwhile, so the others wait.
    Running,
    Done,
}

/// The life of this node.
#[derive(Debug)]
pub(super) struct Life {
    stage: Stage,
    /// When this node, which was let in but hears no member, sends its Join again.
    rejoin_at: Option<Instant>,
    exiting: Exiting,
    /// Once this node is Down: why it ends, and the number of leader ticks that it has gossiped since.
    downed: Option<(ShutdownReason, u32)>,
    /// Whether the orderly shutdown is past the phase in which this node leaves (cluster F10).
    leave_phase_passed: bool,
}

impl Life {
    /// The life of a node that has not joined.
    pub(super) fn new() -> Self {
        Self { stage: Stage::Idle, rejoin_at: None, exiting: Exiting::NotYet, downed: None, leave_phase_passed: false }
    }

    pub(super) fn is_member(&self) -> bool {
        matches!(self.stage, Stage::Member)
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Ended)
    }

    /// Whether this node is no member yet, and may become one.
    pub(super) fn is_before_membership(&self) -> bool {
        matches!(self.stage, Stage::Idle | Stage::Joining(_))
    }

    /// The join under way.
    pub(super) fn join(&self) -> Option<&JoinProcess> {
        match &self.stage {
            Stage::Joining(join) => Some(join),
            _ => None,
        }
    }

    /// The join under way.
    pub(super) fn join_mut(&mut self) -> Option<&mut JoinProcess> {
        match &mut self.stage {
            Stage::Joining(join) => Some(join),
            _ => None,
        }
    }

    /// Begins a join; one that is under way ends.
    pub(super) fn begin_join(&mut self, join: JoinProcess) {
        self.stage = Stage::Joining(Box::new(join));
    }

    /// Gives up the join under way; without effect in other stages.
    pub(super) fn give_up_join(&mut self) {
        if self.join().is_some() {
            self.stage = Stage::Idle;
        }
    }

    pub(super) fn become_member(&mut self) {
        self.stage = Stage::Member;
    }

    pub(super) fn end(&mut self) {
        self.stage = Stage::Ended;
    }

    // --- the repeated join ----------------------------------------------------------------------

    /// When the Join is sent again.
    pub(super) fn rejoin_at(&self) -> Option<Instant> {
        self.rejoin_at
    }

    /// Whether this node was let in, and waits to hear of other members.
    pub(super) fn may_rejoin(&self) -> bool {
        self.rejoin_at.is_some()
    }

    /// Whether the Join is due to be sent again; the next one is then due after `retry`.
    pub(super) fn rejoins(&mut self, now: Instant, retry: Duration) -> bool {
        let due = self.rejoin_at.is_some_and(|at| at <= now);
        if due {
            self.rejoin_at = Some(now + retry);
        }
        due
    }

    /// Starts or stops the wait after which the Join is sent again: `waits` while this node is let in, but not Up.
    pub(super) fn on_waits(&mut self, now: Instant, waits: bool, retry: Duration) {
        match (waits, self.rejoin_at) {
            (true, None) => self.rejoin_at = Some(now + retry),
            (false, Some(_)) => self.rejoin_at = None,
            _ => {}
        }
    }

    /// Puts off the next Join, since a member gossips with this node.
    pub(super) fn on_gossip_heard(&mut self, now: Instant, retry: Duration) {
        if self.rejoin_at.is_some() {
            self.rejoin_at = Some(now + retry);
        }
    }

    // --- the way out ----------------------------------------------------------------------------

    /// Begins the exit of this node, which is Exiting. True if its tasks are to start now.
    pub(super) fn begin_exit(&mut self) -> bool {
        let begins = self.exiting == Exiting::NotYet;
        if begins {
            self.exiting = Exiting::Running;
        }
        begins
    }

    /// Notes that the tasks of the exit are done. False if none ran, or if this node is Down meanwhile.
    pub(super) fn finish_exit(&mut self) -> bool {
        let finishes = self.exiting == Exiting::Running && self.downed.is_none();
        if finishes {
            self.exiting = Exiting::Done;
        }
        finishes
    }

    /// Whether this node marks a state as seen, in which it `exits` or not: not while the tasks of its own exit run, so
    /// that the others do not remove it yet. Source: cluster M26.
    pub(super) fn marks_seen(&self, exits: bool) -> bool {
        !exits || self.exiting == Exiting::Done
    }

    pub(super) fn is_downed(&self) -> bool {
        self.downed.is_some()
    }

    /// Makes this node Down. False if it was Down already.
    pub(super) fn become_downed(&mut self, reason: ShutdownReason) -> bool {
        let fresh = self.downed.is_none();
        if fresh {
            self.downed = Some((reason, 0));
        }
        fresh
    }

    /// Counts one more leader tick of this Down node. Returns why it ends, and whether it has told the news for long
    /// enough.
    pub(super) fn count_down(&mut self) -> Option<(ShutdownReason, bool)> {
        let (reason, ticks) = self.downed.as_mut()?;
        *ticks += 1;
        Some((*reason, *ticks >= DOWNED_TICKS))
    }

    /// Notes that the orderly shutdown has passed the phase in which this node leaves.
    pub(super) fn on_leave_phase_passed(&mut self) {
        self.leave_phase_passed = true;
    }

    /// Whether this node ends, and so accuses no peer for being silent. Source: cluster F10.
    pub(super) fn makes_no_accusations(&self, state: &State) -> bool {
        self.leave_phase_passed || state.is_leaving_for_good()
    }

    /// Source: cluster M26, M27.
    pub(super) fn check_invariants(&self) {
        let told = self.downed.map_or(0, |(_, ticks)| ticks);
        debug_assert!(told < DOWNED_TICKS || self.has_ended(), "a Down node ends once it has told the news");
        debug_assert!(self.exiting != Exiting::Done || self.has_ended(), "a node that has done its exit has ended");
        let was_let_in = self.rejoin_at.is_some() || self.exiting != Exiting::NotYet || self.downed.is_some();
        debug_assert!(!was_let_in || !self.is_before_membership(), "only a member leaves, is Down, or joins again");
        if let Some(join) = self.join() {
            join.check_invariants();
        }
    }

    /// This node's standing, given whether it distrusts itself; `None` before it is a member.
    pub(super) fn standing(&self, suspect: bool) -> Option<Standing> {
        match self.stage {
            Stage::Ended => Some(Standing::Ended),
            _ if suspect || self.downed.is_some() => Some(Standing::Held),
            Stage::Member => Some(Standing::Trusted),
            Stage::Idle | Stage::Joining(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cluster M26: the exit tasks start once, and nothing is seen until they are done; a Down node finishes no exit.
    #[test]
    fn an_exit_begins_once_and_ends_once() {
        let mut life = Life::new();
        assert!(!life.finish_exit(), "it has not begun");
        assert!(life.begin_exit() && !life.begin_exit());
        assert!(life.marks_seen(false) && !life.marks_seen(true));
        assert!(life.finish_exit() && !life.finish_exit());
        assert!(life.marks_seen(true));
        let mut life = Life::new();
        assert!(life.begin_exit() && life.become_downed(ShutdownReason::Downed));
        assert!(!life.finish_exit());
    }

    /// Cluster M27: a Down node keeps its first reason, and ends after four ticks at the latest.
    #[test]
    fn a_down_node_ends_for_its_first_reason() {
        let mut life = Life::new();
        assert_eq!(life.count_down(), None);
        assert!(life.become_downed(ShutdownReason::LeaveIsolated) && !life.become_downed(ShutdownReason::Downed));
        let told: Vec<_> = (0..4).map(|_| life.count_down()).collect();
        assert_eq!(told, [false, false, false, true].map(|last| Some((ShutdownReason::LeaveIsolated, last))));
        assert_eq!(life.standing(false), Some(Standing::Held));
    }
}
