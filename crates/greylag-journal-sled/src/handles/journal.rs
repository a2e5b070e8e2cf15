//! The handle of a journal.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use greylag_persistence::{
    AdvanceError, Append, AppendError, Appended, Caps, Claim, ClaimError, CloseError, DeleteError, Head, Health,
    Journal, Page, PersistenceId, ReadError, ReadRange, RejectReason, Scope, SeqNr, Stores, Under, WriterEpoch,
    WriterUuid,
};
use greylag_store_sled::{OpenError, StoreStats};

use super::inner::{Inner, Lost, mismatch};
use super::offsets::SledOffsets;
use super::queries::SledQueries;
use super::snapshots::SledSnapshots;
use super::states::SledStates;
use crate::request::{Answer, EncodedAppend, Request};
use crate::rows::records::EncodedEvent;
use crate::settings::SledJournalSettings;

/// A journal in a directory of this machine, opened by one process at a time. Clones share it.
///
/// Its methods must run inside a tokio runtime: reads run on the runtime's blocking threads. Appends need no such
/// thread: the caller encodes the events and queues them, and the committer answers.
#[derive(Debug, Clone)]
pub struct SledJournal {
    inner: Arc<Inner>,
}

impl SledJournal {
    /// Opens the journal in the directory `path`, or creates it.
    ///
    /// # Errors
    /// [`OpenError::Locked`] if another process has it open; [`OpenError::Failed`] if it cannot be read or
    /// written; [`OpenError::Corrupt`] if acknowledged commits are missing or damaged.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn open(path: impl AsRef<Path>, settings: SledJournalSettings) -> Result<Self, OpenError> {
        let path = path.as_ref().to_owned();
        let opening = tokio::task::spawn_blocking(move || Self::open_blocking(&path, &settings));
        opening.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
    }

    /// [`SledJournal::open`] for programs that have no runtime yet.
    ///
    /// # Errors
    /// As [`SledJournal::open`].
    pub fn open_blocking(path: impl AsRef<Path>, settings: &SledJournalSettings) -> Result<Self, OpenError> {
        Ok(Self { inner: Arc::new(Inner::open(path.as_ref(), settings)?) })
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// The snapshot store in the same directory.
    pub fn snapshots(&self) -> SledSnapshots {
        SledSnapshots::new(self.inner.clone())
    }

    /// The query side of this journal.
    pub fn queries(&self) -> SledQueries {
        SledQueries::new(self.inner.clone())
    }

    /// The durable states in the same directory and group commits.
    pub fn states(&self) -> SledStates {
        SledStates::new(self.inner.clone())
    }

    /// The offsets of projections, in the same directory and group commits.
    pub fn offsets(&self) -> SledOffsets {
        SledOffsets::new(self.inner.clone())
    }

    /// Journal, snapshots and durable states, as entities take them.
    pub fn stores(&self) -> Stores {
        Stores::new(Arc::new(self.clone()), Arc::new(self.snapshots())).with_states(Arc::new(self.states()))
    }

    /// Counters of group commits since the journal was opened.
    pub fn stats(&self) -> StoreStats {
        self.inner.store.stats()
    }

    /// Directory of the journal.
    pub fn path(&self) -> &Path {
        self.inner.store.path()
    }
}

const CAPS: Caps = Caps::full(Scope::Node);

#[async_trait]
impl Journal for SledJournal {
    fn caps(&self) -> Caps {
        CAPS
    }

    async fn claim(&self, id: &PersistenceId, writer_uuid: WriterUuid, under: Under) -> Result<Claim, ClaimError> {
        match self.inner.ask(Request::Claim { id: id.clone(), writer_uuid, under }).await {
            Ok(Answer::Claim(answer)) => answer,
            Ok(other) => mismatch(&other),
            Err(lost) => Err(ClaimError::Unavailable(lost.cause())),
        }
    }

