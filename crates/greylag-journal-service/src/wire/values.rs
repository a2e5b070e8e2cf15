//! Values that messages of every kind contain, and the error for an invalid one.

use greylag_persistence::{PersistenceId, SeqNr, WriterUuid};

/// An invalid message from outside: the sender is broken, or does not speak this protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed {0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

pub(crate) type Decoded<T> = Result<T, Malformed>;

pub(crate) fn id(id: &str) -> Decoded<PersistenceId> {
    PersistenceId::unique(id).map_err(|_| Malformed("persistence id"))
}

pub(crate) fn seq_nr(number: u64) -> Decoded<SeqNr> {
    SeqNr::new(number).ok_or(Malformed("sequence number"))
}

pub(crate) fn writer_uuid(bytes: &[u8]) -> Decoded<WriterUuid> {
    let bytes = bytes.try_into().map_err(|_| Malformed("writer uuid"))?;
    Ok(WriterUuid::from_u128(u128::from_be_bytes(bytes)))
}

pub(crate) fn from_writer_uuid(uuid: WriterUuid) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(&uuid.as_u128().to_be_bytes())
}

pub(crate) fn usize_of(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
