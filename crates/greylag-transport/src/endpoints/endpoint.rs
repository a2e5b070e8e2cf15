//! The part of a node that does not depend on the carrier of its messages: receivers, listeners, questions that wait,
//! and counts of dropped messages.
//!
//! Carriers (gRPC streams, the in-memory network) hand in messages that arrived and take out those that leave.
//! Source: cluster T25, T35, T38, T41.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use bytes::Bytes;
use greylag_core::{
    CodecId, DeadLetterReason, EncodeError, EntityError, Manifest, NodeAddress, Registry, ReplyOutcome, ReplyPort,
    ReplyScope, Uid, UniqueAddress,
};

use crate::admission::membership::Membership;
use crate::endpoints::chatter::{Declared, ReportLevel};
use crate::endpoints::dead_letters::{DeadLetter, DeadLetterKey, DeadLetters};
use crate::lanes::lane::Lane;
use crate::messages::ask::AskTable;
use crate::messages::envelope::{Envelope, Inbound, MAX_NAME, Payload};
use crate::remoting::{AskError, PeerInfo, Receiver, TransportEvent, TransportListener};

/// An answer between two nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The value, written by the registry of the answering node, or in the format of the question.
    Value { codec: CodecId, manifest: Manifest, payload: Bytes },
    /// The recipient's runtime answered in its stead.
    Entity(EntityError),
    /// The question was dropped by the answering node.
    Dropped(DeadLetterReason),
    /// The recipient answered, but the answer could not be written.
    Unwritten { type_name: String, cause: String },
}

/// A question that must be answered with a failure, because its message was dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) to: UniqueAddress,
    pub(crate) ask_id: u64,
    pub(crate) reason: DeadLetterReason,
}

/// A dropped message whose content is known.
pub(crate) struct Dropped<'a> {
    pub(crate) reason: DeadLetterReason,
    pub(crate) lane: Option<Lane>,
    pub(crate) from: Option<&'a NodeAddress>,
    pub(crate) to: Option<&'a NodeAddress>,
    pub(crate) recipient: &'a dyn Display,
    /// The recipient's path, by which chatter is recognized.
    pub(crate) path: &'a str,
    pub(crate) manifest: &'a str,
    pub(crate) size: usize,
}

#[derive(Clone)]
struct Registration {
    path: Arc<str>,
    instance: u64,
    receiver: Arc<dyn Receiver>,
}

/// The receiver of the latest message, kept by a worker so that a run of messages for one path looks it up once.
#[derive(Default)]
pub(crate) struct LastReceiver {
    version: u64,
    found: Option<Registration>,
}

impl LastReceiver {
    /// Calls `deliver_rest`, which delivers one waiting message after the other, and calls it again after a panic: a
    /// receiver that panics must not end the worker of all receivers, and loses only its own message. One guard covers
    /// many messages, because each guard moves the values that it guards.
    pub(crate) fn isolated(&mut self, mut deliver_rest: impl FnMut(&mut Self)) {
        while catch_unwind(AssertUnwindSafe(|| deliver_rest(self))).is_err() {
            say_panicked("a receiver", self.found.as_ref().map_or("", |found| &found.path));
        }
    }
}

struct Listener {
    hand_back_prefix: Option<String>,
    listener: Arc<dyn TransportListener>,
}

/// The carrier-independent part of a node.
pub(crate) struct Endpoint {
    pub(crate) self_address: UniqueAddress,
    pub(crate) registry: Arc<Registry>,
    pub(crate) asks: Arc<AskTable>,
    pub(crate) dead_letters: DeadLetters,
    receivers: RwLock<HashMap<Arc<str>, Registration>>,
    next_instance: AtomicU64,
    /// Incremented with every change of `receivers`.
    receivers_version: AtomicU64,
    listeners: RwLock<Vec<Arc<Listener>>>,
    /// The objects that layers above provide to decoders, by type.
    resources: RwLock<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
    peers: RwLock<HashMap<NodeAddress, PeerInfo>>,
    /// Paths whose dead letters are only counted, or published without a warning.
    declared: RwLock<Declared>,
    pub(crate) membership: Membership,
}

