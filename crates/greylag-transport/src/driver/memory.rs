//! A network within one process: every node is a thread, every link a queue.
//!
//! The network keeps the guarantees that layers above rely on (order per pair, one incarnation per address, asks that
//! end with their peer, quarantine) and carries real bytes, so a driver tested here meets nothing new on sockets. Links
//! can be cut in one direction, nodes can crash and start again.
//!
//! ```
//! use std::sync::{Arc, mpsc};
//! use greylag_core::{CodecId, Registry};
//! use greylag_transport::memory::MemoryNetwork;
//! use greylag_transport::{Destination, Envelope, Inbound, Receiver, Recipient, Remoting};
//!
//! struct Inbox(mpsc::Sender<Inbound>);
//! impl Receiver for Inbox {
//!     fn receive(&self, message: Inbound) {
//!         self.0.send(message).ok();
//!     }
//! }
//!
//! let network = MemoryNetwork::new();
//! let a = network.node("a:1#1".parse()?, Arc::new(Registry::new()));
//! let b = network.node("b:1#1".parse()?, Arc::new(Registry::new()));
//! let (inbox, arrived) = mpsc::channel();
//! b.register("greeter", Arc::new(Inbox(inbox)));
//!
//! let hello = Envelope::new(Recipient::new("greeter"), CodecId::JSON, "text", &b"\"hello\""[..]);
//! a.send(&Destination::from(b.self_address().clone()), hello).expect("queued");
//! assert_eq!(&arrived.recv()?.payload[..], b"\"hello\"");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, Weak};
use std::time::{Duration, Instant};

use greylag_core::{
    AnswerReader, DeadLetterReason, NodeAddress, Registry, ReplyAddress, ReplyOutcome, ReplyPort, Uid, UniqueAddress,
};

use crate::endpoints::dead_letters::DeadLetterEvents;
use crate::endpoints::endpoint::{Endpoint, LastReceiver, Refusal, Reply, isolated};
use crate::lanes::lane::{Lane, LaneKind};
use crate::messages::envelope::{Envelope, Inbound, Recipient};
use crate::remoting::{
    AskError, Destination, OpenAsk, PeerInfo, QuarantineReason, Receiver, Remoting, SendError, SendRejected, Sending,
    TransportEvent, TransportListener,
};
use crate::settings::TransportSettings;
use numbered::Numbered;

mod numbered;
mod numbered_messages;

/// A network whose nodes live in this process. Clones are the same network.
#[derive(Clone, Default)]
pub struct MemoryNetwork {
    net: Arc<Net>,
}

#[derive(Default)]
struct Net {
    /// The largest message in bytes on an ordinary lane; 0 means no limit.
    max_ordinary_bytes: AtomicUsize,
    nodes: RwLock<BTreeMap<NodeAddress, Port>>,
    /// Directions (from, to) in which nothing passes.
    cuts: RwLock<BTreeSet<(NodeAddress, NodeAddress)>>,
    /// Pairs that have shaken hands; the smaller address first.
    acquainted: Mutex<BTreeSet<(UniqueAddress, UniqueAddress)>>,
    /// The cluster that each node would name in a Hello.
    cluster_ids: Mutex<BTreeMap<UniqueAddress, u128>>,
}

/// How a node is reached.
#[derive(Clone)]
struct Port {
    address: UniqueAddress,
    inbox: mpsc::Sender<NodeInput>,
    /// Set at once by a crash: inputs queued before are never delivered.
    closed: Arc<AtomicBool>,
}

/// An item in the inbox of a node's thread.
enum NodeInput {
    Message { lane: Lane, target: Option<Uid>, message: Inbound },
    Reply { from: UniqueAddress, ask_id: u64, reply: Reply },
    Numbered { from: UniqueAddress, seq: u64, message: Option<Inbound> },
    Acknowledged { from: UniqueAddress, seq: u64, is_gap: bool },
    Call(Box<dyn FnOnce() + Send + Sync>),
    Met(UniqueAddress),
    Event(TransportEvent),
    HandBack(UniqueAddress),
    Wake,
    Stop,
}

