//! Opening a journal: checks that this is a journal and that every commit is there (`verification`), and finds where
//! the numbers continue. Source: persistence §4.3 (open).

use std::collections::HashMap;

use greylag_persistence::SeqNr;
use greylag_store_sled::{Batch, Reader, StoreError};

use super::commit_writer::Counters;
use super::states::remove_superseded;
use crate::lookup;
use crate::reclaiming::Sweeper;
use crate::rows::commit_record::CommitRecord;
use crate::rows::keys::{self, PidNo, SaveNo, Space, TagNo};
use crate::rows::records::{self, Row, Verified};
use crate::rows::state_row::ChangeRow;
use crate::verification;

/// What a journal continues with.
pub(super) struct Recovered {
    pub(super) counters: Counters,
    pub(super) tags: HashMap<String, TagNo>,
    /// Up to which commit everything was found to be there.
    pub(super) verified: Verified,
}

/// Checks that every commit since the last opening is there, the last `verify_commits` with their digests; reads
/// where the numbers continue and what `sweeper` has left to do; removes superseded rows and the chunks of unfinished
/// snapshots.
pub(super) fn recover(
    verify_commits: u64,
    sweeper: &mut Sweeper,
    reader: &Reader,
    batch: &mut Batch,
) -> Result<Recovered, StoreError> {
    check_format(reader, batch)?;
    let verified = verification::verify(last_verified(reader)?, verify_commits, reader)?;
    batch.put(keys::VERIFIED, &verified.encode());
    let tags = tags(reader)?;
    let counters = Counters {
        next_pid: last_number(reader, Space::Ids)?.map_or(1, |pid| pid + 1),
        next_tag: tags.values().map(|tag| tag.0 + 1).max().unwrap_or(1),
        next_commit: verified.commit_no + 1,
        next_ordinal: verified.next_ordinal,
    };
    sweeper.recover(reader)?;
    sweep_superseded(verified, reader, batch)?;
    sweep_orphan_chunks(reader, batch)?;
    Ok(Recovered { counters, tags, verified })
}

pub(crate) fn check_format(reader: &Reader, batch: &mut Batch) -> Result<(), StoreError> {
    if let Some(format) = reader.get(keys::FORMAT)? {
        return records::check_format(format).map_err(StoreError::corrupt);
    }
    let (from, to) = keys::space(Space::All);
    if reader.range(&from, &to).next().transpose()?.is_some() {
        return Err(StoreError::corrupt("it has records, but no format record"));
    }
    batch.put(keys::FORMAT, &records::encode_format(uuid::Uuid::new_v4().as_u128()));
    Ok(())
}

/// The last commit that an earlier opening verified. Zero if that is unknown: then all commits are walked.
fn last_verified(reader: &Reader) -> Result<Verified, StoreError> {
    let value = match reader.get(keys::VERIFIED) {
        Err(error) if error.is_corruption() => None,
        value => value?,
    };
    Ok(value.and_then(Verified::decode).unwrap_or_default())
}

/// Removes rows that the state changes of the last commit superseded: no later group has done so.
fn sweep_superseded(verified: Verified, reader: &Reader, batch: &mut Batch) -> Result<(), StoreError> {
    let Some(commit) = reader.get(&keys::commit(verified.commit_no))? else { return Ok(()) };
    let commit = CommitRecord::decode(commit).ok_or_else(|| StoreError::corrupt("unreadable commit record"))?;
    if commit.changes == 0 {
        return Ok(());
    }
    let (first, end) = (verified.next_ordinal.saturating_sub(commit.changes), keys::space(Space::Changes).1);
    for record in reader.range(&keys::change(first), &end) {
        match record {
            Ok((_, value)) => {
                ChangeRow::decode(value).iter().try_for_each(|change| remove_superseded(change, reader, batch))?;
            }
            // A damaged change does not tell what it superseded, so that stays, and readers pass over it.
            Err(StoreError::Checksum { .. }) => {}
            Err(error) if error.is_corruption() => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
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

/// Removes chunks of snapshots whose row was never written because a crash interrupted the save.
fn sweep_orphan_chunks(reader: &Reader, batch: &mut Batch) -> Result<(), StoreError> {
    let (mut from, to) = (keys::space(Space::SnapshotChunks).0.to_vec(), keys::space(Space::SnapshotChunks).1);
    while let Some(record) = reader.range(&from, &to).next() {
        let key = match lookup::key_of(record) {
            Ok(key) => key,
            // An iteration does not get past a damaged page, so chunks behind it stay, too.
            Err(error) if error.is_corruption() => {
                tracing::warn!(%error, "chunks of snapshots that were never finished stay: a page of them is damaged");
                break;
            }
            Err(error) => return Err(error),
        };
        let numbers = (keys::number(&key, 0), keys::number(&key, 1).and_then(SeqNr::new), keys::number(&key, 2));
        let (Some(pid), Some(seq_nr), Some(save)) = numbers else {
            return Err(StoreError::corrupt("a snapshot chunk has a key that is too short"));
        };
        let (pid, save) = (PidNo(pid), SaveNo(save));
        let last = keys::snapshot_chunk(pid, seq_nr, save, u16::MAX);
        let orphans = match reader.get(&keys::snapshot(pid, seq_nr)) {
            Ok(row) => row.and_then(Row::decode).is_none_or(|row| row.save != save),
            // The damaged row may have named these chunks: leave them until the row is deleted or replaced.
            Err(error) if error.is_corruption() => false,
            Err(error) => return Err(error),
        };
        if orphans {
            lookup::remove_all_unneeded(&key, &last, reader, batch)?;
        }
        from = last;
    }
    Ok(())
}
