//! Queues in memory, for tests and for trying things out.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use greylag_core::Encoded;

use super::{
    FaultyQueueStore, KvProducerQueue, OutboxProducerQueue, OutboxStore, QueueCall, QueueFault, QueueStore, now_ms,
};
use crate::ids::{Epoch, SeqNr};
use crate::queue::{
    KvQueueSettings, MessageSent, OutboxSettings, Qualifier, QueueChange, QueueClaim, QueueHead, QueueRows,
    QueueStoreError, TimestampMillis,
};

/// The limit of this workspace's journals by default.
const MAX_MESSAGE_BYTES: usize = (4 << 20) - (4 << 10);

/// A producer queue in memory: lost with its process, otherwise with the guarantees of any queue.
pub type InMemoryProducerQueue = KvProducerQueue<InMemoryQueues>;

/// The "disk" of queues in memory: clones share it, so that a second queue of one name takes over from the first, like
/// a restarted process. Delays and faults can be injected.
///
/// ```
/// use greylag_delivery::queue::{MessageSent, QueueError};
/// use greylag_delivery::{ControllerRef, DurableProducerQueue, InMemoryQueues, QueueCall, QueueFault, SeqNr};
/// # use greylag_core::{CodecId, Encoded};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let message = Encoded { codec: CodecId::JSON, manifest: "order".into(), payload: "1".into() };
/// let disk = InMemoryQueues::new();
/// let mut queue = disk.open("orders");
/// let controller = ControllerRef { node: "localhost:17355#1".parse()?, path: "orders".into(), instance: 1 };
/// queue.load(&controller).await?;
///
/// // The messages are stored, and the answer gets lost.
/// disk.fail_when(|_, call| match call {
///     QueueCall::Write(change) if !change.messages.is_empty() => Some(QueueFault::AnswerLost { done: true }),
///     _ => None,
/// });
/// let order = MessageSent { seq_nr: SeqNr(1), message, ack: false, qualifier: "".into(), timestamp_ms: 1 };
/// let answer = queue.store_message_sent(vec![order.clone()]).await;
/// assert_eq!(answer, Err(QueueError::OutcomeUnknown));
///
/// // So the controller loads again and repeats the call, which is known already.
/// assert_eq!(queue.load(&controller).await?.unconfirmed, [order.clone()]);
/// assert_eq!(queue.store_message_sent(vec![order]).await?, SeqNr(1));
/// # Ok(())
/// # }
/// ```
///
/// Source: delivery §4.4.
#[derive(Debug, Clone)]
pub struct InMemoryQueues {
    disk: FaultyQueueStore<Disk>,
}

impl Default for InMemoryQueues {
    fn default() -> Self {
        Self { disk: FaultyQueueStore::new(Disk::default()) }
    }
}

impl InMemoryQueues {
    /// An empty disk, without delay and faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The queue `name` of this disk.
    pub fn open(&self, name: impl Into<Arc<str>>) -> InMemoryProducerQueue {
        KvProducerQueue::open(self.clone(), name, KvQueueSettings::default()).expect("the default settings are valid")
    }

    /// The outbox `name` of this disk.
    pub fn open_outbox(&self, name: impl Into<Arc<str>>) -> OutboxProducerQueue<Self> {
        OutboxProducerQueue::open(self.clone(), name, OutboxSettings::default())
            .expect("the default settings are valid")
    }

    /// Writes a message into an outbox, like an application's transaction.
    pub fn write_to_outbox(&self, outbox: &str, qualifier: impl Into<Qualifier>, message: Encoded) {
        let (seq_nr, ack, qualifier, timestamp_ms) = (SeqNr::NONE, false, qualifier.into(), now_ms());
        let message = MessageSent { seq_nr, message, ack, qualifier, timestamp_ms };
        self.disk.inner().with_outboxes(|outboxes| outboxes.entry(outbox.to_owned()).or_default().push_back(message));
    }

    /// As [`FaultyQueueStore::delay`].
    pub fn delay(&self, delay: Duration) {
        self.disk.delay(delay);
    }

    /// As [`FaultyQueueStore::fail_when`].
    pub fn fail_when(&self, predicate: impl Fn(&str, QueueCall<'_>) -> Option<QueueFault> + Send + Sync + 'static) {
        self.disk.fail_when(predicate);
    }

    /// As [`FaultyQueueStore::fail_write`].
    pub fn fail_write(&self, queue: impl Into<String>, passing: u32, fault: QueueFault) {
        self.disk.fail_write(queue, passing, fault);
    }

    /// As [`FaultyQueueStore::fail_never`].
    pub fn fail_never(&self) {
        self.disk.fail_never();
    }

    /// As [`FaultyQueueStore::writes`].
    pub fn writes(&self, queue: &str) -> u64 {
        self.disk.writes(queue)
    }
}

#[async_trait]
impl QueueStore for InMemoryQueues {
    async fn head(&self, queue: &str) -> Result<Option<QueueHead>, QueueStoreError> {
        self.disk.head(queue).await
    }

    async fn read(&self, queue: &str) -> Result<Option<QueueRows>, QueueStoreError> {
        self.disk.read(queue).await
    }

