//! Keys of the journal: one tree, the first byte is the space, integers big-endian.
//!
//! Keys of events and snapshots have a dense number of the id instead of the id itself, so that an id that is a
//! prefix of another never meets that id's records, and keys stay short. `docs/formats/journal-sled.md`
//! describes the format. Source: persistence §4.3.

use std::ops::RangeInclusive;

use greylag_persistence::{PersistenceId, Revision, SeqNr};

/// Magic, version and the uuid of this store.
pub(crate) const FORMAT: &[u8] = &[0x00];
/// Last commit up to which an earlier opening verified the sequence.
pub(crate) const VERIFIED: &[u8] = &[0x00, 0x01];

const HEAD: u8 = 0x01;
const EVENT: u8 = 0x02;
const EVENT_CHUNK: u8 = 0x03;
const COMMIT: u8 = 0x04;
const TAG: u8 = 0x05;
const TAG_ROW: u8 = 0x06;
const ID: u8 = 0x07;
const SWEEP: u8 = 0x08;
const SNAPSHOT: u8 = 0x10;
const SNAPSHOT_CHUNK: u8 = 0x11;
const STATE: u8 = 0x20;
const CHANGE: u8 = 0x21;
const STATE_CHUNK: u8 = 0x22;
const OFFSETS: u8 = 0x30;

/// The dense number of a persistence id, given when it is first seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PidNo(pub(crate) u64);

/// The number of a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TagNo(pub(crate) u64);

/// Names the chunks of one save, so that saving a number again never mixes old and new chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SaveNo(pub(crate) u64);

fn key(space: u8, numbers: &[u64]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + 8 * numbers.len() + 2);
    key.push(space);
    for number in numbers {
        key.extend_from_slice(&number.to_be_bytes());
    }
    key
}

fn text_key(space: u8, text: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + text.len());
    key.push(space);
    key.extend_from_slice(text.as_bytes());
    key
}

fn with_chunk(mut key: Vec<u8>, chunk: u16) -> Vec<u8> {
    key.extend_from_slice(&chunk.to_be_bytes());
    key
}

pub(crate) fn head(id: &PersistenceId) -> Vec<u8> {
    text_key(HEAD, id.as_str())
}

/// Bounds of the heads after `after`; only those of `entity_type` if it is given and not empty.
pub(crate) fn heads(entity_type: Option<&str>, after: Option<&PersistenceId>) -> (Vec<u8>, Vec<u8>) {
    // `|` ends the type in a key.
    let bound = |entity_type: &str, end: u8| [&text_key(HEAD, entity_type)[..], &[end]].concat();
    let (first, end) = match entity_type.filter(|entity_type| !entity_type.is_empty()) {
        Some(entity_type) => (bound(entity_type, b'|'), bound(entity_type, b'|' + 1)),
        None => (vec![HEAD], end(HEAD).to_vec()),
    };
    let after = after.map(|after| [&head(after)[..], &[0]].concat());
    (after.map_or(first.clone(), |after| after.max(first)), end)
}

pub(crate) fn event(pid: PidNo, seq_nr: SeqNr) -> Vec<u8> {
    key(EVENT, &[pid.0, seq_nr.as_u64()])
}

pub(crate) fn event_chunk(pid: PidNo, seq_nr: SeqNr, chunk: u16) -> Vec<u8> {
    with_chunk(key(EVENT_CHUNK, &[pid.0, seq_nr.as_u64()]), chunk)
}

pub(crate) fn commit(commit_no: u64) -> Vec<u8> {
    key(COMMIT, &[commit_no])
}

pub(crate) fn tag(tag: &str) -> Vec<u8> {
    text_key(TAG, tag)
}

pub(crate) fn tag_row(tag: TagNo, ordinal: u64) -> Vec<u8> {
    key(TAG_ROW, &[tag.0, ordinal])
}

pub(crate) fn id(pid: PidNo) -> Vec<u8> {
    key(ID, &[pid.0])
}

pub(crate) fn sweep(pid: PidNo) -> Vec<u8> {
    key(SWEEP, &[pid.0])
}

pub(crate) fn snapshot(pid: PidNo, seq_nr: SeqNr) -> Vec<u8> {
    key(SNAPSHOT, &[pid.0, seq_nr.as_u64()])
}

pub(crate) fn snapshot_chunk(pid: PidNo, seq_nr: SeqNr, save: SaveNo, chunk: u16) -> Vec<u8> {
    with_chunk(key(SNAPSHOT_CHUNK, &[pid.0, seq_nr.as_u64(), save.0]), chunk)
}

pub(crate) fn state(id: &PersistenceId) -> Vec<u8> {
    text_key(STATE, id.as_str())
}

/// Bounds of the states after `after`.
pub(crate) fn states(after: Option<&PersistenceId>) -> (Vec<u8>, Vec<u8>) {
    (after.map_or_else(|| vec![STATE], |after| [&state(after)[..], &[0]].concat()), end(STATE).to_vec())
}

/// Key of one chunk of a state. Ids have no control characters, so a zero byte ends the id.
pub(crate) fn state_chunk(id: &PersistenceId, revision: Revision, chunk: u16) -> Vec<u8> {
    let mut key = text_key(STATE_CHUNK, id.as_str());
    key.push(0);
    key.extend_from_slice(&revision.as_u64().to_be_bytes());
    with_chunk(key, chunk)
}

