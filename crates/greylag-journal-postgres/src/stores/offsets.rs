//! Offsets of projections, fenced by the owner epochs of their slices.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;
use greylag_persistence::{
    CloseError, Health, OffsetCaps, OffsetError, OffsetKind, OffsetStore, OwnedSlices, OwnerEpoch, PersistenceId,
    Position, Processed, Scope, SeqNr, Timestamp, is_projection_name,
};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Transaction};

use crate::backend::Backend;
use crate::driver::pool::Failed;
use crate::schema::quoted;
use crate::sql::rows::{self, Micros, Unreadable};
use crate::sql::statements::{CLAIM_SLICES, FORGET_OFFSETS, LOAD_OFFSETS, OWNERS, RESET_OFFSETS, SAVE_OFFSETS};
use greylag_postgres::DatabaseError;

const CAPS: OffsetCaps = OffsetCaps { scope: Scope::Shared, kind: OffsetKind::Timestamp };

/// The offset store of projections in the database of a [`PostgresJournal`](crate::PostgresJournal).
///
/// A projection that writes into the same database saves its offsets in the transaction of its writes
/// ([`PostgresOffsets::save_within`]): then each change counts exactly once.
#[derive(Debug, Clone)]
pub struct PostgresOffsets {
    backend: Arc<Backend>,
}

/// Slices and their owner epochs, as columns.
struct Fence {
    slices: Vec<i16>,
    epochs: Vec<i64>,
}

/// Offsets to save, as columns; each id once, with its greatest number.
#[derive(Default)]
struct Columns<'a> {
    slices: Vec<i16>,
    ids: Vec<&'a str>,
    numbers: Vec<i64>,
    times: Vec<Micros>,
}

fn unavailable(failed: Failed) -> OffsetError {
    OffsetError::Unavailable(failed.cause)
}

fn time(position: Position) -> Result<Timestamp, OffsetError> {
    match position {
        Position::Timestamp(timestamp) => Ok(timestamp),
        Position::Ordinal(_) => {
            Err(OffsetError::ForeignOffset { expected: OffsetKind::Timestamp, found: OffsetKind::Ordinal })
        }
    }
}

impl Fence {
    fn new<'a>(epochs: impl IntoIterator<Item = (&'a u16, &'a OwnerEpoch)>) -> Self {
        let epoch = |epoch: &OwnerEpoch| i64::try_from(epoch.as_u64()).unwrap_or(-1);
        let (slices, epochs) = epochs.into_iter().map(|(number, owner)| (rows::slice(*number), epoch(owner))).unzip();
        Self { slices, epochs }
    }

    fn of_all(owned: &OwnedSlices) -> Self {
        Self::new(&owned.epochs)
    }

    /// The fence of the slices that these offsets fall into; each must have been claimed.
    fn of(owned: &OwnedSlices, processed: &[Processed]) -> Result<Self, OffsetError> {
        let mut epochs = BTreeMap::new();
        for Processed { id, .. } in processed {
            let slice = id.slice();
            let not_owned = || OffsetError::NotOwned { projection: owned.projection.clone(), slice };
            epochs.insert(slice, *owned.epochs.get(&slice).ok_or_else(not_owned)?);
        }
        Ok(Self::new(&epochs))
    }
}

impl<'a> Columns<'a> {
    fn new(processed: &'a [Processed]) -> Result<Self, OffsetError> {
        let mut newest: BTreeMap<&PersistenceId, (SeqNr, Timestamp)> = BTreeMap::new();
        for Processed { id, seq_nr, position } in processed {
            let at = time(*position)?;
            let known = newest.entry(id).or_insert((*seq_nr, at));
            if known.0 < *seq_nr {
                *known = (*seq_nr, at);
            }
        }
        let mut columns = Self::default();
        for (id, (seq_nr, at)) in newest {
            columns.slices.push(rows::slice(id.slice()));
            columns.ids.push(id.as_str());
            columns.numbers.push(rows::number(seq_nr));
            columns.times.push(at.into());
        }
        Ok(columns)
    }
}

