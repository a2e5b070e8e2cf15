//! Events and journals for the tests of this crate.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::Path;

use greylag_core::CodecId;
use greylag_journal_sled::{SledJournal, SledJournalSettings};
use greylag_persistence::{
    Append, EventKind, Journal, NewEvent, PersistenceId, ReadRange, SeqNr, StoredEvent, Under, WriterEpoch, WriterUuid,
};

/// The id of a text.
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

/// A writer of one id that keeps its epoch and next number.
pub(crate) struct Writer {
    /// Its id.
    pub(crate) id: PersistenceId,
    /// Its uuid.
    pub(crate) uuid: WriterUuid,
    /// What it got from its claim.
    pub(crate) epoch: WriterEpoch,
    /// The last number that it stored.
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

    /// The append that comes next.
    pub(crate) fn next(&self, payloads: &[&str]) -> Append {
        Append {
            id: self.id.clone(),
            epoch: self.epoch,
            writer_uuid: self.uuid,
            first: self.highest.next().unwrap(),
            events: payloads.iter().map(|payload| event(*payload)).collect(),
        }
    }

    /// Appends and counts.
    pub(crate) async fn append(&mut self, journal: &dyn Journal, payloads: &[&str]) {
        let append = self.next(payloads);
        self.highest = append.last().unwrap();
        journal.append(append).await.unwrap();
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
