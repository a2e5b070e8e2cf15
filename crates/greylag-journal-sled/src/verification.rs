//! Checks that everything is there that was stored since the last opening, and the latest before it.
//!
//! sled takes damage in the part of its log that no snapshot of its own covers yet for a torn write, and opens
//! without what follows: up to the end of the log, or of a segment in its middle, which is a *hole*. So at each
//! opening the commit records, numbered without a gap, are walked from the last verified one to the end, what
//! they wrote over is looked up, and the digests of the latest are compared with the events. A record that is
//! there but damaged passes: its readers are told of it (J11, J12). Source: persistence §4.3 (open).

use std::collections::HashMap;

use bytes::Bytes;
use greylag_persistence::{PersistenceId, SeqNr};
use greylag_store_sled::{Reader, StoreError};

use crate::lookup::{self, LookupError};
use crate::rows::commit_record::{CommitRecord, CommittedAppend};
use crate::rows::keys::{self, PidNo, Space};
use crate::rows::records::{EventRow, Row, StoredHead, Verified};
use crate::rows::state_row::{ChangeRow, StateRow};

/// Up to which commit everything is there; from the one after `verified` on, and the last `digests`.
pub(crate) fn verify(verified: Verified, digests: u64, reader: &Reader) -> Result<Verified, StoreError> {
    let mut chain = Chain { verified, ..Chain::default() };
    let last = last_commit(reader)?;
    if last < verified.commit_no {
        return Err(StoreError::TailLost { guard: verified.commit_no, found: last });
    }
    for record in records(verified.commit_no + 1, reader) {
        let (number, commit) = record?;
        chain.follow(number, commit)?;
    }
    let mut heads = Heads::new(reader);
    for (pid, written) in chain.heads {
        heads.check(pid, written)?;
    }
    for (key, written) in chain.rows {
        check_row(&key, written, reader)?;
    }
    for record in records(verified.commit_no + 1, reader) {
        let (number, commit) = record?;
        check_tag_rows(number, &commit, &mut heads)?;
    }
    let first = chain.verified.commit_no.saturating_sub(digests) + 1;
    for record in records(first, reader) {
        let (number, commit) = record?;
        check_digest(number, &commit, &mut heads)?;
    }
    if let Some(record) = records(first, reader).next() {
        check_changes(record?.1.first_ordinal, reader)?;
    }
    Ok(chain.verified)
}

/// The number of the last commit; 0 if there is none.
fn last_commit(reader: &Reader) -> Result<u64, StoreError> {
    let (from, to) = keys::space(Space::Commits);
    let Some(last) = reader.range(&from, &to).next_back() else { return Ok(0) };
    let (number, commit) = read_record(last)?;
    Ok(number + commit.merged)
}

/// Commit records from this number on.
pub(crate) fn records(
    first: u64,
    reader: &Reader,
) -> impl Iterator<Item = Result<(u64, CommitRecord), StoreError>> + use<> {
    let (_, end) = keys::space(Space::Commits);
    reader.range(&keys::commit(first), &end).map(read_record)
}

fn read_record(record: Result<(Bytes, Bytes), StoreError>) -> Result<(u64, CommitRecord), StoreError> {
    let (key, value) = record?;
    let record = keys::number(&key, 0).zip(CommitRecord::decode(value));
    record.ok_or_else(|| StoreError::corrupt("unreadable commit record"))
}

/// The value that a commit left under a key; the last one counts.
#[derive(Debug, Clone, Copy)]
struct Written {
    commit_no: u64,
    /// `None` if the commit removed the key.
    crc32c: Option<u32>,
}

impl Written {
    fn is(self, value: Option<&Bytes>) -> bool {
        value.map(|value| crc32c::crc32c(value)) == self.crc32c
    }

    fn lost(self, what: impl std::fmt::Display) -> StoreError {
        StoreError::corrupt(format!("{what} is not what commit {} left", self.commit_no))
    }
}

/// The commits so far.
#[derive(Default)]
pub(crate) struct Chain {
    verified: Verified,
    heads: HashMap<PidNo, Written>,
    rows: HashMap<Bytes, Written>,
}

