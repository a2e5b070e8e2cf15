//! Helpers for queues, messages and their stored form.

use bytes::Bytes;
use greylag_core::{CodecId, Encoded};
use greylag_delivery::queue::{Confirmation, EventSourcedQueueSettings, MessageSent, QueueError, QueueState};
use greylag_delivery::{ControllerRef, DurableProducerQueue, Epoch, EventSourcedProducerQueue, SeqNr};
use greylag_journal_sled::{SledJournal, SledJournalSettings};
use greylag_persistence::{PersistenceId, ReadRange, RecoveryPermits, Stores};

pub(crate) type Queue = EventSourcedProducerQueue;

/// A time long ago: the specification's "old timestamp".
pub(crate) const LONG_AGO: u64 = 1;

pub(crate) fn id() -> PersistenceId {
    PersistenceId::of("ProducerQueue", "orders").unwrap()
}

pub(crate) fn controller(instance: u64) -> ControllerRef {
    ControllerRef { node: "localhost:17355#1".parse().unwrap(), path: "delivery/orders".into(), instance }
}

pub(crate) fn open_with(stores: &Stores, settings: EventSourcedQueueSettings) -> Queue {
    EventSourcedProducerQueue::open(id(), stores.clone(), RecoveryPermits::default(), settings).unwrap()
}

pub(crate) fn open(stores: &Stores) -> Queue {
    open_with(stores, EventSourcedQueueSettings::test())
}

/// A queue loaded by controller `instance`.
pub(crate) async fn loaded(stores: &Stores, instance: u64) -> (Queue, QueueState<Encoded>) {
    let mut queue = open(stores);
    let state = queue.load(&controller(instance)).await.unwrap();
    (queue, state)
}

pub(crate) fn message(seq_nr: u64, qualifier: &str, text: &str) -> MessageSent<Encoded> {
    let payload = Bytes::copy_from_slice(text.as_bytes());
    let message = Encoded { codec: CodecId::JSON, manifest: "order".into(), payload };
    MessageSent { seq_nr: SeqNr(seq_nr), message, ack: false, qualifier: qualifier.into(), timestamp_ms: LONG_AGO }
}

pub(crate) fn sent(seq_nr: u64) -> MessageSent<Encoded> {
    message(seq_nr, "", &format!("order {seq_nr}"))
}

pub(crate) async fn store(queue: &mut Queue, seq_nrs: impl IntoIterator<Item = u64>) -> Result<u64, QueueError> {
    queue.store_message_sent(seq_nrs.into_iter().map(sent).collect()).await.map(SeqNr::get)
}

pub(crate) fn up_to(qualifier: &str, seq_nr: u64, timestamp_ms: u64) -> Confirmation {
    Confirmation::UpTo { qualifier: qualifier.into(), seq_nr: SeqNr(seq_nr), timestamp_ms }
}

pub(crate) async fn confirm(queue: &mut Queue, qualifier: &str, seq_nr: u64) -> Result<(), QueueError> {
    queue.store_message_confirmed(vec![up_to(qualifier, seq_nr, LONG_AGO)]).await
}

pub(crate) fn numbers(state: &QueueState<Encoded>) -> Vec<u64> {
    state.unconfirmed.iter().map(|sent| sent.seq_nr.get()).collect()
}

/// `state` with the epoch of the next load.
pub(crate) fn next_epoch(state: QueueState<Encoded>) -> QueueState<Encoded> {
    QueueState { epoch: Epoch(state.epoch.0 + 1), ..state }
}

/// Number of events ever stored.
pub(crate) async fn event_count(stores: &Stores) -> u64 {
    stores.journal.head(&id()).await.unwrap().highest.as_u64()
}

/// The kinds of the stored events, oldest first.
pub(crate) async fn kinds(stores: &Stores) -> Vec<String> {
    let records = stores.journal.read(&id(), ReadRange::all()).await.unwrap().records;
    records.into_iter().map(|record| record.manifest.replace("gl.delivery.queue.", "")).collect()
}

/// A journal on disk, and its directory.
pub(crate) async fn on_disk() -> (SledJournal, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    (SledJournal::open(directory.path(), SledJournalSettings::test()).await.unwrap(), directory)
}
