//! The handles: a journal and the snapshot store that shares its directory.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use greylag_persistence::{
    AdvanceError, Append, AppendError, Appended, Caps, Claim, ClaimError, CloseError, DeleteError, Head, Health,
    Journal, NewSnapshot, Page, PersistenceId, ReadError, ReadRange, RejectReason, Scope, SeqNr, Snapshot,
    SnapshotCaps, SnapshotCriteria, SnapshotError, SnapshotStore, StoreFailure, Stores, Timestamp, Under, WriterEpoch,
    WriterUuid,
};
use greylag_store_sled::{OpenError, Refused, Store, StoreSettings, StoreStats, Watermark};

use crate::heads::Undurable;
use crate::keys::SaveNo;
use crate::offsets::SledOffsets;
use crate::planner::JournalPlanner;
use crate::queries::SledQueries;
use crate::queued::Room;
use crate::reads::Reads;
use crate::records::{EncodedEvent, EncodedSnapshot};
use crate::request::{Answer, EncodedAppend, Opening, Request, SnapshotChunks};
use crate::settings::SledJournalSettings;
use crate::states::SledStates;

/// Chunks that one request carries at most, so that a large snapshot does not fill a group alone.
const CHUNKS_PER_REQUEST: usize = 16;

/// A journal in a directory of this machine, opened by one process at a time. Clones share it.
///
/// Its methods must run inside a tokio runtime: reads run on the runtime's blocking threads. Appends need no such
/// thread: the caller encodes the events and queues them, and the committer answers.
#[derive(Debug, Clone)]
pub struct SledJournal {
    inner: Arc<Inner>,
}

/// The snapshots of a [`SledJournal`], in the same directory and group commits.
#[derive(Debug, Clone)]
pub struct SledSnapshots {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    name: String,
    pub(crate) store: Store<JournalPlanner>,
    pub(crate) undurable: Arc<Undurable>,
    watermark: Arc<Watermark>,
    room: Room,
    max_append_bytes: usize,
}

/// Why a request has no answer.
pub(crate) enum Lost {
    NotTaken(StoreFailure),
    Unanswered(StoreFailure),
}

impl Lost {
    pub(crate) fn cause(self) -> StoreFailure {
        match self {
            Self::NotTaken(cause) | Self::Unanswered(cause) => cause,
        }
    }
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
        let path = path.as_ref();
        let name = format!("journal {}", path.display());
        let undurable = Arc::new(Undurable::default());
        let watermark = Arc::new(Watermark::new(path, settings.disk.clone(), settings.min_free_bytes));
        let planner = JournalPlanner::new(name.clone(), settings, undurable.clone(), watermark.clone());
        let store_settings = StoreSettings { ballast_bytes: settings.ballast_bytes, ..settings.store.clone() };
        let store = Store::open(path, store_settings, planner)?;
        let (room, max_append_bytes) = (Room::new(settings.store.max_pending_bytes), settings.max_append_bytes);
        Ok(Self { inner: Arc::new(Inner { name, store, undurable, watermark, room, max_append_bytes }) })
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// The snapshot store in the same directory.
    pub fn snapshots(&self) -> SledSnapshots {
        SledSnapshots { inner: self.inner.clone() }
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

impl Inner {
    pub(crate) async fn ask(&self, request: Request) -> Result<Answer, Lost> {
        let request = self.room.admit(request).await;
        let pending = self.store.submit(request).map_err(|refused: Refused| Lost::NotTaken(self.failure(refused)))?;
        pending.await.map_err(|unanswered| match self.store.health() {
            greylag_store_sled::Health::Down(reason) => Lost::Unanswered(self.failure(reason)),
            _ => Lost::Unanswered(self.failure(unanswered)),
        })
    }

    /// Runs a read on a thread that may block.
    pub(crate) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Reads<'_>) -> T + Send + 'static,
    ) -> Result<T, StoreFailure> {
        let inner = self.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let reader = inner.store.reader().map_err(|error| inner.failure(error))?;
            Ok(read(&Reads { name: &inner.name, reader, undurable: &inner.undurable }))
        });
        reading.await.unwrap_or_else(|error| Err(self.failure(error)))
    }

    pub(crate) fn health(&self) -> Health {
        let mut reasons = match self.store.health() {
            greylag_store_sled::Health::Up => Vec::new(),
            greylag_store_sled::Health::Degraded(reasons) => reasons,
            greylag_store_sled::Health::Down(reason) => return Health::Down(reason),
        };
        reasons.extend(self.watermark.room().is_low().map(|why| format!("storage is low: {why}")));
        if reasons.is_empty() { Health::Up } else { Health::Degraded(reasons) }
    }

    pub(crate) async fn close(&self) -> Result<(), CloseError> {
        let store = self.store.clone();
        let closing = tokio::task::spawn_blocking(move || store.close());
        let closed = closing.await.map_err(|error| CloseError(self.failure(error)))?;
        closed.map_err(|error| CloseError(self.failure(error)))
    }

    fn failure(&self, cause: impl ToString) -> StoreFailure {
        StoreFailure::new(&self.name, cause)
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
        let request = encode(&append, self.inner.max_append_bytes).map_err(AppendError::Rejected)?;
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

/// Panics: the planner answers each request with the answer variant of the same name, so this is a bug.
pub(crate) fn mismatch(answer: &Answer) -> ! {
    panic!("the planner answered another request: {answer:?}")
}

#[cfg(test)]
mod tests {
    use greylag_core::CodecId;
    use greylag_persistence::{EventKind, NewEvent};

    use super::*;
    use crate::heads::Before;
    use crate::records::StoredHead;

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
