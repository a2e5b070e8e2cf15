//! The queue in any store of rows: its rules, and a task that completes every call of the store.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;
use greylag_core::{Codec, Encoded};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{DurableProducerQueue, QueueStore, TypedQueue, fresh_stream, now_ms};
use crate::ids::{ControllerRef, Epoch, SeqNr};
use crate::queue::kv::{KvQueue, fenced};
use crate::queue::{Confirmation, KvQueueSettings, MessageSent, QueueChange, QueueError, QueueState, QueueStoreError};
use crate::settings::SettingsError;

/// Maximum number of claims per load; a claim is repeated if another controller claimed the queue at the same time.
const CLAIMS: usize = 16;

/// A producer queue in a store of rows: one row for each message, removed when the message is confirmed.
///
/// There is no history and there are no snapshots: the store has only the unconfirmed messages. That makes this queue
/// the best one for embedded stores and databases alike. Each write is one [`QueueChange`] of the [`QueueStore`], made
/// only if no other controller has loaded the queue since; otherwise the writer is fenced. A dropped call goes on in a
/// task of its own, and the next call waits until it has ended.
///
/// ```
/// use greylag_codec::json;
/// use greylag_delivery::queue::{Confirmation, MessageSent};
/// use greylag_delivery::{ControllerRef, DurableProducerQueue, InMemoryQueues, SeqNr};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = InMemoryQueues::new(); // or one on disk, or in a database
/// let open = || store.open("mails").typed(json::<String>("mail"));
/// let controller = |instance| ControllerRef { node: "localhost:17355#1".parse().unwrap(), path: "outbox".into(), instance };
/// let mail = |seq_nr, text: &str| MessageSent {
///     seq_nr, message: text.to_owned(), ack: false, qualifier: "".into(), timestamp_ms: 1_700_000_000_000,
/// };
///
/// let mut outbox = open();
/// let first = outbox.load(&controller(1)).await?.current_seq_nr;
/// outbox.store_message_sent(vec![mail(first, "to Ada"), mail(SeqNr(2), "to Grace")]).await?;
/// let arrived = Confirmation::UpTo { qualifier: "".into(), seq_nr: SeqNr(1), timestamp_ms: 1_700_000_000_500 };
/// outbox.store_message_confirmed(vec![arrived]).await?;
/// drop(outbox);
///
/// let state = open().load(&controller(2)).await?;
/// assert_eq!(state.unconfirmed, [mail(SeqNr(2), "to Grace")]);
/// assert_eq!(state.current_seq_nr, SeqNr(3));
/// # Ok(())
/// # }
/// ```
///
/// Source: delivery §4.4.
pub struct KvProducerQueue<S> {
    name: Arc<str>,
    max_message_bytes: usize,
    core_state: CoreState<S>,
    /// The error of the last call, which is the answer to writes until the next load.
    unloaded: Option<QueueError>,
}

/// Owner of the rules and the store.
enum CoreState<S> {
    Idle(Box<Core<S>>),
    /// A call under way has them, even if its caller has dropped the future.
    Busy(JoinHandle<Box<Core<S>>>),
    /// Lost: a call panicked, or its runtime has ended.
    Lost,
}

/// Rules, store and name of the queue, as a call uses them.
pub(super) struct Core<S> {
    pub(super) store: S,
    pub(super) name: Arc<str>,
    pub(super) rules: KvQueue,
    /// Of an outbox: numbered messages of a poll whose answer may have been lost.
    pub(super) numbered: Vec<MessageSent<Encoded>>,
}

impl<S: QueueStore> KvProducerQueue<S> {
    /// The queue `name` of `store`. Nothing is read or written before the first load.
    ///
    /// # Errors
    /// [`SettingsError`] names the invalid setting.
    pub fn open(store: S, name: impl Into<Arc<str>>, settings: KvQueueSettings) -> Result<Self, SettingsError> {
        settings.validate()?;
        let (name, max_message_bytes) = (name.into(), store.max_message_bytes());
        let rules = KvQueue::new(settings.cleanup_unused_after);
        let core_state = CoreState::Idle(Box::new(Core { store, name: name.clone(), rules, numbered: Vec::new() }));
        Ok(Self { name, max_message_bytes, core_state, unloaded: Some(QueueError::NotLoaded) })
    }

    /// The queue with messages of type `T`, which `codec` encodes and decodes.
    pub fn typed<T>(self, codec: impl Codec<T>) -> TypedQueue<T, Self> {
        TypedQueue::new(self, codec)
    }

    /// The name of the queue in its store.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until the previous call has ended, and takes rules and store.
    async fn core(&mut self) -> Result<Box<Core<S>>, QueueError> {
        if let CoreState::Busy(call) = &mut self.core_state {
            self.core_state = call.await.map_or(CoreState::Lost, CoreState::Idle);
        }
        match std::mem::replace(&mut self.core_state, CoreState::Lost) {
            CoreState::Idle(core) => Ok(core),
            CoreState::Busy(_) | CoreState::Lost => {
                Err(QueueError::Closed("the queue's store panicked, or its runtime has ended".into()))
            }
        }
    }

