//! What replicators say to each other, what one is told, and what it asks its driver to do.
//!
//! ```text
//! update   writer: Write | DeltaWrite | Check   --> replica: WriteReply
//! read     reader: Read                         --> replica: ReadReply
//! deltas   origin: DeltaBatch                   --> peer:    DeltaAck
//! sync     opener: SyncOpen --> peer: SyncSame, or SyncDiffers and then both: SyncNodes, SyncList,
//!          SyncWant, Gossip, each side SyncAck; at the end opener: SyncDone
//! parts    holder: InnerNodes --> other: InnerWant --> holder: InnerNodes, Bucket; at the end other: InnerWant
//!          (within a round, of a value that is too large for Gossip)
//! ```
//!
//! Source: ddata G17, O2, O3.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use greylag_core::{NodeAddress, UniqueAddress};
use greylag_crdt::{Digest, KeyRange, Markers, Part, RangeSum, ReplicaId, ReplicatedData};

use crate::error::{DeleteError, GetError, StopReason, UpdateError};
use crate::key::KeyId;
use crate::level::{ReadLevel, WriteLevel};
use crate::pruning::PruningNews;
use crate::read::{Lifecycle, Read};
use crate::replicas::Replicas;
use crate::replicator::TypeConflict;
use crate::store::{LoadedRecord, StoreError, StoreMeta, StoreOp};
use crate::tree::{Prefix, Sixteenths, Sum};
use crate::types::AnyData;

/// An entry as it travels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// What it holds.
    pub content: Content,
    /// By origin, up to which version its updates are included. Source: ddata G5, G6.
    pub versions: BTreeMap<ReplicaId, u64>,
    /// What was put where of removed replicas. Source: ddata Z5.
    pub markers: Markers,
    /// When the entry was last used, wall clock in milliseconds; `None` if it does not expire at the
    /// sender. Of a tombstone its deletion time says it. Source: ddata E2.
    pub used_ms: Option<i64>,
}

/// The value of a travelling entry, or that it was deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A value.
    Value {
        /// The tag of its type.
        tag: Arc<str>,
        /// Its canonical bytes.
        bytes: Bytes,
    },
    /// A deleted entry.
    Tombstone {
        /// Wall clock of the deletion, in milliseconds.
        deleted_at: i64,
    },
    /// Something that this version cannot read: content of another kind, or markers in another format. Only what arrives
    /// is so; it is refused, and the rest of its message is taken. Source: ddata §9.
    Unreadable,
}

impl Envelope {
    /// A travelling entry that says nothing but this.
    pub fn of(content: Content) -> Self {
        Self { content, versions: BTreeMap::new(), markers: Markers::new(), used_ms: None }
    }

    /// About how many bytes it takes in a message.
    pub(crate) fn size(&self) -> usize {
        let content = match &self.content {
            Content::Value { tag, bytes } => tag.len() + bytes.len(),
            Content::Tombstone { .. } => 10,
            Content::Unreadable => 0,
        };
        content + self.versions.len() * 20 + self.markers.iter().count() * 48 + 16
    }
}

/// One or more updates of one origin to one entry, joined: everything in `(prev, version]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeltaItem {
    /// The entry.
    pub key: KeyId,
    /// The tag of its type.
    pub tag: Arc<str>,
    /// The origin's version before.
    pub prev: u64,
    /// The origin's version after.
    pub version: u64,
    /// The canonical bytes of the joined deltas.
    pub delta: Bytes,
    /// The markers of the sender's entry. A receiver that lacks one of them does not know the names that
    /// the delta uses, and needs the full state. Source: ddata Z7.
    pub markers: Markers,
    /// As in [`Envelope`].
    pub used_ms: Option<i64>,
}

/// One entry's part of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchItem {
    /// Deltas.
    Delta(DeltaItem),
    /// The full state.
    Full {
        /// The entry.
        key: KeyId,
        /// Its state.
        envelope: Envelope,
    },
    /// The entry changed and is too large to go with the deltas; ask for it. Source: ddata G7.
    Hint {
        /// The hash of its id.
        hash: u64,
    },
    /// The entry was used and has not changed. Source: ddata E2.
    Touch {
        /// The hash of its id.
        hash: u64,
        /// Wall clock in milliseconds.
        used_ms: i64,
    },
}

