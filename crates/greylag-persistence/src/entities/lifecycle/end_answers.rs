//! The answers to askers whose reply tokens an ending incarnation drops.
//!
//! Each answer says truly whether the command may have run, and that it may be tried again: none of the askers was at
//! fault.
//! Source: persistence §2.6; sharding scenario 113.

use greylag_core::{EntityError, NotStoredReason};

use crate::entities::behavior::failure::Failure;

pub(crate) struct EndAnswers {
    /// For the write under way.
    pub(crate) pending: EntityError,
    /// For chains held until an ownership proof, behind the write: they persist nothing, and will not run.
    pub(crate) held: EntityError,
    /// For work and messages to itself that the incarnation began. A command that began work may also have stored
    /// events.
    pub(crate) background: EntityError,
}

impl EndAnswers {
    /// The entity stops, or gives way to another machine.
    pub(crate) fn stopped() -> Self {
        Self { pending: EntityError::OutcomeUnknown, held: EntityError::Stopped, background: EntityError::Stopped }
    }

    /// Another writer owns the history.
    pub(crate) fn fenced() -> Self {
        let fenced = || EntityError::NotStored(NotStoredReason::Fenced);
        Self { pending: fenced(), held: fenced(), background: EntityError::OutcomeUnknown }
    }

    /// The incarnation failed.
    pub(crate) fn failed(failure: &Failure) -> Self {
        let pending = EntityError::OutcomeUnknown;
        match failure {
            // The stores are available, and another command was at fault: commands that waited may be sent again.
            Failure::Handler { .. } | Failure::StashFull | Failure::StoreLost => {
                Self { pending, held: EntityError::Stopped, background: EntityError::Stopped }
            }
            Failure::Recovery(_) | Failure::Persist(_) | Failure::Write(_) => {
                let held = EntityError::NotStored(NotStoredReason::Unavailable(failure.to_string()));
                Self { pending, held, background: EntityError::OutcomeUnknown }
            }
        }
    }
}
