//! What a message goes through before it waits in a lane.

use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use greylag_core::{DeadLetterReason, NodeAddress, UniqueAddress};

use super::flushes::{Done, Mark};
use super::shared::Shared;
use crate::endpoint::payload_bytes;
use crate::envelope::{Envelope, Inbound, Letter, Payload};
use crate::lane::Lane;
use crate::queue::Item;
use crate::reliable::SenderInput;
use crate::remoting::{Destination, SendError, SendRejected, Sending};

impl Shared {
    /// Queues a message, or gives it back; a refusal is a dead letter.
    pub(super) fn send(self: &Arc<Self>, to: &Destination, envelope: Envelope) -> Result<(), SendRejected> {
        let lane = self.lanes.lane(&envelope.recipient);
        self.try_send(lane, to, envelope, None)
            .map_err(|(error, envelope)| self.reject(lane, to.address(), error, *envelope))
    }

    /// The same, but room is waited for.
    pub(super) fn send_async(
        self: &Arc<Self>,
        to: &Destination,
        envelope: Envelope,
        deadline: Option<Duration>,
    ) -> Sending {
        let (shared, to) = (self.clone(), to.clone());
        let lane = self.lanes.lane(&envelope.recipient);
        // Whoever waits need not run on a runtime with a clock, so this one's is used.
        let mut patience = deadline.map(|deadline| {
            let _context = self.control.enter();
            Box::pin(tokio::time::sleep(deadline))
        });
        let mut waiting = Some(Box::new(envelope));
        Box::pin(std::future::poll_fn(move |cx| {
            let envelope = waiting.take().expect("it is not polled after its end");
            match shared.try_send(lane, &to, *envelope, Some(cx.waker())) {
                Ok(()) => Poll::Ready(Ok(())),
                Err((SendError::QueueFull, envelope))
                    if patience.as_mut().is_none_or(|patience| patience.as_mut().poll(cx).is_pending()) =>
                {
                    waiting = Some(envelope);
                    Poll::Pending
                }
                Err((error, envelope)) => Poll::Ready(Err(shared.reject(lane, to.address(), error, *envelope))),
            }
        }))
    }

    /// Numbers a message and keeps it until it is acknowledged.
    pub(super) fn send_reliable(
        self: &Arc<Self>,
        to: &UniqueAddress,
        mut envelope: Envelope,
    ) -> Result<(), SendRejected> {
        let (lane, now) = (Lane::CONTROL, Instant::now());
        envelope.target_uid = Some(to.uid());
        if to.address() == self.endpoint.self_address.address() {
            envelope.must_enqueue = true;
            return self
                .send_locally(lane, envelope, None)
                .map_err(|(error, envelope)| self.reject(lane, to.address(), error, *envelope));
        }
        if let Err(error) = self.check(lane, Some(to), &envelope) {
            return Err(self.reject(lane, to.address(), error, envelope));
        }
        let letter = match Letter::new(&envelope) {
            Ok(letter) => Arc::new(letter),
            Err(error) => {
                tracing::warn!(%error, "a message could not be written");
                let reason = DeadLetterReason::SerializeFailed;
                self.endpoint.drop_unsent(now, lane, to.address(), &envelope, reason);
                return Ok(());
            }
        };
        let peer = self.peer(to.address());
        let is_full = peer.numbered.is_full(&self.settings);
        peer.numbered_input(self, SenderInput::Send { target: to.uid(), message: letter });
        if is_full {
            // The machine has buried it with all the others.
            return Err(SendRejected { error: SendError::QueueFull, envelope: Box::new(envelope) });
        }
        Ok(())
    }

