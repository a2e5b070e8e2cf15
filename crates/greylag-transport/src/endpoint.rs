//! The part of a node that is the same whatever carries its messages: who receives what, who
//! listens, which questions wait, what was dropped.
//!
//! Carriers (gRPC streams, the in-memory network) hand in what arrived and take out what leaves.
//! Source: cluster T25, T35, T38, T41.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use greylag_core::{
    CodecId, DeadLetterReason, EntityError, Manifest, NodeAddress, Registry, ReplyOutcome, Uid, UniqueAddress,
};

use crate::ask::AskTable;
use crate::dead_letters::{DeadLetterKey, DeadLetters};
use crate::envelope::{Envelope, Inbound, Payload};
use crate::lane::Lane;
use crate::remoting::{AskError, PeerInfo, Receiver, SendError, TransportEvent, TransportListener};

/// An answer between two nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The value, written by the registry of the answering node.
    Value { codec: CodecId, manifest: Manifest, payload: Bytes },
    /// The recipient's runtime answered in its stead.
    Entity(EntityError),
    /// The question was dropped over there.
    Dropped(DeadLetterReason),
}

/// A question that must be answered with a failure, because its message was dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) to: UniqueAddress,
    pub(crate) ask_id: u64,
    pub(crate) reason: DeadLetterReason,
}

#[derive(Clone)]
struct Registration {
    path: Arc<str>,
    instance: u64,
    receiver: Arc<dyn Receiver>,
}

/// Who received last, kept by a worker so that a run of messages for one path looks it up once.
#[derive(Default)]
pub(crate) struct LastReceiver {
    version: u64,
    found: Option<Registration>,
}

struct Listener {
    hand_back_prefix: Option<String>,
    listener: Arc<dyn TransportListener>,
}

/// See the module.
pub(crate) struct Endpoint {
    pub(crate) self_address: UniqueAddress,
    pub(crate) registry: Arc<Registry>,
    pub(crate) asks: Arc<AskTable>,
    pub(crate) dead_letters: DeadLetters,
    receivers: RwLock<HashMap<Arc<str>, Registration>>,
    next_instance: AtomicU64,
    /// Grows with every change of `receivers`.
    receivers_version: AtomicU64,
    listeners: RwLock<Vec<Arc<Listener>>>,
    peers: RwLock<HashMap<NodeAddress, PeerInfo>>,
}

impl Endpoint {
    pub(crate) fn new(self_address: UniqueAddress, registry: Arc<Registry>, dead_letter_log_rate: u32) -> Self {
        Self {
            asks: AskTable::new(self_address.clone()),
            self_address,
            registry,
            dead_letters: DeadLetters::new(dead_letter_log_rate),
            receivers: RwLock::default(),
            next_instance: AtomicU64::new(1),
            receivers_version: AtomicU64::new(1),
            listeners: RwLock::default(),
            peers: RwLock::default(),
        }
    }

    pub(crate) fn register(&self, path: &str, receiver: Arc<dyn Receiver>) -> u64 {
        let instance = self.next_instance.fetch_add(1, Ordering::Relaxed);
        let mut receivers = self.receivers.write().unwrap_or_else(PoisonError::into_inner);
        let path: Arc<str> = path.into();
        receivers.insert(path.clone(), Registration { path, instance, receiver });
        self.receivers_version.fetch_add(1, Ordering::Release);
        instance
    }

    pub(crate) fn unregister(&self, path: &str) {
        let mut receivers = self.receivers.write().unwrap_or_else(PoisonError::into_inner);
        receivers.remove(path);
        self.receivers_version.fetch_add(1, Ordering::Release);
    }

