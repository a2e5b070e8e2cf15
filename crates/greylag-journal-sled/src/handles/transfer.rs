//! The journal as either end of a copy: the directory's lock keeps every other process out.

use std::collections::BTreeSet;

use async_trait::async_trait;
use greylag_persistence::{
    Corrupt, CorruptKind, Export, Health, HistoryPart, Import, ImportError, Journal, NewSnapshot, PersistenceId,
    ReadError, Snapshot, SnapshotError, StateStore, StoreFailure, StoredEvent, StoredState, Stores, Timestamp,
};
use greylag_store_sled::StoreError;

use super::inner::mismatch;
use super::journal::SledJournal;
use crate::lookup::{self, LookupError};
use crate::reading::Reads;
use crate::request::{Answer, EncodedPart, Request};
use crate::rows::keys;
use crate::rows::records::EncodedEvent;

#[async_trait]
impl Export for SledJournal {
    fn stores(&self) -> Stores {
        Self::stores(self).with_states(std::sync::Arc::new(self.states()))
    }

    async fn ids(&self, after: Option<&PersistenceId>, limit: usize) -> Result<Vec<PersistenceId>, ReadError> {
        let states = self.states().ids(after, limit).await?;
        let (inner, after) = (self.inner(), after.cloned());
        let histories = inner.read(move |reads| ids_with_heads(reads, after.as_ref(), limit)).await;
        let mut ids: BTreeSet<_> = histories.map_err(ReadError::Unavailable)??.into_iter().collect();
        ids.extend(states);
        Ok(ids.into_iter().take(limit).collect())
    }

    async fn last_append(&self, id: &PersistenceId) -> Result<Timestamp, ReadError> {
        let id = id.clone();
        self.inner().read(move |reads| last_append(reads, &id)).await.map_err(ReadError::Unavailable)?
    }

    /// The lock of the directory is held as long as the journal is open; only clones of this handle can
    /// write.
    async fn reserved(&self) -> Result<(), StoreFailure> {
        match Journal::health(self) {
            Health::Down(reason) => Err(StoreFailure::new(format!("journal {}", self.path().display()), reason)),
            Health::Up | Health::Degraded(_) => Ok(()),
        }
    }
}

#[async_trait]
impl Import for SledJournal {
    async fn import_events(&self, part: HistoryPart) -> Result<(), ImportError> {
        let stored = self.head(&part.id).await.map_err(unread)?;
        part.check(&stored)?;
        let first = part.first(&stored);
        let HistoryPart { id, head, last_append, events } = part;
        let encode = |event: &StoredEvent| (event.timestamp, EncodedEvent::new(event));
        let events = events.iter().map(encode).collect();
        let part = EncodedPart { id, stored, head, last_append, first, events };
        self.import(Request::ImportEvents(Box::new(part))).await
    }

    async fn import_snapshot(&self, snapshot: Snapshot) -> Result<(), ImportError> {
        if !snapshot.is_intact() {
            let (id, seq_nr) = (snapshot.id, snapshot.seq_nr);
            return Err(ImportError::Corrupt(Corrupt { id, seq_nr, kind: CorruptKind::Checksum }));
        }
        let Snapshot { id, seq_nr, timestamp, codec_id, manifest, schema_version, payload, metadata, .. } = snapshot;
        let snapshot = NewSnapshot { id, seq_nr, codec_id, manifest, schema_version, payload, metadata };
        match self.snapshots().save_at(snapshot, Some(timestamp)).await {
            Ok(_) => Ok(()),
            Err(SnapshotError::Corrupt(corrupt)) => Err(ImportError::Corrupt(corrupt)),
            Err(SnapshotError::Unavailable(cause)) => Err(ImportError::Unavailable(cause)),
            Err(error @ SnapshotError::TooLarge { .. }) => Err(ImportError::Refused(error.to_string())),
        }
    }

    async fn import_state(&self, state: StoredState) -> Result<(), ImportError> {
        self.import(Request::ImportState(Box::new(state))).await
    }
}

impl SledJournal {
    async fn import(&self, request: Request) -> Result<(), ImportError> {
        match self.inner().ask(request).await {
            Ok(Answer::Import(answer)) => answer,
            Ok(other) => mismatch(&other),
            Err(lost) => Err(ImportError::Unavailable(lost.cause())),
        }
    }
}

fn unread(error: ReadError) -> ImportError {
    match error {
        ReadError::Corrupt(corrupt) => ImportError::Corrupt(corrupt),
        ReadError::Unavailable(cause) => ImportError::Unavailable(cause),
    }
}

/// Ids that have a head row, of any content.
fn ids_with_heads(
    reads: &Reads<'_>,
    after: Option<&PersistenceId>,
    limit: usize,
) -> Result<Vec<PersistenceId>, ReadError> {
    let (from, to) = keys::heads(None, after);
    let id = |record| {
        let key = lookup::key_of(record).map_err(LookupError::Store)?;
        let id = std::str::from_utf8(&key[1..]).ok().and_then(|id| PersistenceId::unique(id).ok());
        let unreadable = || StoreError::corrupt("a head stands under a key that is no id");
        id.ok_or_else(|| LookupError::Store(unreadable()))
    };
    let ids = reads.reader().range(&from, &to).take(limit).map(id);
    ids.collect::<Result<_, _>>().map_err(|error| reads.read_error(error))
}

fn last_append(reads: &Reads<'_>, id: &PersistenceId) -> Result<Timestamp, ReadError> {
    let stored = reads.durable_head(id).map_err(|error| reads.read_error(error))?;
    Ok(stored.map(|stored| stored.timestamp).unwrap_or_default())
}
