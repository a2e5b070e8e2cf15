//! What became of an append that a statement did not store: told by its head, and by the event that
//! stands in the place of its last one.

use std::time::Duration;

use greylag_persistence::{AppendError, Appended, Head, Timestamp, WriterEpoch, WriterUuid};

use super::Request;

/// What stands in the database about one append; head and event of one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Of the id; the default if it was never claimed.
    pub(crate) head: Head,
    /// The event under the append's last number.
    pub(crate) last: Option<StoredLast>,
    /// By how much the server's clock is behind the latest event of all, or of this id.
    pub(crate) clock_behind: Duration,
}

/// What tells an event from every other.
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
    /// The append would be stored now: what stood in its way has gone.
    Again,
    /// The server's clock is behind by so much, and would give the event too late a time.
    ClockBehind(Duration),
}

/// The rule of persistence §4.4 and J10. `unanswered`: an earlier try was sent, and its outcome is unknown.
pub(super) fn verdict(request: &Request, found: Option<&Found>, unanswered: bool, max_clock_lag: Duration) -> Verdict {
    let Some(Found { head, last, clock_behind }) = found else {
        return Verdict::Unknown("not stored by this try; the head that tells about earlier ones cannot be read");
    };
    let is_ours = |last: &&StoredLast| last.writer_uuid == request.writer_uuid && last.crc32c == request.crc32c;
    // Before the fence: what an earlier try stored is stored, even if another writer has claimed since.
    if let Some(stored) = last.as_ref().filter(is_ours) {
        return Verdict::Answer(Ok(Appended { timestamp: stored.timestamp }));
    }
    if unanswered && request.last <= head.deleted_to {
        return Verdict::Unknown("an earlier try went unanswered, and events up to its number are deleted");
    }
    // Without a claim no writer may write, whatever epoch it names.
    if head.epoch != request.epoch || head.epoch == WriterEpoch::NONE {
        return Verdict::Answer(Err(AppendError::Fenced { current: *head }));
    }
    if head.highest.next() == Some(request.first) {
        return if *clock_behind > max_clock_lag { Verdict::ClockBehind(*clock_behind) } else { Verdict::Again };
    }
    if unanswered {
        return Verdict::Unknown("an earlier try went unanswered, and another append stands in its place");
    }
    Verdict::Answer(Err(AppendError::Conflict { highest: head.highest }))
}
