//! Offsets of projections: each slice has an owner, and only the owner changes it.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use bytes::Bytes;
use greylag_persistence::{OffsetError, OwnedSlices, is_projection_name};
use greylag_store_sled::{Batch, Reader, StoreError};

use super::commit_writer::CommitWriter;
use super::storage::Storage;
use crate::lookup::{offset_error, unreadable_offsets};
use crate::request::OffsetChange;
use crate::rows::keys;
use crate::rows::offset_row::SliceOffsets;

/// The row of a slice before the group (the durable row), and as the group has changed it so far.
#[derive(Debug, Clone, Default)]
struct ChangedOffsets {
    before: Option<Bytes>,
    now: SliceOffsets,
}

/// The offsets that the group in hand changes, by the keys of their slices.
#[derive(Default)]
pub(super) struct OffsetChanges(HashMap<Vec<u8>, ChangedOffsets>);

impl OffsetChanges {
    /// Begins a group, which has changed nothing yet.
    pub(super) fn begin_group(&mut self) {
        self.0.clear();
    }

    /// Ends the group; answers the durable rows that readers find in place of those that the group overwrites.
    pub(super) fn end_group(&mut self) -> impl Iterator<Item = (Vec<u8>, Option<Bytes>)> + use<> {
        std::mem::take(&mut self.0).into_iter().map(|(key, changed)| (key, changed.before))
    }

    /// Claims slices: raises the epoch of every slice, or of none.
    pub(super) fn claim(
        &mut self,
        projection: String,
        slices: RangeInclusive<u16>,
        storage: &Storage,
        commits: &mut CommitWriter,
        reader: &Reader,
    ) -> Result<Result<OwnedSlices, OffsetError>, StoreError> {
        if !is_projection_name(&projection) {
            return Ok(Err(OffsetError::InvalidName));
        }
        if let Some(failure) = storage.exhausted() {
            return Ok(Err(OffsetError::Unavailable(failure)));
        }
        let mut raised = Vec::with_capacity(slices.len());
        for slice in slices {
            match self.slice(&projection, slice, storage, reader)? {
                Ok(mut found) => {
                    found.now.epoch = found.now.epoch.raised();
                    raised.push((slice, found));
                }
                Err(error) => return Ok(Err(error)),
            }
        }
        let epochs = raised.iter().map(|(slice, found)| (*slice, found.now.epoch)).collect();
        self.set(&projection, raised, commits);
        Ok(Ok(OwnedSlices { projection, epochs }))
    }

    /// Changes all slices concerned, if every one is still owned under the given epoch, or none.
    pub(super) fn change(
        &mut self,
        owned: &OwnedSlices,
        change: &OffsetChange,
        storage: &Storage,
        commits: &mut CommitWriter,
        reader: &Reader,
    ) -> Result<Result<(), OffsetError>, StoreError> {
        let projection = &owned.projection;
        if !is_projection_name(projection) {
            return Ok(Err(OffsetError::InvalidName));
        }
        if let Some(failure) = storage.exhausted() {
            return Ok(Err(OffsetError::Unavailable(failure)));
        }
        let slices: Vec<u16> = match change {
            OffsetChange::Save(places) => places.keys().copied().collect(),
            OffsetChange::ForgetBefore(_) | OffsetChange::Reset => owned.epochs.keys().copied().collect(),
        };
        let mut changed = Vec::with_capacity(slices.len());
        for slice in slices {
            let Some(own) = owned.epochs.get(&slice).copied() else {
                return Ok(Err(OffsetError::NotOwned { projection: projection.clone(), slice }));
            };
            let found = match self.slice(projection, slice, storage, reader)? {
                Ok(found) => found,
                Err(error) => return Ok(Err(error)),
            };
            let current = found.now.epoch;
            if own != current {
                return Ok(Err(OffsetError::StaleOwner { projection: projection.clone(), slice, own, current }));
            }
            let mut now = found.now.clone();
            apply(change, slice, &mut now);
            if now != found.now {
                changed.push((slice, ChangedOffsets { now, ..found }));
            }
        }
        self.set(projection, changed, commits);
        Ok(Ok(()))
    }

    /// Writes the rows of the group.
    pub(super) fn write(&self, commits: &mut CommitWriter, batch: &mut Batch) {
        let mut rows: Vec<_> = self.0.iter().map(|(key, changed)| (key.clone(), changed.now.encode())).collect();
        rows.sort_unstable();
        for (key, row) in rows {
            commits.note_row(&key, Some(&row), batch);
            batch.put(&key, &row);
        }
    }

    fn slice(
        &self,
        projection: &str,
        slice: u16,
        storage: &Storage,
        reader: &Reader,
    ) -> Result<Result<ChangedOffsets, OffsetError>, StoreError> {
        let key = keys::offsets(projection, slice);
        if let Some(changed) = self.0.get(&key) {
            return Ok(Ok(changed.clone()));
        }
        let before = match reader.get(&key) {
            Ok(before) => before,
            // Damage to one projection is answered to the caller; any other error fails the store.
            Err(error) if error.is_corruption() => return Ok(Err(offset_error(storage.name(), projection, error))),
            Err(error) => return Err(error),
        };
        let Some(stored) = before.clone() else { return Ok(Ok(ChangedOffsets::default())) };
        let now = SliceOffsets::decode(stored).ok_or_else(|| unreadable_offsets(projection));
        Ok(now.map(|now| ChangedOffsets { before, now }))
    }

    fn set(&mut self, projection: &str, slices: Vec<(u16, ChangedOffsets)>, commits: &mut CommitWriter) {
        if !slices.is_empty() {
            commits.on_change();
        }
        for (slice, changed) in slices {
            self.0.insert(keys::offsets(projection, slice), changed);
        }
    }
}

fn apply(change: &OffsetChange, slice: u16, offsets: &mut SliceOffsets) {
    match change {
        OffsetChange::Save(places) => {
            places.get(&slice).into_iter().flatten().for_each(|place| offsets.note(place));
        }
        OffsetChange::ForgetBefore(ordinal) => offsets.forget_before(*ordinal),
        OffsetChange::Reset => offsets.reset(),
    }
}
