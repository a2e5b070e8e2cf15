//! Failures of journal calls. One message serves all calls; each call reads the variants it knows
//! and takes any other for an unknown outcome, which is true of whatever it cannot understand.

use greylag_persistence::{
    AdvanceError, AppendError, ClaimError, DeleteError, ReadError, RejectReason, SeqNr, StoreFailure,
};

use super::{corrupt, from_corrupt, from_head, head, seq_nr, usize_of};
use crate::generated::{self as proto, failure::Failure, rejected::Reason};

fn message(failure: Failure) -> proto::Failure {
    proto::Failure { failure: Some(failure) }
}

pub(crate) fn from_append_error(error: AppendError) -> proto::Failure {
    message(match error {
        AppendError::Rejected(reason) => Failure::Rejected(from_reason(reason)),
        AppendError::NotStored(failure) => Failure::NotStored(failure.cause),
        AppendError::Unknown(failure) => Failure::Unknown(failure.cause),
        AppendError::Fenced { current } => Failure::Fenced(from_head(current)),
        AppendError::Conflict { highest } => Failure::Conflict(highest.as_u64()),
    })
}

pub(crate) fn append_error(failure: proto::Failure, store: &str) -> AppendError {
    let unknown = |cause: &str| AppendError::Unknown(StoreFailure::new(store, cause));
    match failure.failure {
        Some(Failure::Rejected(rejected)) => AppendError::Rejected(reason(rejected)),
        Some(Failure::NotStored(cause)) => AppendError::NotStored(StoreFailure::new(store, cause)),
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
        ClaimError::Unavailable(failure) => Failure::Unavailable(failure.cause),
        ClaimError::Corrupt(corrupt) => Failure::Corrupt(from_corrupt(&corrupt)),
    })
}

pub(crate) fn claim_error(failure: proto::Failure, store: &str) -> ClaimError {
    let unavailable = |cause: &str| ClaimError::Unavailable(StoreFailure::new(store, cause));
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
        ReadError::Unavailable(failure) => Failure::Unavailable(failure.cause),
    })
}

pub(crate) fn read_error(failure: proto::Failure, store: &str) -> ReadError {
    let unavailable = |cause: &str| ReadError::Unavailable(StoreFailure::new(store, cause));
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
        AdvanceError::Unavailable(failure) => Failure::Unavailable(failure.cause),
    })
}

pub(crate) fn advance_error(failure: proto::Failure, store: &str) -> AdvanceError {
    let unavailable = |cause: &str| AdvanceError::Unavailable(StoreFailure::new(store, cause));
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
        DeleteError::Unavailable(failure) => Failure::Unavailable(failure.cause),
    })
}

pub(crate) fn delete_error(failure: proto::Failure, store: &str) -> DeleteError {
    let unavailable = |cause: &str| DeleteError::Unavailable(StoreFailure::new(store, cause));
    match failure.failure {
        Some(Failure::Fenced(current)) => head(current)
            .map_or_else(|error| unavailable(&error.to_string()), |current| DeleteError::Fenced { current }),
        other => unavailable(&cause_of(other)),
    }
}

fn cause_of(failure: Option<Failure>) -> String {
    match failure {
        Some(Failure::NotStored(cause) | Failure::Unknown(cause) | Failure::Unavailable(cause)) => cause,
        other => format!("the server answered something else: {other:?}"),
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
