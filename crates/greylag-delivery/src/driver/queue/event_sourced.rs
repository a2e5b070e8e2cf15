//! The queue in a journal: an entity that runs as a task, and the handle that calls it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use greylag_core::{Codec, Encoded, EntityError, NotStoredReason};
use greylag_persistence::driver::{self, Ended, EntityHandle};
use greylag_persistence::{PersistenceId, RecoveryPermits, Stores};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use super::{DurableProducerQueue, TypedQueue, fresh_stream, now_ms};
use crate::ids::{ControllerRef, Epoch, SeqNr};
use crate::queue::behavior::{Answer, QueueBehavior, QueueCommand};
use crate::queue::{Confirmation, EventSourcedQueueSettings, MessageSent, QueueError, QueueState};
use crate::settings::SettingsError;

/// Upper limit of an event's bytes in addition to the message in it.
pub(in crate::driver) const EVENT_OVERHEAD: usize = 4 << 10;

/// A producer queue in a journal: the history has the messages, their confirmations, and the writers.
///
/// The queue is an event-sourced entity of its own, under a [`PersistenceId`] that no other producer uses. A snapshot
/// is saved from time to time, and the events before it are deleted, so that the history holds little more than the
/// unconfirmed messages. If its store fails, the queue recovers with a back-off while its callers wait; a second writer
/// of the same id fences the first. An open queue consists of a task; a dropped queue ends after the calls made before.
///
/// ```
/// use greylag_codec::json;
/// use greylag_delivery::queue::{Confirmation, EventSourcedQueueSettings, MessageSent};
/// use greylag_delivery::{ControllerRef, DurableProducerQueue, EventSourcedProducerQueue, SeqNr};
/// use greylag_persistence::{PersistenceId, RecoveryPermits, Stores};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // An outbox of mails. A mail that was handed to it is sent some day, whichever process crashes meanwhile.
/// let stores = Stores::in_memory(); // a journal on disk, or in a database
/// let open = || {
///     let id = PersistenceId::of("Outbox", "mails")?;
///     let settings = EventSourcedQueueSettings::default();
///     let queue = EventSourcedProducerQueue::open(id, stores.clone(), RecoveryPermits::default(), settings)?;
///     Ok::<_, Box<dyn std::error::Error>>(queue.typed(json::<String>("mail")))
/// };
/// let controller = |instance| ControllerRef { node: "localhost:17355#1".parse().unwrap(), path: "outbox".into(), instance };
/// let mail = |seq_nr, text: &str| MessageSent {
///     seq_nr, message: text.to_owned(), ack: false, qualifier: "".into(), timestamp_ms: 1_700_000_000_000,
/// };
///
/// let mut outbox = open()?;
/// let first = outbox.load(&controller(1)).await?.current_seq_nr;
/// outbox.store_message_sent(vec![mail(first, "to Ada"), mail(SeqNr(2), "to Grace")]).await?;
/// // Only now may they leave; and once the first arrived:
/// let arrived = Confirmation::UpTo { qualifier: "".into(), seq_nr: SeqNr(1), timestamp_ms: 1_700_000_000_500 };
/// outbox.store_message_confirmed(vec![arrived]).await?;
/// drop(outbox); // or the process is killed
///
/// let mut outbox = open()?;
/// let state = outbox.load(&controller(2)).await?;
/// assert_eq!(state.unconfirmed, [mail(SeqNr(2), "to Grace")]);
/// assert_eq!(state.current_seq_nr, SeqNr(3));
/// # Ok(())
/// # }
/// ```
///
/// Source: delivery §4.2.
pub struct EventSourcedProducerQueue {
    id: PersistenceId,
    entity: EntityHandle<QueueCommand>,
    end: oneshot::Receiver<Ended>,
    ended: Option<Ended>,
    cleanup: JoinHandle<()>,
    /// The epoch of the last load, or the answer to writes before a load.
    loaded: Result<Epoch, QueueError>,
    max_message_bytes: usize,
}

