//! The path of a message, and of an answer, from its sender into the queue of a lane.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use greylag_core::{DeadLetterReason, NodeAddress, UniqueAddress};
use tokio::time::Sleep;

use super::flushes::{Done, Mark};
use super::reply_port::SharedPort;
use crate::driver::grpc::peers::NotNumbered;
use crate::driver::grpc::shared::TransportInner;
use crate::endpoints::endpoint::{Refusal, Reply};
use crate::lanes::lane::Lane;
use crate::lanes::queue::{Item, Waiter};
use crate::messages::envelope::{EncodedMessage, Envelope, Inbound, MAX_NAME, Payload};
use crate::remoting::{Destination, SendError, SendRejected, Sending};
use crate::wire::REPLY_PATH;

impl TransportInner {
    /// Queues a message, or gives it back; a refusal is a dead letter.
    pub(crate) fn send(self: &Arc<Self>, to: &Destination, envelope: Envelope) -> Result<(), SendRejected> {
        let lane = self.lanes.lane(&envelope.recipient);
        let mut envelope = Some(envelope);
        self.try_send(lane, to, &mut envelope, None).map_err(|error| self.reject(lane, to.address(), error, envelope))
    }

    /// Queues a message, waiting for room if there is none.
    pub(crate) fn send_async(
        self: &Arc<Self>,
        to: &Destination,
        envelope: Envelope,
        deadline: Option<Duration>,
    ) -> Sending {
        // Use the control runtime's clock: the waiting task need not run on a runtime that has one.
        let patience = deadline.map(|deadline| {
            let _context = self.node.runtimes.control().enter();
            Box::pin(tokio::time::sleep(deadline))
        });
        Box::pin(PendingSend {
            shared: self.clone(),
            to: to.clone(),
            lane: self.lanes.lane(&envelope.recipient),
            id: self.next_waiting.fetch_add(1, Ordering::Relaxed),
            envelope: Some(envelope),
            patience,
            has_waited: false,
        })
    }

    pub(crate) fn send_reliable(
        self: &Arc<Self>,
        to: &UniqueAddress,
        mut envelope: Envelope,
    ) -> Result<(), SendRejected> {
        let (lane, now) = (Lane::CONTROL, Instant::now());
        envelope.target_uid = Some(to.uid());
        if to.address() == self.node.endpoint.self_address.address() {
            envelope.must_enqueue = true;
            return self
                .send_locally(lane, envelope, None)
                .map_err(|envelope| self.reject(lane, to.address(), SendError::QueueFull, Some(*envelope)));
        }
        if let Err(error) = self.check(lane, Some(to), &envelope) {
            return Err(self.reject(lane, to.address(), error, Some(envelope)));
        }
        let encoded = match EncodedMessage::new(&envelope) {
            Ok(encoded) => Arc::new(encoded),
            Err(error) => {
                tracing::warn!(%error, "a message could not be written");
                let reason = DeadLetterReason::SerializeFailed;
                self.node.endpoint.drop_unsent(now, lane, to.address(), &envelope, reason);
                return Ok(());
            }
        };
        let (size, max) = (encoded.payload.len(), self.node.settings.maximum_message_size(lane.kind()));
        if size > max {
            return Err(self.reject(lane, to.address(), SendError::TooLarge { size, max }, Some(envelope)));
        }
        loop {
            return match self.send_numbered(&self.peer(to.address()), to.uid(), encoded.clone()) {
                Ok(()) => Ok(()),
                // All waiting messages were given up, this one with them.
                Err(NotNumbered::GaveUp) => {
                    Err(SendRejected { error: SendError::QueueFull, envelope: Box::new(envelope) })
                }
                Err(NotNumbered::LetGo) => {
                    self.peers.await_drop();
                    continue;
                }
            };
        }
    }

    /// See [`crate::Remoting::flush`].
    pub(crate) fn flush(self: &Arc<Self>, to: &UniqueAddress, done: Done) {
        if to.address() == self.node.endpoint.self_address.address() {
            if *to == self.node.endpoint.self_address {
                self.workers.flush_locally(Mark::local(done));
            }
            return;
        }
        let peer = self.peer(to.address());
        let in_use = |lane: &Lane| peer.queue(*lane).is_open() || !peer.queue(*lane).is_empty();
        let lanes: std::collections::BTreeSet<Lane> = peer.lanes().filter(in_use).collect();
        if lanes.is_empty() {
            return done();
        }
        let id = self.flushes.begin(Instant::now(), to.clone(), lanes.clone(), done);
        for lane in lanes {
            self.push_to(&peer, lane, Item::Flush { to: to.uid(), id }, true).ok();
        }
    }

