//! The interface of the transport to layers above: their calls, and the events they get.
//!
//! Drivers hold an `Arc<dyn Remoting>`: the gRPC driver in production, a virtual network in tests.
//! Calls never wait: a message is queued or refused. Nothing here terminates the process.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use greylag_core::{DeadLetterReason, EntityError, NodeAddress, Registry, ReplyPort, UniqueAddress};

use crate::dials::failure::DialFailure;
use crate::endpoints::dead_letters::DeadLetterEvents;
use crate::holder::Holder;
use crate::lanes::lane::{Lane, LaneKind};
use crate::messages::envelope::{Envelope, Inbound};

/// The target of an envelope.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Destination {
    /// This incarnation and no other.
    Incarnation(UniqueAddress),
    /// Any process that runs at this address (the join protocol).
    Address(NodeAddress),
}

impl Destination {
    /// The address of the target.
    pub fn address(&self) -> &NodeAddress {
        match self {
            Self::Incarnation(ua) => ua.address(),
            Self::Address(address) => address,
        }
    }
}

impl From<UniqueAddress> for Destination {
    fn from(ua: UniqueAddress) -> Self {
        Self::Incarnation(ua)
    }
}

impl From<NodeAddress> for Destination {
    fn from(address: NodeAddress) -> Self {
        Self::Address(address)
    }
}

/// Why a message was not queued. The caller got it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The lane's queue is full; try again later, or slow down.
    #[error("the outbound queue is full")]
    QueueFull,
    /// The incarnation is quarantined: nothing will ever reach it.
    #[error("the peer is quarantined")]
    Quarantined,
    /// The message is encoded already and exceeds the lane's limit.
    #[error("the message has {size} bytes, its lane carries at most {max}")]
    TooLarge {
        /// The size in bytes.
        size: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The recipient's path or sub-path, or the manifest, exceeds the limit of names.
    #[error("a name of {size} bytes, where paths, sub-paths and manifests have at most {max}")]
    NameTooLong {
        /// The size in bytes.
        size: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// This node is shutting down.
    #[error("this node is shutting down")]
    ShuttingDown,
}

impl SendError {
    /// Whether the same message may be taken later although neither program nor settings change.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::QueueFull => true,
            Self::Quarantined | Self::TooLarge { .. } | Self::NameTooLong { .. } | Self::ShuttingDown => false,
        }
    }
}

/// A message that was not queued, and why.
#[derive(Debug)]
pub struct SendRejected {
    /// Why the message was not queued.
    pub error: SendError,
    /// The message, untouched.
    pub envelope: Box<Envelope>,
}

/// Why an ask has no answer. Only the answer itself tells whether the question was processed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// No answer came in time.
    #[error("no answer within {0:?}")]
    Timeout(std::time::Duration),
    /// The recipient's runtime answered in its stead.
    #[error(transparent)]
    Entity(EntityError),
    /// The question was not sent.
    #[error(transparent)]
    Send(SendError),
    /// The process that was asked has been replaced by a newer one.
    #[error("the peer restarted")]
    PeerRestarted,
    /// The process that was asked has been removed from the cluster.
    #[error("the peer was removed from the cluster")]
    PeerRemoved,
    /// The process that was asked is quarantined, for another reason than its removal.
    #[error("the peer is quarantined")]
    Quarantined,
    /// No receiver is registered on the peer under the recipient's path.
    #[error("no receiver is registered under the recipient's path")]
    NoSuchRecipient,
    /// The recipient answered, but the answer is too large for its lane.
    #[error("the answer is too large to be sent")]
    ReplyTooLarge,
    /// The question, or the answer, was dropped on its way.
    #[error("dropped: {0}")]
    Dropped(DeadLetterReason),
    /// The question could not be decoded where it arrived: that node has no codec for it, or another one.
    #[error("the question could not be read on {node}; its log says why")]
    Undecodable {
        /// The process that was asked.
        node: UniqueAddress,
    },
    /// The answer could not be encoded by the process that was asked, or not decoded by this one.
    #[error("an answer of type {type_name} could not be written or read on {node}: {cause}")]
    Codec {
        /// The Rust type of the answer, or its manifest if the type is not known; for people only.
        type_name: String,
        /// The node where it failed.
        node: UniqueAddress,
        /// The codec's error, or that there is no codec.
        cause: String,
    },
    /// This node is shutting down.
    #[error("this node is shutting down")]
    ShuttingDown,
}

