//! The events that kept snapshots still need, because the snapshots left data to them (refill).
//!
//! Every snapshot carries in its metadata the first event that it needs, and that of each older
//! snapshot, so that an entity that starts from it knows which events retention must keep.
//! Source: persistence §2.8 (`replay_from`).

use std::collections::BTreeMap;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::contract::records::event::{Metadata, SeqNr};

/// Name of the snapshots' metadata entry.
const NAME: &str = "gl.replay_from";
const FORMAT: u8 = 1;

/// The first event that each snapshot needs of those that it reflects; whole snapshots have no entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Refills(BTreeMap<SeqNr, SeqNr>);

impl Refills {
    /// The first event that `snapshot` needs, if it needs any.
    pub(super) fn of(&self, snapshot: SeqNr) -> Option<SeqNr> {
        self.0.get(&snapshot).copied()
    }

    /// Notes a saved snapshot, which needs the events from `replay_from` on.
    pub(super) fn note(&mut self, snapshot: SeqNr, replay_from: Option<SeqNr>) {
        match replay_from.filter(|from| *from <= snapshot) {
            Some(from) => self.0.insert(snapshot, from.max(SeqNr::FIRST)),
            None => self.0.remove(&snapshot),
        };
    }

    /// Forgets the snapshots before `oldest`, which are deleted.
    pub(super) fn forget_before(&mut self, oldest: SeqNr) {
        self.0 = self.0.split_off(&oldest);
    }

    /// The last event up to `to` that no kept snapshot needs; zero if there is none.
    pub(super) fn deletable(&self, to: SeqNr) -> SeqNr {
        self.0.values().min().map_or(to, |needed| to.min(needed.previous()))
    }

    /// Writes the map into the metadata of a snapshot.
    pub(super) fn write(&self, metadata: &mut Metadata) {
        if self.0.is_empty() {
            return;
        }
        let mut bytes = BytesMut::with_capacity(1 + 16 * self.0.len());
        bytes.put_u8(FORMAT);
        for (snapshot, from) in &self.0 {
            bytes.put_u64(snapshot.as_u64());
            bytes.put_u64(from.as_u64());
        }
        metadata.insert(NAME.to_owned(), bytes.freeze());
    }

    /// Reads the map from the metadata of a snapshot.
    pub(super) fn read(metadata: &Metadata) -> Result<Self, String> {
        metadata.get(NAME).map_or(Ok(Self::default()), |bytes| Self::decode(bytes.clone()))
    }

    fn decode(mut bytes: Bytes) -> Result<Self, String> {
        if bytes.is_empty() || bytes.get_u8() != FORMAT || !bytes.len().is_multiple_of(16) {
            return Err(format!("malformed metadata {NAME:?}"));
        }
        let mut refills = Self::default();
        while bytes.has_remaining() {
            let (snapshot, from) = (SeqNr::saturating(bytes.get_u64()), SeqNr::saturating(bytes.get_u64()));
            refills.note(snapshot, Some(from));
        }
        Ok(refills)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refills(pairs: &[(u32, u32)]) -> Refills {
        let mut refills = Refills::default();
        pairs.iter().for_each(|(snapshot, from)| refills.note(SeqNr::from(*snapshot), Some(SeqNr::from(*from))));
        refills
    }

    /// Of persistence §2.8: nothing at or above a `replay_from` is deleted.
    #[test]
    fn events_that_a_kept_snapshot_needs_are_not_deleted() {
        let mut refills = refills(&[(10, 4), (20, 7)]);
        assert_eq!(refills.deletable(SeqNr::from(10)), SeqNr::from(3));
        assert_eq!(refills.deletable(SeqNr::from(2)), SeqNr::from(2));
        refills.forget_before(SeqNr::from(20));
        assert_eq!(refills.deletable(SeqNr::from(10)), SeqNr::from(6));
        refills.note(SeqNr::from(20), None);
        assert_eq!(refills.deletable(SeqNr::from(10)), SeqNr::from(10));
    }

    #[test]
    fn refills_round_trip_through_metadata() {
        for refills in [refills(&[]), refills(&[(10, 4), (20, 7)])] {
            let mut metadata = Metadata::new();
            refills.write(&mut metadata);
            assert_eq!(Refills::read(&metadata), Ok(refills));
        }
        for malformed in [&b""[..], b"\x02", b"\x01abc"] {
            let metadata = [(NAME.to_owned(), Bytes::copy_from_slice(malformed))].into();
            assert!(Refills::read(&metadata).is_err());
        }
    }
}