/// What a list says of one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// The hash of its id.
    pub hash: u64,
    /// Its digest.
    pub digest: Digest,
    /// As in [`Envelope`].
    pub used_ms: Option<i64>,
}

/// A refused part of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nacked {
    /// The entry.
    pub key: KeyId,
    /// The version of the origin that the receiver has.
    pub have: u64,
    /// Whether the full state is wanted.
    pub full: bool,
}

/// Why a replica does not do what it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// The entry holds another type here.
    TypeMismatch,
    /// No codec for the type here.
    UnknownType,
    /// The bytes are no value of the type, or cannot be joined.
    Undecodable,
    /// Above four times the limit of an entry.
    TooLarge,
    /// Not synchronized yet.
    NotReady,
    /// The entry could not be stored.
    Store,
}

/// The answer to a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteReply {
    /// Merged (and flushed, for durable entries).
    Ack,
    /// The entry is deleted here; a value was offered.
    Deleted {
        /// When it was.
        deleted_at: i64,
    },
    /// Something is missing in between.
    DeltaNack {
        /// The version of the origin that the replica has.
        have: u64,
        /// Whether the full state is wanted.
        full: bool,
    },
    /// Refused.
    Nack(Refusal),
}

/// The answer to a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadReply {
    /// The digest is the same here.
    Same,
    /// This is held here.
    Value(Envelope),
    /// Nothing is held here.
    Absent,
    /// Not synchronized yet.
    NotReady,
    /// Refused.
    Nack(Refusal),
}

/// A round of anti-entropy, named by the number its opener drew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RoundId {
    /// Whether the sender of the message opened it.
    pub opened_by_sender: bool,
    /// The opener's number for it.
    pub number: u64,
}

/// A value that is too large to be sent whole. Source: ddata G12.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// The entry, with the tag of its value and without the bytes.
    pub head: Envelope,
    /// The canonical bytes of the value's context: what it has seen.
    pub context: Bytes,
    /// Whether the sender wants what comes out, where it differs from what it sent.
    pub send_back: bool,
}

/// A range of the keys of an offered value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The range.
    pub range: KeyRange,
    /// Sums within the range are wanted, not the range itself.
    pub split: bool,
}