impl AskError {
    /// Whether the recipient may have processed the question.
    pub fn may_have_run(&self) -> bool {
        match self {
            Self::Timeout(_)
            | Self::PeerRestarted
            | Self::PeerRemoved
            | Self::Quarantined
            | Self::ReplyTooLarge
            | Self::Codec { .. }
            | Self::ShuttingDown => true,
            Self::Entity(error) => error.may_have_run(),
            Self::Dropped(reason) => reason.may_have_run(),
            Self::Send(_) | Self::NoSuchRecipient | Self::Undecodable { .. } => false,
        }
    }

    /// Whether the same question may be answered later although neither program nor settings change. If it also
    /// [may have run](Self::may_have_run), ask again only what can be done twice.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Timeout(_) | Self::PeerRestarted | Self::PeerRemoved | Self::Quarantined | Self::NoSuchRecipient => {
                true
            }
            Self::Entity(error) => error.is_retryable(),
            Self::Send(error) => error.is_retryable(),
            Self::Dropped(reason) => reason.is_retryable(),
            Self::ReplyTooLarge | Self::Undecodable { .. } | Self::Codec { .. } | Self::ShuttingDown => false,
        }
    }
}

/// Why a process was quarantined (cluster T20).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuarantineReason {
    /// The cluster removed the process.
    RemovedFromMembership,
    /// A reliable control message could not be delivered.
    DeliveryGaveUp,
    /// A user or an operator requested the quarantine.
    Manual,
}

/// Why a node refuses a stream (cluster T12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RejectCode {
    /// The nodes are configured with different cluster names.
    WrongCluster,
    /// The caller spelled this node's address differently from the node itself.
    UnknownAddress,
    /// The two nodes have no protocol version in common.
    VersionUnsupported,
    /// The caller's incarnation is quarantined.
    Quarantined,
    /// The node is shutting down; another process may start in its place.
    Terminating,
    /// The node is not ready yet.
    NotReady,
    /// Two processes at one address drew the same uid.
    UidCollision,
    /// The caller's certificate does not permit the Hello.
    Unauthorized,
    /// The node called itself.
    SelfConnect,
    /// The caller has too many streams open.
    TooManyStreams,
    /// A reason that this version does not know.
    Unknown,
}

impl RejectCode {
    /// Whether the same Hello may be accepted later, so that repeating it is worthwhile.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Terminating | Self::NotReady | Self::TooManyStreams | Self::Unknown)
    }
}

/// The facts of a peer from its handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    /// The incarnation.
    pub peer: UniqueAddress,
    /// The IP address where its last active stream ended; proofs of death dial exactly this address.
    pub ip: IpAddr,
    /// Whether this node itself reached the incarnation at `ip`. Otherwise `ip` is only where the peer called from, and
    /// the peer need not listen there (cluster S20).
    pub reached: bool,
    /// Its kernel's boot id and network namespace, if the peer named them (cluster T12).
    pub host_id: Option<String>,
    /// The cluster that its last Hello named; `None` while the peer is in none. Once the peer has a cluster it says
    /// Hello again, which is announced again (cluster T12).
    pub cluster_id: Option<u128>,
}