impl std::fmt::Debug for MemoryNetwork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nodes = self.net.nodes.read().expect(NO_PANIC);
        f.debug_struct("MemoryNetwork").field("nodes", &nodes.keys().collect::<Vec<_>>()).finish_non_exhaustive()
    }
}

const NO_PANIC: &str = "nothing under this lock panics";

/// The host of all nodes: one that starts at the address of another has replaced it (cluster S20 a).
const HOST_ID: &str = "memory";
/// The IP address of all nodes, which no host has (RFC 5737): no socket is behind a node, so no refusal by a kernel may
/// count as its death (cluster S20 b).
const NOWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

impl MemoryNetwork {
    /// A network without nodes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Refuses messages above `max_bytes` on the ordinary lanes between nodes from now on, as a transport with frames
    /// does. Default: no limit. Source: cluster T5.
    pub fn limit_ordinary_lanes(&self, max_bytes: usize) {
        self.net.max_ordinary_bytes.store(max_bytes, Ordering::Relaxed);
    }

    /// Starts a node. A node that runs at the same address already is crashed first: a restart.
    pub fn node(&self, address: UniqueAddress, registry: Arc<Registry>) -> Arc<dyn Remoting> {
        let before = self.net.nodes.read().expect(NO_PANIC).get(address.address()).cloned();
        if let Some(before) = before {
            self.crash(&before.address);
        }
        let (inbox, inputs) = mpsc::channel();
        let endpoint = Arc::new(Endpoint::new(address.clone(), registry, 10, rand::random()));
        let closed = Arc::new(AtomicBool::new(false));
        let node = Arc::new_cyclic(|this| MemoryNode {
            this: this.clone(),
            net: self.net.clone(),
            endpoint: endpoint.clone(),
            inbox: inbox.clone(),
            quarantined: Mutex::default(),
            numbered: Mutex::default(),
            settings: TransportSettings::test(),
            closed: closed.clone(),
        });
        let port = Port { address: address.clone(), inbox, closed };
        self.net.nodes.write().expect(NO_PANIC).insert(address.address().clone(), port);
        let weak = Arc::downgrade(&node);
        std::thread::Builder::new()
            .name(format!("memory-{address}"))
            .spawn(move || run(&weak, &endpoint, &inputs))
            .expect("the system can start a thread");
        node
    }

    /// Ends a node without a farewell: its peers see their links break, its own asks end.
    pub fn crash(&self, address: &UniqueAddress) {
        let port = {
            let mut nodes = self.net.nodes.write().expect(NO_PANIC);
            match nodes.get(address.address()) {
                Some(port) if port.address == *address => nodes.remove(address.address()),
                _ => None,
            }
        };
        let Some(port) = port else { return };
        port.closed.store(true, Ordering::Release);
        port.inbox.send(NodeInput::Stop).ok();
        for peer in self.net.contacts(address) {
            for lane in [Lane::CONTROL, Lane::ordinary(0), Lane::LARGE] {
                self.net.tell(&peer, NodeInput::Event(TransportEvent::LinkLost { peer: address.clone(), lane }));
            }
        }
    }

    /// From now on nothing passes from `from` to `to`. The other direction is untouched.
    pub fn cut_one_way(&self, from: &NodeAddress, to: &NodeAddress) {
        self.net.cuts.write().expect(NO_PANIC).insert((from.clone(), to.clone()));
    }

    /// From now on nothing passes between the two.
    pub fn cut(&self, one: &NodeAddress, other: &NodeAddress) {
        self.cut_one_way(one, other);
        self.cut_one_way(other, one);
    }

    /// Ends a cut, in both directions.
    pub fn heal(&self, one: &NodeAddress, other: &NodeAddress) {
        let mut cuts = self.net.cuts.write().expect(NO_PANIC);
        cuts.remove(&(one.clone(), other.clone()));
        cuts.remove(&(other.clone(), one.clone()));
    }

    /// Ends every cut.
    pub fn heal_all(&self) {
        self.net.cuts.write().expect(NO_PANIC).clear();
    }
}

impl Net {
    fn port(&self, address: &NodeAddress) -> Option<Port> {
        self.nodes.read().expect(NO_PANIC).get(address).cloned()
    }