impl EventSourcedProducerQueue {
    /// Opens the queue of `id` as a task of the current tokio runtime. Nothing is written before the first load.
    ///
    /// # Errors
    /// [`SettingsError`] names the invalid setting; some depend on these stores.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn open(
        id: PersistenceId,
        stores: Stores,
        permits: RecoveryPermits,
        settings: EventSourcedQueueSettings,
    ) -> Result<Self, SettingsError> {
        settings.validate()?;
        if settings.snapshot_max_bytes > stores.snapshots.caps().max_bytes {
            let why = "must not exceed the snapshot store's limit";
            return Err(SettingsError { field: "event_sourced_queue.snapshot_max_bytes", why });
        }
        let max_message_bytes = stores.journal.caps().max_event_bytes.saturating_sub(EVENT_OVERHEAD);
        let every = settings.cleanup_unused_after / 2;
        let queue = QueueBehavior::stored(id.clone(), settings);
        let (entity, end) =
            driver::spawn(queue, stores, permits).expect("the settings of the entity follow from checked ones");
        let cleanup = tokio::spawn(clean_up(entity.clone(), every));
        Ok(Self { id, entity, end, ended: None, cleanup, loaded: Err(QueueError::NotLoaded), max_message_bytes })
    }

    /// The queue with messages of type `T`, which `codec` encodes and decodes.
    pub fn typed<T>(self, codec: impl Codec<T>) -> TypedQueue<T, Self> {
        TypedQueue::new(self, codec)
    }

    /// The persistence id of the queue's history.
    pub fn persistence_id(&self) -> &PersistenceId {
        &self.id
    }

    /// Ends the queue after all earlier calls, and waits until it has released its stores.
    pub async fn close(mut self) {
        self.cleanup.abort();
        self.entity.stop().await;
        if self.ended.is_none() {
            // A task that ended with its runtime has released the stores as well.
            let _ = (&mut self.end).await;
        }
    }

    async fn ask<R: Send + 'static>(
        &mut self,
        command: impl FnOnce(Answer<R>) -> QueueCommand,
    ) -> Result<R, QueueError> {
        match self.entity.ask(command).await {
            Ok(answer) => answer,
            Err(error) => Err(self.failed(error).await),
        }
    }

    /// The caller's error if the entity gave no answer of its own.
    async fn failed(&mut self, error: EntityError) -> QueueError {
        match error {
            EntityError::NotStored(NotStoredReason::Rejected(reason)) => QueueError::Rejected(reason),
            EntityError::NotStored(NotStoredReason::Unavailable(reason)) => QueueError::NotStored(reason),
            EntityError::NotStored(NotStoredReason::Fenced) => QueueError::Fenced { by: None },
            EntityError::StashFull => QueueError::NotStored("too many calls wait for the queue".to_owned()),
            EntityError::Stopped | EntityError::Failed(_) => self.end().await,
            _ => QueueError::OutcomeUnknown,
        }
    }

    /// Why the queue has ended.
    async fn end(&mut self) -> QueueError {
        if self.ended.is_none() {
            self.ended = (&mut self.end).await.ok();
        }
        match &self.ended {
            Some(Ended::Fenced(_)) => QueueError::Fenced { by: None },
            Some(Ended::Failed(failure)) => QueueError::Closed(failure.to_string()),
            Some(Ended::Stopped) => QueueError::Closed("the queue was stopped".to_owned()),
            None => QueueError::Closed("the queue's runtime has ended".to_owned()),
        }
    }
}

#[async_trait]
impl DurableProducerQueue<Encoded> for EventSourcedProducerQueue {
    async fn load(&mut self, controller: &ControllerRef) -> Result<QueueState<Encoded>, QueueError> {
        // The former load is void, even if this load fails.
        self.loaded = Err(QueueError::NotLoaded);
        let (controller, stream_id, now_ms) = (controller.clone(), fresh_stream(), now_ms());
        let waiting = Arc::new(());
        let wanted = Arc::downgrade(&waiting);
        let load = |reply_to| QueueCommand::Load { controller, stream_id, now_ms, wanted, reply_to };
        let loaded: Result<QueueState<Encoded>, _> = self.ask(load).await;
        drop(waiting);
        match &loaded {
            Ok(state) => self.loaded = Ok(state.epoch),
            Err(fenced @ QueueError::Fenced { .. }) => self.loaded = Err(fenced.clone()),
            Err(_) => {}
        }
        loaded
    }

    async fn store_message_sent(&mut self, batch: Vec<MessageSent<Encoded>>) -> Result<SeqNr, QueueError> {
        let epoch = self.loaded.clone()?;
        self.ask(|reply_to| QueueCommand::Store { epoch, batch, reply_to }).await
    }

    async fn store_message_confirmed(&mut self, confirmations: Vec<Confirmation>) -> Result<(), QueueError> {
        let epoch = self.loaded.clone()?;
        self.ask(|reply_to| QueueCommand::Confirm { epoch, confirmations, reply_to }).await
    }

    fn max_message_bytes(&self) -> usize {
        self.max_message_bytes
    }
}

impl Drop for EventSourcedProducerQueue {
    fn drop(&mut self) {
        // The clean-up task's handle would keep the entity alive.
        self.cleanup.abort();
    }
}

impl fmt::Debug for EventSourcedProducerQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventSourcedProducerQueue({}, epoch {:?})", self.id, self.loaded)
    }
}

/// Makes the queue forget old confirmations at regular intervals.
async fn clean_up(entity: EntityHandle<QueueCommand>, every: Duration) {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await; // The first tick is immediate, but the load cleans up already.
    loop {
        ticks.tick().await;
        if entity.tell(QueueCommand::Cleanup { now_ms: now_ms() }).await.is_err() {
            return;
        }
    }
}
