//! The appends of the group in hand: a repeat of one of them is answered from here (J10).

use greylag_persistence::{SeqNr, Timestamp, WriterUuid};

use crate::request::EncodedAppend;
use crate::rows::keys::PidNo;

/// The appends of a group so far.
#[derive(Default)]
pub(super) struct PlannedAppends(Vec<PlannedAppend>);

struct PlannedAppend {
    pid: PidNo,
    first: SeqNr,
    last: SeqNr,
    writer_uuid: WriterUuid,
    crcs: Vec<u32>,
    timestamp: Timestamp,
}

impl PlannedAppends {
    /// Begins a group; the memory of the group before is freed, since one group may be far larger than the next.
    pub(super) fn begin_group(&mut self) {
        self.0 = Vec::new();
    }

    /// Notes an append that the group stores.
    pub(super) fn note(&mut self, append: &EncodedAppend, pid: PidNo, timestamp: Timestamp) {
        let EncodedAppend { writer_uuid, first, last, events, .. } = append;
        let crcs = events.iter().map(|event| event.crc32c).collect();
        self.0.push(PlannedAppend { pid, first: *first, last: *last, writer_uuid: *writer_uuid, crcs, timestamp });
    }

    /// The timestamp of this very append, if the group stores it already.
    pub(super) fn find(&self, append: &EncodedAppend, pid: PidNo) -> Option<Timestamp> {
        let planned = self.0.iter().find(|planned| {
            (planned.pid, planned.first, planned.last) == (pid, append.first, append.last)
                && planned.writer_uuid == append.writer_uuid
                && planned.crcs.iter().eq(append.events.iter().map(|event| &event.crc32c))
        });
        planned.map(|planned| planned.timestamp)
    }
}
