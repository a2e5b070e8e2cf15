//! What happens when a journal opens: is this a journal, is every commit there, and where do the
//! numbers go on.
//!
//! sled takes damage near the end of its log for a torn tail and opens *with a hole*. So the commit
//! records, numbered without a gap, are walked from the last verified one to the end, and the
//! digests of the latest are compared with the events. Source: persistence §4.3 (open).

use std::collections::HashMap;

use greylag_persistence::SeqNr;
use greylag_store_sled::{Batch, Reader, StoreError};

use crate::keys::{self, PidNo, SaveNo, Space, TagNo};
use crate::lookup::{self, LookupError};
use crate::planner::{Counters, JournalPlanner, remove_superseded};
use crate::records::{self, CommitRecord, EventRow, Row, StoredHead, Verified};
use crate::state_row::ChangeRow;

pub(crate) fn recover(planner: &mut JournalPlanner, reader: &Reader, batch: &mut Batch) -> Result<(), StoreError> {
    check_format(reader, batch)?;
    let verified = verify_commits(planner.verify_commits, reader)?;
    batch.put_owned(keys::VERIFIED, verified.encode());
    planner.tags = tags(reader)?;
    planner.counters = Counters {
        next_pid: last_number(reader, Space::Ids)?.map_or(1, |pid| pid + 1),
        next_tag: planner.tags.values().map(|tag| tag.0 + 1).max().unwrap_or(1),
        next_commit: verified.commit_no + 1,
        next_ordinal: verified.next_ordinal,
    };
    planner.sweeper.recover(reader)?;
    sweep_superseded(verified, reader, batch)?;
    sweep_orphan_chunks(reader, batch)
}

fn check_format(reader: &Reader, batch: &mut Batch) -> Result<(), StoreError> {
    if let Some(format) = reader.get(keys::FORMAT)? {
        return records::check_format(format).map_err(StoreError::corrupt);
    }
    let (from, to) = keys::space(Space::All);
    if reader.range(&from, &to).next().transpose()?.is_some() {
        return Err(StoreError::corrupt("it has records, but no format record"));
    }
    batch.put_owned(keys::FORMAT, records::encode_format(uuid::Uuid::new_v4().as_u128()));
    Ok(())
}

/// Walks the commit records from the last verified one to the end.
fn verify_commits(digests: u64, reader: &Reader) -> Result<Verified, StoreError> {
    let unreadable = |what: &str| StoreError::corrupt(format!("unreadable {what}"));
    let mut verified = match reader.get(keys::VERIFIED)? {
        Some(value) => Verified::decode(value).ok_or_else(|| unreadable("verification record"))?,
        None => Verified::default(),
    };
    let last = last_number(reader, Space::Commits)?.unwrap_or(0);
    if last < verified.commit_no {
        return Err(StoreError::corrupt(format!(
            "commits {} to {} are lost: the tail of the log is gone",
            last + 1,
            verified.commit_no
        )));
    }
    let (_, end) = keys::space(Space::Commits);
    for record in reader.range(&keys::commit(verified.commit_no + 1), &end) {
        let (key, value) = record?;
        let expected = verified.commit_no + 1;
        if keys::number(&key, 0) != Some(expected) {
            return Err(StoreError::corrupt(format!("commit {expected} is missing")));
        }
        let commit = CommitRecord::decode(value).ok_or_else(|| unreadable("commit record"))?;
        if commit.first_ordinal != verified.next_ordinal {
            return Err(StoreError::corrupt(format!("commit {expected} does not continue the order of events")));
        }
        let next_ordinal = commit.next_ordinal().ok_or_else(|| unreadable("commit record"))?;
        verified = Verified { commit_no: expected, next_ordinal };
    }
    let first = verified.commit_no.saturating_sub(digests) + 1;
    verify_digests(first, reader)?;
    verify_changes(first, reader)?;
    Ok(verified)
}

/// Compares the digests of the commits from `first` on with the events that are there.
fn verify_digests(first: u64, reader: &Reader) -> Result<(), StoreError> {
    let (_, end) = keys::space(Space::Commits);
    let mut deleted_to = HashMap::new();
    for record in reader.range(&keys::commit(first), &end) {
        let (key, value) = record?;
        let commit = CommitRecord::decode(value).ok_or_else(|| StoreError::corrupt("unreadable commit record"))?;
        let mut found = CommitRecord::default();
        let mut complete = true;
        for append in &commit.appends {
            let deleted_to = match deleted_to.get(&append.pid) {
                Some(deleted_to) => *deleted_to,
                None => *deleted_to.entry(append.pid).or_insert(deleted_bound(append.pid, reader)?),
            };
            // Events that were deleted since take the digest with them; the heads vouch for them.
            if append.first <= deleted_to {
                complete = false;
                break;
            }
            for number in append.first.as_u64()..append.first.as_u64() + append.count {
                let row = reader.get(&keys::event(append.pid, SeqNr::saturating(number)))?;
                match row.as_ref().and_then(EventRow::crc32c) {
                    Some(crc32c) => found.add_digest(crc32c),
                    None => return Err(missing_events(&key)),
                }
            }
        }
        if complete && found.digest != commit.digest {
            return Err(missing_events(&key));
        }
    }
    Ok(())
}

