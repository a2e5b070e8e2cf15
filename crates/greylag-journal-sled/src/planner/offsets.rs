//! Offsets of projections: each slice has an owner, and only the owner changes it.

use std::ops::RangeInclusive;

use bytes::Bytes;
use greylag_persistence::{OffsetError, OwnedSlices, is_projection_name};
use greylag_store_sled::{Batch, Reader, StoreError};

use super::JournalPlanner;
use crate::keys;
use crate::offset_row::SliceOffsets;
use crate::offsets::{offset_error, unreadable};
use crate::request::OffsetChange;

/// The row of a slice before the group (the durable row), and as the group has changed it so far.
#[derive(Debug, Clone, Default)]
pub(super) struct ChangedOffsets {
    pub(super) before: Option<Bytes>,
    now: SliceOffsets,
}

impl JournalPlanner {
    /// Claims slices: raises the epoch of every slice, or of none.
    pub(super) fn claim_slices(
        &mut self,
        projection: String,
        slices: RangeInclusive<u16>,
        reader: &Reader,
    ) -> Result<Result<OwnedSlices, OffsetError>, StoreError> {
        if !is_projection_name(&projection) {
            return Ok(Err(OffsetError::InvalidName));
        }
        if let Some(why) = self.room.is_exhausted() {
            return Ok(Err(OffsetError::Unavailable(self.low(why))));
        }
        let mut raised = Vec::with_capacity(slices.len());
        for slice in slices {
            match self.slice(&projection, slice, reader)? {
                Ok(mut found) => {
                    found.now.epoch = found.now.epoch.raised();
                    raised.push((slice, found));
                }
                Err(error) => return Ok(Err(error)),
            }
        }
        let epochs = raised.iter().map(|(slice, found)| (*slice, found.now.epoch)).collect();
        self.set_slices(&projection, raised);
        Ok(Ok(OwnedSlices { projection, epochs }))
    }

    /// Changes all slices concerned, if every one is still owned under the given epoch, or none.
    pub(super) fn change_offsets(
        &mut self,
        owned: &OwnedSlices,
        change: &OffsetChange,
        reader: &Reader,
    ) -> Result<Result<(), OffsetError>, StoreError> {
        let projection = &owned.projection;
        if !is_projection_name(projection) {
            return Ok(Err(OffsetError::InvalidName));
        }
        if let Some(why) = self.room.is_exhausted() {
            return Ok(Err(OffsetError::Unavailable(self.low(why))));
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
            let found = match self.slice(projection, slice, reader)? {
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
        self.set_slices(projection, changed);
        Ok(Ok(()))
    }

    pub(super) fn write_offsets(&mut self, batch: &mut Batch) {
        let mut rows: Vec<_> =
            self.group.offsets.iter().map(|(key, changed)| (key.clone(), changed.now.encode())).collect();
        rows.sort_unstable();
        for (key, row) in rows {
            self.note_row(&key, Some(&row), batch);
            batch.put(&key, &row);
        }
    }

    fn slice(
        &self,
        projection: &str,
        slice: u16,
        reader: &Reader,
    ) -> Result<Result<ChangedOffsets, OffsetError>, StoreError> {
        let key = keys::offsets(projection, slice);
        if let Some(changed) = self.group.offsets.get(&key) {
            return Ok(Ok(changed.clone()));
        }
        let before = match reader.get(&key) {
            Ok(before) => before,
            // Damage to one projection is answered to the caller; any other error fails the store.
            Err(error) if error.is_corruption() => return Ok(Err(offset_error(&self.name, projection, error))),
            Err(error) => return Err(error),
        };
        let Some(stored) = before.clone() else { return Ok(Ok(ChangedOffsets::default())) };
        let now = SliceOffsets::decode(stored).ok_or_else(|| unreadable(projection));
        Ok(now.map(|now| ChangedOffsets { before, now }))
    }

    fn set_slices(&mut self, projection: &str, slices: Vec<(u16, ChangedOffsets)>) {
        self.group.changed |= !slices.is_empty();
        for (slice, changed) in slices {
            self.group.offsets.insert(keys::offsets(projection, slice), changed);
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
