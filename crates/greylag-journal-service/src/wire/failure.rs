//! Failures of calls. One message serves all calls; each call reads the variants that it knows, and takes any other for
//! an unknown outcome, which is always true.

use std::error::Error;

use greylag_persistence::{
    AdvanceError, AppendError, ClaimError, DeleteError, OffsetError, OwnerEpoch, QueryError, ReadError, RejectReason,
    SeqNr, StateRejectReason, StateWriteError, StoreFailure,
};

use super::journal::{corrupt, corrupt_kind, from_corrupt, from_corrupt_kind, from_head, head};
use super::states::{from_kind, from_state_head, kind, slice, state_head};
use super::values::{seq_nr, usize_of};
use crate::generated::{self as proto, failure::Failure, rejected::Reason};

fn message(failure: Failure) -> proto::Failure {
    proto::Failure { failure: Some(failure), is_answer: false }
}

fn of_store(failure: StoreFailure, kind: fn(String) -> Failure) -> proto::Failure {
    proto::Failure { failure: Some(kind(failure.text())), is_answer: failure.is_answer() }
}

/// Decodes a failure; `store` is the client's name for the server.
pub(super) fn store_failure(
    is_answer: bool,
    store: &str,
    cause: impl Into<Box<dyn Error + Send + Sync>>,
) -> StoreFailure {
    if is_answer { StoreFailure::refusal(store, cause) } else { StoreFailure::new(store, cause) }
}

pub(crate) fn from_append_error(error: AppendError) -> proto::Failure {
    message(match error {
        AppendError::Rejected(reason) => Failure::Rejected(from_reason(reason)),
        AppendError::NotStored(failure) => return of_store(failure, Failure::NotStored),
        AppendError::Unknown(failure) => return of_store(failure, Failure::Unknown),
        AppendError::Fenced { current } => Failure::Fenced(from_head(current)),
        AppendError::Conflict { highest } => Failure::Conflict(highest.as_u64()),
    })
}

pub(crate) fn append_error(failure: proto::Failure, store: &str) -> AppendError {
    let is_answer = failure.is_answer;
    let unknown = |cause: &str| AppendError::Unknown(store_failure(is_answer, store, cause));
    match failure.failure {
        Some(Failure::Rejected(rejected)) => AppendError::Rejected(reason(rejected)),
        Some(Failure::NotStored(cause)) => AppendError::NotStored(store_failure(is_answer, store, cause)),
        Some(Failure::Unknown(cause)) => unknown(&cause),
        Some(Failure::Fenced(current)) => {
            head(current).map_or_else(|error| unknown(&error.to_string()), |current| AppendError::Fenced { current })
        }
        Some(Failure::Conflict(highest)) => AppendError::Conflict { highest: SeqNr::saturating(highest) },
        other => unknown(&cause_of(other)),
    }
}

pub(crate) fn from_claim_error(error: ClaimError) -> proto::Failure {
    message(match error {
        ClaimError::Fenced { current } => Failure::Fenced(from_head(current)),
        ClaimError::Unavailable(failure) => return of_store(failure, Failure::Unavailable),
        ClaimError::Corrupt(corrupt) => Failure::Corrupt(from_corrupt(&corrupt)),
    })
}

pub(crate) fn claim_error(failure: proto::Failure, store: &str) -> ClaimError {
    let is_answer = failure.is_answer;
    let unavailable = |cause: &str| ClaimError::Unavailable(store_failure(is_answer, store, cause));
    match failure.failure {
        Some(Failure::Fenced(current)) => {
            head(current).map_or_else(|error| unavailable(&error.to_string()), |current| ClaimError::Fenced { current })
        }
        Some(Failure::Corrupt(found)) => {
            corrupt(&found).map_or_else(|error| unavailable(&error.to_string()), ClaimError::Corrupt)
        }
        other => unavailable(&cause_of(other)),
    }
}

pub(crate) fn from_read_error(error: ReadError) -> proto::Failure {
    message(match error {
        ReadError::Corrupt(corrupt) => Failure::Corrupt(from_corrupt(&corrupt)),
        ReadError::Unavailable(failure) => return of_store(failure, Failure::Unavailable),
    })
}

pub(crate) fn read_error(failure: proto::Failure, store: &str) -> ReadError {
    let is_answer = failure.is_answer;
    let unavailable = |cause: &str| ReadError::Unavailable(store_failure(is_answer, store, cause));
    match failure.failure {
        Some(Failure::Corrupt(found)) => {
            corrupt(&found).map_or_else(|error| unavailable(&error.to_string()), ReadError::Corrupt)
        }
        other => unavailable(&cause_of(other)),
    }
}

pub(crate) fn from_advance_error(error: AdvanceError) -> proto::Failure {
    message(match error {
        AdvanceError::Fenced { current } => Failure::Fenced(from_head(current)),
        AdvanceError::NotEmpty { highest } => Failure::Conflict(highest.as_u64()),
        AdvanceError::Unavailable(failure) => return of_store(failure, Failure::Unavailable),
    })
}