/// What replicators say to each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Merge this.
    Write {
        /// The writer's number for the request.
        request: u64,
        /// The entry.
        key: KeyId,
        /// Its state.
        envelope: Envelope,
    },
    /// Do you hold at least this?
    Check {
        /// The writer's number for the request.
        request: u64,
        /// The entry.
        key: KeyId,
        /// The digest of the writer's entry; `None` if it is absent there.
        digest: Option<Digest>,
    },
    /// Join this.
    DeltaWrite {
        /// The writer's number for the request.
        request: u64,
        /// The delta.
        item: DeltaItem,
    },
    /// The answer to the three above.
    WriteReply {
        /// The writer's number for the request.
        request: u64,
        /// The answer.
        reply: WriteReply,
    },
    /// What do you hold?
    Read {
        /// The reader's number for the request.
        request: u64,
        /// The entry.
        key: KeyId,
        /// The tag that the reader expects.
        tag: Arc<str>,
        /// The digest of the reader's entry; `None` if it is absent there.
        digest: Option<Digest>,
    },
    /// The answer to it.
    ReadReply {
        /// The reader's number for the request.
        request: u64,
        /// The answer.
        reply: ReadReply,
    },
    /// A run of the sender's delta log.
    DeltaBatch {
        /// The first record's number.
        from_seq: u64,
        /// The last record's number.
        to_seq: u64,
        /// What they say.
        items: Vec<BatchItem>,
    },
    /// The answer to exactly one batch.
    DeltaAck {
        /// The batch's first number.
        from_seq: u64,
        /// The batch's last number.
        to_seq: u64,
        /// What was refused of it.
        nacked: Vec<Nacked>,
    },
    /// Begins a round.
    SyncOpen {
        /// The opener's number for it.
        round: u64,
        /// The part of the hash space that it is about.
        part: Sixteenths,
        /// The sum over everything the opener holds there.
        root: Sum,
        /// What the opener knows of pruning.
        pruning: PruningNews,
    },
    /// The sums are equal; the round is over.
    SyncSame {
        /// The opener's number for it.
        round: u64,
        /// What the sender knows of pruning.
        pruning: PruningNews,
    },
    /// The sums differ; what differs follows.
    SyncDiffers {
        /// The opener's number for the round.
        round: u64,
        /// What the sender knows of pruning.
        pruning: PruningNews,
    },
    /// Sums of the sender below a node that differed.
    SyncNodes {
        /// The round.
        round: RoundId,
        /// Which numbered message of the sender in the round this is.
        number: u64,
        /// Parts of the hash space, and the sender's sums over the sixteen parts of each.
        parents: Vec<(Prefix, Vec<Sum>)>,
    },
    /// Everything the sender holds in some parts of the hash space.
    SyncList {
        /// The round.
        round: RoundId,
        /// Which numbered message of the sender in the round this is.
        number: u64,
        /// The parts.
        prefixes: Vec<Prefix>,
        /// The entries.
        keys: Vec<Listed>,
    },
    /// Send me these.
    SyncWant {
        /// The round; `None` after a hint.
        round: Option<RoundId>,
        /// Which numbered message of the sender in the round this is.
        number: u64,
        /// Hashes of ids.
        hashes: Vec<u64>,
    },
    /// Merge these.
    Gossip {
        /// The round; `None` for repairs.
        round: Option<RoundId>,
        /// Which numbered message of the sender in the round this is.
        number: u64,
        /// Whether the sender wants what comes out, where it differs from what it sent.
        send_back: bool,
        /// The entries.
        entries: Vec<(KeyId, Envelope)>,
    },
    /// Sums of a large value over ranges of its keys. Source: ddata G12.
    InnerNodes {
        /// The round.
        round: RoundId,
        /// Which numbered message of the sender in the round this is.
        number: u64,
        /// The entry.
        key: KeyId,
        /// The digest of the entry whose sums these are.
        snapshot: Digest,
        /// The first time: what the value is. Then there is one node, over all.
        offer: Option<Box<Offer>>,
        /// The ranges.
        nodes: Vec<(KeyRange, RangeSum)>,
    },
    /// What is wanted of an offered value; nothing, once all of it is here or it is refused.
    InnerWant {
        /// The round.
        round: RoundId,
        /// Which numbered message of the sender in the round this is.
        number: u64,
        /// The entry.
        key: KeyId,
        /// The digest of the entry that was offered.
        snapshot: Digest,
        /// The ranges.
        ranges: Vec<Wanted>,
    },
    /// All that an offered value holds in a range.
    Bucket {
        /// The round.
        round: RoundId,
        /// Which numbered message of the sender in the round this is.
        number: u64,
        /// The entry.
        key: KeyId,
        /// The digest of the entry that was offered.
        snapshot: Digest,
        /// The range and what is in it.
        part: Part,
    },
    /// How far the sender is in a round.
    SyncAck {
        /// The round.
        round: RoundId,
        /// Rises with every acknowledgement, so that an older one cannot undo a newer one.
        number: u64,
        /// Numbered messages it has processed.
        received: u64,
        /// Numbered messages it has sent.
        sent: u64,
        /// Whether it has nothing more to send as things are.
        idle: bool,
    },
    /// Every difference was exchanged both ways.
    SyncDone {
        /// The opener's number for the round.
        round: u64,
    },
}

