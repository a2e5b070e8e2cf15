//! Helpers of journal cases: events, and writers that keep their claim.

use std::sync::Arc;

use bytes::Bytes;
use greylag_core::CodecId;

use super::harness::{Checked, Stop, equal, must};
use crate::contract::driver::journal_store::Journal;
use crate::contract::head::{Claim, Under};
use crate::contract::journal::{Append, ReadRange};
use crate::contract::records::event::{
    EventKind, Metadata, NewEvent, SeqNr, StoredEvent, Tags, WriterEpoch, WriterUuid,
};
use crate::contract::records::persistence_id::PersistenceId;

/// An event whose payload is `text`.
pub(crate) fn event(text: impl Into<String>) -> NewEvent {
    NewEvent {
        codec_id: CodecId::JSON,
        manifest: "tck.event".to_owned(),
        schema_version: 1,
        kind: EventKind::Event,
        payload: Bytes::from(text.into()),
        metadata: Metadata::new(),
        tags: Tags::new(),
    }
}

pub(crate) fn seq(number: u32) -> SeqNr {
    SeqNr::from(number)
}

/// The numbers of records, for comparing.
pub(crate) fn numbers(records: &[StoredEvent]) -> Vec<u64> {
    records.iter().map(|record| record.seq_nr.as_u64()).collect()
}

/// One writer of one id, with the claim that it holds.
#[derive(Clone)]
pub(crate) struct Writer {
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) id: PersistenceId,
    pub(crate) uuid: WriterUuid,
    pub(crate) claim: Claim,
}

impl Writer {
    /// Claims `id` under the stored epoch.
    pub(crate) async fn claim(journal: &Arc<dyn Journal>, id: &PersistenceId, uuid: u128) -> Checked<Self> {
        let seen = must("head", journal.head(id).await)?.epoch;
        let uuid = WriterUuid::from_u128(uuid);
        let claim = must("claim under the epoch just read", journal.claim(id, uuid, Under::Seen(seen)).await)?;
        Ok(Self { journal: journal.clone(), id: id.clone(), uuid, claim })
    }

    /// A writer of an id with the events 1 to `count`, whose payloads are their numbers.
    pub(crate) async fn with_events(journal: &Arc<dyn Journal>, name: &str, count: u32) -> Checked<Self> {
        let writer = Self::claim(journal, &id(name), 1).await?;
        for number in 1..=count {
            must("append", writer.append(number, vec![event(number.to_string())]).await)?;
        }
        Ok(writer)
    }

    pub(crate) fn build(&self, first: u32, events: Vec<NewEvent>) -> Append {
        Append { id: self.id.clone(), epoch: self.claim.epoch, writer_uuid: self.uuid, first: seq(first), events }
    }

    pub(crate) async fn append(
        &self,
        first: u32,
        events: Vec<NewEvent>,
    ) -> Result<crate::Appended, crate::AppendError> {
        self.journal.append(self.build(first, events)).await
    }

    pub(crate) async fn delete_to(&self, to: SeqNr) -> Result<SeqNr, crate::DeleteError> {
        self.journal.delete_to(&self.id, self.epoch(), to).await
    }

    pub(crate) fn epoch(&self) -> WriterEpoch {
        self.claim.epoch
    }

    /// The records of `from..=to`, read page by page.
    pub(crate) async fn read(&self, from: u32, to: SeqNr) -> Checked<Vec<StoredEvent>> {
        read_all(&self.journal, &self.id, ReadRange::new(seq(from), to)).await
    }

    /// Compares the stored numbers.
    pub(crate) async fn expect(&self, what: &str, expected: &[u64]) -> Checked {
        let records = self.read(1, SeqNr::MAX).await?;
        equal(what, numbers(&records), expected.to_vec())
    }
}

/// All records of a range, whatever the size of the pages.
pub(crate) async fn read_all(
    journal: &Arc<dyn Journal>,
    id: &PersistenceId,
    mut range: ReadRange,
) -> Checked<Vec<StoredEvent>> {
    let mut records = Vec::new();
    loop {
        let page = must("read", journal.read(id, range).await)?;
        records.extend(page.records);
        match page.next {
            None => return Ok(records),
            Some(next) if next > range.from => range.from = next,
            Some(next) => return Err(Stop::Failed(format!("a page from {} goes on at {next}", range.from))),
        }
    }
}

/// An id of the kit.
pub(crate) fn id(name: &str) -> PersistenceId {
    PersistenceId::of("tck", name).expect("names of cases are valid ids")
}