pub(crate) fn advance_error(failure: proto::Failure, store: &str) -> AdvanceError {
    let is_answer = failure.is_answer;
    let unavailable = |cause: &str| AdvanceError::Unavailable(store_failure(is_answer, store, cause));
    match failure.failure {
        Some(Failure::Fenced(current)) => head(current)
            .map_or_else(|error| unavailable(&error.to_string()), |current| AdvanceError::Fenced { current }),
        Some(Failure::Conflict(highest)) => AdvanceError::NotEmpty { highest: SeqNr::saturating(highest) },
        other => unavailable(&cause_of(other)),
    }
}

pub(crate) fn from_delete_error(error: DeleteError) -> proto::Failure {
    message(match error {
        DeleteError::Fenced { current } => Failure::Fenced(from_head(current)),
        DeleteError::Unavailable(failure) => return of_store(failure, Failure::Unavailable),
    })
}

pub(crate) fn delete_error(failure: proto::Failure, store: &str) -> DeleteError {
    let is_answer = failure.is_answer;
    let unavailable = |cause: &str| DeleteError::Unavailable(store_failure(is_answer, store, cause));
    match failure.failure {
        Some(Failure::Fenced(current)) => head(current)
            .map_or_else(|error| unavailable(&error.to_string()), |current| DeleteError::Fenced { current }),
        other => unavailable(&cause_of(other)),
    }
}

pub(crate) fn from_write_error(error: StateWriteError) -> proto::Failure {
    message(match error {
        StateWriteError::Rejected(reason) => Failure::StateRejected(from_state_reason(reason)),
        StateWriteError::NotStored(failure) => return of_store(failure, Failure::NotStored),
        StateWriteError::Unknown(failure) => return of_store(failure, Failure::Unknown),
        StateWriteError::RevisionMismatch { current } => Failure::RevisionMismatch(from_state_head(current)),
    })
}

pub(crate) fn write_error(failure: proto::Failure, store: &str) -> StateWriteError {
    let is_answer = failure.is_answer;
    let unknown = |cause: &str| StateWriteError::Unknown(store_failure(is_answer, store, cause));
    match failure.failure {
        Some(Failure::StateRejected(rejected)) => StateWriteError::Rejected(state_reason(rejected)),
        Some(Failure::NotStored(cause)) => StateWriteError::NotStored(store_failure(is_answer, store, cause)),
        Some(Failure::Unknown(cause)) => unknown(&cause),
        Some(Failure::RevisionMismatch(current)) => state_head(&current)
            .map_or_else(|error| unknown(&error.to_string()), |current| StateWriteError::RevisionMismatch { current }),
        other => unknown(&cause_of(other)),
    }
}

pub(crate) fn from_query_error(error: QueryError) -> proto::Failure {
    match error {
        QueryError::ForeignOffset { expected, found } => {
            let (expected, found) = (from_kind(expected).into(), from_kind(found).into());
            message(Failure::ForeignOffset(proto::ForeignOffset { expected, found }))
        }
        QueryError::Unsupported(why) => message(Failure::Unsupported(why)),
        QueryError::Read(error) => from_read_error(error),
    }
}

pub(crate) fn query_error(failure: proto::Failure, store: &str) -> QueryError {
    match failure.failure {
        Some(Failure::ForeignOffset(foreign)) => {
            QueryError::ForeignOffset { expected: kind(foreign.expected()), found: kind(foreign.found()) }
        }
        Some(Failure::Unsupported(why)) => QueryError::Unsupported(why),
        _ => QueryError::Read(read_error(failure, store)),
    }
}

pub(crate) fn from_offset_error(error: OffsetError) -> proto::Failure {
    message(match error {
        OffsetError::StaleOwner { projection, slice, own, current } => {
            let (slice, own, current) = (slice.into(), own.as_u64(), current.as_u64());
            Failure::StaleOwner(proto::StaleOwner { projection, slice, own, current })
        }
        OffsetError::NotOwned { projection, slice } => {
            Failure::NotOwned(proto::NotOwned { projection, slice: slice.into() })
        }
        OffsetError::ForeignOffset { expected, found } => {
            let (expected, found) = (from_kind(expected).into(), from_kind(found).into());
            Failure::ForeignOffset(proto::ForeignOffset { expected, found })
        }
        OffsetError::InvalidName => Failure::InvalidName(proto::Done {}),
        OffsetError::Corrupt { projection, kind } => {
            Failure::CorruptOffsets(proto::CorruptOffsets { projection, kind: from_corrupt_kind(kind).into() })
        }
        OffsetError::Unavailable(failure) => return of_store(failure, Failure::Unavailable),
    })
}