impl Endpoint {
    /// Makes an endpoint. Questions are numbered by the seed, which must be random, since only that makes them hard to
    /// guess.
    pub(crate) fn new(
        self_address: UniqueAddress,
        registry: Arc<Registry>,
        dead_letter_log_rate: u32,
        ask_seed: [u8; 32],
    ) -> Self {
        Self {
            asks: AskTable::new(self_address.clone(), ask_seed),
            self_address,
            registry,
            dead_letters: DeadLetters::new(dead_letter_log_rate),
            receivers: RwLock::default(),
            next_instance: AtomicU64::new(1),
            receivers_version: AtomicU64::new(1),
            listeners: RwLock::default(),
            resources: RwLock::default(),
            peers: RwLock::default(),
            declared: RwLock::default(),
            membership: Membership::default(),
        }
    }

    /// Registers a receiver. Returns its instance, and the event that names the instance that it replaces, for the
    /// listeners.
    pub(crate) fn register(&self, path: &str, receiver: Arc<dyn Receiver>) -> (u64, Option<TransportEvent>) {
        let instance = self.next_instance.fetch_add(1, Ordering::Relaxed);
        let mut receivers = self.receivers.write().unwrap_or_else(PoisonError::into_inner);
        let path: Arc<str> = path.into();
        let before = receivers.insert(path.clone(), Registration { path, instance, receiver });
        self.receivers_version.fetch_add(1, Ordering::Release);
        (instance, before.map(stopped))
    }

    /// Removes the registration of a path; returns the event of its end.
    pub(crate) fn unregister(&self, path: &str) -> Option<TransportEvent> {
        let mut receivers = self.receivers.write().unwrap_or_else(PoisonError::into_inner);
        let before = receivers.remove(path);
        self.receivers_version.fetch_add(1, Ordering::Release);
        before.map(stopped)
    }

    pub(crate) fn instance(&self, path: &str) -> Option<u64> {
        let receivers = self.receivers.read().unwrap_or_else(PoisonError::into_inner);
        receivers.get(path).map(|found| found.instance)
    }

    pub(crate) fn declare_chatter(&self, path_prefix: &str) {
        self.declared.write().unwrap_or_else(PoisonError::into_inner).chatter(path_prefix);
    }

    pub(crate) fn declare_repeated(&self, path_prefix: &str, manifest: Option<&str>, reasons: &[DeadLetterReason]) {
        self.declared.write().unwrap_or_else(PoisonError::into_inner).repeated(path_prefix, manifest, reasons);
    }

    /// Finds the receiver of a path, without the table if the path is the same as last time.
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

    /// Hands a message to the receiver that is registered for it, and with it the messages of `next`, which are for the
    /// same recipient and process. A question that reaches no receiver is refused, and `next` is left as it is. Call it
    /// under [`LastReceiver::isolated`], because a receiver may panic.
    pub(crate) fn deliver(
        &self,
        now: Instant,
        lane: Lane,
        target: Option<Uid>,
        message: Inbound,
        next: impl Iterator<Item = Inbound>,
        last: &mut LastReceiver,
    ) -> Option<Refusal> {
        let stale = target.is_some_and(|uid| uid != self.self_address.uid());
        let reason = if stale {
            DeadLetterReason::StaleIncarnation
        } else {
            match self.find(&message.recipient.path, last) {
                Some(found) if message.recipient.instance == 0 || message.recipient.instance == found.instance => {
                    found.receiver.receive_all(&mut std::iter::once(message).chain(next));
                    return None;
                }
                Some(_) => DeadLetterReason::StaleRecipient,
                None => DeadLetterReason::NoSuchRecipient,
            }
        };
        self.refuse(now, Some(lane), &message, reason)
    }

