//! The way from a machine to the stores and back: tries, lost answers, late copies, refusals.
//!
//! The network acts as the client of any backend: it tries again after a lost answer, and once a try went unanswered a
//! refusal proves nothing any more. Source: persistence J10, §3, §8.

use std::time::Duration;

use greylag_persistence::{
    AdvanceError, AppendError, ClaimError, DeleteError, Incarnation, ReadError, RejectReason, SnapshotError,
    StateAnswer, StateCall, StateHead, StateRejectReason, StateWriteError, StoreAnswer, StoreCall, StoreFailure,
};
use rand::RngExt;

use super::machine::{Answer, Call};
use super::store::Store;
use super::world::{Due, World};
use crate::Omission;

/// A call on its way to the stores.
#[derive(Debug, Clone)]
pub(super) struct Try {
    pub(super) machine: u64,
    pub(super) incarnation: Incarnation,
    pub(super) call: Call,
    /// Count of earlier tries; `unanswered` tells whether one of them went unanswered.
    pub(super) before: u32,
    pub(super) unanswered: bool,
    /// Whether this is a copy kept by the network; no machine waits for its answer.
    pub(super) is_copy: bool,
}

fn failure(cause: &str) -> StoreFailure {
    StoreFailure::new("store", cause)
}

/// The answer to a call that did not reach its store, or may not have.
fn unavailable(call: &Call, unanswered: bool, cause: &str) -> Answer {
    let cause = failure(cause);
    match call {
        Call::EventEntity(call) => Answer::EventEntity(match call {
            StoreCall::ReadHead { .. } => StoreAnswer::Head(Err(ReadError::Unavailable(cause))),
            StoreCall::Claim { .. } => StoreAnswer::Claimed(Err(ClaimError::Unavailable(cause))),
            StoreCall::Advance { .. } => StoreAnswer::Advanced(Err(AdvanceError::Unavailable(cause))),
            StoreCall::LoadSnapshot { .. } => StoreAnswer::Snapshot(Err(SnapshotError::Unavailable(cause))),
            StoreCall::ReadPage { .. } => StoreAnswer::Page(Err(ReadError::Unavailable(cause))),
            StoreCall::Append(_) if unanswered => StoreAnswer::Appended(Err(AppendError::Unknown(cause))),
            StoreCall::Append(_) => StoreAnswer::Appended(Err(AppendError::NotStored(cause))),
            StoreCall::DeleteEvents { to, by, .. } => {
                StoreAnswer::EventsDeleted(*to, *by, Err(DeleteError::Unavailable(cause)))
            }
            StoreCall::SaveSnapshot(snapshot) => {
                StoreAnswer::SnapshotSaved(snapshot.seq_nr, Err(SnapshotError::Unavailable(cause)))
            }
            StoreCall::DeleteSnapshots { criteria, .. } => {
                StoreAnswer::SnapshotsDeleted(*criteria, Err(SnapshotError::Unavailable(cause)))
            }
        }),
        Call::StateEntity(StateCall::Get { .. }) => {
            Answer::StateEntity(StateAnswer::Loaded(Err(ReadError::Unavailable(cause))))
        }
        Call::StateEntity(_) if unanswered => {
            Answer::StateEntity(StateAnswer::Written(Err(StateWriteError::Unknown(cause))))
        }
        Call::StateEntity(_) => Answer::StateEntity(StateAnswer::Written(Err(StateWriteError::NotStored(cause)))),
    }
}

/// The refusal of a store without free space.
fn full(call: &Call) -> Option<Answer> {
    match call {
        Call::EventEntity(StoreCall::Append(_)) => {
            let reason = RejectReason::StorageLow("0 bytes are free".to_owned());
            Some(Answer::EventEntity(StoreAnswer::Appended(Err(AppendError::Rejected(reason)))))
        }
        Call::StateEntity(StateCall::Upsert { .. } | StateCall::Delete { .. }) => {
            let reason = StateRejectReason::StorageLow("0 bytes are free".to_owned());
            Some(Answer::StateEntity(StateAnswer::Written(Err(StateWriteError::Rejected(reason)))))
        }
        _ => None,
    }
}

/// The answer when an earlier try went unanswered: only Ok, and a fence that the head proves, stay as they are.
fn after_doubt(call: &Call, answer: Answer) -> Answer {
    let doubt = || failure("an earlier try went unanswered");
    let later = |current: &StateHead| match call {
        Call::StateEntity(StateCall::Upsert { write, .. } | StateCall::Delete { write }) => {
            current.revision > write.revision
        }
        _ => false,
    };
    match answer {
        Answer::EventEntity(StoreAnswer::Appended(Err(
            AppendError::Rejected(_) | AppendError::NotStored(_) | AppendError::Conflict { .. },
        ))) => Answer::EventEntity(StoreAnswer::Appended(Err(AppendError::Unknown(doubt())))),
        Answer::StateEntity(StateAnswer::Written(Err(
            StateWriteError::Rejected(_) | StateWriteError::NotStored(_),
        ))) => Answer::StateEntity(StateAnswer::Written(Err(StateWriteError::Unknown(doubt())))),
        // The events of the unanswered try may have been deleted since, also by the writer that fenced this one.
        Answer::EventEntity(StoreAnswer::Appended(Err(AppendError::Fenced { current }))) if matches!(call, Call::EventEntity(StoreCall::Append(append)) if append.last() <= Some(current.deleted_to)) => {
            Answer::EventEntity(StoreAnswer::Appended(Err(AppendError::Unknown(doubt()))))
        }
        // The later write hides whether this one was stored.
        Answer::StateEntity(StateAnswer::Written(Err(StateWriteError::RevisionMismatch { current })))
            if later(&current) =>
        {
            Answer::StateEntity(StateAnswer::Written(Err(StateWriteError::Unknown(doubt()))))
        }
        other => other,
    }
}