    fn is_cut(&self, from: &NodeAddress, to: &NodeAddress) -> bool {
        let cuts = self.cuts.read().expect(NO_PANIC);
        !cuts.is_empty() && cuts.contains(&(from.clone(), to.clone()))
    }

    fn tell(&self, to: &UniqueAddress, input: NodeInput) {
        if let Some(port) = self.port(to.address()).filter(|port| port.address == *to) {
            port.inbox.send(input).ok();
        }
    }

    fn contacts(&self, of: &UniqueAddress) -> Vec<UniqueAddress> {
        let pairs = self.acquainted.lock().expect(NO_PANIC);
        pairs.iter().filter_map(|(a, b)| if a == of { Some(b) } else { (b == of).then_some(a) }).cloned().collect()
    }

    /// Notes a handshake of the pair; true the first time.
    fn record_contact(&self, one: &UniqueAddress, other: &UniqueAddress) -> bool {
        let pair = if one < other { (one.clone(), other.clone()) } else { (other.clone(), one.clone()) };
        self.acquainted.lock().expect(NO_PANIC).insert(pair)
    }
}

/// One node; dropping its last handle crashes it.
struct MemoryNode {
    this: Weak<Self>,
    net: Arc<Net>,
    endpoint: Arc<Endpoint>,
    inbox: mpsc::Sender<NodeInput>,
    quarantined: Mutex<BTreeSet<UniqueAddress>>,
    numbered: Mutex<BTreeMap<NodeAddress, Numbered>>,
    settings: TransportSettings,
    closed: Arc<AtomicBool>,
}

impl Drop for MemoryNode {
    fn drop(&mut self) {
        MemoryNetwork { net: self.net.clone() }.crash(&self.endpoint.self_address);
        self.inbox.send(NodeInput::Stop).ok();
    }
}

/// The thread of a node: delivers, and ends asks whose time is over.
fn run(node: &Weak<MemoryNode>, endpoint: &Endpoint, inputs: &mpsc::Receiver<NodeInput>) {
    loop {
        let resend = node.upgrade().and_then(|node| node.resend_deadline());
        let wait = endpoint
            .asks
            .next_deadline()
            .into_iter()
            .chain(resend)
            .min()
            .map_or(Duration::from_secs(3600), |at| at.saturating_duration_since(Instant::now()));
        let input = match inputs.recv_timeout(wait) {
            Ok(NodeInput::Stop) | Err(RecvTimeoutError::Disconnected) => break,
            Ok(input) => input,
            Err(RecvTimeoutError::Timeout) => NodeInput::Wake,
        };
        let now = Instant::now();
        endpoint.asks.expire(now);
        match node.upgrade() {
            Some(node) if !node.closed.load(Ordering::Acquire) => {
                node.take(now, input);
                node.resend(now);
            }
            _ => break,
        }
    }
    endpoint.asks.close();
}

