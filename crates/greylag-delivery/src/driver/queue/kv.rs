//! The queue in any store of rows: its rules, and the task that lets every call of the store end.

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

/// How often a load claims the queue anew because another controller claimed it at the same time.
const CLAIMS: usize = 16;

/// A producer queue in a store of rows: one row for each message, removed when the message is confirmed.
///
/// There is no history and there are no snapshots: what is stored is what is unconfirmed. That makes it the best queue
/// for an embedded store and for a database alike. Each write is one [`QueueChange`] of the [`QueueStore`] on
/// the condition that no other controller loaded the queue since; a writer that was overtaken is fenced. A dropped call
/// goes on in a task of its own, and the next call waits for its end.
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
    turn: Turn<S>,
    /// Why the queue cannot be written, as far as its last answers said.
    unloaded: Option<QueueError>,
}

/// Who has the rules and the store.
enum Turn<S> {
    Idle(Box<Core<S>>),
    /// A call that is under way, whether or not its caller still waits.
    Busy(JoinHandle<Box<Core<S>>>),
    /// A call panicked, or its runtime is gone.
    Lost,
}

/// What a call works with.
pub(super) struct Core<S> {
    pub(super) store: S,
    pub(super) name: Arc<str>,
    pub(super) rules: KvQueue,
    /// Of an outbox: messages that have their numbers and whose poll was not answered, as far as is known.
    pub(super) numbered: Vec<MessageSent<Encoded>>,
}

impl<S: QueueStore> KvProducerQueue<S> {
    /// The queue `name` of `store`. Nothing is read or written before it is loaded.
    ///
    /// # Errors
    /// [`SettingsError`] names the setting that cannot work.
    pub fn open(store: S, name: impl Into<Arc<str>>, settings: KvQueueSettings) -> Result<Self, SettingsError> {
        settings.validate()?;
        let (name, max_message_bytes) = (name.into(), store.max_message_bytes());
        let rules = KvQueue::new(settings.cleanup_unused_after);
        let turn = Turn::Idle(Box::new(Core { store, name: name.clone(), rules, numbered: Vec::new() }));
        Ok(Self { name, max_message_bytes, turn, unloaded: Some(QueueError::NotLoaded) })
    }

    /// This queue as one of `T`, which `codec` writes and reads.
    pub fn typed<T>(self, codec: impl Codec<T>) -> TypedQueue<T, Self> {
        TypedQueue::new(self, codec)
    }

    /// Under which name it is stored.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for the call before, if its caller did not, and takes its rules.
    async fn core(&mut self) -> Result<Box<Core<S>>, QueueError> {
        if let Turn::Busy(call) = &mut self.turn {
            self.turn = call.await.map_or(Turn::Lost, Turn::Idle);
        }
        match std::mem::replace(&mut self.turn, Turn::Lost) {
            Turn::Idle(core) => Ok(core),
            Turn::Busy(_) | Turn::Lost => Err(QueueError::Closed("its store panicked, or its runtime is gone".into())),
        }
    }

    /// Does `work` in a task, which ends also when this future is dropped.
    pub(super) async fn call<R: Send + 'static>(
        &mut self,
        work: impl for<'a> FnOnce(&'a mut Core<S>) -> BoxFuture<'a, Result<R, QueueError>> + Send + 'static,
    ) -> Result<R, QueueError> {
        let mut core = self.core().await?;
        let (answer, answered) = oneshot::channel();
        self.turn = Turn::Busy(tokio::spawn(async move {
            let done = work(&mut core).await;
            let _nobody_waits_any_more = answer.send(done);
            core
        }));
        let lost = || QueueError::Closed("its store panicked, or its runtime is gone".into());
        let done = answered.await.unwrap_or_else(|_| Err(lost()));
        if let Err(error) = &done
            && !matches!(error, QueueError::OutOfOrder { .. })
        {
            let is_over = matches!(error, QueueError::Fenced { .. } | QueueError::Closed(_));
            self.unloaded = Some(if is_over { error.clone() } else { QueueError::NotLoaded });
        }
        done
    }

    /// Refuses calls until the next load.
    pub(super) fn unload(&mut self) {
        self.unloaded = Some(QueueError::NotLoaded);
    }

    /// Whether a write may be tried.
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

    /// Reads the queue once it is claimed, and forgets what is of no use any more.
    async fn read(&mut self, epoch: Epoch) -> Result<QueueState<Encoded>, QueueError> {
        self.numbered.clear();
        let rows = self.store.read(&self.name).await.map_err(failed)?;
        let rows = rows.ok_or_else(|| QueueError::Closed("its head row was removed".into()))?;
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

    /// Makes a change under the epoch of the load, which ends with any error.
    async fn write(&mut self, change: &QueueChange) -> Result<(), QueueError> {
        let error = match self.store.write(&self.name, change).await {
            Ok(()) => {
                self.rules.written(change);
                return Ok(());
            }
            Err(QueueStoreError::Changed) => self.overtaken().await,
            Err(error) => failed(error),
        };
        self.rules.unload();
        Err(error)
    }

    /// Why a write was refused.
    pub(super) async fn overtaken(&self) -> QueueError {
        let head = self.store.head(&self.name).await.ok().flatten();
        match (head.as_ref().map(|head| head.epoch), self.rules.epoch()) {
            (Some(stored), Some(loaded)) if stored == loaded => QueueError::NotStored(
                "the store calls the queue changed, though its epoch is the one that was loaded".into(),
            ),
            _ => fenced(head.as_ref()),
        }
    }
}

/// What it means for the caller of a queue that its store failed.
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
        // Whatever becomes of this load, the one before is over.
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