impl PostgresOffsets {
    pub(crate) fn new(backend: Arc<Backend>) -> Self {
        Self { backend }
    }

    pub(super) fn backend(&self) -> &Backend {
        &self.backend
    }

    /// As [`OffsetStore::save`], in a transaction of the caller's own on the same database, under any search path: the
    /// offsets are committed or rolled back with everything else in the transaction. A claim of the slices waits for
    /// the end of the transaction.
    ///
    /// # Errors
    /// As [`OffsetStore::save`]. Roll the transaction back then: its other writes are those of a stale owner.
    pub async fn save_within(
        &self,
        transaction: &Transaction<'_>,
        owned: &OwnedSlices,
        processed: &[Processed],
    ) -> Result<(), OffsetError> {
        let (columns, fence) = (Columns::new(processed)?, Fence::of(owned, processed)?);
        let failed =
            |error: tokio_postgres::Error| OffsetError::Unavailable(self.backend.failure(DatabaseError::told(error)));
        let Columns { slices, ids, numbers, times } = &columns;
        let values: [&(dyn ToSql + Sync); 7] =
            [&owned.projection, &fence.slices, &fence.epochs, slices, ids, numbers, times];
        let saved = transaction.query_one(&self.with_schema(SAVE_OFFSETS), &values).await.map_err(failed)?;
        if self.is_owned(&saved)? {
            return Ok(());
        }
        let owners = transaction.query(&self.with_schema(OWNERS), &[&owned.projection, &fence.slices]).await;
        Err(self.stale_owner(owned, &owners.map_err(failed)?, processed.iter().map(|processed| processed.id.slice())))
    }

    /// The statement with the schema's name, for connections with another search path.
    fn with_schema(&self, sql: &str) -> String {
        sql.replace("projection_o", &format!("{}.projection_o", quoted(&self.backend.settings.schema)))
    }

    fn is_owned(&self, row: &Row) -> Result<bool, OffsetError> {
        rows::column(row, "ok").map_err(|Unreadable| OffsetError::Unavailable(self.backend.unreadable()))
    }

    /// Runs a statement that checks the fence; if the fence does not hold, answers which slice has another owner.
    async fn run_fenced(
        &self,
        owned: &OwnedSlices,
        sql: &'static str,
        fence: &Fence,
        values: &[&(dyn ToSql + Sync)],
        slices: impl Iterator<Item = u16> + Send,
    ) -> Result<(), OffsetError> {
        let all: Vec<&(dyn ToSql + Sync)> = [&owned.projection as &(dyn ToSql + Sync), &fence.slices, &fence.epochs]
            .into_iter()
            .chain(values.iter().copied())
            .collect();
        let (within, all) = (self.backend.settings.call_timeout, &all);
        let done = self.backend.query.call(within, |session| async move {
            let statement = session.prepare(sql).await?;
            session.client.query_one(&statement, all).await
        });
        if self.is_owned(&done.await.map_err(unavailable)?)? {
            return Ok(());
        }
        let owners = self.backend.query.call(within, |session| async move {
            let statement = session.prepare(OWNERS).await?;
            session.client.query(&statement, &[&owned.projection, &fence.slices]).await
        });
        Err(self.stale_owner(owned, &owners.await.map_err(unavailable)?, slices))
    }

    /// The error for the first of these slices that has another owner now.
    fn stale_owner(&self, owned: &OwnedSlices, owners: &[Row], slices: impl Iterator<Item = u16>) -> OffsetError {
        let owner =
            |row: &Row| Some((rows::column::<i16>(row, "slice").ok()?, rows::column::<i64>(row, "epoch").ok()?));
        let owners: BTreeMap<i16, i64> = owners.iter().filter_map(owner).collect();
        let current =
            |number| OwnerEpoch::from_u64(owners.get(&rows::slice(number)).map_or(0, |epoch| epoch.unsigned_abs()));
        for slice in slices {
            let (own, current) = (owned.epochs.get(&slice).copied().unwrap_or_default(), current(slice));
            if own != current {
                return OffsetError::StaleOwner { projection: owned.projection.clone(), slice, own, current };
            }
        }
        OffsetError::Unavailable(self.backend.failure("the owners of the slices cannot be told apart; save again"))
    }
}

