//! The sending part of every producer's handle.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use super::command_sender::{CommandSender, NotEntered, NotSubmitted, OnDrop, Room, WeakCommandSender};
use super::permit::Permit;
use super::sent::Sent;
use crate::driver::sending::command::{Accepted, Address, Admit, Command, Granted, OutgoingMessage, PublishedState};
use crate::driver::sending::encoding::Encoding;
use crate::driver::sending::shared::{SendingState, lock};
use crate::error::{ProducerError, SendError, SentError, TrySendError, Undelivered};
use crate::ids::{ControllerRef, SeqNr};
use crate::machine::controller::Message;

/// Clones are the same producer. When the last one is dropped, the task delivers the accepted messages, and ends.
pub(crate) struct Sending<T, A: Address> {
    sender: CommandSender<Command<T, A>>,
    shared: Arc<SendingState<T, A>>,
}

/// The task's end of the handles.
pub(in crate::driver::sending) struct Inbox<T, A: Address> {
    pub(in crate::driver::sending) commands: mpsc::UnboundedReceiver<Command<T, A>>,
    pub(in crate::driver::sending) room: Arc<Room>,
    pub(in crate::driver::sending) shared: Arc<SendingState<T, A>>,
}

impl<T, A: Address> Clone for Sending<T, A> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), shared: self.shared.clone() }
    }
}

/// A reference to a producer that does not keep it alive.
pub(crate) struct WeakSending<T, A: Address> {
    sender: WeakCommandSender<Command<T, A>>,
    shared: Weak<SendingState<T, A>>,
}

impl<T, A: Address> WeakSending<T, A> {
    /// The newest handle of the producer, if there is one left.
    pub(crate) fn upgrade(&self) -> Option<Sending<T, A>> {
        let (sender, shared) = (self.sender.upgrade()?, self.shared.upgrade()?);
        Some(Sending { sender, shared })
    }

    /// Reads the state published by the task; `None` once the task has ended.
    pub(crate) fn published<V>(&self, read: impl FnOnce(&A::State) -> V) -> Option<V> {
        let shared = self.shared.upgrade().filter(|shared| shared.is_running())?;
        let published = lock(&shared.published);
        Some(read(&published))
    }
}

impl<T, A: Address> Sending<T, A> {
    /// A handle that supersedes all earlier ones (P13).
    pub(crate) fn start_again(&self) -> Self {
        let sender = self.sender.start_again(|session| Command::Start { session });
        Self { sender, shared: self.shared.clone() }
    }

    pub(crate) fn register(&self, consumer: &ControllerRef) {
        self.sender.send(Command::Register(consumer.clone()));
    }

    pub(crate) fn downgrade(&self) -> WeakSending<T, A> {
        WeakSending { sender: self.sender.downgrade(), shared: Arc::downgrade(&self.shared) }
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.shared.encoding.is_durable
    }

    /// Why the producer has ended on its own, if it has.
    pub(crate) fn failure(&self) -> Option<ProducerError> {
        self.shared.failure()
    }

    /// The highest number up to which all messages are confirmed.
    pub(crate) fn confirmed(&self) -> watch::Receiver<SeqNr> {
        self.shared.confirmed.subscribe()
    }

    /// Reads the state published by the task.
    pub(crate) fn published<V>(&self, read: impl FnOnce(&A::State) -> V) -> V {
        read(&lock(&self.shared.published))
    }
}

