//! The store's handle: queues in one directory.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use greylag_core::Encoded;
use greylag_delivery::queue::{
    MessageSent, QueueChange, QueueClaim, QueueHead, QueueRows, QueueStoreError, confirmed_from_bytes,
};
use greylag_delivery::{QueueStore, SeqNr};
use greylag_store_sled::{Health, OpenError, Reader, Store, StoreError, StoreSettings, StoreStats, Watermark};

use crate::keys::{self, MAX_NAME_BYTES};
use crate::message;
use crate::planner::{Queues, Request};
use crate::settings::SledQueueSettings;

/// How often rows are read again because the queue was claimed meanwhile.
const READS: usize = 8;

/// Queues of producers in a local directory, by name; for [`KvProducerQueue`](greylag_delivery::KvProducerQueue).
/// Clones share the directory, which only one process at a time can open.
#[derive(Clone)]
pub struct SledQueues {
    store: Store<Queues>,
    watermark: Arc<Watermark>,
    max_message_bytes: usize,
}

impl SledQueues {
    /// Opens the directory `path`, or creates it.
    ///
    /// # Errors
    /// [`OpenError::Locked`] if another process has the directory open; [`OpenError::Failed`] if it cannot be read or
    /// written; [`OpenError::Corrupt`] if acknowledged commits are missing or damaged.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn open(path: impl AsRef<Path>, settings: SledQueueSettings) -> Result<Self, OpenError> {
        let path = path.as_ref().to_owned();
        let opening = tokio::task::spawn_blocking(move || Self::open_blocking(&path, settings));
        opening.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
    }

    /// [`SledQueues::open`] for programs without a runtime.
    ///
    /// # Errors
    /// As [`SledQueues::open`].
    pub fn open_blocking(path: impl AsRef<Path>, settings: SledQueueSettings) -> Result<Self, OpenError> {
        let SledQueueSettings { cache_bytes, min_free_bytes, ballast_bytes, max_message_bytes, disk, engine } =
            settings;
        let settings = StoreSettings { cache_bytes, ballast_bytes, ..engine };
        let watermark = Arc::new(Watermark::new(path.as_ref(), disk, min_free_bytes));
        let store = Store::open(path, settings, Queues::default())?;
        Ok(Self { store, watermark, max_message_bytes })
    }

    /// Health of the store; a nearly full disk counts as degraded.
    pub fn health(&self) -> Health {
        let mut reasons = match self.store.health() {
            Health::Up => Vec::new(),
            Health::Degraded(reasons) => reasons,
            down @ Health::Down(_) => return down,
        };
        reasons.extend(self.watermark.room().is_low().map(|why| format!("storage is low: {why}")));
        if reasons.is_empty() { Health::Up } else { Health::Degraded(reasons) }
    }

    /// Counters of group commits since the store was opened.
    pub fn stats(&self) -> StoreStats {
        self.store.stats()
    }

    /// Directory of the store.
    pub fn path(&self) -> &Path {
        self.store.path()
    }

    /// Completes waiting requests and closes the directory, for all clones.
    ///
    /// # Errors
    /// [`StoreError::Stalled`] if the committer does not end in time.
    pub async fn close(&self) -> Result<(), StoreError> {
        let store = self.store.clone();
        let closing = tokio::task::spawn_blocking(move || store.close());
        closing.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
    }

    async fn ask(&self, request: Request) -> Result<(), QueueStoreError> {
        let pending = self.store.submit(request);
        let pending = pending.map_err(|refused| QueueStoreError::Unavailable(refused.to_string()))?;
        pending.await.map_err(|unanswered| QueueStoreError::Unknown(unanswered.to_string()))?
    }

    /// Runs a read on a blocking thread.
    async fn reading<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Reader) -> Result<T, QueueStoreError> + Send + 'static,
    ) -> Result<T, QueueStoreError> {
        let store = self.store.clone();
        let reading = tokio::task::spawn_blocking(move || read(&store.reader().map_err(not_read)?));
        reading.await.unwrap_or_else(|error| Err(QueueStoreError::Unavailable(error.to_string())))
    }

    /// Refuses changes that might fill the disk (`adds`), since the engine does not survive a full disk.
    fn check_room(&self, adds: bool) -> Result<(), QueueStoreError> {
        let room = self.watermark.room();
        let why = if adds { room.is_low() } else { room.is_exhausted() };
        why.map_or(Ok(()), |why| Err(QueueStoreError::Unavailable(format!("storage is low: {why}"))))
    }

    fn check_size(&self, change: &QueueChange) -> Result<(), QueueStoreError> {
        let bytes = change.messages.iter().map(|sent| sent.message.payload.len()).fold(0, usize::saturating_add);
        let max = self.max_message_bytes;
        if bytes > max {
            let why = format!("the messages of one call have {bytes} bytes, at most {max} are stored at once");
            return Err(QueueStoreError::Rejected(why));
        }
        let names = change.messages.iter().map(|sent| &sent.qualifier);
        names.chain(change.confirmed.iter().map(|(qualifier, ..)| qualifier)).try_for_each(|name| check_name(name))
    }
}