    /// Counts a message that arrived and was dropped; returns the refusal for its asker, if it has one.
    pub(crate) fn refuse(
        &self,
        now: Instant,
        lane: Option<Lane>,
        message: &Inbound,
        reason: DeadLetterReason,
    ) -> Option<Refusal> {
        let dropped = Dropped {
            reason,
            lane,
            from: Some(message.from.address()),
            to: Some(self.self_address.address()),
            recipient: &message.recipient,
            path: &message.recipient.path,
            manifest: &message.manifest,
            size: message.payload.len(),
        };
        self.dead_letter(now, Some(message.from.address()), &dropped);
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
        self.count_unsent(now, lane, to, envelope, reason);
        if let Some(ask) = envelope.ask {
            let error = match reason {
                DeadLetterReason::StaleIncarnation => AskError::PeerRestarted,
                DeadLetterReason::ShuttingDown => AskError::ShuttingDown,
                DeadLetterReason::Quarantined => AskError::Quarantined,
                _ => AskError::Dropped(reason),
            };
            self.asks.complete(ask.id, Err(error));
        }
    }

    /// Counts a message that never left; the caller ends the question that the message carried.
    pub(crate) fn count_unsent(
        &self,
        now: Instant,
        lane: Lane,
        to: &NodeAddress,
        envelope: &Envelope,
        reason: DeadLetterReason,
    ) {
        let size = match &envelope.payload {
            Payload::Bytes(bytes) => bytes.len(),
            Payload::Value(_) => 0,
        };
        let dropped = Dropped {
            reason,
            lane: Some(lane),
            from: Some(self.self_address.address()),
            to: Some(to),
            recipient: &envelope.recipient,
            path: &envelope.recipient.path,
            manifest: &envelope.manifest,
            size,
        };
        self.dead_letter(now, Some(to), &dropped);
    }

    /// Accounts for a dropped message: counts it always, publishes and logs it unless the message is chatter.
    pub(crate) fn dead_letter(&self, now: Instant, peer: Option<&NodeAddress>, dropped: &Dropped<'_>) {
        let Dropped { reason, lane, .. } = *dropped;
        let key = DeadLetterKey { reason, lane, peer: peer.cloned() };
        let report_level = self
            .declared
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .report_level((dropped.path, dropped.manifest), reason);
        if report_level == ReportLevel::Count {
            return self.dead_letters.count_chatter(key, 1);
        }
        let (recipient, manifest) = (|| shortened(dropped.recipient.to_string()), shortened_name(dropped.manifest));
        // Count before publishing: a subscriber that reads the counters on a letter must find the letter counted.
        let line = if report_level == ReportLevel::Publish {
            self.dead_letters.count_chatter(key, 1);
            None
        } else {
            self.dead_letters.count(now, key, 1)
        };
        self.dead_letters.publish(|| DeadLetter {
            reason,
            lane,
            from: dropped.from.cloned(),
            to: dropped.to.cloned(),
            recipient: recipient(),
            manifest: manifest.to_owned(),
            size: dropped.size,
            count: 1,
        });
        if report_level == ReportLevel::Publish {
            tracing::debug!(%reason, ?lane, ?peer, "dropped, and said again: {manifest} for {}", recipient());
        } else if let Some(line) = line {
            let (recipient, suppressed) = (recipient(), line.suppressed);
            tracing::warn!(%reason, ?lane, ?peer, suppressed, "dead letter: {manifest} for {recipient}");
        }
    }

    /// Accounts for a message that a layer above dropped.
    pub(crate) fn dead_letter_above(&self, now: Instant, reason: DeadLetterReason, recipient: &str, manifest: &str) {
        let own = Some(self.self_address.address());
        let (path, recipient): (_, &dyn Display) = (recipient, &recipient);
        let dropped = Dropped { reason, lane: None, from: None, to: own, recipient, path, manifest, size: 0 };
        self.dead_letter(now, None, &dropped);
    }

    /// Logs how many dead letters of a minute were suppressed, once the minute is over.
    pub(crate) fn log_suppressed(&self, now: Instant) {
        for suppressed in self.dead_letters.suppressed(now) {
            let (reason, peer, count) = (suppressed.reason, suppressed.peer, suppressed.count);
            tracing::warn!(%reason, ?peer, count, "dead letters suppressed from the log in the last minute");
        }
    }

