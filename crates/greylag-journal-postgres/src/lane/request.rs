//! An append as its lane knows it.

use greylag_persistence::{PersistenceId, SeqNr, WriterEpoch, WriterUuid};

/// Number of an append within its lane; a later append has a larger number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AppendNo(pub(crate) u64);

/// An append as its lane knows it: without payloads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) no: AppendNo,
    pub(crate) id: PersistenceId,
    pub(crate) epoch: WriterEpoch,
    pub(crate) writer_uuid: WriterUuid,
    pub(crate) first: SeqNr,
    pub(crate) last: SeqNr,
    /// Checksum of the last event.
    pub(crate) crc32c: u32,
    pub(crate) bytes: usize,
}
