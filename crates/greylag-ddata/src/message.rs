//! What replicators say to each other.
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
//! Source: ddata G17.

use std::sync::Arc;

use bytes::Bytes;
use greylag_crdt::{Digest, KeyRange, Markers, Part, RangeSum};

use crate::envelope::Envelope;
use crate::key::KeyId;
use crate::pruning::PruningNews;
use crate::tree::{Prefix, Sixteenths, Sum};

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

    /// The markers of every entry in it.
    pub(crate) fn markers_mut(&mut self) -> Vec<&mut Markers> {
        fn of_item(item: &mut BatchItem) -> Option<&mut Markers> {
            match item {
                BatchItem::Delta(item) => Some(&mut item.markers),
                BatchItem::Full { envelope, .. } => Some(&mut envelope.markers),
                BatchItem::Hint { .. } | BatchItem::Touch { .. } => None,
            }
        }
        match self {
            Self::Write { envelope, .. } | Self::ReadReply { reply: ReadReply::Value(envelope), .. } => {
                vec![&mut envelope.markers]
            }
            Self::DeltaWrite { item, .. } => vec![&mut item.markers],
            Self::DeltaBatch { items, .. } => items.iter_mut().filter_map(of_item).collect(),
            Self::Gossip { entries, .. } => entries.iter_mut().map(|(_, envelope)| &mut envelope.markers).collect(),
            Self::InnerNodes { offer: Some(offer), .. } => vec![&mut offer.head.markers],
            _ => Vec::new(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::Content;

    /// ddata Z11: a closed gate takes bare replies of any member, so nothing that carries data is one.
    #[test]
    fn bare_replies_carry_no_data() {
        let value = || Envelope::of(Content::Unreadable);
        let write = |reply| Message::WriteReply { request: 1, reply };
        let read = |reply| Message::ReadReply { request: 1, reply };
        let bare = [
            write(WriteReply::Ack),
            write(WriteReply::DeltaNack { have: 1, full: true }),
            write(WriteReply::Nack(Refusal::Store)),
            read(ReadReply::NotReady),
            read(ReadReply::Nack(Refusal::NotReady)),
        ];
        let others = [
            write(WriteReply::Deleted { deleted_at: 1 }),
            read(ReadReply::Value(value())),
            read(ReadReply::Absent),
            read(ReadReply::Same),
            Message::Write { request: 1, key: "k".into(), envelope: value() },
            Message::DeltaBatch { from_seq: 1, to_seq: 1, items: Vec::new() },
            Message::Gossip { round: None, number: 1, send_back: false, entries: Vec::new() },
            Message::SyncDone { round: 1 },
        ];
        assert!(bare.iter().all(|message| message.is_bare_reply() && !message.carries_data()));
        assert!(others.iter().all(|message| !message.is_bare_reply()));
    }

    /// Windows and lanes go by the reckoned size: it is at least half of the encoded one, and not twice as much.
    #[test]
    fn the_reckoned_size_of_a_round_is_near_the_encoded_one() {
        let round = RoundId { opened_by_sender: true, number: 1 << 40 };
        let sum = Sum { count: 1 << 20, total: Digest(u128::MAX) };
        let parents = |count: u64| {
            let part = |at: u64| Prefix::ROOT.children().nth(at as usize % 16).expect("it has sixteen");
            (0..count).map(|at| (part(at), vec![sum; 16])).collect::<Vec<_>>()
        };
        let key = |hash: u64| Listed { hash: hash << 32, digest: Digest(u128::MAX), used_ms: None };
        let messages = [
            Message::SyncNodes { round, number: 1, parents: parents(16) },
            Message::SyncNodes { round, number: 1, parents: parents(1) },
            Message::SyncList { round, number: 1, prefixes: vec![Prefix::ROOT; 4], keys: (1..200).map(key).collect() },
            Message::SyncWant { round: Some(round), number: 1, hashes: (1..200).map(|hash| hash << 48).collect() },
        ];
        for message in messages {
            let (reckoned, encoded) = (message.size_hint(), message.encoded_len());
            assert!(reckoned * 2 >= encoded && reckoned <= encoded * 2, "{}: {reckoned}, {encoded}", message.kind());
        }
    }
}