    async fn advance(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<(), AdvanceError> {
        match self.inner.ask(Request::Advance { id: id.clone(), epoch, to }).await {
            Ok(Answer::Advance(answer)) => answer,
            Ok(other) => mismatch(&other),
            Err(lost) => Err(AdvanceError::Unavailable(lost.cause())),
        }
    }

    async fn append(&self, append: Append) -> Result<Appended, AppendError> {
        let request = encode(&append, self.inner.max_append_bytes()).map_err(AppendError::Rejected)?;
        match self.inner.ask(Request::Append(request)).await {
            Ok(Answer::Append(answer)) => answer,
            Ok(other) => mismatch(&other),
            Err(Lost::NotTaken(cause)) => Err(AppendError::NotStored(cause)),
            Err(Lost::Unanswered(cause)) => Err(AppendError::Unknown(cause)),
        }
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        let id = id.clone();
        self.inner.read(move |reads| reads.read(&id, range)).await.map_err(ReadError::Unavailable)?
    }

    async fn head(&self, id: &PersistenceId) -> Result<Head, ReadError> {
        let id = id.clone();
        self.inner.read(move |reads| reads.head(&id)).await.map_err(ReadError::Unavailable)?
    }

    async fn delete_to(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<SeqNr, DeleteError> {
        match self.inner.ask(Request::DeleteTo { id: id.clone(), epoch, to }).await {
            Ok(Answer::DeleteTo(answer)) => answer,
            Ok(other) => mismatch(&other),
            Err(lost) => Err(DeleteError::Unavailable(lost.cause())),
        }
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.inner.close().await
    }
}

/// Checks the limits and encodes the events, on the caller's thread.
fn encode(append: &Append, max_bytes: usize) -> Result<EncodedAppend, RejectReason> {
    /// A commit record has room for this many tag numbers of one append.
    const MAX_TAGS: usize = 4096;
    append.check(&CAPS)?;
    let tags: usize = append.events.iter().map(|event| event.tags.len()).sum();
    if tags > MAX_TAGS {
        return Err(RejectReason::Other(format!("{tags} tags in one append, at most {MAX_TAGS} are stored")));
    }
    let events = EncodedEvent::all(append);
    let bytes: usize = events.iter().map(EncodedEvent::len).sum();
    if bytes > max_bytes {
        return Err(RejectReason::Other(format!("an append of {bytes} bytes, at most {max_bytes} are stored at once")));
    }
    Ok(EncodedAppend {
        id: append.id.clone(),
        epoch: append.epoch,
        writer_uuid: append.writer_uuid,
        first: append.first,
        last: append.last().ok_or(RejectReason::SeqNrOverflow)?,
        events,
    })
}

#[cfg(test)]
mod tests {
    use greylag_core::CodecId;
    use greylag_persistence::{EventKind, NewEvent};

    use super::*;
    use crate::heads::Before;
    use crate::rows::records::StoredHead;

    /// J6: sled shows a batch before it is durable; readers must not see it.
    #[tokio::test]
    async fn what_is_not_durable_yet_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let journal = SledJournal::open(directory.path(), SledJournalSettings::test()).await.unwrap();
        let id = PersistenceId::unique("Counter|1").unwrap();
        let writer_uuid = WriterUuid::from_u128(1);
        let epoch = journal.claim(&id, writer_uuid, Under::Seen(WriterEpoch::NONE)).await.unwrap().epoch;
        let event = NewEvent {
            codec_id: CodecId::JSON,
            manifest: "counted".into(),
            schema_version: 1,
            kind: EventKind::Event,
            payload: "1".into(),
            metadata: Default::default(),
            tags: Default::default(),
        };
        let events = vec![event.clone(), event];
        journal.append(Append { id: id.clone(), epoch, writer_uuid, first: SeqNr::FIRST, events }).await.unwrap();
        // Publishes a batch with event 2, as the committer does between applying a batch and its sync.
        let inner = &journal.inner;
        let stored: StoredHead = crate::lookup::head(&inner.store.reader().unwrap(), &id).unwrap().unwrap();
        let durable = StoredHead { head: Head { highest: SeqNr::FIRST, ..stored.head }, ..stored };
        let before = |before| Before { heads: vec![(stored.pid, before)], ..Before::default() };
        inner.undurable.publish(before(Some(durable)));
        assert_eq!(journal.head(&id).await.unwrap().highest, SeqNr::FIRST);
        let page = journal.read(&id, ReadRange::all()).await.unwrap();
        assert_eq!((page.records.len(), page.next), (1, None));
        inner.undurable.clear();
        inner.undurable.publish(before(None));
        assert_eq!(journal.head(&id).await.unwrap(), Head::default(), "not even the claim is durable");
        inner.undurable.clear();
        assert_eq!(journal.read(&id, ReadRange::all()).await.unwrap().records.len(), 2);
    }
}
