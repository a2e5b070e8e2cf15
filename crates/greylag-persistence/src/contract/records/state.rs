//! Data types of a state store: revisions, writes, rows, and the rule by which a write is accepted.
//!
//! A durable state is one row for each id: a value and a revision that every write raises by one. A
//! write names the revision that it makes, so of two writers that read the same row only one can
//! succeed. A deletion leaves a tombstone with its revision, so that a writer that read the state before
//! cannot bring it back.
//!
//! ```text
//! get(id) --> StoredState { revision: n, value | tombstone, writer, generation }
//! upsert | delete (id, revision = n + 1, generation, writer) --> Ok | RevisionMismatch { current } | Unknown | …
//! ```
//! The trait that stores implement is [`StateStore`](crate::StateStore). Source: persistence §3.

use std::ops::RangeInclusive;

use bytes::Bytes;
use greylag_core::{CodecId, Generation};

use super::checksum::Checksum;
use super::codec::EncodedValue;
use super::event::{
    EventKind, MAX_MANIFEST_BYTES, MAX_TAG_BYTES, Metadata, StoredEvent, Timestamp, WriterEpoch, WriterUuid,
};
use super::persistence_id::PersistenceId;
use super::revision::{Revision, StateHead};
use crate::contract::error::StateRejectReason;
use crate::contract::journal::{Page, ReadRange};
use crate::contract::offset::{Offset, OffsetKind};
use crate::contract::query::EventsOf;
use crate::contract::scope::Scope;

/// The capabilities and limits of a state store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateCaps {
    /// The nodes that reach the data.
    pub scope: Scope,
    /// Largest payload of one state in bytes. Default 4 MiB.
    pub max_state_bytes: usize,
    /// The kind of offset that orders changes; `None` if the store has no change queries.
    pub changes: Option<OffsetKind>,
}

impl StateCaps {
    /// All capabilities, at the default limits.
    pub const fn full(scope: Scope, changes: OffsetKind) -> Self {
        Self { scope, max_state_bytes: 4 << 20, changes: Some(changes) }
    }
}

/// The key, revision and writer of a write; the content is passed beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateWrite {
    /// The id that the state belongs to.
    pub id: PersistenceId,
    /// The revision that this write makes: one more than the writer knows to be stored.
    pub revision: Revision,
    /// The ownership generation of the writer's shard, if there is one.
    pub generation: Option<Generation>,
    /// The writer's uuid, one for each incarnation.
    pub writer_uuid: WriterUuid,
}

impl StateWrite {
    /// Checks the limits that every store enforces before it reads the row.
    ///
    /// # Errors
    /// [`StateRejectReason`], naming the limit.
    pub fn check(
        &self,
        value: Option<&EncodedValue>,
        tag: Option<&str>,
        caps: &StateCaps,
    ) -> Result<(), StateRejectReason> {
        if self.revision.is_none() {
            return Err(StateRejectReason::RevisionZero);
        }
        if let Some(value) = value {
            let (bytes, max) = (value.payload.len(), caps.max_state_bytes);
            if bytes > max {
                return Err(StateRejectReason::TooLarge { bytes, max });
            }
            if value.manifest.is_empty() || value.manifest.len() > MAX_MANIFEST_BYTES {
                return Err(StateRejectReason::InvalidManifest);
            }
        }
        let fine = |tag: &str| (1..=MAX_TAG_BYTES).contains(&tag.len()) && !tag.chars().any(char::is_control);
        if tag.is_some_and(|tag| !fine(tag)) {
            return Err(StateRejectReason::InvalidTag);
        }
        Ok(())
    }

    /// The row that replaces `before` by this write, with its checksum. `content` is the new value and
    /// its tag; without it the row becomes a tombstone, which keeps the tag of the deleted value, so
    /// that readers that follow the tag see the deletion.
    pub fn row(
        &self,
        before: &StoredState,
        content: Option<(EncodedValue, Option<String>)>,
        timestamp: Timestamp,
    ) -> StoredState {
        let (value, tag) = match content {
            Some((value, tag)) => (Some(value), tag),
            None => (None, before.tag.clone()),
        };
        let mut row = StoredState {
            id: self.id.clone(),
            revision: self.revision,
            generation: before.generation.max(self.generation),
            writer_uuid: self.writer_uuid,
            timestamp,
            value,
            tag,
            crc32c: None,
        };
        row.crc32c = row.compute_crc32c();
        row
    }
}

/// A store's decision on a write; see [`StateHead::judge`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Store the write.
    Store,
    /// Answer Ok and store nothing: an earlier try of this very write is stored already.
    Repeat,
    /// Answer [`RevisionMismatch`](crate::StateWriteError::RevisionMismatch).
    Mismatch,
}