impl<T: Send + Sync + 'static, A: Address> Sending<T, A> {
    /// The first handle of a producer with room for `free` messages, and the task's end of it.
    pub(in crate::driver::sending) fn open(
        encoding: Arc<Encoding<T>>,
        free: u64,
        published: A::State,
    ) -> (Self, Inbox<T, A>) {
        let (sender, commands, room) = CommandSender::new(free);
        let shared = Arc::new(SendingState::new(encoding, published));
        (Self { sender, shared: shared.clone() }, Inbox { commands, room, shared })
    }

    // ---- messages -------------------------------------------------------------------------------

    /// Encodes a message, unless its target is on this node, and adds the target.
    pub(crate) fn prepare(&self, to: A, message: T, ack: bool) -> Result<OutgoingMessage<T, A>, SendError<T>> {
        let Encoding { format, is_durable } = &*self.shared.encoding;
        // A durable producer encodes every message, also for an entity of this node, since its queue stores bytes.
        let payload = if to.stays() && !is_durable { format.keep(message)? } else { format.encode(message)? };
        let bytes = payload.size();
        Ok(OutgoingMessage { to, message: Message { frames: format.frames(payload), bytes, ack } })
    }

    /// Sends a message, and waits until it is accepted.
    pub(crate) async fn send(&self, outgoing: OutgoingMessage<T, A>) -> Result<Sent, SendError<T>> {
        let ((accepted, answer), (confirmed, confirmation)) = (oneshot::channel(), oneshot::channel());
        let (session, to) = (self.sender.generation(), outgoing.to.clone());
        let entered = self.sender.submit(true, outgoing, |ticket, outgoing| {
            let accepted = Accepted::Returning(accepted);
            Command::Admit(Box::new(Admit { session, ticket, outgoing, permit: None, accepted, confirmed }))
        });
        let ticket = entered.map_err(|not| into_send_error(self.not_sent(not)))?;
        let withdraw = self.sender.on_drop(Command::Withdraw { ticket, to });
        let answer = answer.await;
        withdraw.disarm();
        match answer {
            Ok(Ok(seq_nr)) => Ok(Sent::accepted(seq_nr, confirmation)),
            Ok(Err((error, message))) => Err(SendError::of(error, message)),
            Err(_) => Err(SendError::of(self.shared.end(), None)),
        }
    }

    /// P12: sends a message, and waits until it is stored if the producer is durable, and otherwise until it is
    /// confirmed.
    pub(crate) async fn ask(&self, outgoing: OutgoingMessage<T, A>) -> Result<SeqNr, SendError<T>> {
        let sent = self.send(outgoing).await?;
        sent.stored_or_confirmed(self.is_durable()).await.map_err(|error| SendError::of(error, None))
    }

    /// Sends a message, and waits until it is confirmed.
    pub(crate) async fn send_confirmed(&self, outgoing: OutgoingMessage<T, A>) -> Result<SeqNr, SendError<T>> {
        self.send(outgoing).await?.confirmed().await.map_err(|error| SendError::of(error, None))
    }

    /// Sends a message if there is room now.
    pub(crate) fn try_send(&self, to: A, message: T) -> Result<Sent, TrySendError<T>> {
        let has_room = || self.sender.has_room() && to.has_room(&mut lock(&self.shared.published));
        if !self.sender.is_over() && !has_room() {
            return Err(TrySendError::Full(message));
        }
        let outgoing = self.prepare(to, message, false).map_err(TrySendError::Refused)?;
        self.enter(false, outgoing, None)
    }

    /// Sends a message in the room of a permit.
    pub(crate) fn redeem(&self, permit: Permit<T, A>, outgoing: OutgoingMessage<T, A>) -> Result<Sent, SendError<T>> {
        let sent = self.enter(true, outgoing, Some(permit.granted.permit)).map_err(into_send_error)?;
        permit.release.disarm();
        Ok(sent)
    }

    /// Sends a message in the room of a permit, and waits until the message is stored or confirmed (P12). The message is
    /// sent even if the returned future is never polled.
    pub(crate) fn ask_with_permit(
        &self,
        permit: Permit<T, A>,
        to: A,
        message: T,
    ) -> impl Future<Output = Result<SeqNr, SendError<T>>> + Send + use<T, A> {
        let is_durable = self.is_durable();
        let sent = self.prepare(to, message, true).and_then(|outgoing| self.redeem(permit, outgoing));
        async move { sent?.stored_or_confirmed(is_durable).await.map_err(|error| SendError::of(error, None)) }
    }

    /// Sends a message to the task, without waiting for an answer.
    fn enter(
        &self,
        waits: bool,
        outgoing: OutgoingMessage<T, A>,
        permit: Option<u64>,
    ) -> Result<Sent, TrySendError<T>> {
        let ((accepted, answer), (confirmed, confirmation)) = (oneshot::channel(), oneshot::channel());
        let session = self.sender.generation();
        let entered = self.sender.submit(waits, outgoing, |ticket, outgoing| {
            let accepted = Accepted::Plain(accepted);
            Command::Admit(Box::new(Admit { session, ticket, outgoing, permit, accepted, confirmed }))
        });
        match entered {
            Ok(_) => Ok(Sent::on_its_way(answer, confirmation)),
            Err(not) => Err(self.not_sent(not)),
        }
    }

    fn not_sent(&self, not: NotSubmitted<OutgoingMessage<T, A>, Command<T, A>>) -> TrySendError<T> {
        let (error, outgoing) = match not {
            NotSubmitted::Superseded(outgoing) => (SentError::Superseded, Some(outgoing)),
            NotSubmitted::Ended(Command::Admit(unsent)) => (self.shared.end(), Some(unsent.outgoing)),
            NotSubmitted::Ended(_) => (self.shared.end(), None),
            NotSubmitted::Full(outgoing) => match outgoing.message.frames.into_value() {
                Some(message) => return TrySendError::Full(message),
                None => (SentError::Unavailable, None),
            },
        };
        match (error, outgoing.and_then(|outgoing| outgoing.message.frames.into_value())) {
            (SentError::Closed, Some(message)) => TrySendError::Closed(message),
            (error, message) => TrySendError::Refused(SendError::of(error, message)),
        }
    }

    // ---- permits --------------------------------------------------------------------------------

    /// Asks the task for room. Returns the receiver of its answer, and what releases the room or withdraws the request.
    pub(super) fn reserve(&self) -> Result<(oneshot::Receiver<Granted<A>>, OnDrop<Command<T, A>>), ProducerError> {
        let (granted, answer) = oneshot::channel();
        let session = self.sender.generation();
        let entered = self.sender.call(|permit| Command::Reserve { session, permit, granted });
        let permit = entered.map_err(|not| match not {
            NotEntered::Superseded => ProducerError::Superseded,
            NotEntered::Ended => self.shared.error(),
        })?;
        Ok((answer, self.sender.on_drop(Command::Release { permit })))
    }

    /// Why a request for a permit failed.
    pub(in crate::driver::sending) fn no_permit(&self) -> ProducerError {
        if self.sender.is_superseded() { ProducerError::Superseded } else { self.shared.error() }
    }

    // ---- the end --------------------------------------------------------------------------------

    /// Waits until every message sent before is confirmed. Returns false if the producer ends first.
    pub(in crate::driver::sending) async fn drained(&self) -> bool {
        let (done, drained) = oneshot::channel();
        self.sender.send(Command::Drain(done));
        drained.await.is_ok()
    }

    pub(crate) async fn drain(&self, patience: Duration) -> Result<(), Undelivered> {
        match tokio::time::timeout(patience, self.drained()).await {
            Ok(true) => Ok(()),
            _ => Err(Undelivered { unconfirmed: self.published(PublishedState::undelivered) }),
        }
    }

    pub(crate) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.sender.send(Command::Close(done)) {
            closed.await.ok();
        }
    }
}

/// The error of a send that waits for room, from that of a send that does not.
fn into_send_error<T>(error: TrySendError<T>) -> SendError<T> {
    match error {
        TrySendError::Full(message) => SendError::Unavailable(Some(message)),
        TrySendError::Closed(message) => SendError::Closed(Some(message)),
        TrySendError::Refused(error) => error,
    }
}