/// An event of a link or peer, in order.
#[derive(Debug)]
pub enum TransportEvent {
    /// A process said Hello, or answered ours: this incarnation runs at its address. Sent again for
    /// every stream, and when the peer got its cluster id.
    PeerHandshake(PeerInfo),
    /// A dial of ours was answered: this incarnation listens at its address. Follows its
    /// `PeerHandshake` (cluster T15).
    DialAnswered(PeerInfo),
    /// A dial of the control lane reached no node at this address, or one that accepts no callers for now. The dial is
    /// repeated; the event comes after each such dial.
    DialFailed {
        /// The address.
        address: NodeAddress,
        /// Why the dial failed.
        failure: DialFailure,
    },
    /// Another process was heard at the address of a member that it cannot have replaced: its call was refused, or its
    /// answer not believed. At most once per address and second (cluster T15).
    AddressHeld {
        /// The member.
        holder: UniqueAddress,
        /// The other process.
        claimant: UniqueAddress,
    },
    /// An active stream broke; messages in it are lost (cluster T10, T31).
    LinkLost {
        /// The incarnation at the other end.
        peer: UniqueAddress,
        /// The lane of the stream.
        lane: Lane,
    },
    /// Envelopes that were queued for an incarnation and never written, because the incarnation was quarantined here,
    /// or another one was found in its place. Sent also if there were none, and again if envelopes were queued for an
    /// incarnation that had been replaced. In queue order per lane (cluster T15, T18).
    HandedBack {
        /// The incarnation that the envelopes were for.
        peer: UniqueAddress,
        /// The envelopes of the listener's own registered path prefix.
        envelopes: Vec<Envelope>,
    },
    /// An incarnation was quarantined here, for any of these causes: a layer above, a reliable message
    /// that could not be delivered, or its own farewell (cluster T18, T19, C2). Once per incarnation,
    /// and once more if a harmless quarantine becomes a graver one.
    Quarantined {
        /// The incarnation that nothing goes to or comes from any more.
        peer: UniqueAddress,
        /// The reason of the quarantine.
        reason: QuarantineReason,
        /// Whether the peer left in order, and so is not told.
        harmless: bool,
    },
    /// Reliable control messages to this incarnation were given up; they are dead letters. With
    /// [`crate::OnReliableGiveUp::Quarantine`] its quarantine follows (cluster T29).
    ReliableGaveUp {
        /// The incarnation that the messages were for.
        peer: UniqueAddress,
        /// The number of dropped messages.
        dropped: usize,
    },
    /// The receiver of this path was removed or replaced (cluster T30).
    RecipientStopped {
        /// The path.
        path: Arc<str>,
        /// The instance that ended.
        instance: u64,
    },
    /// Another node has quarantined this one (cluster T20, S19).
    ThisNodeQuarantined {
        /// The node that quarantined this one.
        by: UniqueAddress,
        /// The reason of the quarantine.
        reason: QuarantineReason,
    },
    /// A node refused our Hello: for good, and the messages queued for it became dead letters (cluster T12,
    /// T14); or, with [`RejectCode::NotReady`], until the member that holds our address there is removed.
    HandshakeRejected {
        /// The address that was called.
        address: NodeAddress,
        /// Why the node refused.
        code: RejectCode,
        /// With [`RejectCode::NotReady`]: the member that holds our address, as the called node knows it
        /// (cluster T15).
        holder: Option<UniqueAddress>,
        /// Both sides' values, for people.
        detail: String,
    },
    /// A peer announced its orderly end (cluster T33).
    PeerTerminating(UniqueAddress),
}

/// Takes transport events. Called from transport tasks: must not block and must not call back into
/// [`Remoting::send`] synchronously; forward into an inbox instead.
pub trait TransportListener: Send + Sync + 'static {
    /// Takes one event.
    fn on_event(&self, event: &mut TransportEvent);
}

/// Takes the messages of one registered path. Called from a decode worker, in order per lane key: must not block.
/// Decoding the payload here is right, since the worker exists for that.
pub trait Receiver: Send + Sync + 'static {
    /// Takes one message.
    fn receive(&self, message: Inbound);

    /// Takes messages that came together, in their order. A receiver that hands messages on may do so once for all of
    /// them. Messages that it leaves in the iterator are passed again, with the next ones.
    fn receive_all(&self, messages: &mut dyn Iterator<Item = Inbound>) {
        messages.for_each(|message| self.receive(message));
    }
}

/// Days before the end of a node's certificate from which the node's health is degraded. Source: cluster 83.
pub const DEGRADED_DAYS: i64 = 7;