    /// Finds the receiver of a path, without the table if it is the same as last time.
    fn find<'a>(&self, path: &str, last: &'a mut LastReceiver) -> Option<&'a Registration> {
        let version = self.receivers_version.load(Ordering::Acquire);
        let is_known = last.version == version && last.found.as_ref().is_some_and(|found| *found.path == *path);
        if !is_known {
            let receivers = self.receivers.read().unwrap_or_else(PoisonError::into_inner);
            last.found = receivers.get(path).cloned();
            last.version = version;
        }
        last.found.as_ref()
    }

    pub(crate) fn listen(&self, hand_back_prefix: Option<&str>, listener: Arc<dyn TransportListener>) {
        let listener = Arc::new(Listener { hand_back_prefix: hand_back_prefix.map(str::to_owned), listener });
        self.listeners.write().unwrap_or_else(PoisonError::into_inner).push(listener);
    }

    /// Hands a message to whoever is registered for it. A question that nobody gets is refused.
    pub(crate) fn deliver(
        &self,
        now: Instant,
        lane: Lane,
        target: Option<Uid>,
        message: Inbound,
        last: &mut LastReceiver,
    ) -> Option<Refusal> {
        let stale = target.is_some_and(|uid| uid != self.self_address.uid());
        let reason = if stale {
            DeadLetterReason::StaleIncarnation
        } else {
            match self.find(&message.recipient.path, last) {
                Some(found) if message.recipient.instance == 0 || message.recipient.instance == found.instance => {
                    // A receiver that panics must not take the worker of all others with it.
                    let receive = AssertUnwindSafe(|| found.receiver.receive(message));
                    if catch_unwind(receive).is_err() {
                        tracing::error!(path = %found.path, "a receiver panicked on a message");
                    }
                    return None;
                }
                Some(_) => DeadLetterReason::StaleRecipient,
                None => DeadLetterReason::NoSuchRecipient,
            }
        };
        self.refuse(now, Some(lane), &message, reason)
    }

    /// Counts a message that arrived and was dropped; says whom to tell.
    pub(crate) fn refuse(
        &self,
        now: Instant,
        lane: Option<Lane>,
        message: &Inbound,
        reason: DeadLetterReason,
    ) -> Option<Refusal> {
        self.count_dead_letter(now, reason, lane, Some(message.from.address()), 1, || {
            format!("{} for {}", message.manifest, message.recipient)
        });
        message.ask.map(|ask| Refusal { to: message.from.clone(), ask_id: ask.id, reason })
    }

    /// Counts a message that never left, and ends the question it carried.
    pub(crate) fn drop_unsent(
        &self,
        now: Instant,
        lane: Lane,
        to: &NodeAddress,
        envelope: &Envelope,
        reason: DeadLetterReason,
    ) {
        self.count_dead_letter(now, reason, Some(lane), Some(to), 1, || {
            format!("{} for {}", envelope.manifest, envelope.recipient)
        });
        if let Some(ask) = envelope.ask {
            let error = match reason {
                DeadLetterReason::StaleIncarnation => AskError::PeerRestarted,
                DeadLetterReason::ShuttingDown => AskError::ShuttingDown,
                DeadLetterReason::Quarantined => AskError::Send(SendError::Quarantined),
                _ => AskError::Dropped(reason),
            };
            self.asks.complete(ask.id, Err(error));
        }
    }

    pub(crate) fn count_dead_letter(
        &self,
        now: Instant,
        reason: DeadLetterReason,
        lane: Option<Lane>,
        peer: Option<&NodeAddress>,
        count: u64,
        what: impl FnOnce() -> String,
    ) {
        let line = self.dead_letters.count(now, DeadLetterKey { reason, lane, peer: peer.cloned() }, count);
        if let Some(line) = line {
            let (what, suppressed) = (what(), line.suppressed);
            tracing::warn!(%reason, ?lane, ?peer, count, suppressed, "dead letter: {what}");
        }
    }

    /// What an answer looks like on its way out.
    pub(crate) fn encode_reply(&self, outcome: ReplyOutcome) -> Reply {
        match outcome {
            ReplyOutcome::Failed(error) => Reply::Entity(error),
            ReplyOutcome::Value { value, type_name } => match self.registry.encode_any(&*value, type_name) {
                Ok(encoded) => {
                    Reply::Value { codec: encoded.codec, manifest: encoded.manifest, payload: encoded.payload }
                }
                Err(error) => {
                    tracing::warn!(%error, "an answer could not be written; its asker is told so");
                    Reply::Dropped(DeadLetterReason::SerializeFailed)
                }
            },
        }
    }

    /// An answer of this node to itself keeps its value as it is.
    pub(crate) fn reply_locally(&self, now: Instant, ask_id: u64, outcome: ReplyOutcome) {
        let outcome = match outcome {
            ReplyOutcome::Value { value, .. } => Ok(value),
            ReplyOutcome::Failed(error) => Err(AskError::Entity(error)),
        };
        self.finish_ask(now, ask_id, outcome, None);
    }

    /// An answer from another node.
    pub(crate) fn accept_reply(&self, now: Instant, from: &UniqueAddress, ask_id: u64, reply: Reply) {
        let outcome = match reply {
            Reply::Value { codec, manifest, payload } => self
                .registry
                .decode(codec, &manifest, payload)
                .map_err(|error| AskError::Undecodable(error.to_string())),
            Reply::Entity(error) => Err(AskError::Entity(error)),
            Reply::Dropped(DeadLetterReason::StaleIncarnation) => Err(AskError::PeerRestarted),
            Reply::Dropped(DeadLetterReason::Undecodable) => {
                Err(AskError::Undecodable("the one who was asked could not read the question".to_owned()))
            }
            Reply::Dropped(reason) => Err(AskError::Dropped(reason)),
        };
        self.finish_ask(now, ask_id, outcome, Some(from.address()));
    }

    fn finish_ask(&self, now: Instant, id: u64, outcome: Result<crate::Answer, AskError>, peer: Option<&NodeAddress>) {
        if !self.asks.complete(id, outcome) {
            let reason = DeadLetterReason::LateReply;
            self.count_dead_letter(now, reason, None, peer, 1, || format!("the answer to question {id}"));
        }
    }

    /// Keeps what a handshake taught. A newer incarnation at a known address ends the questions to
    /// the older one. `dialled`: the address is where we reached the peer, which counts for more
    /// than where it called from.
    pub(crate) fn learn_peer(&self, mut info: PeerInfo, dialled: bool) -> PeerInfo {
        let mut peers = self.peers.write().unwrap_or_else(PoisonError::into_inner);
        let before = peers.get(info.peer.address()).cloned();
        if let Some(before) = before.as_ref().filter(|before| before.peer == info.peer && !dialled) {
            info.ip = before.ip;
        }
        peers.insert(info.peer.address().clone(), info.clone());
        drop(peers);
        if let Some(before) = before.filter(|before| before.peer != info.peer) {
            self.asks.fail_peer(&before.peer, &AskError::PeerRestarted);
        }
        info
    }

    pub(crate) fn peer(&self, address: &NodeAddress) -> Option<PeerInfo> {
        self.peers.read().unwrap_or_else(PoisonError::into_inner).get(address).cloned()
    }

    /// Tells every listener, in the order they came.
    pub(crate) fn publish(&self, mut event: TransportEvent) {
        for listener in self.listeners() {
            listener.listener.on_event(&mut event);
        }
    }

    /// Offers what was queued for a quarantined process back to those who asked for it; returns
    /// what nobody took. Everybody who asked is told, also when there was nothing (cluster T18).
    pub(crate) fn hand_back(&self, peer: &UniqueAddress, mut unsent: Vec<Envelope>) -> Vec<Envelope> {
        for listener in self.listeners() {
            let Some(prefix) = &listener.hand_back_prefix else { continue };
            let (envelopes, others) = unsent.into_iter().partition(|e| e.recipient.path.starts_with(prefix.as_str()));
            unsent = others;
            let mut event = TransportEvent::HandedBack { peer: peer.clone(), envelopes };
            listener.listener.on_event(&mut event);
        }
        unsent
    }

    fn listeners(&self) -> Vec<Arc<Listener>> {
        self.listeners.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The bytes of a payload.
pub(crate) fn payload_bytes(payload: &Payload) -> Result<Bytes, greylag_core::EncodeError> {
    match payload {
        Payload::Bytes(bytes) => Ok(bytes.clone()),
        Payload::Value(value) => {
            let mut buffer = BytesMut::new();
            value.encode(&mut buffer)?;
            Ok(buffer.freeze())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::{AskHeader, Recipient};
    use std::time::Duration;

    struct Nobody;

    impl Receiver for Nobody {
        fn receive(&self, _: Inbound) {}
    }

    #[test]
    fn only_the_incarnation_and_the_instance_meant_receive() {
        let endpoint = Endpoint::new("b:1#5".parse().unwrap(), Arc::new(Registry::new()), 10);
        let instance = endpoint.register("inbox", Arc::new(Nobody));
        let mut last = LastReceiver::default();
        let mut deliver = |endpoint: &Endpoint, path: &str, instance, uid| {
            let message = Inbound {
                from: "a:1#1".parse().unwrap(),
                recipient: Recipient::new(path).with_instance(instance),
                codec: CodecId::JSON,
                manifest: "m".into(),
                payload: Bytes::new(),
                ask: Some(AskHeader { id: 3, budget: Duration::from_secs(1) }),
            };
            let refusal = endpoint.deliver(Instant::now(), Lane::CONTROL, Uid::new(uid), message, &mut last);
            refusal.map(|refusal| refusal.reason)
        };
        assert_eq!(deliver(&endpoint, "inbox", 0, 0), None);
        assert_eq!(deliver(&endpoint, "inbox", instance, 5), None);
        assert_eq!(deliver(&endpoint, "inbox", 0, 4), Some(DeadLetterReason::StaleIncarnation));
        assert_eq!(deliver(&endpoint, "inbox", instance + 1, 5), Some(DeadLetterReason::StaleRecipient));
        assert_eq!(deliver(&endpoint, "other", 0, 5), Some(DeadLetterReason::NoSuchRecipient));
        endpoint.unregister("inbox");
        assert_eq!(deliver(&endpoint, "inbox", 0, 5), Some(DeadLetterReason::NoSuchRecipient));
        assert_eq!(endpoint.dead_letters.total(DeadLetterReason::NoSuchRecipient), 2);
    }
}