impl Message {
    /// About how many bytes it takes.
    pub(crate) fn size_hint(&self) -> usize {
        match self {
            Self::Write { key, envelope, .. } => key.len() + envelope.size(),
            Self::ReadReply { reply: ReadReply::Value(envelope), .. } => envelope.size(),
            Self::DeltaWrite { item, .. } => item.key.len() + item.delta.len(),
            Self::Gossip { entries, .. } => entries.iter().map(|(key, envelope)| key.len() + envelope.size()).sum(),
            Self::DeltaBatch { items, .. } => items.iter().map(BatchItem::size).sum(),
            Self::DeltaAck { nacked, .. } => 24 + nacked.iter().map(|nack| nack.key.len() + 12).sum::<usize>(),
            Self::Check { key, .. } => key.len() + 28,
            Self::Read { key, tag, .. } => key.len() + tag.len() + 28,
            Self::SyncOpen { pruning, .. } | Self::SyncSame { pruning, .. } | Self::SyncDiffers { pruning, .. } => {
                40 + pruning.rounds.len() * 32 + pruning.standing.listed() * 20
            }
            Self::SyncNodes { parents, .. } => 16 + parents.iter().map(|(_, sums)| 24 + sums.len() * 20).sum::<usize>(),
            Self::SyncList { prefixes, keys, .. } => 24 + prefixes.len() * 13 + keys.len() * 26,
            Self::SyncWant { hashes, .. } => 16 + hashes.len() * 9,
            Self::WriteReply { .. } | Self::ReadReply { .. } | Self::SyncAck { .. } | Self::SyncDone { .. } => 16,
            Self::InnerNodes { offer, nodes, .. } => {
                let offered = offer.as_ref().map_or(0, |offer| offer.head.size() + offer.context.len());
                offered + nodes.iter().map(|(range, _)| bounds_size(range) + 40).sum::<usize>()
            }
            Self::InnerWant { ranges, .. } => ranges.iter().map(|wanted| bounds_size(&wanted.range) + 8).sum(),
            Self::Bucket { part, .. } => bounds_size(&part.range) + part.bytes.len(),
        }
    }

    /// For simulations that prove their checkers.
    pub(crate) fn forget_markers_of_deltas(&mut self) {
        match self {
            Self::DeltaWrite { item, .. } => item.markers = Markers::new(),
            Self::DeltaBatch { items, .. } => {
                let deltas = items.iter_mut().filter_map(|item| match item {
                    BatchItem::Delta(item) => Some(item),
                    BatchItem::Full { .. } | BatchItem::Hint { .. } | BatchItem::Touch { .. } => None,
                });
                deltas.for_each(|item| item.markers = Markers::new());
            }
            _ => {}
        }
    }

    /// The name of its kind, which is that of its variant.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Write { .. } => "Write",
            Self::Check { .. } => "Check",
            Self::DeltaWrite { .. } => "DeltaWrite",
            Self::WriteReply { .. } => "WriteReply",
            Self::Read { .. } => "Read",
            Self::ReadReply { .. } => "ReadReply",
            Self::DeltaBatch { .. } => "DeltaBatch",
            Self::DeltaAck { .. } => "DeltaAck",
            Self::SyncOpen { .. } => "SyncOpen",
            Self::SyncSame { .. } => "SyncSame",
            Self::SyncDiffers { .. } => "SyncDiffers",
            Self::SyncNodes { .. } => "SyncNodes",
            Self::SyncList { .. } => "SyncList",
            Self::SyncWant { .. } => "SyncWant",
            Self::Gossip { .. } => "Gossip",
            Self::SyncAck { .. } => "SyncAck",
            Self::SyncDone { .. } => "SyncDone",
            Self::InnerNodes { .. } => "InnerNodes",
            Self::InnerWant { .. } => "InnerWant",
            Self::Bucket { .. } => "Bucket",
        }
    }

    /// The request that it asks for an answer to, if it does.
    pub fn request(&self) -> Option<u64> {
        match self {
            Self::Write { request, .. }
            | Self::Check { request, .. }
            | Self::DeltaWrite { request, .. }
            | Self::Read { request, .. } => Some(*request),
            _ => None,
        }
    }

    /// Whether it moves or compares entries; openings of rounds and answers to them do not.
    pub(crate) fn is_exchange(&self) -> bool {
        !matches!(self, Self::SyncOpen { .. } | Self::SyncSame { .. } | Self::SyncDiffers { .. })
    }

    /// Whether it carries data of entries, which the receiver may keep.
    pub(crate) fn carries_data(&self) -> bool {
        match self {
            Self::Write { .. }
            | Self::DeltaWrite { .. }
            | Self::DeltaBatch { .. }
            | Self::Gossip { .. }
            | Self::Bucket { .. }
            | Self::ReadReply { reply: ReadReply::Value(_), .. }
            | Self::WriteReply { reply: WriteReply::Deleted { .. }, .. } => true,
            Self::InnerNodes { offer, .. } => offer.is_some(),
            _ => false,
        }
    }

    /// Whether it asks for something to be merged or read outside of any round.
    pub(crate) fn is_request(&self) -> bool {
        self.request().is_some() || matches!(self, Self::DeltaBatch { .. })
    }

    /// Whether it answers a request and carries no data.
    pub(crate) fn is_bare_reply(&self) -> bool {
        match self {
            Self::WriteReply { reply, .. } => !matches!(reply, WriteReply::Deleted { .. }),
            Self::ReadReply { reply, .. } => matches!(reply, ReadReply::NotReady | ReadReply::Nack(_)),
            _ => false,
        }
    }

    /// Whether it belongs to a round of anti-entropy.
    pub(crate) fn is_of_round(&self) -> bool {
        match self {
            Self::Write { .. }
            | Self::Check { .. }
            | Self::DeltaWrite { .. }
            | Self::WriteReply { .. }
            | Self::Read { .. }
            | Self::ReadReply { .. }
            | Self::DeltaBatch { .. }
            | Self::DeltaAck { .. } => false,
            Self::SyncOpen { .. }
            | Self::SyncSame { .. }
            | Self::SyncDiffers { .. }
            | Self::SyncNodes { .. }
            | Self::SyncList { .. }
            | Self::SyncWant { .. }
            | Self::InnerNodes { .. }
            | Self::InnerWant { .. }
            | Self::Bucket { .. }
            | Self::Gossip { .. }
            | Self::SyncAck { .. }
            | Self::SyncDone { .. } => true,
        }
    }

    /// How many full states it carries.
    pub(crate) fn full_states(&self) -> u64 {
        match self {
            Self::Write { .. } | Self::ReadReply { reply: ReadReply::Value(_), .. } => 1,
            Self::Gossip { entries, .. } => entries.len() as u64,
            Self::DeltaBatch { items, .. } => {
                items.iter().filter(|item| matches!(item, BatchItem::Full { .. })).count() as u64
            }
            _ => 0,
        }
    }
}