#[async_trait]
impl OffsetStore for PostgresOffsets {
    fn caps(&self) -> OffsetCaps {
        CAPS
    }

    async fn claim(&self, projection: &str, slices: RangeInclusive<u16>) -> Result<OwnedSlices, OffsetError> {
        if !is_projection_name(projection) {
            return Err(OffsetError::InvalidName);
        }
        let (first, last) = (i32::from(*slices.start()), i32::from(*slices.end()));
        let claimed = self.backend.query.call(self.backend.settings.call_timeout, |session| async move {
            let statement = session.prepare(CLAIM_SLICES).await?;
            session.client.query(&statement, &[&projection, &first, &last]).await
        });
        let owner = |row: &Row| -> Result<(u16, OwnerEpoch), Unreadable> {
            let slice = u16::try_from(rows::column::<i16>(row, "slice")?).map_err(|_| Unreadable)?;
            let epoch = u64::try_from(rows::column::<i64>(row, "epoch")?).map_err(|_| Unreadable)?;
            Ok((slice, OwnerEpoch::from_u64(epoch)))
        };
        let epochs = claimed.await.map_err(unavailable)?.iter().map(owner).collect::<Result<_, _>>();
        let epochs = epochs.map_err(|Unreadable| OffsetError::Unavailable(self.backend.unreadable()))?;
        Ok(OwnedSlices { projection: projection.to_owned(), epochs })
    }

    async fn load(&self, projection: &str, slices: RangeInclusive<u16>) -> Result<Vec<Processed>, OffsetError> {
        let (first, last) = (rows::slice(*slices.start()), rows::slice(*slices.end()));
        let found = self.backend.query.call(self.backend.settings.call_timeout, |session| async move {
            let statement = session.prepare(LOAD_OFFSETS).await?;
            session.client.query(&statement, &[&projection, &first, &last]).await
        });
        let unreadable = |Unreadable| OffsetError::Corrupt {
            projection: projection.to_owned(),
            kind: greylag_persistence::CorruptKind::Unreadable,
        };
        found.await.map_err(unavailable)?.iter().map(|row| rows::processed(row).map_err(unreadable)).collect()
    }

    async fn save(&self, owned: &OwnedSlices, processed: &[Processed]) -> Result<(), OffsetError> {
        let (columns, fence) = (Columns::new(processed)?, Fence::of(owned, processed)?);
        if self.backend.is_closed() {
            return Err(OffsetError::Unavailable(self.backend.closed()));
        }
        if processed.is_empty() {
            return Ok(());
        }
        let Columns { slices, ids, numbers, times } = &columns;
        let concerned = processed.iter().map(|processed| processed.id.slice());
        self.run_fenced(owned, SAVE_OFFSETS, &fence, &[slices, ids, numbers, times], concerned).await
    }

    async fn forget_before(&self, owned: &OwnedSlices, position: Position) -> Result<(), OffsetError> {
        let before = Micros::from(time(position)?);
        let slices = owned.epochs.keys().copied();
        self.run_fenced(owned, FORGET_OFFSETS, &Fence::of_all(owned), &[&before], slices).await
    }

    async fn reset(&self, owned: &OwnedSlices) -> Result<(), OffsetError> {
        let slices = owned.epochs.keys().copied();
        self.run_fenced(owned, RESET_OFFSETS, &Fence::of_all(owned), &[], slices).await
    }

    fn health(&self) -> Health {
        self.backend.health()
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.backend.close().await
    }
}
