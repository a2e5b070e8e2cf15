//! The handle of the snapshot store.

use std::sync::Arc;

use async_trait::async_trait;
use greylag_persistence::{
    CloseError, Health, NewSnapshot, PersistenceId, Scope, SeqNr, Snapshot, SnapshotCaps, SnapshotCriteria,
    SnapshotError, SnapshotStore, Timestamp,
};

use super::inner::{Inner, mismatch};
use crate::request::{Answer, Opening, Request, SnapshotChunks};
use crate::rows::keys::SaveNo;
use crate::rows::records::EncodedSnapshot;

/// Chunks that one request carries at most, so that a large snapshot does not fill a group alone.
const CHUNKS_PER_REQUEST: usize = 16;

/// The snapshots of a [`SledJournal`](crate::SledJournal), in the same directory and group commits.
#[derive(Debug, Clone)]
pub struct SledSnapshots {
    inner: Arc<Inner>,
}

const SNAPSHOT_CAPS: SnapshotCaps = SnapshotCaps::full(Scope::Node);

#[async_trait]
impl SnapshotStore for SledSnapshots {
    fn caps(&self) -> SnapshotCaps {
        SNAPSHOT_CAPS
    }

    async fn load(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<Option<Snapshot>, SnapshotError> {
        let id = id.clone();
        self.inner.read(move |reads| reads.load(&id, criteria)).await.map_err(SnapshotError::Unavailable)?
    }

    async fn save(&self, snapshot: NewSnapshot) -> Result<Timestamp, SnapshotError> {
        self.save_at(snapshot, None).await
    }

    async fn delete(&self, id: &PersistenceId, seq_nr: SeqNr) -> Result<(), SnapshotError> {
        self.delete_by(Request::DeleteSnapshot { id: id.clone(), seq_nr }).await
    }

    async fn delete_matching(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<(), SnapshotError> {
        self.delete_by(Request::DeleteSnapshots { id: id.clone(), criteria }).await
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.inner.close().await
    }
}

impl SledSnapshots {
    pub(super) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// Saves the snapshot with the timestamp `taken_at`, or the clock's if that is `None`.
    pub(crate) async fn save_at(
        &self,
        snapshot: NewSnapshot,
        taken_at: Option<Timestamp>,
    ) -> Result<Timestamp, SnapshotError> {
        let (bytes, max) = (snapshot.payload.len(), SNAPSHOT_CAPS.max_bytes);
        if bytes > max {
            return Err(SnapshotError::TooLarge { bytes, max });
        }
        // The save number is half of a random uuid, so that no two saves in the life of a store share chunks.
        let save = SaveNo(uuid::Uuid::new_v4().as_u64_pair().1);
        let mut snapshot = EncodedSnapshot::new(snapshot, save);
        let chunks_written_in = self.write_chunks(&mut snapshot).await?;
        match self.inner.ask(Request::SaveSnapshot { snapshot, chunks_written_in, taken_at }).await {
            Ok(Answer::SaveSnapshot(answer)) => answer,
            Ok(other) => mismatch(&other),
            Err(lost) => Err(SnapshotError::Unavailable(lost.cause())),
        }
    }

    /// Writes the chunks that do not fit into the snapshot's row, a few at a time. Answers the opening of the store in
    /// which all of them were written; `None` if there are no chunks.
    async fn write_chunks(&self, snapshot: &mut EncodedSnapshot) -> Result<Option<Opening>, SnapshotError> {
        let mut written_in = None;
        let mut chunks = std::mem::take(&mut snapshot.chunks).into_iter().peekable();
        let mut first_chunk = 0;
        while chunks.peek().is_some() {
            let part: Vec<_> = chunks.by_ref().take(CHUNKS_PER_REQUEST).collect();
            let count = u16::try_from(part.len()).expect("a request carries few chunks");
            let (id, seq_nr, save) = (snapshot.id.clone(), snapshot.seq_nr, snapshot.save);
            let request = SnapshotChunks { id, seq_nr, save, first_chunk, chunks: part };
            let opening = match self.inner.ask(Request::SnapshotChunks(request)).await {
                Ok(Answer::SnapshotChunks(answer)) => answer?,
                Ok(other) => mismatch(&other),
                Err(lost) => return Err(SnapshotError::Unavailable(lost.cause())),
            };
            if *written_in.get_or_insert(opening) != opening {
                let cause = self.inner.failure("the store was opened again while the snapshot was being written");
                return Err(SnapshotError::Unavailable(cause));
            }
            first_chunk += count;
        }
        Ok(written_in)
    }

    async fn delete_by(&self, request: Request) -> Result<(), SnapshotError> {
        match self.inner.ask(request).await {
            Ok(Answer::DeleteSnapshots(answer)) => answer,
            Ok(other) => mismatch(&other),
            Err(lost) => Err(SnapshotError::Unavailable(lost.cause())),
        }
    }
}
