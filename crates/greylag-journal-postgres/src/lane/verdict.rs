//! The fate of an append that a statement did not store, as told by its id's head and by the stored event with the
//! append's last number.

use std::time::Duration;

use greylag_persistence::{AppendError, Appended, Head, Timestamp, WriterEpoch, WriterUuid};

use super::request::Request;

/// The stored head and event for one append, read at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Head of the id; the default if it was never claimed.
    pub(crate) head: Head,
    /// The stored event with the append's last number.
    pub(crate) last: Option<StoredLast>,
    /// Lag of the server's clock behind the latest event of all, or of this id.
    pub(crate) clock_behind: Duration,
}

/// The fields that identify an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoredLast {
    pub(crate) writer_uuid: WriterUuid,
    pub(crate) crc32c: u32,
    pub(crate) timestamp: Timestamp,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Answer(Result<Appended, AppendError>),
    Unknown(&'static str),
    /// The append would be stored now: try it again.
    Retry,
    /// The server's clock is behind by this much: the event would get a time too far ahead of it.
    ClockBehind(Duration),
}

/// The rule of persistence §4.4 and J10. `unanswered`: an earlier try was sent, and its outcome is unknown.
pub(super) fn verdict(request: &Request, found: Option<&Found>, unanswered: bool, max_clock_lag: Duration) -> Verdict {
    let Some(Found { head, last, clock_behind }) = found else {
        return Verdict::Unknown(
            "not stored by this try; the head, which tells whether an earlier try stored it, cannot be read",
        );
    };
    let is_ours = |last: &&StoredLast| last.writer_uuid == request.writer_uuid && last.crc32c == request.crc32c;
    // Checked before the fence: an append that an earlier try stored is stored, even if another writer has claimed
    // since.
    if let Some(stored) = last.as_ref().filter(is_ours) {
        return Verdict::Answer(Ok(Appended { timestamp: stored.timestamp }));
    }
    if unanswered && request.last <= head.deleted_to {
        return Verdict::Unknown("an earlier try was not answered, and events up to its number are deleted");
    }
    // An id without a claim admits no writer, whatever epoch the append has.
    if head.epoch != request.epoch || head.epoch == WriterEpoch::NONE {
        return Verdict::Answer(Err(AppendError::Fenced { current: *head }));
    }
    if head.highest.next() == Some(request.first) {
        return if *clock_behind > max_clock_lag { Verdict::ClockBehind(*clock_behind) } else { Verdict::Retry };
    }
    if unanswered {
        return Verdict::Unknown("an earlier try was not answered, and another append has its numbers");
    }
    Verdict::Answer(Err(AppendError::Conflict { highest: head.highest }))
}