fn bounds_size(range: &KeyRange) -> usize {
    [&range.from, &range.to].into_iter().flatten().map(Vec::len).sum()
}

impl BatchItem {
    fn size(&self) -> usize {
        match self {
            Self::Delta(item) => item.key.len() + item.delta.len(),
            Self::Full { key, envelope } => key.len() + envelope.size(),
            Self::Hint { .. } => 9,
            Self::Touch { .. } => 20,
        }
    }
}

/// A value as it was at one moment.
#[derive(Clone)]
pub struct Snapshot(Arc<dyn AnyData>);

impl Snapshot {
    pub(crate) fn new(value: &dyn AnyData) -> Self {
        Self(value.boxed_clone().into())
    }

    /// The value, if it is a `T`.
    pub fn to<T: ReplicatedData>(&self) -> Option<T> {
        self.0.as_any().downcast_ref::<T>().cloned()
    }

    /// The value.
    pub fn data(&self) -> &dyn AnyData {
        &*self.0
    }
}

impl PartialEq for Snapshot {
    fn eq(&self, other: &Self) -> bool {
        self.0.tag() == other.0.tag() && self.0.digest() == other.0.digest()
    }
}

impl Eq for Snapshot {}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Why something of a peer never became a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// The bytes are no message of this protocol.
    Malformed,
    /// A piece came of a process that is no replica.
    Stranger,
    /// A piece contradicted its transfer, came twice, or was one too much; or the whole is not what it
    /// was said to be.
    Transfer,
}