impl MemoryNode {
    fn take(&self, now: Instant, input: NodeInput) {
        match input {
            NodeInput::Message { lane, target, message } => {
                let refusal = if self.is_quarantined(&message.from) {
                    self.endpoint.refuse(now, Some(lane), &message, DeadLetterReason::Quarantined);
                    None
                } else if self.is_stranger(&message.from) && !self.endpoint.membership.is_open(&message.recipient.path)
                {
                    self.endpoint.refuse(now, Some(lane), &message, DeadLetterReason::NotAMember)
                } else {
                    let (mut refusal, mut message) = (None, Some(message));
                    LastReceiver::default().isolated(|last| {
                        if let Some(message) = message.take() {
                            refusal = self.endpoint.deliver(now, lane, target, message, std::iter::empty(), last);
                        }
                    });
                    refusal
                };
                if let Some(Refusal { to, ask_id, reason }) = refusal {
                    self.carry_reply(&to, ask_id, Reply::Dropped(reason));
                }
            }
            NodeInput::Reply { from, ask_id, reply } => {
                self.endpoint.accept_reply(now, &from, ask_id, reply, || self.reply_port());
            }
            NodeInput::Met(peer) => {
                let cluster_id = self.net.cluster_ids.lock().expect(NO_PANIC).get(&peer).copied();
                let host_id = Some(HOST_ID.to_owned());
                let info = self.endpoint.learn_peer(PeerInfo { peer, ip: NOWHERE, reached: true, host_id, cluster_id });
                self.endpoint.publish(TransportEvent::PeerHandshake(info.clone()));
                self.endpoint.publish(TransportEvent::DialAnswered(info));
            }
            NodeInput::Event(event) => {
                if let TransportEvent::LinkLost { peer, .. } = &event
                    && self.is_quarantined(peer)
                {
                    return;
                }
                self.endpoint.publish(event);
            }
            NodeInput::Numbered { from, seq, message } => self.take_numbered(now, &from, seq, message),
            NodeInput::Acknowledged { from, seq, is_gap } => self.take_acknowledged(now, &from, seq, is_gap),
            NodeInput::Call(done) => drop(isolated("a flush", "its end", done)),
            NodeInput::HandBack(peer) => drop(self.endpoint.hand_back(&peer, Vec::new())),
            NodeInput::Wake | NodeInput::Stop => {}
        }
    }

    fn is_stranger(&self, from: &UniqueAddress) -> bool {
        *from != self.endpoint.self_address && self.endpoint.membership.is_stranger(from)
    }

    fn is_quarantined(&self, peer: &UniqueAddress) -> bool {
        self.quarantined().contains(peer)
    }

    fn quarantined(&self) -> MutexGuard<'_, BTreeSet<UniqueAddress>> {
        self.quarantined.lock().expect(NO_PANIC)
    }

    /// Puts an input into the inbox of the process that runs at the address, after a handshake if needed. An input that
    /// a cut swallows counts as carried: its sender cannot know.
    fn carry(
        &self,
        to: &NodeAddress,
        input: impl FnOnce(&UniqueAddress) -> Option<NodeInput>,
    ) -> Result<(), DeadLetterReason> {
        let own = &self.endpoint.self_address;
        if self.net.is_cut(own.address(), to) {
            return Ok(());
        }
        let port = self.net.port(to).ok_or(DeadLetterReason::HandshakeTimeout)?;
        let input = input(&port.address).ok_or(DeadLetterReason::StaleIncarnation)?;
        if self.net.record_contact(own, &port.address) {
            self.inbox.send(NodeInput::Met(port.address.clone())).ok();
            port.inbox.send(NodeInput::Met(own.clone())).ok();
        }
        port.inbox.send(input).map_err(|_| DeadLetterReason::HandshakeTimeout)
    }

    fn carry_reply(&self, to: &UniqueAddress, ask_id: u64, reply: Reply) {
        let from = self.endpoint.self_address.clone();
        self.carry(to.address(), |runs| (runs == to).then_some(NodeInput::Reply { from, ask_id, reply })).ok();
    }

    fn send_checked(&self, now: Instant, to: &Destination, envelope: Envelope) -> Result<(), SendRejected> {
        let reject = |error, envelope| Err(SendRejected { error, envelope: Box::new(envelope) });
        if self.closed.load(Ordering::Acquire) {
            return reject(SendError::ShuttingDown, envelope);
        }
        if let Destination::Incarnation(peer) = to
            && self.is_quarantined(peer)
        {
            return reject(SendError::Quarantined, envelope);
        }
        let lane = self.lane_of(&envelope.recipient);
        let drop_it = |reason| self.endpoint.drop_unsent(now, lane, to.address(), &envelope, reason);
        let Ok(payload) = envelope.payload.to_bytes(&envelope.manifest) else {
            drop_it(DeadLetterReason::SerializeFailed);
            return Ok(());
        };
        let (size, max) = (payload.len(), self.maximum_message_size(lane.kind()));
        if size > max && to.address() != self.endpoint.self_address.address() {
            return reject(SendError::TooLarge { size, max }, envelope);
        }
        let target = match to {
            Destination::Incarnation(peer) => Some(peer.uid()),
            Destination::Address(_) => envelope.target_uid,
        };
        let input = |runs: &UniqueAddress| {
            if target.is_some_and(|uid| uid != runs.uid()) {
                return None;
            }
            if let Some(ask) = envelope.ask {
                self.endpoint.asks.sent_to(ask.id, runs);
            }
            let message = Inbound {
                from: self.endpoint.self_address.clone(),
                recipient: envelope.recipient.clone(),
                codec: envelope.codec,
                manifest: envelope.manifest.clone(),
                payload,
                ask: envelope.ask,
            };
            Some(NodeInput::Message { lane, target, message })
        };
        let carried = if to.address() == self.endpoint.self_address.address() {
            input(&self.endpoint.self_address)
                .ok_or(DeadLetterReason::StaleIncarnation)
                .map(|input| drop(self.inbox.send(input)))
        } else {
            self.carry(to.address(), input)
        };
        if let Err(reason) = carried {
            drop_it(reason);
        }
        Ok(())
    }
}