    async fn claim(&self, queue: &str, claim: &QueueClaim) -> Result<(), QueueStoreError> {
        self.disk.claim(queue, claim).await
    }

    async fn write(&self, queue: &str, change: &QueueChange) -> Result<(), QueueStoreError> {
        self.disk.write(queue, change).await
    }

    fn max_message_bytes(&self) -> usize {
        self.disk.max_message_bytes()
    }
}

#[async_trait]
impl OutboxStore for InMemoryQueues {
    async fn number(
        &self,
        queue: &str,
        epoch: Epoch,
        max_messages: usize,
    ) -> Result<Vec<MessageSent<Encoded>>, QueueStoreError> {
        self.disk.number(queue, epoch, max_messages).await
    }
}

/// The rows of all queues, and the unnumbered messages of outboxes.
#[derive(Clone, Default)]
struct Disk {
    queues: Arc<Mutex<BTreeMap<String, Rows>>>,
    outboxes: Arc<Mutex<BTreeMap<String, VecDeque<MessageSent<Encoded>>>>>,
}

impl Disk {
    fn with<R>(&self, work: impl FnOnce(&mut BTreeMap<String, Rows>) -> R) -> R {
        work(&mut self.queues.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn with_outboxes<R>(&self, work: impl FnOnce(&mut BTreeMap<String, VecDeque<MessageSent<Encoded>>>) -> R) -> R {
        work(&mut self.outboxes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct Rows {
    head: QueueHead,
    confirmed: BTreeMap<Qualifier, (SeqNr, TimestampMillis)>,
    messages: BTreeMap<SeqNr, MessageSent<Encoded>>,
}

impl Rows {
    fn change(&mut self, change: QueueChange) {
        let QueueChange { messages, removed, confirmed, forgotten, .. } = change;
        self.messages.extend(messages.into_iter().map(|sent| (sent.seq_nr, sent)));
        for seq_nr in removed {
            self.messages.remove(&seq_nr);
        }
        self.confirmed.extend(confirmed.into_iter().map(|(qualifier, seq_nr, at)| (qualifier, (seq_nr, at))));
        for qualifier in forgotten {
            self.confirmed.remove(&qualifier);
        }
    }
}

#[async_trait]
impl QueueStore for Disk {
    async fn head(&self, queue: &str) -> Result<Option<QueueHead>, QueueStoreError> {
        Ok(self.with(|queues| queues.get(queue).map(|rows| rows.head.clone())))
    }

    async fn read(&self, queue: &str) -> Result<Option<QueueRows>, QueueStoreError> {
        let rows = |rows: &Rows| QueueRows {
            head: rows.head.clone(),
            confirmed: rows
                .confirmed
                .iter()
                .map(|(qualifier, (seq_nr, at))| (qualifier.clone(), *seq_nr, *at))
                .collect(),
            messages: rows.messages.values().cloned().collect(),
        };
        Ok(self.with(|queues| queues.get(queue).map(rows)))
    }

    async fn claim(&self, queue: &str, claim: &QueueClaim) -> Result<(), QueueStoreError> {
        self.with(|queues| {
            let stored = queues.get(queue).map(|rows| rows.head.clone());
            let head = QueueHead::claimed(stored, claim).ok_or(QueueStoreError::Changed)?;
            let fresh = || Rows { head: head.clone(), confirmed: BTreeMap::new(), messages: BTreeMap::new() };
            queues.entry(queue.to_owned()).or_insert_with(fresh).head = head.clone();
            Ok(())
        })
    }

    async fn write(&self, queue: &str, change: &QueueChange) -> Result<(), QueueStoreError> {
        let rows_change = change.clone();
        self.with(|queues| {
            let rows = queues.get_mut(queue).ok_or(QueueStoreError::Changed)?;
            rows.head = QueueHead::changed(Some(rows.head.clone()), change).ok_or(QueueStoreError::Changed)?;
            rows.change(rows_change);
            Ok(())
        })
    }

    fn max_message_bytes(&self) -> usize {
        MAX_MESSAGE_BYTES
    }
}

#[async_trait]
impl OutboxStore for Disk {
    async fn number(
        &self,
        queue: &str,
        epoch: Epoch,
        max_messages: usize,
    ) -> Result<Vec<MessageSent<Encoded>>, QueueStoreError> {
        self.with(|queues| {
            let rows = queues.get_mut(queue).filter(|rows| rows.head.epoch == epoch);
            let rows = rows.ok_or(QueueStoreError::Changed)?;
            let mut new = self.with_outboxes(|outboxes| {
                let waiting = outboxes.entry(queue.to_owned()).or_default();
                waiting.drain(..max_messages.min(waiting.len())).collect::<Vec<_>>()
            });
            for message in &mut new {
                message.seq_nr = rows.head.current;
                rows.head.current = SeqNr(rows.head.current.get() + 1);
                rows.messages.insert(message.seq_nr, message.clone());
            }
            Ok(new)
        })
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.with(|queues| queues.keys().cloned().collect());
        f.debug_tuple("Disk").field(&names).finish()
    }
}
