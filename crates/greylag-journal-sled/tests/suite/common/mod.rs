//! Events and journals for the tests of this crate.

pub(crate) mod log;
pub(crate) mod rows;
pub(crate) mod sample;

use std::path::Path;

use greylag_core::CodecId;
use greylag_journal_sled::{SledJournal, SledJournalSettings};
use greylag_persistence::{
    Append, EncodedValue, EventKind, Journal, NewEvent, NewSnapshot, PersistenceId, ReadRange, Revision, SeqNr,
    StateStore, StateWrite, StateWriteError, StoredEvent, Under, WriterEpoch, WriterUuid,
};

/// Parses an id.
pub(crate) fn id(id: &str) -> PersistenceId {
    PersistenceId::unique(id).unwrap()
}

/// An event with this payload.
pub(crate) fn event(payload: impl Into<Vec<u8>>) -> NewEvent {
    NewEvent {
        codec_id: CodecId::JSON,
        manifest: "test.event".into(),
        schema_version: 1,
        kind: EventKind::Event,
        payload: payload.into().into(),
        metadata: [("at".to_owned(), "here".into())].into(),
        tags: ["odd".to_owned()].into(),
    }
}

/// Opens a journal with small limits.
pub(crate) async fn open(path: &Path) -> SledJournal {
    SledJournal::open(path, SledJournalSettings::test()).await.unwrap()
}

/// Opens and closes a journal, so that what it holds counts as verified: the next opening checks only newer commits.
pub(crate) async fn verify(path: &Path) {
    open(path).await.close().await.unwrap();
}

/// A directory in memory, if the system has one: tests that damage a store on purpose need not wait for a disk.
pub(crate) fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// A writer of one id that keeps its epoch and next number.
pub(crate) struct Writer {
    /// Id that it writes to.
    pub(crate) id: PersistenceId,
    /// Uuid of the writer.
    pub(crate) uuid: WriterUuid,
    /// Epoch of its claim.
    pub(crate) epoch: WriterEpoch,
    /// Sequence number of its last stored event.
    pub(crate) highest: SeqNr,
}

impl Writer {
    /// Claims `id` with the epoch that is stored.
    pub(crate) async fn claim(journal: &dyn Journal, id: PersistenceId) -> Self {
        let seen = journal.head(&id).await.unwrap().epoch;
        let uuid = WriterUuid::from_u128(uuid::Uuid::new_v4().as_u128());
        let claim = journal.claim(&id, uuid, Under::Seen(seen)).await.unwrap();
        Self { id, uuid, epoch: claim.epoch, highest: claim.highest }
    }

    /// The next append with these payloads.
    pub(crate) fn next(&self, payloads: &[&str]) -> Append {
        Append {
            id: self.id.clone(),
            epoch: self.epoch,
            writer_uuid: self.uuid,
            first: self.highest.next().unwrap(),
            events: payloads.iter().map(|payload| event(*payload)).collect(),
        }
    }

    /// Appends these payloads, and raises `highest`.
    pub(crate) async fn append(&mut self, journal: &dyn Journal, payloads: &[&str]) {
        let append = self.next(payloads);
        self.highest = append.last().unwrap();
        journal.append(append).await.unwrap();
    }
}

/// A snapshot with this payload.
pub(crate) fn snapshot(id: &PersistenceId, seq_nr: SeqNr, payload: Vec<u8>) -> NewSnapshot {
    NewSnapshot {
        id: id.clone(),
        seq_nr,
        codec_id: CodecId::JSON,
        manifest: "test.state".into(),
        schema_version: 1,
        payload: payload.into(),
        metadata: Default::default(),
    }
}

/// Stores this revision of a state.
pub(crate) async fn upsert(states: &dyn StateStore, id: &PersistenceId, revision: u32, payload: &str) {
    try_upsert(states, id, revision, payload).await.unwrap();
}

/// Stores this revision of a state; answers whether it was stored.
pub(crate) async fn try_upsert(
    states: &dyn StateStore,
    id: &PersistenceId,
    revision: u32,
    payload: &str,
) -> Result<(), StateWriteError> {
    let writer_uuid = WriterUuid::from_u128(1);
    let write = StateWrite { id: id.clone(), revision: Revision::from(revision), generation: None, writer_uuid };
    let payload = payload.to_owned().into();
    let value = EncodedValue { codec_id: CodecId::JSON, manifest: "test.state".into(), schema_version: 1, payload };
    states.upsert(write, value, Some("odd".to_owned())).await
}

/// Copies the files of a store that no process has open, or that was stopped.
pub(crate) fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

/// Every event of an id.
pub(crate) async fn read_all(journal: &dyn Journal, id: &PersistenceId) -> Vec<StoredEvent> {
    let mut all = Vec::new();
    let mut range = ReadRange { max_events: 7, ..ReadRange::all() };
    loop {
        let page = journal.read(id, range).await.unwrap();
        all.extend(page.records);
        match page.next {
            Some(next) => range.from = next,
            None => return all,
        }
    }
}

/// The payloads of these events.
pub(crate) fn payloads(events: &[StoredEvent]) -> Vec<String> {
    events.iter().map(|event| String::from_utf8(event.payload.to_vec()).unwrap()).collect()
}
