//! What askers are answered whose tokens an incarnation lets go of as it ends.
//!
//! Each answer says truly whether the command may have run, and that it may be tried again: none of them was at fault.
//! Source: persistence §2.6; sharding scenario 113.

use greylag_core::{EntityError, NotStoredReason};

use crate::behavior::Failure;

pub(crate) struct LastAnswers {
    /// Of the write on its way.
    pub(crate) pending: EntityError,
    /// Of chains that wait for proof behind it: they persist nothing, and will not run.
    pub(crate) held: EntityError,
    /// Of what the incarnation has begun and told itself. A command that began something may have stored something too.
    pub(crate) begun: EntityError,
}

impl LastAnswers {
    /// The entity stops, or makes room for another.
    pub(crate) fn stopped() -> Self {
        Self { pending: EntityError::OutcomeUnknown, held: EntityError::Stopped, begun: EntityError::Stopped }
    }

    /// Another writer owns the history.
    pub(crate) fn fenced() -> Self {
        let fenced = || EntityError::NotStored(NotStoredReason::Fenced);
        Self { pending: fenced(), held: fenced(), begun: EntityError::OutcomeUnknown }
    }

    /// The incarnation failed.
    pub(crate) fn failed(failure: &Failure) -> Self {
        let pending = EntityError::OutcomeUnknown;
        match failure {
            // No store is away, and another command was at fault: those that waited may be sent again.
            Failure::Handler { .. } | Failure::StashFull | Failure::StoreLost => {
                Self { pending, held: EntityError::Stopped, begun: EntityError::Stopped }
            }
            Failure::Recovery(_) | Failure::Persist(_) | Failure::Write(_) => {
                let held = EntityError::NotStored(NotStoredReason::Unavailable(failure.to_string()));
                Self { pending, held, begun: EntityError::OutcomeUnknown }
            }
        }
    }
}