    /// Sends an answer; an answer without room is a dead letter, and its asker waits until the timeout.
    pub(crate) fn send_reply(self: &Arc<Self>, to: &UniqueAddress, ask_id: u64, reply: Reply) {
        let now = Instant::now();
        if *to == self.node.endpoint.self_address {
            self.node.endpoint.accept_reply(now, to, ask_id, reply, || Arc::new(SharedPort(self.clone())));
            return;
        }
        let lane = self.reply_lane(ask_id);
        let dead = |reason| {
            let what = || format!("the answer to question {ask_id}");
            self.node.endpoint.count_dead_letter(now, reason, Some(lane), Some(to.address()), 1, what);
        };
        if to.address() == self.node.endpoint.self_address.address() {
            // The asker was a former process of this address, which asked before this process started.
            return dead(DeadLetterReason::StaleIncarnation);
        }
        if self.node.is_blocked(to) {
            return dead(DeadLetterReason::Quarantined);
        }
        let item = Item::Reply { to: to.uid(), ask_id, reply };
        if self.push(to.address(), lane, item, false).is_err() {
            let is_ending = self.node.shutdown.is_begun();
            return dead(if is_ending { DeadLetterReason::ShuttingDown } else { DeadLetterReason::QueueFull });
        }
        self.hand_back_if_blocked(to);
    }

    /// Hands back messages that were queued for a process while it was being quarantined, too late to be handed back
    /// with the rest (cluster T18).
    pub(crate) fn hand_back_if_blocked(self: &Arc<Self>, to: &UniqueAddress) {
        if self.node.is_blocked(to) {
            self.peer(to.address()).hand_back(&self.node, to.uid(), DeadLetterReason::Quarantined);
        }
    }

    /// The lane of an answer. Answers need no order among each other, so they spread over the ordinary lanes, unless
    /// the patterns name them as large.
    fn reply_lane(&self, ask_id: u64) -> Lane {
        if self.lanes.is_plain() {
            return Lane::ordinary(0);
        }
        self.lanes.configured(REPLY_PATH, &ask_id.to_string())
    }

    pub(crate) fn refuse(self: &Arc<Self>, refusal: Option<Refusal>) {
        if let Some(Refusal { to, ask_id, reason }) = refusal {
            self.send_reply(&to, ask_id, Reply::Dropped(reason));
        }
    }

    fn check(&self, lane: Lane, to: Option<&UniqueAddress>, envelope: &Envelope) -> Result<(), SendError> {
        if self.node.shutdown.is_begun_relaxed() {
            return Err(SendError::ShuttingDown);
        }
        let Envelope { recipient, manifest, .. } = envelope;
        let longest = recipient.path.len().max(recipient.below().len()).max(manifest.len());
        if longest > MAX_NAME {
            return Err(SendError::NameTooLong { size: longest, max: MAX_NAME });
        }
        let max = self.node.settings.maximum_message_size(lane.kind());
        if let Payload::Bytes(bytes) = &envelope.payload
            && bytes.len() > max
        {
            return Err(SendError::TooLarge { size: bytes.len(), max });
        }
        if to.is_some_and(|peer| self.node.is_blocked(peer)) { Err(SendError::Quarantined) } else { Ok(()) }
    }

    /// Takes the envelope out of `slot` and queues it; on an error it stays there. Moving an envelope is most of a
    /// send's cost, so it is moved only once.
    fn try_send(
        self: &Arc<Self>,
        lane: Lane,
        to: &Destination,
        slot: &mut Option<Envelope>,
        waiting: Option<Waiter<'_>>,
    ) -> Result<(), SendError> {
        let envelope = slot.as_mut().expect("there is something to send");
        let incarnation = match to {
            Destination::Incarnation(peer) => Some(peer),
            Destination::Address(_) => None,
        };
        self.check(lane, incarnation, envelope)?;
        if let Some(peer) = incarnation {
            envelope.target_uid = Some(peer.uid());
        }
        let (address, force) = (to.address(), envelope.must_enqueue);
        if address == self.node.endpoint.self_address.address() {
            let sent = slot.take().map_or(Ok(()), |envelope| self.send_locally(lane, envelope, waiting));
            return sent.map_err(|envelope| {
                *slot = Some(*envelope);
                SendError::QueueFull
            });
        }
        if !self.push_envelope(address, lane, slot, force, waiting) {
            let is_ending = self.node.shutdown.is_begun();
            return Err(if is_ending { SendError::ShuttingDown } else { SendError::QueueFull });
        }
        if let Some(peer) = incarnation {
            self.hand_back_if_blocked(peer);
        }
        Ok(())
    }

