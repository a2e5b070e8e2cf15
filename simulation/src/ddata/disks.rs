//! Disks: they flush after a while, lose unflushed writes, and tear the batch being flushed.
//!
//! Every place has one; a process that starts there finds the data of the former process, or an older state of them, or
//! nothing. Source: ddata §6, O6.

use std::time::Duration;

use greylag_crdt::{GCounter, ReplicatedData};
use greylag_ddata::{Input, Lifecycle, LoadedRecord, StoreError, StoreImage, StoreOp};
use rand::RngExt;

use super::ledger::{Ledger, Mask};
use super::world::{Due, World};

/// The disk of a place.
#[derive(Debug, Default)]
pub(super) struct Disk {
    image: StoreImage,
    /// An earlier state of the image.
    backup: Option<StoreImage>,
    /// The batch being flushed: process, ticket, operations.
    under_way: Option<(usize, u64, Vec<StoreOp>)>,
}

/// The data that a process finds on the disk of its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// The last flushed state.
    All,
    /// An earlier state.
    Older,
    /// Nothing.
    Nothing,
}

impl Disk {
    /// A copy of the flushed state.
    pub(super) fn copy(&self) -> Self {
        Self { image: self.image.clone(), backup: None, under_way: None }
    }
}

impl World {
    fn disk(&mut self, index: usize) -> &mut Disk {
        self.disks.entry(self.processes[index].place).or_default()
    }

    /// Sets which data the next process at a place finds.
    pub(super) fn leave_on_disk(&mut self, place: usize, found: Found) {
        self.tell(|| format!("at place {place} {found:?} is found"));
        let disk = self.disks.entry(place).or_default();
        match found {
            Found::All => {}
            Found::Older => disk.image = disk.backup.clone().unwrap_or_default(),
            Found::Nothing => *disk = Disk::default(),
        }
    }

    /// Keeps a copy of the flushed data of a place, for a later process to find.
    pub(super) fn back_up(&mut self, index: usize) {
        let disk = self.disk(index);
        disk.backup = Some(disk.image.clone());
    }

    /// Starts to flush a batch of a process.
    pub(super) fn store(&mut self, index: usize, ticket: u64, ops: Vec<StoreOp>) {
        let takes = Duration::from_micros(self.net.rng().random_range(0..6_000));
        self.disk(index).under_way = Some((index, ticket, ops));
        self.due(takes, index, Due::Flushed(ticket));
    }

    /// Ends the flush of a batch, or fails it.
    pub(super) fn on_flushed(&mut self, index: usize, ticket: u64) {
        let fails = self.arrangement.disks_fail && self.chance(0.05);
        let disk = self.disk(index);
        let Some((_, _, mut ops)) = disk.under_way.take_if(|(owner, number, _)| *owner == index && *number == ticket)
        else {
            return;
        };
        if fails {
            // A failed flush may have written a part of the batch.
            let some = self.net.rng().random_range(0..=ops.len());
            ops.truncate(some);
        }
        let disk = self.disk(index);
        ops.into_iter().for_each(|op| disk.image.apply(op));
        let failed = || StoreError::Failed { place: "a disk".into(), why: "it is full".into() };
        let result = if fails { Err(failed()) } else { Ok(()) };
        self.input(index, Input::Stored { ticket, result });
    }

    /// Gives a process its stored data.
    pub(super) fn on_load(&mut self, index: usize) {
        let batch = self.disk(index).image.load();
        self.input(index, Input::Loaded(batch.records));
        self.input(index, Input::LoadDone(batch.meta));
    }

    /// Tears the batch being flushed when a process, or its replicator, ends.
    pub(super) fn tear(&mut self, index: usize) {
        let some = self.net.rng().random_range(0..=100);
        let disk = self.disk(index);
        if let Some((_, _, mut ops)) = disk.under_way.take_if(|(owner, ..)| *owner == index) {
            ops.truncate(ops.len() * some / 100);
            ops.into_iter().for_each(|op| disk.image.apply(op));
        }
        for entry in 0..self.entries() {
            let has =
                if self.is_durable(entry) { self.flushed(index, entry) } else { self.processes[index].seen[entry] };
            self.processes[index].held[entry] |= has;
        }
    }

    pub(super) fn is_durable(&self, entry: usize) -> bool {
        let ledgers = self.ledger_keys.iter().map(greylag_ddata::Key::id);
        let key = ledgers.chain(self.tally_keys.iter().map(greylag_ddata::Key::id)).nth(entry);
        key.is_some_and(|key| self.arrangement.settings.durable.covers(key))
    }

    /// The operations of an entry that a process has flushed.
    pub(super) fn flushed(&self, index: usize, entry: usize) -> Mask {
        let Some(disk) = self.disks.get(&self.processes[index].place) else { return 0 };
        if entry < self.books.len() {
            stored::<Ledger>(disk, self.ledger_keys[entry].id()).map_or(0, |ledger| ledger.seen())
        } else {
            let tally = entry - self.books.len();
            let value = stored::<GCounter>(disk, self.tally_keys[tally].id()).map_or(0, |counter| counter.value());
            self.tallies[tally].counted(value).unwrap_or_default()
        }
    }

    /// Whether an entry is deleted on the disk of a process.
    pub(super) fn is_deleted_on_disk(&self, index: usize, entry: usize) -> bool {
        let Some(disk) = self.disks.get(&self.processes[index].place) else { return false };
        let Some(key) = self.ledger_keys.get(entry) else { return false };
        matches!(disk.image.records.get(key.id()), Some(LoadedRecord::Tombstone { .. }))
    }

    /// Whether a process serves its users.
    pub(super) fn is_loaded(&self, index: usize) -> bool {
        !matches!(self.processes[index].core.lifecycle(), Lifecycle::Loading | Lifecycle::Stopped(_))
    }
}

/// The value of an entry on a disk.
fn stored<T: ReplicatedData>(disk: &Disk, key: &greylag_ddata::KeyId) -> Option<T> {
    let LoadedRecord::Value { bytes, deltas, markers, .. } = disk.image.records.get(key)? else { return None };
    let mut value = T::from_untagged_bytes(bytes).ok()?;
    for bytes in deltas {
        let mut delta = T::delta_from_bytes(bytes).ok()?;
        markers.clean_delta::<T>(&mut delta);
        value.merge_delta(&delta).ok()?;
    }
    // The markers remove an amount that two owners have moved, so that it counts once.
    if let Some(pruning) = value.pruning_mut() {
        markers.clean(pruning);
    }
    Some(value)
}