/// Whether every change that the commits from `first` on made, and that was not written over, left a state.
fn verify_changes(first: u64, reader: &Reader) -> Result<(), StoreError> {
    let Some(commit) = reader.get(&keys::commit(first))? else { return Ok(()) };
    let commit = CommitRecord::decode(commit).ok_or_else(|| StoreError::corrupt("unreadable commit record"))?;
    let (_, end) = keys::space(Space::Changes);
    for record in reader.range(&keys::change(commit.first_ordinal), &end) {
        let (key, value) = match record {
            Ok(record) => record,
            // Followers of the feed are told; the state may be sound.
            Err(StoreError::Checksum { .. }) => continue,
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
            // Damage to one state answers whoever asks for it (J11).
            Err(LookupError::Corrupt(_)) => {}
            Err(LookupError::Store(error)) => return Err(error),
        }
    }
    Ok(())
}

/// Removes what the changes of the last commit wrote over: no later group did, or it would be the last.
fn sweep_superseded(verified: Verified, reader: &Reader, batch: &mut Batch) -> Result<(), StoreError> {
    let Some(commit) = reader.get(&keys::commit(verified.commit_no))? else { return Ok(()) };
    let commit = CommitRecord::decode(commit).ok_or_else(|| StoreError::corrupt("unreadable commit record"))?;
    let (first, end) = (verified.next_ordinal.saturating_sub(commit.changes), keys::space(Space::Changes).1);
    for record in reader.range(&keys::change(first), &end) {
        match record {
            Ok((_, value)) => ChangeRow::decode(value).iter().for_each(|change| remove_superseded(change, batch)),
            // What it wrote over stays, and readers pass over it.
            Err(StoreError::Checksum { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn missing_events(key: &[u8]) -> StoreError {
    let number = keys::number(key, 0).unwrap_or_default();
    StoreError::corrupt(format!("the events of commit {number} are not those that it stored"))
}

fn deleted_bound(pid: PidNo, reader: &Reader) -> Result<SeqNr, StoreError> {
    let unknown = || StoreError::corrupt(format!("id number {} of a commit is not known", pid.0));
    let id = reader.get(&keys::id(pid))?.ok_or_else(unknown)?;
    let id = std::str::from_utf8(&id).ok().and_then(|id| id.parse().ok()).ok_or_else(unknown)?;
    let head = reader.get(&keys::head(&id))?.and_then(StoredHead::decode).ok_or_else(unknown)?;
    Ok(head.head.deleted_to)
}

fn tags(reader: &Reader) -> Result<HashMap<String, TagNo>, StoreError> {
    let unreadable = || StoreError::corrupt("unreadable tag record");
    let (from, to) = keys::space(Space::Tags);
    let tag = |record: Result<(bytes::Bytes, bytes::Bytes), StoreError>| {
        let (key, value) = record?;
        let tag = std::str::from_utf8(&key[1..]).map_err(|_| unreadable())?.to_owned();
        let number = value[..].try_into().map_err(|_| unreadable())?;
        Ok((tag, TagNo(u64::from_be_bytes(number))))
    };
    reader.range(&from, &to).map(tag).collect()
}

fn last_number(reader: &Reader, space: Space) -> Result<Option<u64>, StoreError> {
    let (from, to) = keys::space(space);
    let last = reader.range(&from, &to).next_back().transpose()?;
    Ok(last.and_then(|(key, _)| keys::number(&key, 0)))
}

/// Removes chunks of snapshots whose row was never written: their save was cut off by a crash.
fn sweep_orphan_chunks(reader: &Reader, batch: &mut Batch) -> Result<(), StoreError> {
    let (mut from, to) = (keys::space(Space::SnapshotChunks).0.to_vec(), keys::space(Space::SnapshotChunks).1);
    while let Some(record) = reader.range(&from, &to).next() {
        let key = lookup::key_of(record)?;
        let numbers = (keys::number(&key, 0), keys::number(&key, 1).and_then(SeqNr::new), keys::number(&key, 2));
        let (Some(pid), Some(seq_nr), Some(save)) = numbers else {
            return Err(StoreError::corrupt("a snapshot chunk has a key that is too short"));
        };
        let (pid, save) = (PidNo(pid), SaveNo(save));
        let last = keys::snapshot_chunk(pid, seq_nr, save, u16::MAX);
        let orphans = match reader.get(&keys::snapshot(pid, seq_nr)) {
            Ok(row) => row.and_then(Row::decode).is_none_or(|row| row.save != save),
            // The row may have named them: leave them to whoever deletes or replaces it.
            Err(StoreError::Checksum { .. }) => false,
            Err(error) => return Err(error),
        };
        if orphans {
            for chunk in reader.range(&key, &last) {
                batch.remove(&lookup::key_of(chunk)?);
            }
        }
        from = last;
    }
    Ok(())
}
