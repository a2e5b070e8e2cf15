//! A shard's remembered entities as bytes of its journal: events, and snapshots of the resulting set.
//!
//! A record that cannot be read, or whose kind this version does not know, is refused whole. Source: sharding §4.8.

use std::collections::BTreeSet;

use greylag_core::DecodeError;
use prost::Message;

use crate::generated as proto;
use crate::generated::remembered_event::{Body, EntityIds};
use crate::ids::EntityId;

/// Manifest of an event.
pub const EVENT_MANIFEST: &str = "greylag.sharding.remembered.event";
/// Manifest of a snapshot.
pub const SNAPSHOT_MANIFEST: &str = "greylag.sharding.remembered.snapshot";
/// Version of both formats.
pub const SCHEMA_VERSION: u32 = 1;

/// One event of a shard's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RememberedEvent {
    /// These entities are remembered from here on.
    Started(Vec<EntityId>),
    /// These entities are forgotten from here on.
    Stopped(Vec<EntityId>),
}

impl RememberedEvent {
    /// Applies the event. An id that is remembered, or forgotten, already changes nothing.
    pub fn apply(self, remembered: &mut BTreeSet<EntityId>) {
        match self {
            Self::Started(ids) => remembered.extend(ids),
            Self::Stopped(ids) => ids.iter().for_each(|id| {
                remembered.remove(id);
            }),
        }
    }
}

/// The stored form of an event.
pub fn encode_event(event: &RememberedEvent) -> Vec<u8> {
    let entities = |ids: &[EntityId]| EntityIds { ids: ids.iter().map(ToString::to_string).collect() };
    let body = match event {
        RememberedEvent::Started(ids) => Body::Started(entities(ids)),
        RememberedEvent::Stopped(ids) => Body::Stopped(entities(ids)),
    };
    proto::RememberedEvent { body: Some(body) }.encode_to_vec()
}

/// Reads what [`encode_event`] wrote.
///
/// # Errors
/// [`DecodeError`], also for an event that only a later version knows.
pub fn decode_event(bytes: &[u8]) -> Result<RememberedEvent, DecodeError> {
    let malformed = |error: &dyn std::fmt::Display| DecodeError::malformed(EVENT_MANIFEST, error);
    let event = proto::RememberedEvent::decode(bytes).map_err(|error| malformed(&error))?;
    match event.body.ok_or_else(|| malformed(&"its kind is missing"))? {
        Body::Started(entities) => Ok(RememberedEvent::Started(read_ids(entities.ids, EVENT_MANIFEST)?)),
        Body::Stopped(entities) => Ok(RememberedEvent::Stopped(read_ids(entities.ids, EVENT_MANIFEST)?)),
    }
}

/// The stored form of all remembered ids.
pub fn encode_snapshot(remembered: &BTreeSet<EntityId>) -> Vec<u8> {
    proto::RememberedSnapshot { ids: remembered.iter().map(ToString::to_string).collect() }.encode_to_vec()
}

/// Reads what [`encode_snapshot`] wrote.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_snapshot(bytes: &[u8]) -> Result<BTreeSet<EntityId>, DecodeError> {
    let read =
        proto::RememberedSnapshot::decode(bytes).map_err(|error| DecodeError::malformed(SNAPSHOT_MANIFEST, error))?;
    Ok(read_ids(read.ids, SNAPSHOT_MANIFEST)?.into_iter().collect())
}

fn read_ids(ids: Vec<String>, manifest: &str) -> Result<Vec<EntityId>, DecodeError> {
    let read = |id: String| EntityId::new(id).map_err(|reason| DecodeError::malformed(manifest, reason));
    ids.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[&str]) -> Vec<EntityId> {
        ids.iter().map(|id| EntityId::new(*id).unwrap()).collect()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The bytes are those of docs/formats/remembered-entities.md: every later release must read journals of this one.
    #[test]
    fn the_format_is_the_documented_one_and_reads_back() {
        let page = include_str!("../../../../docs/formats/remembered-entities.md");
        let (started, stopped) =
            (RememberedEvent::Started(ids(&["a", "job-7"])), RememberedEvent::Stopped(ids(&["a"])));
        let snapshot = ids(&["a", "job-7"]).into_iter().collect();
        let all = [encode_event(&started), encode_event(&stopped), encode_snapshot(&snapshot)];
        let missing: Vec<_> =
            all.iter().map(|bytes| hex(bytes)).filter(|hex| !page.contains(&format!("`{hex}`"))).collect();
        assert!(missing.is_empty(), "not on the page: {missing:#?}");
        assert_eq!(decode_event(&all[0]), Ok(started));
        assert_eq!(decode_event(&all[1]), Ok(stopped));
        assert_eq!(decode_snapshot(&all[2]), Ok(snapshot));
    }

    #[test]
    fn records_of_a_later_version_and_invalid_bytes_are_refused() {
        for bytes in [&[][..], &[0x7a, 0x00], &[0x0a, 0x02, 0x0a, 0x00], &[0xff]] {
            assert!(decode_event(bytes).is_err(), "{bytes:?}");
        }
        assert!(decode_snapshot(&[0x0a, 0x00]).is_err(), "an id without a letter");
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_are_refused_without_a_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = decode_event(&bytes);
            let _ = decode_snapshot(&bytes);
        }
    }
}
