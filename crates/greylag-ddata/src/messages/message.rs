//! The messages between replicators.
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

use crate::api::key::KeyId;
use crate::data::envelope::Envelope;
use crate::data::tree::{Prefix, Sixteenths, Sum};
use crate::pruning::PruningNews;

/// The most items in a message: a step of the replicator handles a message whole. Every list that a replicator sends is
/// far shorter.
pub(crate) const MAX_ITEMS: usize = 10_000;

/// One or more updates of one origin to one entry, joined: everything in `(prev, version]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeltaItem {
    /// The entry.
    pub key: KeyId,
    /// The tag of the entry's type.
    pub tag: Arc<str>,
    /// The origin's version before.
    pub prev: u64,
    /// The origin's version after.
    pub version: u64,
    /// The canonical bytes of the joined deltas.
    pub delta: Bytes,
    /// The markers of the sender's entry. A receiver that lacks one of them does not know the names in the delta, and
    /// needs the full state. Source: ddata Z7.
    pub markers: Markers,
    /// When the entry was last used, as in [`Envelope`].
    pub used_ms: Option<i64>,
}

/// The item of one entry in a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchItem {
    /// Deltas.
    Delta(DeltaItem),
    /// The full state.
    Full {
        /// The entry.
        key: KeyId,
        /// The entry's state.
        envelope: Envelope,
    },
    /// The entry changed and is too large for a batch; the receiver asks for it. Source: ddata G7.
    Hint {
        /// The hash of the entry's id.
        hash: u64,
    },
    /// The entry was used and has not changed. Source: ddata E2.
    Touch {
        /// The hash of the entry's id.
        hash: u64,
        /// When the entry was used: wall clock in milliseconds.
        used_ms: i64,
    },
}

/// One entry in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// The hash of the entry's id.
    pub hash: u64,
    /// The entry's digest.
    pub digest: Digest,
    /// When the entry was last used, as in [`Envelope`].
    pub used_ms: Option<i64>,
}

/// A refused item of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nacked {
    /// The entry.
    pub key: KeyId,
    /// The version of the sender's updates that the receiver has.
    pub have: u64,
    /// Whether the full state is needed.
    pub full: bool,
}

/// Why a replica refuses a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// The entry holds another type here.
    TypeMismatch,
    /// No codec is registered here for the type.
    UnknownType,
    /// The bytes are no value of the type, or cannot be joined.
    Undecodable,
    /// The value exceeds four times the limit of an entry.
    TooLarge,
    /// The replica is not synchronized yet.
    NotReady,
    /// The entry could not be stored.
    Store,
}

/// The answer to a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteReply {
    /// The write was merged (and flushed, for durable entries).
    Ack,
    /// A value was offered, but the entry is deleted here.
    Deleted {
        /// When the entry was deleted.
        deleted_at: i64,
    },
    /// A delta or a marker is missing here.
    DeltaNack {
        /// The version of the origin's updates that the replica has.
        have: u64,
        /// Whether the full state is needed.
        full: bool,
    },
    /// The write was refused.
    Nack(Refusal),
}

/// The answer to a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadReply {
    /// The entry here has the same digest.
    Same,
    /// The entry that is held here.
    Value(Envelope),
    /// No entry is held here.
    Absent,
    /// The replica is not synchronized yet.
    NotReady,
    /// The read was refused.
    Nack(Refusal),
}

/// A round of anti-entropy, named by a number of its opener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RoundId {
    /// Whether the sender of the message opened the round.
    pub opened_by_sender: bool,
    /// The opener's number for the round.
    pub number: u64,
}

/// The offer of a value that is too large to be sent whole. Source: ddata G12.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// The entry, with the tag of its value and without the bytes.
    pub head: Envelope,
    /// The canonical bytes of the value's context.
    pub context: Bytes,
    /// Whether the sender wants the result of the join back, if it differs from what was sent.
    pub send_back: bool,
}

/// A range of the keys of an offered value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The range.
    pub range: KeyRange,
    /// Whether sums within the range are wanted, instead of its content.
    pub split: bool,
}