impl Remoting for MemoryNode {
    fn self_address(&self) -> &UniqueAddress {
        &self.endpoint.self_address
    }

    fn host_id(&self) -> Option<String> {
        Some(HOST_ID.to_owned())
    }

    fn maximum_message_size(&self, lane: LaneKind) -> usize {
        match self.net.max_ordinary_bytes.load(Ordering::Relaxed) {
            max if max > 0 && lane == LaneKind::Ordinary => max,
            _ => usize::MAX,
        }
    }

    fn send(&self, to: &Destination, envelope: Envelope) -> Result<(), SendRejected> {
        self.send_checked(Instant::now(), to, envelope)
    }

    fn send_async(&self, to: &Destination, envelope: Envelope, _: Option<Duration>) -> Sending {
        // Ready at once: no queue here is ever full.
        Box::pin(std::future::ready(self.send_checked(Instant::now(), to, envelope)))
    }

    fn send_reliable(&self, to: &UniqueAddress, envelope: Envelope) -> Result<(), SendRejected> {
        self.send_numbered(to, envelope)
    }

    fn flush(&self, to: &UniqueAddress, done: Box<dyn FnOnce() + Send + Sync>) {
        if *to == self.endpoint.self_address {
            self.inbox.send(NodeInput::Call(done)).ok();
        } else {
            self.carry(to.address(), |runs| (runs == to).then_some(NodeInput::Call(done))).ok();
        }
    }

    fn termination_flush_timeout(&self) -> Duration {
        TransportSettings::default().termination_flush_timeout
    }

    fn instance(&self, path: &str) -> Option<u64> {
        self.endpoint.instance(path)
    }

    fn register(&self, path: &str, receiver: Arc<dyn Receiver>) -> u64 {
        let (instance, replaced) = self.endpoint.register(path, receiver);
        replaced.into_iter().for_each(|event| drop(self.inbox.send(NodeInput::Event(event))));
        instance
    }

    fn unregister(&self, path: &str) {
        let stopped = self.endpoint.unregister(path);
        stopped.into_iter().for_each(|event| drop(self.inbox.send(NodeInput::Event(event))));
    }

    fn listen(&self, hand_back_prefix: Option<&str>, listener: Arc<dyn TransportListener>) {
        self.endpoint.listen(hand_back_prefix, listener);
    }

    fn lane_of(&self, recipient: &Recipient) -> Lane {
        match recipient.lane_kind() {
            LaneKind::Control => Lane::CONTROL,
            LaneKind::Ordinary => Lane::ordinary(0),
            LaneKind::Large => Lane::LARGE,
        }
    }

    fn peer(&self, address: &NodeAddress) -> Option<PeerInfo> {
        self.endpoint.peer(address)
    }