    /// Runs `work` in a task, which completes even if this future is dropped.
    pub(super) async fn call<R: Send + 'static>(
        &mut self,
        work: impl for<'a> FnOnce(&'a mut Core<S>) -> BoxFuture<'a, Result<R, QueueError>> + Send + 'static,
    ) -> Result<R, QueueError> {
        let mut core = self.core().await?;
        let (answer, answered) = oneshot::channel();
        self.core_state = CoreState::Busy(tokio::spawn(async move {
            let done = work(&mut core).await;
            let _nobody_waits_any_more = answer.send(done);
            core
        }));
        let lost = || QueueError::Closed("the queue's store panicked, or its runtime has ended".into());
        let done = answered.await.unwrap_or_else(|_| Err(lost()));
        if let Err(error) = &done
            && !matches!(error, QueueError::OutOfOrder { .. })
        {
            let is_over = matches!(error, QueueError::Fenced { .. } | QueueError::Closed(_));
            self.unloaded = Some(if is_over { error.clone() } else { QueueError::NotLoaded });
        }
        done
    }

    /// Refuses writes until the next load.
    pub(super) fn unload(&mut self) {
        self.unloaded = Some(QueueError::NotLoaded);
    }

    /// Answers the error of the last call if the queue must be loaded first.
    pub(super) fn check_loaded(&self) -> Result<(), QueueError> {
        self.unloaded.clone().map_or(Ok(()), Err)
    }
}

impl<S: QueueStore> Core<S> {
    async fn load(&mut self, controller: ControllerRef) -> Result<QueueState<Encoded>, QueueError> {
        for _ in 0..CLAIMS {
            let head = self.store.head(&self.name).await.map_err(failed)?;
            let claim = self.rules.claim(head.as_ref(), &controller, fresh_stream())?;
            match self.store.claim(&self.name, &claim).await {
                Ok(()) => {
                    self.rules.claimed();
                    return self.read(claim.epoch).await;
                }
                Err(QueueStoreError::Changed) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(QueueError::NotStored("other controllers keep claiming the queue".into()))
    }

    /// Reads the rows after a claim, and forgets old confirmations.
    async fn read(&mut self, epoch: Epoch) -> Result<QueueState<Encoded>, QueueError> {
        self.numbered.clear();
        let rows = self.store.read(&self.name).await.map_err(failed)?;
        let rows = rows.ok_or_else(|| QueueError::Closed("the queue's head row was removed".into()))?;
        let mut state = self.rules.loaded(rows, epoch)?;
        if let Some(change) = self.rules.clean_up(now_ms())? {
            self.write(&change).await?;
            for qualifier in &change.forgotten {
                state.confirmed_seq_nr.remove(qualifier);
            }
        }
        Ok(state)
    }

    async fn store(&mut self, batch: Vec<MessageSent<Encoded>>) -> Result<SeqNr, QueueError> {
        let max = self.store.max_message_bytes();
        let too_large = batch.iter().find(|sent| sent.message.payload.len() > max);
        if let Some(MessageSent { seq_nr, message, .. }) = too_large {
            let size = message.payload.len();
            return Err(QueueError::Rejected(format!("message {seq_nr} has {size} bytes, at most {max} are allowed")));
        }
        if let Some(change) = self.rules.store(batch, now_ms())? {
            self.write(&change).await?;
        }
        self.rules.stored_up_to()
    }

    async fn confirm(&mut self, confirmations: Vec<Confirmation>) -> Result<(), QueueError> {
        match self.rules.confirm(confirmations, now_ms())? {
            Some(change) => self.write(&change).await,
            None => Ok(()),
        }
    }

    /// Writes a change under the epoch of the load. Any error ends the load.
    async fn write(&mut self, change: &QueueChange) -> Result<(), QueueError> {
        let error = match self.store.write(&self.name, change).await {
            Ok(()) => {
                self.rules.written(change);
                return Ok(());
            }
            Err(QueueStoreError::Changed) => self.change_error().await,
            Err(error) => failed(error),
        };
        self.rules.unload();
        Err(error)
    }

    /// The error of a write that the store refused because the queue has changed.
    pub(super) async fn change_error(&self) -> QueueError {
        let head = self.store.head(&self.name).await.ok().flatten();
        match (head.as_ref().map(|head| head.epoch), self.rules.epoch()) {
            (Some(stored), Some(loaded)) if stored == loaded => QueueError::NotStored(
                "the store calls the queue changed, though its epoch is the one that was loaded".into(),
            ),
            _ => fenced(head.as_ref()),
        }
    }
}

/// The caller's error if the store failed.
pub(super) fn failed(error: QueueStoreError) -> QueueError {
    match error {
        QueueStoreError::Changed => QueueError::Fenced { by: None },
        QueueStoreError::Rejected(reason) => QueueError::Rejected(reason),
        QueueStoreError::Unavailable(reason) => QueueError::NotStored(reason),
        QueueStoreError::Unknown(reason) => {
            tracing::warn!(reason, "the outcome of a write of a producer queue is unknown");
            QueueError::OutcomeUnknown
        }
        QueueStoreError::Damaged(reason) => QueueError::Closed(reason),
    }
}

#[async_trait]
impl<S: QueueStore> DurableProducerQueue<Encoded> for KvProducerQueue<S> {
    async fn load(&mut self, controller: &ControllerRef) -> Result<QueueState<Encoded>, QueueError> {
        // The former load is void, even if this load fails.
        self.unloaded = Some(QueueError::NotLoaded);
        let controller = controller.clone();
        let state = self.call(move |core| Box::pin(core.load(controller))).await?;
        self.unloaded = None;
        Ok(state)
    }

    async fn store_message_sent(&mut self, batch: Vec<MessageSent<Encoded>>) -> Result<SeqNr, QueueError> {
        self.check_loaded()?;
        self.call(move |core| Box::pin(core.store(batch))).await
    }

    async fn store_message_confirmed(&mut self, confirmations: Vec<Confirmation>) -> Result<(), QueueError> {
        self.check_loaded()?;
        self.call(move |core| Box::pin(core.confirm(confirmations))).await
    }

    fn max_message_bytes(&self) -> usize {
        self.max_message_bytes
    }
}

impl<S> fmt::Debug for KvProducerQueue<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvProducerQueue").field("name", &self.name).field("unloaded", &self.unloaded).finish()
    }
}