/// The transport of one node, as the layers above see it.
pub trait Remoting: Send + Sync + 'static {
    /// The address of this process.
    fn self_address(&self) -> &UniqueAddress;

    /// Kernel boot id and network namespace of this process, where they can be known.
    fn host_id(&self) -> Option<String>;

    /// Queues a message. A message to the own address is delivered locally, without a connection.
    ///
    /// # Errors
    /// [`SendRejected`] with the reason and the message.
    fn send(&self, to: &Destination, envelope: Envelope) -> Result<(), SendRejected>;

    /// Queues a message, and waits for room if there is none. The wait is for the own queue only: back-pressure within
    /// this node, not from the peer (cluster T22). Messages that wait at the same time enter in any order.
    ///
    /// # Errors
    /// As [`Remoting::send`]; [`SendError::QueueFull`] only once `deadline` has passed.
    fn send_async(&self, to: &Destination, envelope: Envelope, deadline: Option<std::time::Duration>) -> Sending;

    /// Sends a control message that is delivered exactly once and in the order of sending, across lost streams, for as
    /// long as this incarnation runs (cluster T28). The message takes the control lane whatever its recipient. If the
    /// transport gives the message up, [`TransportEvent::ReliableGaveUp`] reports it.
    ///
    /// # Errors
    /// As [`Remoting::send`]; with [`SendError::QueueFull`] everything that waited was given up.
    fn send_reliable(&self, to: &UniqueAddress, envelope: Envelope) -> Result<(), SendRejected>;

    /// Calls `done` once everything sent to this incarnation before has been taken by its receivers there, on every
    /// lane. Drops `done` uncalled if a stream broke meanwhile, since then that cannot be known.
    fn flush(&self, to: &UniqueAddress, done: Box<dyn FnOnce() + Send + Sync>);

    /// How long the notice of a recipient's end waits for its flush: `transport.termination_flush_timeout`.
    fn termination_flush_timeout(&self) -> std::time::Duration;

    /// The instance registered under `path`.
    fn instance(&self, path: &str) -> Option<u64>;

    /// Registers `receiver` for messages to `path` from now on; replaces the former receiver, if any. Returns the
    /// instance id of this registration, never used twice.
    fn register(&self, path: &str, receiver: Arc<dyn Receiver>) -> u64;

    /// Removes the receiver at `path`: messages for this path become dead letters.
    fn unregister(&self, path: &str);

    /// Adds a listener. `hand_back_prefix`: envelopes whose recipient path starts with this prefix are offered to the
    /// listener in [`TransportEvent::HandedBack`] before they become dead letters.
    fn listen(&self, hand_back_prefix: Option<&str>, listener: Arc<dyn TransportListener>);

    /// The lane that messages for this recipient take to any peer.
    fn lane_of(&self, recipient: &crate::Recipient) -> Lane;

    /// The largest message that a lane of this kind carries, in bytes; `usize::MAX` where nothing bounds it, as in
    /// memory. Source: cluster T5.
    fn maximum_message_size(&self, _lane: LaneKind) -> usize {
        usize::MAX
    }

    /// The facts of the peer now active, or last active, at an address.
    fn peer(&self, address: &NodeAddress) -> Option<PeerInfo>;

    /// Quarantines an incarnation: nothing goes to or comes from it any more (cluster T18). A harmless quarantine (the
    /// peer left in order) is not told to the peer.
    fn quarantine(&self, peer: &UniqueAddress, reason: QuarantineReason, harmless: bool);

    /// Sets the cluster's id for the Hellos to come, once the id is known. Peers that were greeted without the id are
    /// told, too (cluster T12).
    fn set_cluster_id(&self, cluster_id: u128);

    /// Sets the members, this process included. From the first call on, a message of any other process is dropped as
    /// [`DeadLetterReason::NotAMember`], unless its recipient is open to strangers. Membership calls this at its start,
    /// with no members, and at every change. If this is never called, as without a cluster, every process may speak to
    /// every recipient. Source: cluster T17.
    fn set_members(&self, _members: &mut dyn Iterator<Item = &UniqueAddress>) {}

    /// Sets all members that hold their addresses: the Hello of another process there teaches nothing, and is refused
    /// if that process cannot have replaced the member. Membership calls this at every change; each call replaces the
    /// one before (cluster T15).
    fn set_holders(&self, _holders: Vec<Holder>) {}

    /// Dials an address anew, so that the process that listens there names itself, at most once a second;
    /// the answer comes as [`TransportEvent::DialAnswered`] (cluster M10, M25).
    fn ask_who(&self, _address: &NodeAddress) {}

    /// Opens the recipient at `path` to processes that are no members, or closes it again. Messages of strangers prove
    /// nothing but that their senders run: the receiver has to judge them. Source: cluster T17.
    fn open_to_strangers(&self, _path: &str, _is_open: bool) {}

    /// Sets the processes that were members and never will be again: their quarantines are kept for as long as they are
    /// named here, and a process that was removed before this node knew it as a member is refused like a quarantined
    /// one (cluster T15, T20, T21). Each call replaces the one before.
    fn set_tombstones(&self, tombstones: &std::collections::BTreeSet<UniqueAddress>);

    /// Keeps the port bound until the process ends, even after the end of the transport: a part of this node still
    /// runs, and a port that refuses is taken for the death of the process behind it. A caller that connects after the
    /// transport's end gets no answer. Source: cluster T33, S20.
    fn keep_port(&self) {}

    /// Declares messages to paths with this prefix chatter: dropped ones are counted, and neither published nor logged,
    /// since their protocol repeats them anyway (cluster T41).
    fn declare_chatter(&self, path_prefix: &str);

    /// Declares that messages to paths with this prefix (all, or those of one manifest) are sent again, or mean nothing
    /// any more, if they are dropped for one of these reasons: such drops are counted and published, without a warning.
    /// For recipients that start later than their peers, or end before them, where `NoSuchRecipient` belongs to every
    /// start and every end. One call per path and manifest is enough.
    fn declare_repeated(&self, path_prefix: &str, manifest: Option<&str>, reasons: &[DeadLetterReason]);

    /// Subscribes to dead letters from now on, at most `capacity` of them waiting to be read (cluster T41).
    fn dead_letters(&self, capacity: usize) -> DeadLetterEvents;

    /// Counts and reports a message dropped by a layer above.
    fn dead_letter(&self, reason: DeadLetterReason, recipient: &str, manifest: &str);

    /// Whole days until this node's certificate ends, negative once it has; `None` where nodes show none. From
    /// [`DEGRADED_DAYS`] on the node's health is degraded. Source: cluster 83.
    fn certificate_days_left(&self) -> Option<i64> {
        None
    }

    /// How many messages were dropped since the start, by reason.
    fn dead_letter_totals(&self) -> BTreeMap<DeadLetterReason, u64> {
        BTreeMap::new()
    }

    /// Drops a message that arrived here: counts it, and answers its asker if the message was a question, so that the
    /// ask ends with [`AskError::Dropped`] and not with its timeout.
    fn refuse(&self, message: &Inbound, reason: DeadLetterReason);

    /// The codecs of this node.
    fn registry(&self) -> &Arc<Registry>;

    /// The port through which answers leave; see [`greylag_core::ReplyScope`].
    fn reply_port(&self) -> Arc<dyn ReplyPort>;

    /// Provides `what` to all decoders of this node: see [`greylag_core::ReplyScope::resource`]. One object per type.
    fn provide_resource(&self, what: Arc<dyn std::any::Any + Send + Sync>);

    /// Registers a question: its future completes with the answer, a failure, or at the timeout. The caller itself puts
    /// `reply_to` into a message and sends that message.
    fn open_ask(&self, timeout: std::time::Duration) -> OpenAsk;

    /// Ends a question early: the message that carried it was dropped.
    fn fail_ask(&self, ask_id: u64, error: AskError);
}

/// A message that waits for room; completes once it is queued or refused.
pub type Sending = std::pin::Pin<Box<dyn Future<Output = Result<(), SendRejected>> + Send>>;

/// A question that waits for its answer.
pub struct OpenAsk {
    /// The number of the question and the node that asks.
    pub address: greylag_core::ReplyAddress,
    /// Completes once.
    pub answer: std::pin::Pin<Box<dyn Future<Output = Result<Answer, AskError>> + Send>>,
}

impl std::fmt::Debug for OpenAsk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenAsk").field("address", &self.address).finish_non_exhaustive()
    }
}

/// An answer: the value itself from the same node, or decoded by the registry from another one.
pub type Answer = Box<dyn std::any::Any + Send>;