pub(crate) fn offset_error(failure: proto::Failure, store: &str) -> OffsetError {
    let is_answer = failure.is_answer;
    let unavailable = |cause: &str| OffsetError::Unavailable(store_failure(is_answer, store, cause));
    let epoch = OwnerEpoch::from_u64;
    match failure.failure {
        Some(Failure::StaleOwner(stale)) => match slice(stale.slice) {
            Ok(slice) => {
                let (own, current) = (epoch(stale.own), epoch(stale.current));
                OffsetError::StaleOwner { projection: stale.projection, slice, own, current }
            }
            Err(malformed) => unavailable(&malformed.to_string()),
        },
        Some(Failure::NotOwned(missing)) => match slice(missing.slice) {
            Ok(slice) => OffsetError::NotOwned { projection: missing.projection, slice },
            Err(malformed) => unavailable(&malformed.to_string()),
        },
        Some(Failure::ForeignOffset(foreign)) => {
            OffsetError::ForeignOffset { expected: kind(foreign.expected()), found: kind(foreign.found()) }
        }
        Some(Failure::InvalidName(proto::Done {})) => OffsetError::InvalidName,
        Some(Failure::CorruptOffsets(found)) => {
            OffsetError::Corrupt { kind: corrupt_kind(found.kind()), projection: found.projection }
        }
        other => unavailable(&cause_of(other)),
    }
}

fn cause_of(failure: Option<Failure>) -> String {
    match failure {
        Some(Failure::NotStored(cause) | Failure::Unknown(cause) | Failure::Unavailable(cause)) => cause,
        other => format!("the server sent an answer of another kind: {other:?}"),
    }
}

fn from_reason(reason: RejectReason) -> proto::Rejected {
    let mut rejected = proto::Rejected::default();
    let kind = match reason {
        RejectReason::Empty => Reason::Empty,
        RejectReason::TooManyEvents { count, max } => {
            (rejected.found, rejected.max) = (count as u64, max as u64);
            Reason::TooManyEvents
        }
        RejectReason::EventTooLarge { seq_nr, bytes, max } => {
            (rejected.seq_nr, rejected.found, rejected.max) = (seq_nr.as_u64(), bytes as u64, max as u64);
            Reason::EventTooLarge
        }
        RejectReason::InvalidManifest { seq_nr } => {
            rejected.seq_nr = seq_nr.as_u64();
            Reason::InvalidManifest
        }
        RejectReason::InvalidTags { seq_nr } => {
            rejected.seq_nr = seq_nr.as_u64();
            Reason::InvalidTags
        }
        RejectReason::FilteredPayload { seq_nr } => {
            rejected.seq_nr = seq_nr.as_u64();
            Reason::FilteredPayload
        }
        RejectReason::SeqNrOverflow => Reason::SeqNrOverflow,
        RejectReason::StorageLow(text) => {
            rejected.text = text;
            Reason::StorageLow
        }
        RejectReason::Other(text) => {
            rejected.text = text;
            Reason::Other
        }
    };
    rejected.set_reason(kind);
    rejected
}

fn reason(rejected: proto::Rejected) -> RejectReason {
    let seq_nr = seq_nr(rejected.seq_nr).unwrap_or(SeqNr::MAX);
    let (found, max) = (usize_of(rejected.found), usize_of(rejected.max));
    match rejected.reason() {
        Reason::Empty => RejectReason::Empty,
        Reason::TooManyEvents => RejectReason::TooManyEvents { count: found, max },
        Reason::EventTooLarge => RejectReason::EventTooLarge { seq_nr, bytes: found, max },
        Reason::InvalidManifest => RejectReason::InvalidManifest { seq_nr },
        Reason::InvalidTags => RejectReason::InvalidTags { seq_nr },
        Reason::FilteredPayload => RejectReason::FilteredPayload { seq_nr },
        Reason::SeqNrOverflow => RejectReason::SeqNrOverflow,
        Reason::StorageLow => RejectReason::StorageLow(rejected.text),
        Reason::Other => RejectReason::Other(rejected.text),
    }
}

fn from_state_reason(reason: StateRejectReason) -> proto::StateRejected {
    use proto::state_rejected::Reason;
    let mut rejected = proto::StateRejected::default();
    let kind = match reason {
        StateRejectReason::RevisionZero => Reason::RevisionZero,
        StateRejectReason::TooLarge { bytes, max } => {
            (rejected.bytes, rejected.max) = (bytes as u64, max as u64);
            Reason::TooLarge
        }
        StateRejectReason::InvalidManifest => Reason::InvalidManifest,
        StateRejectReason::InvalidTag => Reason::InvalidTag,
        StateRejectReason::RevisionOverflow => Reason::RevisionOverflow,
        StateRejectReason::StorageLow(text) => {
            rejected.text = text;
            Reason::StorageLow
        }
        StateRejectReason::Other(text) => {
            rejected.text = text;
            Reason::Other
        }
    };
    rejected.set_reason(kind);
    rejected
}

fn state_reason(rejected: proto::StateRejected) -> StateRejectReason {
    use proto::state_rejected::Reason;
    match rejected.reason() {
        Reason::RevisionZero => StateRejectReason::RevisionZero,
        Reason::TooLarge => {
            StateRejectReason::TooLarge { bytes: usize_of(rejected.bytes), max: usize_of(rejected.max) }
        }
        Reason::InvalidManifest => StateRejectReason::InvalidManifest,
        Reason::InvalidTag => StateRejectReason::InvalidTag,
        Reason::RevisionOverflow => StateRejectReason::RevisionOverflow,
        Reason::StorageLow => StateRejectReason::StorageLow(rejected.text),
        Reason::Other => StateRejectReason::Other(rejected.text),
    }
}