/// An input to the replicator: messages of peers, requests of this node's users, membership, and the store's answers.
/// Updates have an entry point of their own, since closures are no data.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A message of a peer arrived.
    Received {
        /// The peer.
        from: UniqueAddress,
        /// The message.
        message: Message,
    },
    /// The transport could not take a message for this peer.
    SendFailed {
        /// The peer.
        to: UniqueAddress,
        /// The request that the message was about, if it was about one: [`Message::request`].
        request: Option<u64>,
    },
    /// Something of a peer was dropped before it was a message.
    Dropped {
        /// The peer that sent it.
        from: UniqueAddress,
        /// Why it was dropped.
        why: DropReason,
    },
    /// Membership changed.
    Replicas(Arc<Replicas>),
    /// The wall clock, in milliseconds since 1970. Until told otherwise it goes on as `now` does.
    Wall(i64),
    /// A deadline may have passed.
    Tick,
    /// A caller reads an entry.
    Get {
        /// The caller's number for the request.
        id: u64,
        /// The entry.
        key: KeyId,
        /// The tag of the type expected.
        tag: Arc<str>,
        /// How many have to answer.
        level: ReadLevel,
    },
    /// A caller deletes an entry.
    Delete {
        /// The caller's number for the request.
        id: u64,
        /// The entry.
        key: KeyId,
        /// How many have to confirm.
        level: WriteLevel,
        /// The wall clock in milliseconds.
        wall_ms: i64,
    },
    /// A subscriber follows an entry, or a prefix if the pattern ends in `*`.
    Subscribe {
        /// The caller's number for the subscription.
        subscriber: u64,
        /// The id, or prefix and `*`.
        pattern: KeyId,
        /// Only entries with this tag.
        tag: Arc<str>,
    },
    /// A subscriber follows entries of all types. Source: ddata R17.
    SubscribeAny {
        /// The caller's number for the subscription.
        subscriber: u64,
        /// The id, or prefix and `*`.
        pattern: KeyId,
    },
    /// A subscriber follows nothing any more.
    Unsubscribe {
        /// The caller's number for the subscription.
        subscriber: u64,
    },
    /// Subscribers are to be told now.
    Flush,
    /// The store did what [`Effect::Store`] asked, and flushed it; or it did not. Source: ddata U3.
    Stored {
        /// Of the effect.
        ticket: u64,
        /// What came of it.
        result: Result<(), StoreError>,
    },
    /// Some of what is stored, after [`Effect::Load`].
    Loaded(Vec<LoadedRecord>),
    /// The whole store was read, and this is what the replicator had remembered; `None` in a new store.
    LoadDone(Option<StoreMeta>),
    /// The store could not be read to its end.
    LoadFailed(StoreError),
    /// Send the changes that no peer has yet, then stop.
    Stop(StopReason),
}

/// What the driver is asked to do, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Send to the same-named replicator of that very process.
    Send {
        /// The process.
        to: UniqueAddress,
        /// Whether it goes over the bulk mailbox.
        bulk: bool,
        /// The message.
        message: Message,
    },
    /// Answer a caller.
    Reply {
        /// The caller's number for the request.
        id: u64,
        /// The answer.
        reply: Reply,
    },
    /// Tell a subscriber.
    Notify {
        /// The caller's number for the subscription.
        subscriber: u64,
        /// The entry.
        key: KeyId,
        /// What became of it.
        notice: Notice,
    },
    /// Store these, in this order, and flush; answered by [`Input::Stored`]. At most one is unanswered.
    Store {
        /// Comes back with the answer.
        ticket: u64,
        /// The changes.
        ops: Vec<StoreOp>,
    },
    /// Read everything that is stored; answered by [`Input::Loaded`] any number of times and then
    /// [`Input::LoadDone`] or [`Input::LoadFailed`].
    Load,
    /// Set aside what is stored under another name, and go on as for [`Effect::Load`].
    LoadAnew,
    /// The replicator's life went on.
    Lifecycle(Lifecycle),
    /// Something that operators may want to know.
    Event(ReplicatorEvent),
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// To an update whose closure succeeded.
    Update(Result<(), UpdateError<std::convert::Infallible>>),
    /// To a read.
    Get(Result<Read<Snapshot>, GetError>),
    /// To a delete.
    Delete(Result<(), DeleteError>),
}

/// What became of a followed entry.
#[derive(Debug, Clone, PartialEq)]
pub enum Notice {
    /// The entry holds this value now.
    Value(Snapshot),
    /// The entry was deleted.
    Deleted,
    /// The entry expired.
    Expired,
}