impl StateHead {
    /// Decides on `write`, whose value has the checksum `crc32c`: the rule of §3, for all stores.
    ///
    /// A repeat of the stored revision by its writer with its content passes first, whatever the
    /// generation: it is stored, and must not look as if it were not.
    pub fn judge(&self, write: &StateWrite, crc32c: Option<u32>) -> Verdict {
        let same = self.revision == write.revision && self.writer_uuid == write.writer_uuid && self.crc32c == crc32c;
        if same && !write.revision.is_none() {
            return Verdict::Repeat;
        }
        let follows = self.revision.next() == Some(write.revision);
        // A write without a generation is fenced by revisions alone, as a journal's claim is by epochs.
        let owns = write.generation.is_none_or(|generation| self.generation <= Some(generation));
        if follows && owns { Verdict::Store } else { Verdict::Mismatch }
    }
}

/// One state as a store keeps and returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredState {
    /// The id that the state belongs to.
    pub id: PersistenceId,
    /// Revision of the last write; [`Revision::NONE`] if the id was never written.
    pub revision: Revision,
    /// The greatest generation ever written with, if any.
    pub generation: Option<Generation>,
    /// Writer of the last write.
    pub writer_uuid: WriterUuid,
    /// When the last write was committed, by the store's clock.
    pub timestamp: Timestamp,
    /// The state; `None` if it was deleted, or never written.
    pub value: Option<EncodedValue>,
    /// Tag by which change queries find the state; a tombstone keeps the tag of the deleted value.
    pub tag: Option<String>,
    /// Checksum of the value; `None` for a tombstone. See [`StoredState::compute_crc32c`].
    pub crc32c: Option<u32>,
}

impl StoredState {
    /// The row of an id that was never written.
    pub fn absent(id: PersistenceId) -> Self {
        Self {
            id,
            revision: Revision::NONE,
            generation: None,
            writer_uuid: WriterUuid::NONE,
            timestamp: Timestamp::default(),
            value: None,
            tag: None,
            crc32c: None,
        }
    }

    /// The row without its value.
    pub fn head(&self) -> StateHead {
        let Self { revision, generation, writer_uuid, crc32c, .. } = *self;
        StateHead { revision, generation, writer_uuid, crc32c }
    }

    /// The checksum that the row should carry: CRC-32C over id, revision u64, `codec_id` u32,
    /// manifest, `schema_version` u32, payload and tag (its count, 0 or 1, before it), laid out as in
    /// [`StoredEvent::compute_crc32c`](crate::StoredEvent::compute_crc32c). Writer and time are left out:
    /// the store itself compares the one and sets the other. `None` for a tombstone.
    pub fn compute_crc32c(&self) -> Option<u32> {
        let value = self.value.as_ref()?;
        let mut crc = Checksum::new();
        crc.text(self.id.as_str());
        crc.u64(self.revision.as_u64());
        crc.u32(value.codec_id.as_u32());
        crc.text(&value.manifest);
        crc.u32(value.schema_version);
        crc.bytes(&value.payload);
        crc.len(usize::from(self.tag.is_some()));
        self.tag.iter().for_each(|tag| crc.text(tag));
        Some(crc.finish())
    }

    /// The row as the queries of a state store show it: a record whose number is the revision, under the tag
    /// of the state, with epoch zero. A deletion, and only a deletion, is [`EventKind::Filtered`] and has no payload.
    pub fn into_record(self) -> StoredEvent {
        let (kind, value) = match self.value {
            Some(value) => (EventKind::Event, value),
            None => {
                let (manifest, payload) = (String::new(), Bytes::new());
                (
                    EventKind::Filtered,
                    EncodedValue { codec_id: CodecId::INTERNAL, manifest, schema_version: 0, payload },
                )
            }
        };
        let mut record = StoredEvent {
            id: self.id,
            seq_nr: self.revision.into(),
            timestamp: self.timestamp,
            writer_uuid: self.writer_uuid,
            writer_epoch: WriterEpoch::NONE,
            codec_id: value.codec_id,
            manifest: value.manifest,
            schema_version: value.schema_version,
            kind,
            payload: value.payload,
            metadata: Metadata::new(),
            tags: self.tag.into_iter().collect(),
            crc32c: 0,
        };
        record.crc32c = record.compute_crc32c();
        record
    }

    /// The row as a page of its id's history, which is this one revision, if `range` contains it.
    pub fn into_page(self, range: ReadRange) -> Page {
        let is_meant = !self.revision.is_none() && (range.from..=range.to).contains(&self.revision.into());
        Page { records: is_meant.then(|| self.into_record()).into_iter().collect(), next: None }
    }

    /// Whether the row is whole and stands where it was written.
    pub fn is_intact(&self) -> bool {
        self.crc32c == self.compute_crc32c()
    }
}

/// The states whose changes to follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangesOf {
    /// States written with this tag, and their deletion.
    Tag(String),
    /// States of one entity type in these slices.
    Slices {
        /// As [`PersistenceId::entity_type`].
        entity_type: String,
        /// Slices of `0..SLICES`.
        slices: RangeInclusive<u16>,
    },
}