    /// Delivers to this node itself, by the workers of arriving messages. Returns the envelope if there is no room.
    fn send_locally(&self, lane: Lane, envelope: Envelope, waiting: Option<Waiter<'_>>) -> Result<(), Box<Envelope>> {
        let (endpoint, now) = (&self.node.endpoint, Instant::now());
        let own = &endpoint.self_address;
        let drop_it = |envelope: &Envelope, reason| endpoint.drop_unsent(now, lane, own.address(), envelope, reason);
        if envelope.target_uid.is_some_and(|uid| uid != own.uid()) {
            drop_it(&envelope, DeadLetterReason::StaleIncarnation);
            return Ok(());
        }
        let payload = match envelope.payload.to_bytes(&envelope.manifest) {
            Ok(payload) => payload,
            Err(error) => {
                tracing::warn!(%error, "a message could not be written");
                drop_it(&envelope, DeadLetterReason::SerializeFailed);
                return Ok(());
            }
        };
        let Envelope { recipient, target_uid, codec, manifest, payload: original, ask, must_enqueue } = envelope;
        if let Some(ask) = ask {
            endpoint.asks.sent_to(ask.id, own);
        }
        let capacity = self.node.settings.queue_size(lane.kind());
        let message = Inbound { from: own.clone(), recipient, codec, manifest, payload, ask };
        let queued = self.workers.deliver_locally(capacity, must_enqueue, lane, message, waiting);
        queued.map_err(|message| {
            let Inbound { recipient, codec, manifest, ask, .. } = message;
            Box::new(Envelope { recipient, target_uid, codec, manifest, payload: original, ask, must_enqueue })
        })
    }

    /// Counts a message as a dead letter and returns it to the caller.
    fn reject(&self, lane: Lane, to: &NodeAddress, error: SendError, envelope: Option<Envelope>) -> SendRejected {
        let envelope = Box::new(envelope.expect("what was not taken is there"));
        let reason = match error {
            SendError::QueueFull => DeadLetterReason::QueueFull,
            SendError::Quarantined => DeadLetterReason::Quarantined,
            SendError::TooLarge { .. } | SendError::NameTooLong { .. } => DeadLetterReason::TooLarge,
            SendError::ShuttingDown => DeadLetterReason::ShuttingDown,
        };
        self.node.endpoint.count_unsent(Instant::now(), lane, to, &envelope, reason);
        SendRejected { error, envelope }
    }
}

/// A message that waits for room. Dropped, the message leaves no trace in the queue.
struct PendingSend {
    shared: Arc<TransportInner>,
    to: Destination,
    lane: Lane,
    /// The number under which the waker is kept while there is no room.
    id: u64,
    /// `None` once queued or returned.
    envelope: Option<Envelope>,
    patience: Option<Pin<Box<Sleep>>>,
    has_waited: bool,
}

impl Future for PendingSend {
    type Output = Result<(), SendRejected>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let waiter = Waiter { id: this.id, waker: cx.waker() };
        match this.shared.try_send(this.lane, &this.to, &mut this.envelope, Some(waiter)) {
            Ok(()) => Poll::Ready(Ok(())),
            Err(SendError::QueueFull)
                if this.patience.as_mut().is_none_or(|patience| patience.as_mut().poll(cx).is_pending()) =>
            {
                this.has_waited = true;
                Poll::Pending
            }
            Err(error) => {
                this.has_waited = true;
                Poll::Ready(Err(this.shared.reject(this.lane, this.to.address(), error, this.envelope.take())))
            }
        }
    }
}

impl Drop for PendingSend {
    fn drop(&mut self) {
        if !self.has_waited {
            return;
        }
        if self.to.address() == self.shared.node.endpoint.self_address.address() {
            self.shared.workers.forget_waiting(self.id);
        } else {
            self.shared.peer(self.to.address()).queue(self.lane).forget_waiting(self.id);
        }
    }
}