    fn quarantine(&self, peer: &UniqueAddress, reason: QuarantineReason, harmless: bool) {
        if *peer == self.endpoint.self_address || !self.quarantined().insert(peer.clone()) {
            return;
        }
        let error = match reason {
            QuarantineReason::RemovedFromMembership => AskError::PeerRemoved,
            QuarantineReason::DeliveryGaveUp | QuarantineReason::Manual => AskError::Quarantined,
        };
        self.endpoint.asks.fail_peer(peer, &error);
        self.forget_numbered(peer);
        let event = TransportEvent::Quarantined { peer: peer.clone(), reason, harmless };
        self.inbox.send(NodeInput::Event(event)).ok();
        self.inbox.send(NodeInput::HandBack(peer.clone())).ok();
        let by = self.endpoint.self_address.clone();
        if !harmless && !self.net.is_cut(by.address(), peer.address()) {
            self.net.tell(peer, NodeInput::Event(TransportEvent::ThisNodeQuarantined { by, reason }));
        }
    }

    fn set_tombstones(&self, _: &BTreeSet<UniqueAddress>) {}

    fn set_members(&self, members: &mut dyn Iterator<Item = &UniqueAddress>) {
        self.endpoint.membership.set_members(Some(members.cloned().collect()));
    }

    fn open_to_strangers(&self, path: &str, is_open: bool) {
        self.endpoint.membership.open(path, is_open);
    }

    fn declare_chatter(&self, path_prefix: &str) {
        self.endpoint.declare_chatter(path_prefix);
    }

    fn declare_repeated(&self, path_prefix: &str, manifest: Option<&str>, reasons: &[DeadLetterReason]) {
        self.endpoint.declare_repeated(path_prefix, manifest, reasons);
    }

    fn dead_letters(&self, capacity: usize) -> DeadLetterEvents {
        self.endpoint.dead_letters.subscribe(capacity)
    }

    fn set_cluster_id(&self, cluster_id: u128) {
        let own = &self.endpoint.self_address;
        let before = self.net.cluster_ids.lock().expect(NO_PANIC).insert(own.clone(), cluster_id);
        if before != Some(cluster_id) {
            for peer in self.net.contacts(own) {
                if !self.net.is_cut(own.address(), peer.address()) {
                    self.net.tell(&peer, NodeInput::Met(own.clone()));
                }
            }
        }
    }

    fn dead_letter(&self, reason: DeadLetterReason, recipient: &str, manifest: &str) {
        self.endpoint.dead_letter_above(Instant::now(), reason, recipient, manifest);
    }

    fn dead_letter_totals(&self) -> BTreeMap<DeadLetterReason, u64> {
        self.endpoint.dead_letters.totals()
    }

    fn refuse(&self, message: &Inbound, reason: DeadLetterReason) {
        if let Some(Refusal { to, ask_id, reason }) = self.endpoint.refuse(Instant::now(), None, message, reason) {
            self.carry_reply(&to, ask_id, Reply::Dropped(reason));
        }
    }

    fn registry(&self) -> &Arc<Registry> {
        &self.endpoint.registry
    }

    fn reply_port(&self) -> Arc<dyn ReplyPort> {
        self.this.upgrade().expect("the caller holds the node")
    }

    fn open_ask(&self, timeout: Duration) -> OpenAsk {
        let (ask, is_first) = self.endpoint.asks.open(Instant::now(), timeout);
        if is_first {
            self.inbox.send(NodeInput::Wake).ok();
        }
        ask
    }

    fn provide_resource(&self, what: Arc<dyn Any + Send + Sync>) {
        self.endpoint.provide_resource(what);
    }

    fn fail_ask(&self, ask_id: u64, error: AskError) {
        self.endpoint.asks.complete(ask_id, Err(error));
    }
}

impl ReplyPort for MemoryNode {
    fn reply(&self, to: &ReplyAddress, outcome: ReplyOutcome) {
        if to.node == self.endpoint.self_address {
            self.endpoint.reply_locally(Instant::now(), to.ask_id, outcome);
        } else {
            self.carry_reply(&to.node, to.ask_id, self.endpoint.encode_reply(outcome));
        }
    }

    fn expect(&self, to: &ReplyAddress, reader: AnswerReader) {
        if to.node == self.endpoint.self_address {
            self.endpoint.asks.expect(to.ask_id, reader);
        }
    }

    fn resource(&self, what: TypeId) -> Option<Arc<dyn Any + Send + Sync>> {
        self.endpoint.resource(what)
    }
}

#[cfg(test)]
mod tests;