/// Something that operators may want to know. Source: ddata I3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicatorEvent {
    /// A peer holds another type under a key; the key will never agree.
    TypeConflict(TypeConflict),
    /// A peer was asked several times in a row and never answered: perhaps the replicator of this name was
    /// never started there. Source: ddata I1.
    PeerSilent {
        /// The peer.
        peer: UniqueAddress,
    },
    /// A write's timestamp is far ahead of the wall clock here; it wins until others pass it. Told once per
    /// entry. Source: ddata Y6.
    ClockAhead {
        /// The entry.
        key: KeyId,
        /// The peer that sent the write; the write itself names the replica whose clock it was.
        peer: UniqueAddress,
        /// By how many milliseconds.
        ahead_ms: i64,
    },
    /// A peer holds numbers of this replica that it never drew: its id is used by another process, or was
    /// used before. Entries may lose elements. Told once per entry. Source: ddata §9.
    ReplicaIdReused {
        /// The id.
        replica: ReplicaId,
        /// The entry.
        key: KeyId,
        /// The peer.
        peer: UniqueAddress,
    },
    /// A peer sent a type that no codec is registered for.
    UnknownType {
        /// The entry.
        key: KeyId,
        /// The peer.
        peer: UniqueAddress,
        /// What the peer sent.
        found: Arc<str>,
    },
    /// The delta log was cut short; anti-entropy covers the peer.
    PeerLagging {
        /// The peer.
        peer: UniqueAddress,
        /// How many records it misses.
        records: usize,
    },
    /// The store failed; the changes it was asked to write are in memory only. Source: ddata U5.
    StoreError {
        /// What it said.
        error: StoreError,
        /// How many entries are not stored as they are.
        unstored: usize,
    },
    /// A stored record could not be read and was moved aside. Source: ddata U5.
    RecordQuarantined {
        /// The entry.
        key: KeyId,
        /// What is wrong with it.
        why: String,
    },
    /// A stored record is of a type that is unknown here; it stays in the store and is not served.
    RecordOfUnknownType {
        /// The entry.
        key: KeyId,
        /// The tag of its type.
        tag: Arc<str>,
    },
    /// The store is older than what a peer has forgotten, or has forgotten what the peer has not, and the settings say
    /// to go on. Source: ddata Z11.
    StaleStore {
        /// When this store was last in touch, wall clock in milliseconds.
        synced_at: i64,
        /// When its history and that of the peer parted.
        parted: i64,
        /// Up to when things were forgotten here.
        own_horizon: Option<i64>,
        /// Up to when the peer has forgotten.
        horizon: Option<i64>,
        /// The peer.
        peer: UniqueAddress,
        /// How many loaded entries were dropped for it.
        dropped: usize,
    },
    /// The loaded entries are exchanged with no member so far, because no current member has judged whether they are
    /// too old. Told once a minute. Only an operator can decide to remove these members from the cluster.
    /// Source: ddata Z11.
    GateClosed {
        /// Members that have not said how they stand; if all have and every configured peer was met, the member that
        /// comes before this replicator.
        waiting_for: Vec<UniqueAddress>,
        /// Configured peers that were never met; one that will not come is taken out by
        /// [`PeersHandle::removed`](crate::PeersHandle::removed).
        unmet: Vec<NodeAddress>,
    },
    /// A peer names a time of pruning that lies further ahead than clocks may differ. It counts for nothing.
    /// Told once a minute for each peer. Source: ddata Z9.
    ImplausibleHorizon {
        /// The peer.
        peer: UniqueAddress,
        /// By how many milliseconds it is ahead of the clock here.
        ahead_ms: i64,
    },
    /// The wall clock here contradicts what this process, or the one before it, had noted. That counts from now on.
    /// Source: ddata Z9.
    ClockWentBack {
        /// By how many milliseconds what was noted is ahead.
        by_ms: i64,
    },
    /// A value in fragments or parts was given up: what came made no sense, or nothing more came.
    TransferAborted {
        /// The peer that was sending the value.
        peer: UniqueAddress,
    },
    /// Pruning waits for a member that cannot be reached.
    PruningBlocked {
        /// That member.
        by: UniqueAddress,
    },
    /// An entry is large, or has grown by a tenth since that was told. Source: ddata E4.
    EntryLarge {
        /// The entry.
        key: KeyId,
        /// Its size; above a megabyte, about.
        bytes: usize,
        /// Whether it is, or will soon be, too large for one message.
        in_pieces: bool,
    },
    /// Entries were put under the name of this replica.
    PruningDone {
        /// The removed replica whose they were.
        removed: ReplicaId,
        /// How many.
        entries: usize,
    },
}