fn is_write(call: &Call) -> bool {
    matches!(
        call,
        Call::EventEntity(StoreCall::Append(_) | StoreCall::Claim { .. } | StoreCall::DeleteEvents { .. })
            | Call::StateEntity(StateCall::Upsert { .. } | StateCall::Delete { .. })
    )
}

/// Whether the call may stay unanswered, since its machine has a deadline for it.
fn may_hang(call: &Call) -> bool {
    matches!(
        call,
        Call::EventEntity(
            StoreCall::Claim { .. }
                | StoreCall::ReadHead { .. }
                | StoreCall::LoadSnapshot { .. }
                | StoreCall::ReadPage { .. }
        ) | Call::StateEntity(StateCall::Get { .. })
    )
}

impl World {
    pub(super) fn send(&mut self, machine: u64, incarnation: Incarnation, call: Call) {
        let delay = self.millis(0, 8);
        let first = Try { machine, incarnation, call, before: 0, unanswered: false, is_copy: false };
        self.later(delay, Due::Arrives(Box::new(first)));
    }

    pub(super) fn on_arrival(&mut self, tried: Try) {
        if tried.is_copy {
            self.perform(tried.call);
            return;
        }
        if self.is_faulty && self.chance(self.setup.loss) {
            return self.lose(tried);
        }
        let refusal = self.refusal(&tried.call);
        // A refused call is no longer under way, so it is not copied.
        if self.is_faulty && refusal.is_none() && is_write(&tried.call) && self.chance(self.setup.copies) {
            self.copy_late(&tried);
        }
        let answer = match refusal {
            Some(refusal) => refusal,
            None if self.without == Some(Omission::DurableFlush) && self.is_hasty(&tried.call) => Store::hasty(),
            None => self.perform(tried.call.clone()),
        };
        let doubts = tried.unanswered && self.without != Some(Omission::Unanswered);
        let answer = if doubts { after_doubt(&tried.call, answer) } else { answer };
        self.answer(&tried, answer);
    }

    /// Keeps a copy of a call, which arrives when its sender has gone on.
    fn copy_late(&mut self, tried: &Try) {
        self.faults += 1;
        let delay = self.millis(5, 3_000);
        self.later(delay, Due::Arrives(Box::new(Try { is_copy: true, ..tried.clone() })));
    }

    /// Loses a try, or its answer.
    fn lose(&mut self, tried: Try) {
        self.faults += 1;
        if self.chance(0.5) {
            self.perform(tried.call.clone());
        }
        if is_write(&tried.call) && self.chance(0.3) {
            self.copy_late(&tried);
        }
        let recovers = self.hosted.get(&tried.machine).is_some_and(|hosted| hosted.machine.is_recovering());
        if recovers && may_hang(&tried.call) && self.chance(0.3) {
            return;
        }
        if tried.before < 3 && self.chance(0.6) {
            let delay = self.millis(1, 200);
            let again = Try { before: tried.before + 1, unanswered: true, ..tried };
            return self.later(delay, Due::Arrives(Box::new(again)));
        }
        let answer = unavailable(&tried.call, true, "connection lost");
        self.answer(&tried, answer);
    }

    /// The refusal of a store that will not, or cannot, carry the call out.
    fn refusal(&mut self, call: &Call) -> Option<Answer> {
        if !self.is_faulty {
            return None;
        }
        if self.disk_full_until > self.now
            && let Some(full) = full(call)
        {
            return Some(full);
        }
        if self.breaker_until > self.now || self.chance(self.setup.refusals) {
            self.faults += 1;
            return Some(unavailable(call, false, "breaker is open"));
        }
        None
    }

    /// Whether a store that acknowledges before it is durable loses this append.
    fn is_hasty(&mut self, call: &Call) -> bool {
        matches!(call, Call::EventEntity(StoreCall::Append(_))) && self.chance(0.1)
    }

    fn answer(&mut self, tried: &Try, answer: Answer) {
        let slow = self.is_faulty && self.chance(self.setup.slow);
        let delay = if slow { self.millis(1_000, 6_000) } else { self.millis(0, 8) };
        let (machine, incarnation) = (tried.machine, tried.incarnation);
        self.later(delay, Due::Answer { machine, incarnation, answer: Box::new(answer) });
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.rng.random_range(from..=to))
    }
}