impl From<EventsOf> for ChangesOf {
    fn from(of: EventsOf) -> Self {
        match of {
            EventsOf::Tag(tag) => Self::Tag(tag),
            EventsOf::Slices { entity_type, slices } => Self::Slices { entity_type, slices },
        }
    }
}

impl ChangesOf {
    /// Whether the query covers this state.
    pub fn matches(&self, state: &StoredState) -> bool {
        match self {
            Self::Tag(tag) => state.tag.as_ref() == Some(tag),
            Self::Slices { entity_type, slices } => {
                state.id.entity_type() == entity_type && slices.contains(&state.id.slice())
            }
        }
    }
}

/// One change of one state: a write if there is a value, else a deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateChange {
    /// Offset to resume from after this change.
    pub offset: Offset,
    /// The row after the change.
    pub state: StoredState,
}

impl StateChange {
    /// Whether the state was deleted.
    pub fn is_deletion(&self) -> bool {
        self.state.value.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(payload: &'static [u8]) -> EncodedValue {
        let payload = Bytes::from_static(payload);
        EncodedValue { codec_id: CodecId::JSON, manifest: "counter".into(), schema_version: 1, payload }
    }

    fn write(revision: u32, generation: Option<u64>, writer: u128) -> StateWrite {
        StateWrite {
            id: "Counter|1".parse().unwrap(),
            revision: Revision::from(revision),
            generation: generation.map(|seq| Generation::new(1, seq).unwrap()),
            writer_uuid: WriterUuid::from_u128(writer),
        }
    }

    fn row() -> StoredState {
        let write = write(2, Some(5), 7);
        let content = Some((value(b"{}"), Some("red".to_owned())));
        write.row(&StoredState::absent(write.id.clone()), content, Timestamp::from_micros(1))
    }

    #[test]
    fn a_write_is_judged_by_revision_generation_and_writer() {
        let head = row().head();
        let (same, other) = (head.crc32c, Some(1));
        for (what, write, crc32c, verdict) in [
            ("the next revision", write(3, Some(5), 8), other, Verdict::Store),
            ("a greater generation", write(3, Some(6), 8), other, Verdict::Store),
            ("a smaller generation", write(3, Some(4), 8), other, Verdict::Mismatch),
            ("no generation where there was one", write(3, None, 7), other, Verdict::Store),
            ("a revision left out", write(4, Some(5), 7), other, Verdict::Mismatch),
            ("an old revision", write(1, Some(5), 7), other, Verdict::Mismatch),
            ("a repeat", write(2, Some(5), 7), same, Verdict::Repeat),
            ("a repeat under an older generation", write(2, Some(4), 7), same, Verdict::Repeat),
            ("the same revision by another writer", write(2, Some(5), 8), same, Verdict::Mismatch),
            ("the same revision with other content", write(2, Some(5), 7), other, Verdict::Mismatch),
            ("a deletion at the same revision", write(2, Some(5), 7), None, Verdict::Mismatch),
        ] {
            assert_eq!(head.judge(&write, crc32c), verdict, "{what}");
        }
        // An absent row does not count as a stored revision 0.
        assert_eq!(StateHead::default().judge(&write(0, None, 0), None), Verdict::Mismatch);
    }

    #[test]
    fn the_checksum_covers_the_value_and_its_place() {
        let whole = row();
        assert!(whole.is_intact());
        assert!(StoredState { timestamp: Timestamp::from_micros(2), ..whole.clone() }.is_intact());
        for (field, row) in [
            ("id", StoredState { id: "Counter|2".parse().unwrap(), ..whole.clone() }),
            ("revision", StoredState { revision: Revision::from(3), ..whole.clone() }),
            (
                "codec",
                StoredState { value: Some(EncodedValue { codec_id: CodecId::PROST, ..value(b"{}") }), ..whole.clone() },
            ),
            (
                "manifest",
                StoredState { value: Some(EncodedValue { manifest: "c".into(), ..value(b"{}") }), ..whole.clone() },
            ),
            (
                "version",
                StoredState { value: Some(EncodedValue { schema_version: 2, ..value(b"{}") }), ..whole.clone() },
            ),
            ("payload", StoredState { value: Some(value(b"[]")), ..whole.clone() }),
            ("tag", StoredState { tag: None, ..whole.clone() }),
            ("value", StoredState { value: None, ..whole.clone() }),
        ] {
            assert!(!row.is_intact(), "a changed {field} must be found out");
        }
        assert_eq!(whole.crc32c, Some(3_118_309_666), "stored rows carry it for ever");
    }

    #[test]
    fn a_tombstone_keeps_tag_and_greatest_generation() {
        let tombstone = write(3, None, 9).row(&row(), None, Timestamp::from_micros(2));
        assert_eq!((tombstone.tag.as_deref(), tombstone.crc32c), (Some("red"), None));
        assert_eq!(tombstone.generation, row().generation);
        assert!(tombstone.is_intact());
    }
}