    /// See [`crate::Remoting::flush`].
    pub(super) fn flush(self: &Arc<Self>, to: &UniqueAddress, done: Done) {
        if *to == self.endpoint.self_address {
            return self.workers.flush_locally(&Arc::new(Mark::local(done)));
        }
        let peer = self.peer(to.address());
        let in_use = |lane: &Lane| peer.queue(*lane).is_open() || !peer.queue(*lane).is_empty();
        let lanes: std::collections::BTreeSet<Lane> = peer.lanes().filter(in_use).collect();
        if lanes.is_empty() {
            return done();
        }
        let id = self.flushes.begin(Instant::now(), to.clone(), lanes.clone(), done);
        for lane in lanes {
            peer.push(self, lane, Item::Flush { to: to.uid(), id }, true).ok();
        }
    }

    fn check(&self, lane: Lane, to: Option<&UniqueAddress>, envelope: &Envelope) -> Result<(), SendError> {
        if self.is_shutting_down.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(SendError::ShuttingDown);
        }
        let max = self.settings.maximum_message_size(lane.kind());
        if let Payload::Bytes(bytes) = &envelope.payload
            && bytes.len() > max
        {
            return Err(SendError::TooLarge { size: bytes.len(), max });
        }
        if to.is_some_and(|peer| self.is_blocked(peer)) { Err(SendError::Quarantined) } else { Ok(()) }
    }

    fn try_send(
        self: &Arc<Self>,
        lane: Lane,
        to: &Destination,
        mut envelope: Envelope,
        waiting: Option<&Waker>,
    ) -> Result<(), (SendError, Box<Envelope>)> {
        let incarnation = match to {
            Destination::Incarnation(peer) => Some(peer),
            Destination::Address(_) => None,
        };
        if let Err(error) = self.check(lane, incarnation, &envelope) {
            return Err((error, Box::new(envelope)));
        }
        if let Some(peer) = incarnation {
            envelope.target_uid = Some(peer.uid());
        }
        let address = to.address();
        if address == self.endpoint.self_address.address() {
            return self.send_locally(lane, envelope, waiting);
        }
        let force = envelope.must_enqueue;
        match self.peer(address).push_or_wait(self, lane, Item::Envelope(envelope), force, waiting) {
            Err(Item::Envelope(envelope)) => Err((SendError::QueueFull, Box::new(envelope))),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Delivers to this node itself, by the way that arriving messages take.
    fn send_locally(
        &self,
        lane: Lane,
        envelope: Envelope,
        waiting: Option<&Waker>,
    ) -> Result<(), (SendError, Box<Envelope>)> {
        let (endpoint, now) = (&self.endpoint, Instant::now());
        let own = &endpoint.self_address;
        let drop_it = |envelope: &Envelope, reason| endpoint.drop_unsent(now, lane, own.address(), envelope, reason);
        if envelope.target_uid.is_some_and(|uid| uid != own.uid()) {
            drop_it(&envelope, DeadLetterReason::StaleIncarnation);
            return Ok(());
        }
        let payload = match payload_bytes(&envelope.payload) {
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
        let capacity = self.settings.queue_size(lane.kind());
        let message = Inbound { from: own.clone(), recipient, codec, manifest, payload, ask };
        let queued = self.workers.deliver_locally(capacity, must_enqueue, lane, message, waiting);
        queued.map_err(|message| {
            let Inbound { recipient, codec, manifest, ask, .. } = message;
            let envelope = Envelope { recipient, target_uid, codec, manifest, payload: original, ask, must_enqueue };
            (SendError::QueueFull, Box::new(envelope))
        })
    }

    /// Counts a message that the caller gets back.
    fn reject(&self, lane: Lane, to: &NodeAddress, error: SendError, envelope: Envelope) -> SendRejected {
        let reason = match error {
            SendError::QueueFull => DeadLetterReason::QueueFull,
            SendError::Quarantined => DeadLetterReason::Quarantined,
            SendError::TooLarge { .. } => DeadLetterReason::TooLarge,
            SendError::ShuttingDown => DeadLetterReason::ShuttingDown,
        };
        self.endpoint.bury(Instant::now(), lane, to, &envelope, reason);
        SendRejected { error, envelope: Box::new(envelope) }
    }
}