/// Key of the state change with this ordinal.
pub(crate) fn change(ordinal: u64) -> Vec<u8> {
    key(CHANGE, &[ordinal])
}

/// Key of the offsets of one slice of a projection. Names have no control characters, so a zero byte ends the name.
pub(crate) fn offsets(projection: &str, slice: u16) -> Vec<u8> {
    let mut key = text_key(OFFSETS, projection);
    key.push(0);
    key.extend_from_slice(&slice.to_be_bytes());
    key
}

/// Bounds of the offsets of these slices of a projection.
pub(crate) fn offsets_of(projection: &str, slices: &RangeInclusive<u16>) -> (Vec<u8>, Vec<u8>) {
    let end = [&offsets(projection, *slices.end())[..], &[0]].concat();
    (offsets(projection, *slices.start()), end)
}

/// Bounds of the snapshots of an id.
pub(crate) fn snapshots(pid: PidNo) -> (Vec<u8>, Vec<u8>) {
    (key(SNAPSHOT, &[pid.0]), key(SNAPSHOT, &[pid.0.saturating_add(1)]))
}

/// Bounds of the events of an id.
pub(crate) fn events(pid: PidNo) -> (Vec<u8>, Vec<u8>) {
    (key(EVENT, &[pid.0]), key(EVENT, &[pid.0.saturating_add(1)]))
}

/// Bounds of the events of all ids.
pub(crate) fn all_events() -> (Vec<u8>, Vec<u8>) {
    (vec![EVENT], end(EVENT).to_vec())
}

/// The id in the key of a head.
pub(crate) fn head_id(key: &[u8]) -> Option<PersistenceId> {
    let id = std::str::from_utf8(key.strip_prefix(&[HEAD])?).ok()?;
    PersistenceId::unique(id).ok()
}

/// The projection and the slice in the key of offsets.
pub(crate) fn offsets_slice(key: &[u8]) -> Option<(String, u16)> {
    let (name, slice) = key.strip_prefix(&[OFFSETS])?.split_last_chunk::<2>()?;
    let name = std::str::from_utf8(name.strip_suffix(&[0])?).ok()?;
    Some((name.to_owned(), u16::from_be_bytes(*slice)))
}

/// An end that sorts behind every key of a space: no text has such a byte, and no number becomes that large.
///
/// The next space's first byte would be an end, too. But a page of the engine may begin there, and an iteration up
/// to that byte then reads a page of the next space, which may be damaged.
const fn end(space: u8) -> [u8; 10] {
    let mut end = [0xff; 10];
    end[0] = space;
    end
}

/// Bounds of a whole space, for iteration.
pub(crate) fn space(space: Space) -> ([u8; 1], [u8; 10]) {
    let first = match space {
        Space::Commits => COMMIT,
        Space::Tags => TAG,
        Space::Ids => ID,
        Space::Sweeps => SWEEP,
        Space::SnapshotChunks => SNAPSHOT_CHUNK,
        Space::Changes => CHANGE,
        Space::Heads => HEAD,
        Space::States => STATE,
        Space::Offsets => OFFSETS,
        Space::All => return ([HEAD], end(0xfe)),
    };
    ([first], end(first))
}

/// Spaces that are read whole, when the journal is opened or verified.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Space {
    Commits,
    Tags,
    Ids,
    Sweeps,
    SnapshotChunks,
    /// At an opening read only from where the latest commits begin.
    Changes,
    Heads,
    States,
    Offsets,
    /// Every space but that of the format record.
    All,
}

/// The id in the key of a durable state; `None` if the key is of another space.
pub(crate) fn state_id(key: &[u8]) -> Option<PersistenceId> {
    let id = std::str::from_utf8(key.strip_prefix(&[STATE])?).ok()?;
    PersistenceId::unique(id).ok()
}

/// The key in hexadecimal.
pub(crate) fn hex(key: &[u8]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The number at index `at` of a key; `None` if the key is too short.
pub(crate) fn number(key: &[u8], at: usize) -> Option<u64> {
    let bytes = key.get(1 + 8 * at..)?.first_chunk::<8>()?;
    Some(u64::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_as_the_format_says() {
        let (pid, seq_nr) = (PidNo(1), SeqNr::from(2));
        let id: PersistenceId = "a|b".parse().unwrap();
        assert_eq!(head(&id), b"\x01a|b");
        assert_eq!(event(pid, seq_nr), b"\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02");
        assert_eq!(event_chunk(pid, seq_nr, 3), b"\x03\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\x03");
        assert_eq!(commit(258), b"\x04\0\0\0\0\0\0\x01\x02");
        assert_eq!(tag("red"), b"\x05red");
        assert_eq!(state(&id), b"\x20a|b");
        assert_eq!(change(258), b"\x21\0\0\0\0\0\0\x01\x02");
        assert_eq!(state_chunk(&id, Revision::from(2), 3), b"\x22a|b\0\0\0\0\0\0\0\0\x02\0\x03");
        assert_eq!(offsets("sums", 258), b"\x30sums\0\x01\x02");
        assert_eq!(number(&event(pid, seq_nr), 1), Some(2));
        assert_eq!(number(&commit(1), 1), None);
    }
}