fn check_name(name: &str) -> Result<(), QueueStoreError> {
    if name.len() <= MAX_NAME_BYTES {
        return Ok(());
    }
    let why = format!("a name of {} bytes; names of queues and qualifiers have at most {MAX_NAME_BYTES}", name.len());
    Err(QueueStoreError::Rejected(why))
}

fn not_read(error: StoreError) -> QueueStoreError {
    let words = error.to_string();
    if error.is_corruption() { QueueStoreError::Damaged(words) } else { QueueStoreError::Unavailable(words) }
}

fn damaged(error: impl fmt::Display) -> QueueStoreError {
    QueueStoreError::Damaged(error.to_string())
}

fn head(reader: &Reader, queue: &str) -> Result<Option<QueueHead>, QueueStoreError> {
    let row = reader.get(&keys::head(queue)).map_err(not_read)?;
    row.map(|row| QueueHead::from_bytes(row).map_err(damaged)).transpose()
}

/// The messages of a queue. An empty piece may be left over from a removed message.
fn messages(reader: &Reader, queue: &str) -> Result<Vec<MessageSent<Encoded>>, QueueStoreError> {
    let (first, after) = keys::all_messages(queue);
    let mut messages = Vec::new();
    let mut pieces: Vec<(u32, Bytes)> = Vec::new();
    let mut current = SeqNr::NONE;
    for row in reader.range(&first, &after) {
        let (key, value) = row.map_err(not_read)?;
        let (seq_nr, piece) = keys::number_and_piece(&key).ok_or_else(|| damaged("a piece has no number"))?;
        if seq_nr != current {
            messages.extend(message(current, &std::mem::take(&mut pieces))?);
            current = seq_nr;
        }
        pieces.push((piece, value));
    }
    messages.extend(message(current, &pieces)?);
    Ok(messages)
}

fn message(seq_nr: SeqNr, pieces: &[(u32, Bytes)]) -> Result<Option<MessageSent<Encoded>>, QueueStoreError> {
    if pieces.iter().all(|(_, piece)| piece.is_empty()) {
        return Ok(None);
    }
    let row = message::joined(pieces).ok_or_else(|| damaged(format!("message {seq_nr} lacks a piece")))?;
    let sent = MessageSent::from_bytes(row).map_err(damaged)?;
    if sent.seq_nr != seq_nr {
        return Err(damaged(format!("message {} lies in the place of {seq_nr}", sent.seq_nr)));
    }
    Ok(Some(sent))
}

fn rows(reader: &Reader, queue: &str) -> Result<Option<QueueRows>, QueueStoreError> {
    let mut before = head(reader, queue)?;
    for _ in 0..READS {
        let messages = messages(reader, queue)?;
        let (first, after) = keys::all_confirmed(queue);
        let row =
            |row: Result<(Bytes, Bytes), StoreError>| confirmed_from_bytes(row.map_err(not_read)?.1).map_err(damaged);
        let confirmed = reader.range(&first, &after).map(row).collect::<Result<_, _>>()?;
        // Under one epoch only one writer changes the queue, which is the reader.
        let after = head(reader, queue)?;
        if before == after {
            return Ok(after.map(|head| QueueRows { head, confirmed, messages }));
        }
        before = after;
    }
    Err(QueueStoreError::Unavailable("the queue changes faster than it can be read".into()))
}

#[async_trait]
impl QueueStore for SledQueues {
    async fn head(&self, queue: &str) -> Result<Option<QueueHead>, QueueStoreError> {
        let queue = queue.to_owned();
        self.reading(move |reader| head(reader, &queue)).await
    }

    async fn read(&self, queue: &str) -> Result<Option<QueueRows>, QueueStoreError> {
        let queue = queue.to_owned();
        self.reading(move |reader| rows(reader, &queue)).await
    }

    async fn claim(&self, queue: &str, claim: &QueueClaim) -> Result<(), QueueStoreError> {
        check_name(queue)?;
        check_name(&claim.controller.path)?;
        self.check_room(false)?;
        self.ask(Request::Claim { queue: queue.to_owned(), claim: claim.clone() }).await
    }

    async fn write(&self, queue: &str, change: &QueueChange) -> Result<(), QueueStoreError> {
        self.check_size(change)?;
        if !change.messages.is_empty() {
            self.check_room(true)?;
        }
        self.ask(Request::Write { queue: queue.to_owned(), change: change.clone() }).await
    }

    fn max_message_bytes(&self) -> usize {
        self.max_message_bytes
    }
}

impl fmt::Debug for SledQueues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SledQueues").field("path", &self.path()).finish_non_exhaustive()
    }
}