/// A message between replicators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Asks to merge a full state.
    Write {
        /// The writer's number for the request.
        request: u64,
        /// The entry.
        key: KeyId,
        /// The entry's state.
        envelope: Envelope,
    },
    /// Asks whether the receiver holds the same state.
    Check {
        /// The writer's number for the request.
        request: u64,
        /// The entry.
        key: KeyId,
        /// The digest of the writer's entry; `None` if the writer has none.
        digest: Option<Digest>,
    },
    /// Asks to join a delta.
    DeltaWrite {
        /// The writer's number for the request.
        request: u64,
        /// The delta.
        item: DeltaItem,
    },
    /// The answer to [`Message::Write`], [`Message::Check`] and [`Message::DeltaWrite`].
    WriteReply {
        /// The writer's number for the request.
        request: u64,
        /// The answer.
        reply: WriteReply,
    },
    /// Asks for an entry.
    Read {
        /// The reader's number for the request.
        request: u64,
        /// The entry.
        key: KeyId,
        /// The tag of the type that the reader expects.
        tag: Arc<str>,
        /// The digest of the reader's entry; `None` if the reader has none.
        digest: Option<Digest>,
    },
    /// The answer to [`Message::Read`].
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
        /// The content of the records, grouped by entry.
        items: Vec<BatchItem>,
    },
    /// The answer to exactly one batch.
    DeltaAck {
        /// The number of the batch's first record.
        from_seq: u64,
        /// The number of the batch's last record.
        to_seq: u64,
        /// The refused items.
        nacked: Vec<Nacked>,
    },
    /// Opens a round.
    SyncOpen {
        /// The opener's number for the round.
        round: u64,
        /// The part of the hash space to compare.
        part: Sixteenths,
        /// The opener's sum over that part.
        root: Sum,
        /// The opener's pruning rounds and standing.
        pruning: PruningNews,
    },
    /// Ends a round, because the sums are equal.
    SyncSame {
        /// The opener's number for the round.
        round: u64,
        /// The sender's pruning rounds and standing.
        pruning: PruningNews,
    },
    /// Answers a round whose sums differ; the exchange follows.
    SyncDiffers {
        /// The opener's number for the round.
        round: u64,
        /// The sender's pruning rounds and standing.
        pruning: PruningNews,
    },
    /// Sums of the sender below nodes of the trie that differed.
    SyncNodes {
        /// The round.
        round: RoundId,
        /// The number of this message among the sender's numbered ones of the round.
        number: u64,
        /// Parts of the hash space, and the sender's sums over the sixteen parts of each.
        parents: Vec<(Prefix, Vec<Sum>)>,
    },
    /// Lists everything that the sender holds in some parts of the hash space.
    SyncList {
        /// The round.
        round: RoundId,
        /// The number of this message among the sender's numbered ones of the round.
        number: u64,
        /// The parts.
        prefixes: Vec<Prefix>,
        /// The entries.
        keys: Vec<Listed>,
    },
    /// Asks for entries.
    SyncWant {
        /// The round; `None` after a hint.
        round: Option<RoundId>,
        /// The number of this message among the sender's numbered ones of the round.
        number: u64,
        /// Hashes of ids.
        hashes: Vec<u64>,
    },
    /// Sends entries to be merged.
    Gossip {
        /// The round; `None` for repairs.
        round: Option<RoundId>,
        /// The number of this message among the sender's numbered ones of the round.
        number: u64,
        /// Whether the sender wants the results of the joins back, where they differ from what was sent.
        send_back: bool,
        /// The entries.
        entries: Vec<(KeyId, Envelope)>,
    },
    /// Sends sums of a large value over ranges of its keys. Source: ddata G12.
    InnerNodes {
        /// The round.
        round: RoundId,
        /// The number of this message among the sender's numbered ones of the round.
        number: u64,
        /// The entry.
        key: KeyId,
        /// The digest of the entry that the sums are of.
        snapshot: Digest,
        /// The offer, in the first such message only; there is then one sum, over all keys.
        offer: Option<Box<Offer>>,
        /// The ranges with their sums.
        nodes: Vec<(KeyRange, RangeSum)>,
    },
    /// Asks for ranges of an offered value; for none once all of it is received or refused.
    InnerWant {
        /// The round.
        round: RoundId,
        /// The number of this message among the sender's numbered ones of the round.
        number: u64,
        /// The entry.
        key: KeyId,
        /// The digest of the entry that was offered.
        snapshot: Digest,
        /// The ranges asked for.
        ranges: Vec<Wanted>,
    },
    /// Sends the content of a range of an offered value.
    Bucket {
        /// The round.
        round: RoundId,
        /// The number of this message among the sender's numbered ones of the round.
        number: u64,
        /// The entry.
        key: KeyId,
        /// The digest of the entry that was offered.
        snapshot: Digest,
        /// The range and its content.
        part: Part,
    },
    /// Says how far the sender is in a round.
    SyncAck {
        /// The round.
        round: RoundId,
        /// A number that rises with every acknowledgement, so that an older one cannot undo a newer one.
        number: u64,
        /// How many numbered messages the sender has processed.
        received: u64,
        /// How many numbered messages the sender has sent.
        sent: u64,
        /// Whether the sender has nothing more to send at present.
        idle: bool,
    },
    /// Completes a round: every difference was exchanged both ways.
    SyncDone {
        /// The opener's number for the round.
        round: u64,
    },
}

impl Message {
    /// About how many bytes the message takes.
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

    /// The markers of every entry in the message.
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

    /// Removes the markers of all deltas; for simulations that prove their checkers.
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

    /// The name of the message's kind, which is that of the variant.
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

    /// The number of the request, if the message asks for an answer.
    pub fn request(&self) -> Option<u64> {
        match self {
            Self::Write { request, .. }
            | Self::Check { request, .. }
            | Self::DeltaWrite { request, .. }
            | Self::Read { request, .. } => Some(*request),
            _ => None,
        }
    }

    /// Whether the message moves or compares entries; openings of rounds and the first answers do not.
    pub(crate) fn is_exchange(&self) -> bool {
        !matches!(self, Self::SyncOpen { .. } | Self::SyncSame { .. } | Self::SyncDiffers { .. })
    }

    /// Whether the message carries data of entries, which the receiver may keep.
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

    /// Whether the message asks to merge or read something outside of any round.
    pub(crate) fn is_request(&self) -> bool {
        self.request().is_some() || matches!(self, Self::DeltaBatch { .. })
    }

    /// Whether the message answers a request and carries no data.
    pub(crate) fn is_bare_reply(&self) -> bool {
        match self {
            Self::WriteReply { reply, .. } => !matches!(reply, WriteReply::Deleted { .. }),
            Self::ReadReply { reply, .. } => matches!(reply, ReadReply::NotReady | ReadReply::Nack(_)),
            _ => false,
        }
    }

    /// Whether the message belongs to a round of anti-entropy.
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

    /// How many full states the message carries.
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
    use crate::data::envelope::Content;

    /// ddata Z11: a closed gate takes bare replies of any member, so no message with data is a bare reply.
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

    /// Windows and lanes count estimated sizes: an estimate is at least half of the encoded size, and less than twice
    /// as much.
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