    /// Accounts for dropped messages of unknown content.
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
        self.publish_unknown(reason, lane, peer, count);
        if let Some(line) = line {
            let (what, suppressed) = (what(), line.suppressed);
            tracing::warn!(%reason, ?lane, ?peer, count, suppressed, "dead letter: {what}");
        }
    }

    /// Accounts for messages of unknown content whose loss belongs to an orderly end: counts and publishes them,
    /// without a warning.
    pub(crate) fn count_expected(
        &self,
        reason: DeadLetterReason,
        lane: Option<Lane>,
        peer: Option<&NodeAddress>,
        count: u64,
        what: impl FnOnce() -> String,
    ) {
        self.dead_letters.count_chatter(DeadLetterKey { reason, lane, peer: peer.cloned() }, count);
        self.publish_unknown(reason, lane, peer, count);
        tracing::debug!(%reason, ?lane, ?peer, count, "dropped at an end in order: {}", what());
    }

    /// Publishes messages of unknown content.
    fn publish_unknown(&self, reason: DeadLetterReason, lane: Option<Lane>, peer: Option<&NodeAddress>, count: u64) {
        self.dead_letters.publish(|| DeadLetter {
            reason,
            lane,
            from: None,
            to: peer.cloned(),
            recipient: String::new(),
            manifest: String::new(),
            size: 0,
            count,
        });
    }

    /// Encodes an answer for the wire.
    pub(crate) fn encode_reply(&self, outcome: ReplyOutcome) -> Reply {
        let (value, type_name, writer) = match outcome {
            ReplyOutcome::Failed(error) => return Reply::Entity(error),
            ReplyOutcome::Dropped(reason) => return Reply::Dropped(reason),
            ReplyOutcome::Value { value, type_name, writer } => (value, type_name, writer),
        };
        let encoded = isolated("the codec of an answer", type_name, || {
            let by_registry = || self.registry.encode_any(&*value, type_name);
            match writer {
                Some(writer) if writer.is_own() => writer.write(&*value),
                Some(writer) => match by_registry() {
                    Err(EncodeError::NotRegistered { .. }) => writer.write(&*value),
                    encoded => encoded,
                },
                None => by_registry(),
            }
        });
        let cause = match encoded {
            None => "its codec panicked".to_owned(),
            // Refuse: no node reads such a name, and the stream would end with it.
            Some(Ok(encoded)) if encoded.manifest.len() > MAX_NAME => {
                format!("its manifest has {} bytes; the limit is {MAX_NAME}", encoded.manifest.len())
            }
            Some(Ok(encoded)) => {
                return Reply::Value { codec: encoded.codec, manifest: encoded.manifest, payload: encoded.payload };
            }
            Some(Err(error)) => error.to_string(),
        };
        tracing::warn!(type_name, cause, "an answer could not be encoded; the ask fails with a codec error");
        Reply::Unwritten { type_name: shortened(type_name.to_owned()), cause: shortened(cause) }
    }

    /// Completes a question of this node to itself, with the value as it is.
    pub(crate) fn reply_locally(&self, now: Instant, ask_id: u64, outcome: ReplyOutcome) {
        let outcome = match outcome {
            ReplyOutcome::Value { value, .. } => Ok(value),
            ReplyOutcome::Failed(error) => Err(AskError::Entity(error)),
            ReplyOutcome::Dropped(reason) => Err(AskError::Dropped(reason)),
        };
        self.finish_ask(now, ask_id, outcome, None);
    }

    /// Completes a question by an answer from another node. The bytes are the peer's and the decoder is the user's, so
    /// panics are caught; reply tokens in the answer are bound to `port`.
    pub(crate) fn accept_reply(
        &self,
        now: Instant,
        from: &UniqueAddress,
        ask_id: u64,
        reply: Reply,
        port: impl FnOnce() -> Arc<dyn ReplyPort>,
    ) {
        let outcome = match reply {
            Reply::Value { codec, manifest, payload } => self.read_answer(ask_id, codec, &manifest, payload, port),
            Reply::Entity(error) => Err(AskError::Entity(error)),
            Reply::Unwritten { type_name, cause } => Err(AskError::Codec { type_name, node: from.clone(), cause }),
            Reply::Dropped(reason) => Err(match reason {
                DeadLetterReason::StaleIncarnation => AskError::PeerRestarted,
                DeadLetterReason::NoSuchRecipient => AskError::NoSuchRecipient,
                DeadLetterReason::TooLarge => AskError::ReplyTooLarge,
                DeadLetterReason::Undecodable => AskError::Undecodable { node: from.clone() },
                reason => AskError::Dropped(reason),
            }),
        };
        self.finish_ask(now, ask_id, outcome, Some(from.address()));
    }

    fn read_answer(
        &self,
        ask_id: u64,
        codec: CodecId,
        manifest: &Manifest,
        payload: Bytes,
        port: impl FnOnce() -> Arc<dyn ReplyPort>,
    ) -> Result<crate::Answer, AskError> {
        let reader = self.asks.reader(ask_id);
        let type_name = reader.as_ref().map_or_else(|| manifest.to_string(), |reader| reader.type_name().to_owned());
        let scope = ReplyScope::enter(port());
        let decoded = isolated("the codec of an answer", manifest, || {
            match reader.filter(|reader| reader.reads(codec, manifest)) {
                Some(reader) => reader.read(manifest, payload),
                None => self.registry.decode(codec, manifest, payload),
            }
        });
        let cause = match decoded {
            Some(Ok(answer)) => return Ok(answer),
            Some(Err(error)) => error.to_string(),
            None => "its codec panicked".to_owned(),
        };
        scope.refuse(DeadLetterReason::Undecodable, None);
        Err(AskError::Codec { type_name, node: self.self_address.clone(), cause })
    }

    fn finish_ask(&self, now: Instant, id: u64, outcome: Result<crate::Answer, AskError>, peer: Option<&NodeAddress>) {
        if !self.asks.complete(id, outcome) {
            let reason = DeadLetterReason::LateReply;
            self.count_dead_letter(now, reason, None, peer, 1, || format!("the answer to question {id}"));
        }
    }

    /// Keeps the facts of a handshake. A newer incarnation at a known address ends the questions to the older one. An
    /// IP address where this node reached the peer takes precedence over one where the peer called from.
    pub(crate) fn learn_peer(&self, mut info: PeerInfo) -> PeerInfo {
        let mut peers = self.peers.write().unwrap_or_else(PoisonError::into_inner);
        let before = peers.get(info.peer.address()).cloned();
        if let Some(before) = before.as_ref().filter(|before| before.peer == info.peer && !info.reached) {
            (info.ip, info.reached) = (before.ip, before.reached);
        }
        peers.insert(info.peer.address().clone(), info.clone());
        drop(peers);
        if let Some(before) = before.filter(|before| before.peer != info.peer) {
            self.asks.fail_peer(&before.peer, &AskError::PeerRestarted);
        }
        info
    }

    pub(crate) fn provide_resource(&self, what: Arc<dyn Any + Send + Sync>) {
        let key = (*what).type_id();
        self.resources.write().unwrap_or_else(PoisonError::into_inner).insert(key, what);
    }

    pub(crate) fn resource(&self, what: TypeId) -> Option<Arc<dyn Any + Send + Sync>> {
        self.resources.read().unwrap_or_else(PoisonError::into_inner).get(&what).cloned()
    }

    pub(crate) fn forget_peer(&self, address: &NodeAddress) {
        self.peers.write().unwrap_or_else(PoisonError::into_inner).remove(address);
    }

    pub(crate) fn peer(&self, address: &NodeAddress) -> Option<PeerInfo> {
        self.peers.read().unwrap_or_else(PoisonError::into_inner).get(address).cloned()
    }

    /// Passes an event to every listener, in the order of their registration.
    pub(crate) fn publish(&self, mut event: TransportEvent) {
        for listener in self.listeners() {
            isolated("a listener", "an event", || listener.listener.on_event(&mut event));
        }
    }

    /// Offers the envelopes that were queued for a quarantined process back to the listeners with a prefix; returns
    /// those that no listener took. Each of these listeners is called, also when there are no envelopes for it (cluster
    /// T18).
    pub(crate) fn hand_back(&self, peer: &UniqueAddress, mut unsent: Vec<Envelope>) -> Vec<Envelope> {
        for listener in self.listeners() {
            let Some(prefix) = &listener.hand_back_prefix else { continue };
            let (envelopes, others) = unsent.into_iter().partition(|e| e.recipient.path.starts_with(prefix.as_str()));
            unsent = others;
            let mut event = TransportEvent::HandedBack { peer: peer.clone(), envelopes };
            let took = isolated("a listener", "what was handed back", || listener.listener.on_event(&mut event));
            // Envelopes that the listener left in the event, or all of them if it panicked, count as not taken.
            if let (None, TransportEvent::HandedBack { envelopes, .. }) = (took, event) {
                unsent.extend(envelopes);
            }
        }
        unsent
    }

    fn listeners(&self) -> Vec<Arc<Listener>> {
        self.listeners.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn stopped(registration: Registration) -> TransportEvent {
    TransportEvent::RecipientStopped { path: registration.path, instance: registration.instance }
}

/// Runs code of the layers above and catches its panic, which must not end the task that all layers share.
pub(crate) fn isolated<T>(who: &str, on: &str, code: impl FnOnce() -> T) -> Option<T> {
    let done = catch_unwind(AssertUnwindSafe(code)).ok();
    if done.is_none() {
        say_panicked(who, on);
    }
    done
}

fn say_panicked(who: &str, on: &str) {
    tracing::error!(who, on, "a callback panicked; its message or event is lost");
}

/// The start of a name, for logs and dead letters: a message that is dropped because its name is too long is reported
/// here too.
fn shortened_name(name: &str) -> &str {
    const SHOWN: usize = 1024;
    &name[..name.floor_char_boundary(SHOWN)]
}

/// The start of a text, cut like a name.
pub(crate) fn shortened(mut text: String) -> String {
    text.truncate(shortened_name(&text).len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::envelope::{AskHeader, Recipient};
    use std::time::Duration;

    struct Discards;

    impl Receiver for Discards {
        fn receive(&self, _: Inbound) {}
    }

    /// Cluster T20: a subscriber that reads the counters on a letter finds it counted.
    #[test]
    fn a_letter_is_counted_before_it_is_told() {
        const LETTERS: u64 = 20_000;
        let endpoint = Endpoint::new("b:1#5".parse().unwrap(), Arc::new(Registry::new()), 10, [7; 32]);
        endpoint.declare_repeated("again", None, &[DeadLetterReason::QueueFull]);
        let mut letters = endpoint.dead_letters.subscribe(LETTERS as usize);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..LETTERS {
                    let (now, reason) = (Instant::now(), DeadLetterReason::QueueFull);
                    match number % 4 {
                        0 => endpoint.dead_letter_above(now, reason, "inbox", "m"),
                        1 => endpoint.dead_letter_above(now, reason, "again", "m"),
                        2 => endpoint.count_dead_letter(now, reason, None, None, 1, String::new),
                        _ => endpoint.count_expected(reason, None, None, 1, String::new),
                    }
                }
            });
            let mut told = 0;
            while told < LETTERS {
                let Some(letter) = letters.try_next() else { continue };
                told += letter.count;
                assert!(endpoint.dead_letters.total(DeadLetterReason::QueueFull) >= told, "letter {told}");
            }
        });
    }

    /// Cluster T25, T41.
    #[test]
    fn only_the_incarnation_and_the_instance_meant_receive() {
        let endpoint = Endpoint::new("b:1#5".parse().unwrap(), Arc::new(Registry::new()), 10, [7; 32]);
        let (instance, _) = endpoint.register("inbox", Arc::new(Discards));
        let mut last = LastReceiver::default();
        endpoint.declare_chatter("control/gossip");
        let mut letters = endpoint.dead_letters.subscribe(10);
        let mut deliver = |endpoint: &Endpoint, path: &str, instance, uid| {
            let message = Inbound {
                from: "a:1#1".parse().unwrap(),
                recipient: Recipient::new(path).with_instance(instance),
                codec: CodecId::JSON,
                manifest: "m".into(),
                payload: Bytes::new(),
                ask: Some(AskHeader { id: 3, budget: Duration::from_secs(1) }),
            };
            let refusal =
                endpoint.deliver(Instant::now(), Lane::CONTROL, Uid::new(uid), message, std::iter::empty(), &mut last);
            refusal.map(|refusal| refusal.reason)
        };
        assert_eq!(deliver(&endpoint, "inbox", 0, 0), None);
        assert_eq!(deliver(&endpoint, "inbox", instance, 5), None);
        assert_eq!(deliver(&endpoint, "inbox", 0, 4), Some(DeadLetterReason::StaleIncarnation));
        assert_eq!(deliver(&endpoint, "inbox", instance + 1, 5), Some(DeadLetterReason::StaleRecipient));
        assert_eq!(deliver(&endpoint, "other", 0, 5), Some(DeadLetterReason::NoSuchRecipient));
        endpoint.unregister("inbox");
        assert_eq!(deliver(&endpoint, "inbox", 0, 5), Some(DeadLetterReason::NoSuchRecipient));
        // Chatter is counted and not published: no letter arrives.
        assert_eq!(deliver(&endpoint, "control/gossip", 0, 5), Some(DeadLetterReason::NoSuchRecipient));
        assert_eq!(endpoint.dead_letters.total(DeadLetterReason::NoSuchRecipient), 3);
        let reasons = std::iter::from_fn(|| letters.try_next().map(|letter| (letter.reason, letter.recipient)));
        let stale = format!("inbox@{}", instance + 1);
        assert_eq!(
            reasons.collect::<Vec<_>>(),
            [
                (DeadLetterReason::StaleIncarnation, "inbox".to_owned()),
                (DeadLetterReason::StaleRecipient, stale),
                (DeadLetterReason::NoSuchRecipient, "other".to_owned()),
                (DeadLetterReason::NoSuchRecipient, "inbox".to_owned()),
            ]
        );
    }

    #[test]
    fn repeated_messages_are_published_without_a_warning() {
        let endpoint = Endpoint::new("b:1#5".parse().unwrap(), Arc::new(Registry::new()), 10, [7; 32]);
        let (late, full) = (DeadLetterReason::NoSuchRecipient, DeadLetterReason::MailboxFull);
        endpoint.declare_repeated("delivery/", None, &[late]);
        let report_level =
            |reason| endpoint.declared.read().unwrap().report_level(("delivery/orders", "order"), reason);
        assert_eq!((report_level(late), report_level(full)), (ReportLevel::Publish, ReportLevel::Warn));
    }

    /// Cluster S20: proofs of death dial where a peer was reached last, so the address it called from counts only until
    /// it was reached, and facts about another incarnation count for nothing.
    #[test]
    fn a_peer_is_where_it_was_reached_last() {
        let endpoint = Endpoint::new("b:1#5".parse().unwrap(), Arc::new(Registry::new()), 10, [7; 32]);
        let learn = |peer: &str, last: u8, reached| {
            let ip = std::net::IpAddr::from([10, 0, 0, last]);
            let info = PeerInfo { peer: peer.parse().unwrap(), ip, reached, host_id: None, cluster_id: None };
            let learned = endpoint.learn_peer(info);
            (learned.ip.to_string(), learned.reached)
        };
        let at = |last: u8, reached| (format!("10.0.0.{last}"), reached);
        assert_eq!(learn("a:1#1", 1, false), at(1, false));
        assert_eq!(learn("a:1#1", 2, true), at(2, true));
        assert_eq!(learn("a:1#1", 3, false), at(2, true), "it only called from elsewhere");
        assert_eq!(learn("a:1#1", 4, true), at(4, true), "it was reached elsewhere");
        assert_eq!(learn("a:1#2", 5, false), at(5, false), "another incarnation was never reached");
    }
}
