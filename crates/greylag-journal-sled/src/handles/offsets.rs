//! The handle of the offset store.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;
use greylag_persistence::{
    CloseError, Health, OffsetCaps, OffsetError, OffsetKind, OffsetStore, OwnedSlices, Position, Processed, Scope,
    is_projection_name,
};

use super::inner::{Inner, mismatch};
use crate::lookup::{offset_error, unreadable_offsets};
use crate::reading::Reads;
use crate::request::{Answer, OffsetChange, Request};
use crate::rows::keys;
use crate::rows::offset_row::{ProcessedChange, SliceOffsets};

/// The offset store of a [`SledJournal`](crate::SledJournal), in the same directory and group commits.
///
/// The store keeps the newest ordinal of each slice, however many ids the slice has, and the marks that cover ranges of
/// slices.
#[derive(Debug, Clone)]
pub struct SledOffsets {
    inner: Arc<Inner>,
}

const CAPS: OffsetCaps = OffsetCaps { scope: Scope::Node, kind: OffsetKind::Ordinal };

impl SledOffsets {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    async fn change(&self, owned: &OwnedSlices, change: OffsetChange) -> Result<(), OffsetError> {
        match self.inner.ask(Request::ChangeOffsets { owned: owned.clone(), change }).await {
            Ok(Answer::ChangeOffsets(answer)) => answer,
            Ok(other) => mismatch(&other),
            Err(lost) => Err(OffsetError::Unavailable(lost.cause())),
        }
    }
}

/// The ordinal of a position; an error if the position is of another kind of store.
fn ordinal(position: Position) -> Result<u64, OffsetError> {
    match position {
        Position::Ordinal(ordinal) => Ok(ordinal),
        Position::Timestamp(_) => Err(OffsetError::ForeignOffset { expected: CAPS.kind, found: position.kind() }),
    }
}

#[async_trait]
impl OffsetStore for SledOffsets {
    fn caps(&self) -> OffsetCaps {
        CAPS
    }

    async fn claim(&self, projection: &str, slices: RangeInclusive<u16>) -> Result<OwnedSlices, OffsetError> {
        match self.inner.ask(Request::ClaimSlices { projection: projection.to_owned(), slices }).await {
            Ok(Answer::ClaimSlices(answer)) => answer,
            Ok(other) => mismatch(&other),
            Err(lost) => Err(OffsetError::Unavailable(lost.cause())),
        }
    }

    async fn load(&self, projection: &str, slices: RangeInclusive<u16>) -> Result<Vec<Processed>, OffsetError> {
        let projection = projection.to_owned();
        let reading = self.inner.read(move |reads| load(reads, &projection, &slices));
        reading.await.map_err(OffsetError::Unavailable)?
    }

    async fn save(&self, owned: &OwnedSlices, processed: &[Processed]) -> Result<(), OffsetError> {
        let mut places: BTreeMap<u16, Vec<ProcessedChange>> = BTreeMap::new();
        for one in processed {
            let (ordinal, is_mark) = (ordinal(one.position)?, one.is_mark());
            let place = ProcessedChange { id: one.id.clone(), seq_nr: one.seq_nr, ordinal, is_mark };
            places.entry(one.id.slice()).or_default().push(place);
        }
        self.change(owned, OffsetChange::Save(places)).await
    }

    async fn forget_before(&self, owned: &OwnedSlices, position: Position) -> Result<(), OffsetError> {
        self.change(owned, OffsetChange::ForgetBefore(ordinal(position)?)).await
    }

    async fn reset(&self, owned: &OwnedSlices) -> Result<(), OffsetError> {
        self.change(owned, OffsetChange::Reset).await
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.inner.close().await
    }
}

/// The durable places of these slices.
fn load(reads: &Reads<'_>, projection: &str, slices: &RangeInclusive<u16>) -> Result<Vec<Processed>, OffsetError> {
    let mut loaded = Vec::new();
    if slices.is_empty() || !is_projection_name(projection) {
        return Ok(loaded);
    }
    let (from, to) = keys::offsets_of(projection, slices);
    for record in reads.reader().range(&from, &to) {
        let (key, stored) = record.map_err(|error| offset_error(reads.name(), projection, error))?;
        let Some(durable) = reads.undurable().durable_row(&key).unwrap_or(Some(stored)) else { continue };
        let row = SliceOffsets::decode(durable).ok_or_else(|| unreadable_offsets(projection))?;
        loaded.extend(row.places().cloned().map(ProcessedChange::processed));
    }
    loaded.sort_by(|left, right| (left.position, &left.id).cmp(&(right.position, &right.id)));
    Ok(loaded)
}

#[cfg(test)]
mod tests {
    use greylag_persistence::{PersistenceId, SeqNr};

    use super::*;
    use crate::heads::Before;
    use crate::{SledJournal, SledJournalSettings};

    /// J6: as for heads, an offset that the committer has applied but not synced is not read.
    #[tokio::test]
    async fn offsets_that_are_not_durable_yet_are_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let journal = SledJournal::open(directory.path(), SledJournalSettings::test()).await.unwrap();
        let (offsets, id) = (journal.offsets(), PersistenceId::unique("Counter|1").unwrap());
        let at = |ordinal| Processed { id: id.clone(), seq_nr: SeqNr::FIRST, position: Position::Ordinal(ordinal) };
        let slices = id.slice()..=id.slice();
        let owned = offsets.claim("sums", slices.clone()).await.unwrap();
        offsets.save(&owned, &[at(1)]).await.unwrap();
        let key = keys::offsets("sums", id.slice());
        let durable = offsets.inner.store.reader().unwrap().get(&key).unwrap();
        offsets.save(&owned, &[at(2)]).await.unwrap();
        // As the committer does between applying a batch and its sync.
        let undurable = &offsets.inner.undurable;
        undurable.publish(Before { rows: [(key.clone(), durable)].into(), ..Before::default() });
        assert_eq!(offsets.load("sums", slices.clone()).await.unwrap(), [at(1)]);
        undurable.clear();
        undurable.publish(Before { rows: [(key, None)].into(), ..Before::default() });
        assert_eq!(offsets.load("sums", slices.clone()).await.unwrap(), []);
        undurable.clear();
        assert_eq!(offsets.load("sums", slices).await.unwrap(), [at(2)]);
    }
}
