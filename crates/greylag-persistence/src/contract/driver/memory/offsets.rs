//! An offset store in memory.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;

use super::clock::{closed, lock};
use crate::contract::driver::offset_store::OffsetStore;
use crate::contract::error::{CloseError, OffsetError};
use crate::contract::journal::Health;
use crate::contract::offset::{
    OffsetCaps, OffsetKind, OwnedSlices, OwnerEpoch, Position, Processed, START_PREFIX, is_projection_name,
};
use crate::contract::records::event::SeqNr;
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::scope::Scope;

#[derive(Default)]
struct Slice {
    epoch: OwnerEpoch,
    processed: BTreeMap<PersistenceId, (SeqNr, Position)>,
}

#[derive(Default)]
struct Projections {
    by_slice: BTreeMap<(String, u16), Slice>,
    closed: bool,
}

/// An offset store in memory. Clones share their data.
#[derive(Clone)]
pub struct InMemoryOffsets {
    projections: Arc<Mutex<Projections>>,
    caps: OffsetCaps,
}

impl Default for InMemoryOffsets {
    fn default() -> Self {
        Self::new(Scope::Process, OffsetKind::Ordinal)
    }
}

impl fmt::Debug for InMemoryOffsets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InMemoryOffsets({} slices)", lock(&self.projections).by_slice.len())
    }
}

impl InMemoryOffsets {
    /// An empty store for positions of `kind`; the other stores in memory have ordinals.
    pub fn new(scope: Scope, kind: OffsetKind) -> Self {
        Self { projections: Arc::default(), caps: OffsetCaps { scope, kind } }
    }

    fn open(&self) -> Result<MutexGuard<'_, Projections>, OffsetError> {
        let projections = lock(&self.projections);
        if projections.closed { Err(OffsetError::Unavailable(closed())) } else { Ok(projections) }
    }

    fn fits(&self, position: Position) -> Result<(), OffsetError> {
        let (expected, found) = (self.caps.kind, position.kind());
        if expected == found { Ok(()) } else { Err(OffsetError::ForeignOffset { expected, found }) }
    }
}

fn is_start(id: &PersistenceId) -> bool {
    id.as_str().starts_with(START_PREFIX)
}

impl Projections {
    fn slice(&mut self, projection: &str, slice: u16) -> &mut Slice {
        self.by_slice.entry((projection.to_owned(), slice)).or_default()
    }

    /// Checks that every one of these slices is still owned under the epoch of `owned`.
    fn check(&self, owned: &OwnedSlices, slices: impl Iterator<Item = u16>) -> Result<(), OffsetError> {
        let projection = &owned.projection;
        for slice in slices {
            let projection = || projection.clone();
            let Some(own) = owned.epochs.get(&slice).copied() else {
                return Err(OffsetError::NotOwned { projection: projection(), slice });
            };
            let current = self.by_slice.get(&(projection(), slice)).map(|slice| slice.epoch).unwrap_or_default();
            if own != current {
                return Err(OffsetError::StaleOwner { projection: projection(), slice, own, current });
            }
        }
        Ok(())
    }
}

#[async_trait]
impl OffsetStore for InMemoryOffsets {
    fn caps(&self) -> OffsetCaps {
        self.caps
    }

    async fn claim(&self, projection: &str, slices: RangeInclusive<u16>) -> Result<OwnedSlices, OffsetError> {
        if !is_projection_name(projection) {
            return Err(OffsetError::InvalidName);
        }
        let mut projections = self.open()?;
        let raise = |number| {
            let slice = projections.slice(projection, number);
            slice.epoch = slice.epoch.raised();
            (number, slice.epoch)
        };
        Ok(OwnedSlices { projection: projection.to_owned(), epochs: slices.map(raise).collect() })
    }

    async fn load(&self, projection: &str, slices: RangeInclusive<u16>) -> Result<Vec<Processed>, OffsetError> {
        let projections = self.open()?;
        let wanted = (projection.to_owned(), *slices.start())..=(projection.to_owned(), *slices.end());
        let mut loaded: Vec<Processed> = if slices.is_empty() {
            Vec::new()
        } else {
            let entries = projections.by_slice.range(wanted).flat_map(|(_, slice)| &slice.processed);
            entries
                .map(|(id, (seq_nr, position))| Processed { id: id.clone(), seq_nr: *seq_nr, position: *position })
                .collect()
        };
        loaded.sort_by(|left, right| (left.position, &left.id).cmp(&(right.position, &right.id)));
        Ok(loaded)
    }

    async fn save(&self, owned: &OwnedSlices, processed: &[Processed]) -> Result<(), OffsetError> {
        processed.iter().try_for_each(|processed| self.fits(processed.position))?;
        let mut projections = self.open()?;
        projections.check(owned, processed.iter().map(|processed| processed.id.slice()))?;
        for Processed { id, seq_nr, position } in processed {
            let slice = projections.slice(&owned.projection, id.slice());
            match slice.processed.entry(id.clone()) {
                Entry::Vacant(entry) => {
                    entry.insert((*seq_nr, *position));
                }
                Entry::Occupied(mut entry) if entry.get().0 < *seq_nr => {
                    entry.insert((*seq_nr, *position));
                }
                Entry::Occupied(_) => {}
            }
        }
        Ok(())
    }

    async fn forget_before(&self, owned: &OwnedSlices, position: Position) -> Result<(), OffsetError> {
        self.fits(position)?;
        let mut projections = self.open()?;
        projections.check(owned, owned.epochs.keys().copied())?;
        for number in owned.epochs.keys() {
            let slice = projections.slice(&owned.projection, *number);
            let newest = slice.processed.values().map(|(_, position)| *position).max();
            slice.processed.retain(|id, (_, at)| *at >= position || Some(*at) == newest || is_start(id));
        }
        Ok(())
    }

    async fn reset(&self, owned: &OwnedSlices) -> Result<(), OffsetError> {
        let mut projections = self.open()?;
        projections.check(owned, owned.epochs.keys().copied())?;
        for number in owned.epochs.keys() {
            projections.slice(&owned.projection, *number).processed.retain(|id, _| is_start(id));
        }
        Ok(())
    }

    fn health(&self) -> Health {
        if lock(&self.projections).closed { Health::Down("closed".to_owned()) } else { Health::Up }
    }

    async fn close(&self) -> Result<(), CloseError> {
        lock(&self.projections).closed = true;
        Ok(())
    }
}
