//! Numbers everything that a journal stores, and writes the commit records that name it.
//!
//! ```text
//! heads, events, rows of the group in hand ──▶ one commit record, or more if one value has no room for all
//! ```
//! Source: persistence §4.3.

use std::collections::HashMap;

use bytes::Bytes;
use greylag_persistence::{Head, PersistenceId, Timestamp};
use greylag_store_sled::{Batch, MAX_VALUE_BYTES};

use crate::rows::commit_record::{CommitRecord, CommittedAppend, CommittedRow};
use crate::rows::keys::{self, PidNo, TagNo};
use crate::rows::records::StoredHead;

/// Counters of the numbers that are given out in order; read back when the journal opens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counters {
    pub(super) next_pid: u64,
    pub(super) next_tag: u64,
    pub(super) next_commit: u64,
    pub(super) next_ordinal: u64,
}

/// The commit record of the group in hand, and the numbers that it gives out.
#[derive(Default)]
pub(super) struct CommitWriter {
    counters: Counters,
    tags: HashMap<String, TagNo>,
    record: CommitRecord,
    record_bytes: usize,
    /// Whether the group in hand changes anything.
    is_changed: bool,
}

impl CommitWriter {
    /// Continues where the store ends, with these tags and their numbers.
    pub(super) fn recovered(counters: Counters, tags: HashMap<String, TagNo>) -> Self {
        Self { counters, tags, ..Self::default() }
    }

    /// Begins a group.
    pub(super) fn begin_group(&mut self) {
        self.record = CommitRecord { first_ordinal: self.counters.next_ordinal, ..CommitRecord::default() };
        self.record_bytes = 0;
        self.is_changed = false;
    }

    /// Notes that the group in hand changes something, so that it gets a commit record.
    pub(super) fn on_change(&mut self) {
        self.is_changed = true;
    }

    pub(super) fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// The ordinal that the next event or change gets.
    pub(super) fn next_ordinal(&self) -> u64 {
        self.counters.next_ordinal
    }

    /// The number of the last commit.
    pub(super) fn last_commit(&self) -> u64 {
        self.counters.next_commit.saturating_sub(1)
    }

    /// The numbers of all tags.
    pub(super) fn tags(&self) -> &HashMap<String, TagNo> {
        &self.tags
    }

    /// The number of a tag; a new tag would get this number, which sorts behind all others.
    pub(super) fn tag(&self, tag: &str) -> TagNo {
        self.tags.get(tag).copied().unwrap_or(TagNo(self.counters.next_tag))
    }

    /// Gives `id` its number; the caller sets the head.
    pub(super) fn new_id(&mut self, id: &PersistenceId, batch: &mut Batch) -> StoredHead {
        let pid = PidNo(self.counters.next_pid);
        self.counters.next_pid += 1;
        batch.put(&keys::id(pid), id.as_str().as_bytes());
        StoredHead { pid, head: Head::default(), timestamp: Timestamp::default(), slice: id.slice() }
    }

    /// The numbers of these tags, ascending, each with its count among `tags`. A new tag gets a new number.
    pub(super) fn tag_numbers(&mut self, tags: &[&String], batch: &mut Batch) -> Vec<(TagNo, u64)> {
        let mut numbers: Vec<_> = tags.iter().map(|tag| self.tag_number(tag, batch)).collect();
        numbers.sort_unstable();
        numbers.chunk_by(|left, right| left == right).map(|same| (same[0], same.len() as u64)).collect()
    }

    fn tag_number(&mut self, tag: &str, batch: &mut Batch) -> TagNo {
        if let Some(number) = self.tags.get(tag) {
            return *number;
        }
        let number = TagNo(self.counters.next_tag);
        self.counters.next_tag += 1;
        batch.put(&keys::tag(tag), &number.0.to_be_bytes());
        self.tags.insert(tag.to_owned(), number);
        number
    }

    /// Notes events, which the caller stores next, in their order.
    pub(super) fn note_events(&mut self, committed: CommittedAppend, batch: &mut Batch) {
        self.make_room(committed.max_bytes(), batch);
        self.record_bytes += committed.max_bytes();
        self.record.appends.push(committed);
    }

    /// Takes the ordinal of the next event, and adds the checksum of the event to the digest of the record in hand.
    pub(super) fn next_event(&mut self, crc32c: u32) -> u64 {
        self.record.add_digest(crc32c);
        self.take_ordinal()
    }

    /// Notes a changed head.
    pub(super) fn note_head(&mut self, pid: PidNo, head: &[u8], batch: &mut Batch) {
        self.make_room(CommitRecord::HEAD_BYTES, batch);
        self.record_bytes += CommitRecord::HEAD_BYTES;
        self.record.heads.push((pid, crc32c::crc32c(head)));
    }

    /// The ordinal of a change of a state, whose row has this key. Ends the commit record in hand if it is full; the
    /// next record then begins with this ordinal.
    pub(super) fn next_change(&mut self, key: &[u8], batch: &mut Batch) -> u64 {
        self.make_room(CommittedRow::bytes_of(key), batch);
        self.record.changes += 1;
        self.take_ordinal()
    }

    /// Notes that a row is overwritten, or removed (`value` is `None`), so that an opening can check it.
    pub(super) fn note_row(&mut self, key: &[u8], value: Option<&[u8]>, batch: &mut Batch) {
        let bytes = CommittedRow::bytes_of(key);
        self.make_room(bytes, batch);
        self.record_bytes += bytes;
        let row = CommittedRow { key: Bytes::copy_from_slice(key), crc32c: value.map(crc32c::crc32c) };
        self.record.rows.push(row);
        self.is_changed = true;
    }

    /// Writes the commit record in hand.
    pub(super) fn finish_record(&mut self, batch: &mut Batch) {
        let record = std::mem::take(&mut self.record);
        self.record.first_ordinal = self.counters.next_ordinal;
        self.record_bytes = 0;
        batch.put(&keys::commit(self.counters.next_commit), &record.encode());
        self.counters.next_commit += 1;
    }

    /// Ends the commit record in hand if `bytes` more would not fit into one value.
    fn make_room(&mut self, bytes: usize, batch: &mut Batch) {
        const HEADER_BYTES: usize = 32;
        if self.record_bytes + bytes + HEADER_BYTES > MAX_VALUE_BYTES {
            self.finish_record(batch);
        }
    }

    fn take_ordinal(&mut self) -> u64 {
        let ordinal = self.counters.next_ordinal;
        self.counters.next_ordinal += 1;
        ordinal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tag keeps its number, and what a group notes lies in one record while there is room.
    #[test]
    fn numbers_are_given_out_in_order() {
        let mut batch = Batch::default();
        let counters = Counters { next_pid: 5, next_tag: 2, next_commit: 9, next_ordinal: 40 };
        let mut commits = CommitWriter::recovered(counters, HashMap::from([("old".to_owned(), TagNo(1))]));
        commits.begin_group();
        assert!(!commits.is_changed());
        let (old, new) = ("old".to_owned(), "new".to_owned());
        assert_eq!(commits.tag_numbers(&[&new, &old, &new], &mut batch), [(TagNo(1), 1), (TagNo(2), 2)]);
        assert_eq!((commits.tag("new"), commits.tag("newer")), (TagNo(2), TagNo(3)));
        assert_eq!((commits.next_event(1), commits.next_change(b"key", &mut batch)), (40, 41));
        commits.note_row(b"key", None, &mut batch);
        assert!(commits.is_changed());
        assert_eq!((commits.next_ordinal(), commits.last_commit()), (42, 8));
        commits.finish_record(&mut batch);
        assert_eq!(commits.last_commit(), 9);
    }
}