impl Chain {
    fn follow(&mut self, commit_no: u64, commit: CommitRecord) -> Result<(), StoreError> {
        let expected = self.verified.commit_no + 1;
        if commit_no != expected {
            return Err(StoreError::CommitGap { missing: expected, found: commit_no });
        }
        if commit.first_ordinal != self.verified.next_ordinal {
            return Err(StoreError::corrupt(format!("commit {expected} does not continue the order of events")));
        }
        let next = commit_no.checked_add(commit.merged).zip(commit.next_ordinal());
        let (last, next_ordinal) = next.ok_or_else(|| StoreError::corrupt("unreadable commit record"))?;
        self.verified = Verified { commit_no: last, next_ordinal };
        self.note(commit_no, commit);
        Ok(())
    }

    /// Takes over what a commit left, whether the ones before it are there or not.
    pub(crate) fn note(&mut self, commit_no: u64, commit: CommitRecord) {
        if commit.merged > 0 {
            // The merged commits may have written over earlier heads and rows, and their names of these are gone.
            self.heads.clear();
            self.rows.clear();
        }
        for (pid, crc32c) in commit.heads {
            self.heads.insert(pid, Written { commit_no, crc32c: Some(crc32c) });
        }
        for row in commit.rows {
            self.rows.insert(row.key, Written { commit_no, crc32c: row.crc32c });
        }
    }

    /// The heads and rows that are not what the last commit left that names them.
    pub(crate) fn lost(&self, heads: &Heads<'_>) -> Vec<StoreError> {
        let of_heads = self.heads.iter().map(|(pid, written)| heads.check(*pid, *written));
        let of_rows = self.rows.iter().map(|(key, written)| check_row(key, *written, heads.reader));
        of_heads.chain(of_rows).filter_map(Result::err).collect()
    }
}

/// Heads by the numbers that commit records name.
pub(crate) struct Heads<'a> {
    pub(crate) reader: &'a Reader,
    known: HashMap<PidNo, Option<StoredHead>>,
}

impl<'a> Heads<'a> {
    pub(crate) fn new(reader: &'a Reader) -> Self {
        Self { reader, known: HashMap::new() }
    }

    /// Up to where the events of `pid` are deleted; `None` if its head is damaged.
    pub(crate) fn deleted_to(&mut self, pid: PidNo) -> Result<Option<SeqNr>, StoreError> {
        if let Some(known) = self.known.get(&pid) {
            return Ok(known.map(|stored| stored.head.deleted_to));
        }
        let value = match self.value(pid) {
            Err(error) if error.is_corruption() && !matches!(error, StoreError::Corrupt(_)) => None,
            value => Some(value?.1),
        };
        let head = value.and_then(StoredHead::decode);
        self.known.insert(pid, head);
        Ok(head.map(|stored| stored.head.deleted_to))
    }

    fn check(&self, pid: PidNo, written: Written) -> Result<(), StoreError> {
        match self.value(pid) {
            Ok((id, value)) if !written.is(Some(&value)) => Err(written.lost(format_args!("the head of {id}"))),
            Err(error @ StoreError::Corrupt(_)) => Err(error),
            Err(error) if !error.is_corruption() => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn value(&self, pid: PidNo) -> Result<(PersistenceId, Bytes), StoreError> {
        let unknown = || StoreError::corrupt(format!("id number {} of a commit is not known", pid.0));
        let id = self.reader.get(&keys::id(pid))?.ok_or_else(unknown)?;
        let id = std::str::from_utf8(&id).ok().and_then(|id| PersistenceId::unique(id).ok()).ok_or_else(unknown)?;
        let value = self.reader.get(&keys::head(&id))?.ok_or_else(unknown)?;
        Ok((id, value))
    }
}

fn check_row(key: &[u8], written: Written, reader: &Reader) -> Result<(), StoreError> {
    let lost = || written.lost(format_args!("the record under key {}", keys::hex(key)));
    let value = match reader.get(key) {
        // The record is there but damaged: its readers are told.
        Err(error) if error.is_corruption() => return Ok(()),
        value => value?,
    };
    if !written.is(value.as_ref()) {
        return Err(lost());
    }
    // A state has its place in the order of changes, for readers that follow them.
    let (Some(id), Some(value)) = (keys::state_id(key), value) else { return Ok(()) };
    let Some(stored) = Row::decode(value).and_then(|row| StateRow::decode(&id, row.content)) else { return Ok(()) };
    match reader.get(&keys::change(stored.ordinal)) {
        Ok(None) => Err(lost()),
        Err(error) if !error.is_corruption() => Err(error),
        _ => Ok(()),
    }
}

/// Every tag of an append that is not deleted has its rows: nothing else would miss them.
fn check_tag_rows(number: u64, commit: &CommitRecord, heads: &mut Heads<'_>) -> Result<(), StoreError> {
    let mut first_ordinal = commit.first_ordinal;
    for append in &commit.appends {
        let end = first_ordinal.saturating_add(append.count);
        for (tag, count) in &append.tags {
            if is_deleted(append, heads)? {
                break;
            }
            let rows = heads.reader.keys(&keys::tag_row(*tag, first_ordinal), &keys::tag_row(*tag, end));
            let found = match rows.map(|row| row.map(|_| 1)).sum::<Result<u64, _>>() {
                // The row is there but damaged, and readers of the tag are told. An iteration does not get past it.
                Err(error) if error.is_corruption() => continue,
                found => found?,
            };
            if found != *count {
                return Err(StoreError::corrupt(format!("a tag of commit {number} does not find its events")));
            }
        }
        first_ordinal = end;
    }
    Ok(())
}

/// Whether any event of it is deleted, or whether that cannot be seen.
fn is_deleted(append: &CommittedAppend, heads: &mut Heads<'_>) -> Result<bool, StoreError> {
    Ok(heads.deleted_to(append.pid)?.is_none_or(|deleted_to| append.first <= deleted_to))
}

/// Compares the digest of a commit with the events that are there. Events that were deleted since take it
/// with them; the heads vouch for them.
pub(crate) fn check_digest(number: u64, commit: &CommitRecord, heads: &mut Heads<'_>) -> Result<(), StoreError> {
    let mut found = CommitRecord::default();
    let missing = || StoreError::corrupt(format!("the events of commit {number} are not those that it stored"));
    for append in &commit.appends {
        if is_deleted(append, heads)? {
            return Ok(());
        }
        for seq_nr in append.first.as_u64()..append.first.as_u64() + append.count {
            let row = match heads.reader.get(&keys::event(append.pid, SeqNr::saturating(seq_nr))) {
                // The event is there but damaged: its readers are told.
                Err(error) if error.is_corruption() => return Ok(()),
                row => row?,
            };
            found.add_digest(row.as_ref().and_then(EventRow::crc32c).ok_or_else(missing)?);
        }
    }
    if commit.merged == 0 && found.digest != commit.digest { Err(missing()) } else { Ok(()) }
}

/// Whether every change from this ordinal on that was not written over left a state.
pub(crate) fn check_changes(first_ordinal: u64, reader: &Reader) -> Result<(), StoreError> {
    let (_, end) = keys::space(Space::Changes);
    for record in reader.range(&keys::change(first_ordinal), &end) {
        let (key, value) = match record {
            Ok(record) => record,
            // Followers of the feed are told; the state may be sound.
            Err(StoreError::Checksum { .. }) => continue,
            // An iteration does not get past a damaged page.
            Err(error) if error.is_corruption() => {
                tracing::warn!(%error, "the latest changes of states cannot be looked at: a page of them is damaged");
                break;
            }
            Err(error) => return Err(error),
        };
        let change = keys::number(&key, 0).zip(ChangeRow::decode(value));
        let (ordinal, ChangeRow { id, .. }) =
            change.ok_or_else(|| StoreError::corrupt("unreadable change of a state"))?;
        match lookup::state_row(reader, &id) {
            Ok(Some((_, _, stored))) if stored.ordinal >= ordinal => {}
            Ok(_) => {
                return Err(StoreError::corrupt(format!(
                    "the state of {id} is not the one that change {ordinal} stored"
                )));
            }
            // Damage to one state is answered to callers that read that state (J11).
            Err(LookupError::Corrupt(_)) => {}
            Err(LookupError::Store(error)) => return Err(error),
        }
    }
    Ok(())
}
