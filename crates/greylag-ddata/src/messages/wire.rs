//! Encodes and decodes messages as protobuf. Decoding never panics, and takes no more memory than the given bytes
//! imply.

mod inner;
mod nouns;

use bytes::{Bytes, BytesMut};
use greylag_core::EncodeError;
use greylag_transport::PayloadValue;
use prost::Message as _;

use crate::data::envelope::{Content, Envelope};
use crate::gate::STARTS_KEPT;
use crate::generated as pb;
use crate::messages::message::{BatchItem, Listed, MAX_ITEMS, Message, Nacked, ReadReply, Refusal, WriteReply};
use crate::messages::transfers::Fragment;
use crate::pruning::MAX_ROUNDS;
pub(crate) use nouns::WireError;
use nouns::{
    a_round, delta, digest, digest_of, envelope, from_delta, from_digest, from_envelope, from_keyed, from_news,
    from_parent, from_prefix, from_round, from_sum, keyed, prefix, round, some_news, sum,
};

/// The manifest of all messages.
pub(crate) const MANIFEST: &str = "gl.ddata/1";

/// The manifest of fragments of large messages.
pub(crate) const FRAGMENT_MANIFEST: &str = "gl.ddata.fragment/1";

/// Decodes a fragment of a large message.
pub(crate) fn decode_fragment(bytes: Bytes) -> Result<Fragment, WireError> {
    let piece = pb::Fragment::decode(bytes).map_err(|error| WireError::Malformed(error.to_string()))?;
    Ok(Fragment {
        transfer: piece.transfer,
        index: piece.index,
        count: piece.count,
        total_bytes: piece.total_bytes,
        digest: piece.digest.map(from_digest).ok_or(WireError::Missing("the digest of a transfer"))?,
        data: piece.data,
    })
}

/// Encodes a fragment of a large message.
pub(crate) fn encode_fragment(fragment: &Fragment) -> Bytes {
    let piece = pb::Fragment {
        transfer: fragment.transfer,
        index: fragment.index,
        count: fragment.count,
        total_bytes: fragment.total_bytes,
        digest: Some(digest(fragment.digest)),
        data: fragment.data.clone(),
    };
    piece.encode_to_vec().into()
}

/// Decodes a message.
pub(crate) fn decode(bytes: Bytes) -> Result<Message, WireError> {
    let message = pb::Message::decode(bytes).map_err(|error| WireError::Malformed(error.to_string()))?;
    from_kind(message.kind.ok_or(WireError::Missing("the kind of message"))?)
}

fn bounded(count: usize) -> Result<(), WireError> {
    if count > MAX_ITEMS { Err(WireError::TooMany(count)) } else { Ok(()) }
}

fn check_counts(kind: &pb::message::Kind) -> Result<(), WireError> {
    use pb::message::Kind;
    if let Kind::SyncOpen(pb::SyncOpen { pruning: Some(news), .. })
    | Kind::SyncSame(pb::SyncSame { pruning: Some(news), .. })
    | Kind::SyncDiffers(pb::SyncDiffers { pruning: Some(news), .. }) = kind
        && (news.rounds.len() > MAX_ROUNDS || news.starts.len() > STARTS_KEPT)
    {
        return Err(WireError::TooMany(news.rounds.len().max(news.starts.len())));
    }
    bounded(match kind {
        Kind::DeltaBatch(m) => m.items.len(),
        Kind::DeltaAck(m) => m.nacked.len(),
        Kind::SyncNodes(m) => m.parents.len().saturating_mul(16),
        Kind::SyncList(m) => m.hashes.len().max(m.prefixes.len()),
        Kind::SyncWant(m) => m.hashes.len(),
        Kind::Gossip(m) => m.entries.len(),
        Kind::InnerNodes(m) => m.nodes.len(),
        Kind::InnerWant(m) => m.ranges.len(),
        _ => 0,
    })
}

/// Encodes a message.
pub(crate) fn encode(message: &Message, buffer: &mut BytesMut) -> Result<(), EncodeError> {
    let message = pb::Message { kind: Some(to_kind(message)) };
    message
        .encode(buffer)
        .map_err(|error| EncodeError::Unrepresentable { manifest: MANIFEST.to_owned(), reason: error.to_string() })
}

impl Message {
    /// The number of encoded bytes.
    pub fn encoded_len(&self) -> usize {
        pb::Message { kind: Some(to_kind(self)) }.encoded_len()
    }
}

/// The lane writer encodes the message, so that a large one does not hold the replicator up.
impl PayloadValue for Message {
    fn encode(&self, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        encode(self, buffer)
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any + Send> {
        self
    }
}

fn refusal(refusal: Refusal) -> i32 {
    let refusal = match refusal {
        Refusal::TypeMismatch => pb::Refusal::TypeMismatch,
        Refusal::UnknownType => pb::Refusal::UnknownType,
        Refusal::Undecodable => pb::Refusal::Undecodable,
        Refusal::TooLarge => pb::Refusal::TooLarge,
        Refusal::NotReady => pb::Refusal::NotReady,
        Refusal::Store => pb::Refusal::Store,
    };
    refusal.into()
}

fn from_refusal(number: i32) -> Result<Refusal, WireError> {
    match pb::Refusal::try_from(number) {
        Ok(pb::Refusal::TypeMismatch) => Ok(Refusal::TypeMismatch),
        Ok(pb::Refusal::UnknownType) => Ok(Refusal::UnknownType),
        Ok(pb::Refusal::Undecodable) => Ok(Refusal::Undecodable),
        Ok(pb::Refusal::TooLarge) => Ok(Refusal::TooLarge),
        Ok(pb::Refusal::NotReady) => Ok(Refusal::NotReady),
        Ok(pb::Refusal::Store) => Ok(Refusal::Store),
        Ok(pb::Refusal::Unspecified) | Err(_) => Err(WireError::Missing("the reason of a refusal")),
    }
}

fn to_kind(message: &Message) -> pb::message::Kind {
    use pb::message::Kind;
    match message {
        Message::Write { request, key, envelope: value } => {
            Kind::Write(pb::Write { request: *request, key: key.to_string(), envelope: Some(envelope(value)) })
        }
        Message::Check { request, key, digest: held } => {
            Kind::Check(pb::Check { request: *request, key: key.to_string(), digest: held.map(digest) })
        }
        Message::DeltaWrite { request, item } => {
            Kind::DeltaWrite(pb::DeltaWrite { request: *request, delta: Some(delta(item)) })
        }
        Message::WriteReply { request, reply } => Kind::WriteReply(write_reply(*request, reply)),
        Message::Read { request, key, tag, digest: held } => Kind::Read(pb::Read {
            request: *request,
            key: key.to_string(),
            tag: tag.to_string(),
            digest: held.map(digest),
        }),
        Message::ReadReply { request, reply } => Kind::ReadReply(read_reply(*request, reply)),
        Message::DeltaBatch { from_seq, to_seq, items } => Kind::DeltaBatch(pb::DeltaBatch {
            from_seq: *from_seq,
            to_seq: *to_seq,
            items: items.iter().map(batch_item).collect(),
        }),
        Message::DeltaAck { from_seq, to_seq, nacked } => {
            let nacked = nacked.iter();
            let nacked = nacked.map(|n| pb::Nacked { key: n.key.to_string(), have: n.have, full: n.full });
            Kind::DeltaAck(pb::DeltaAck { from_seq: *from_seq, to_seq: *to_seq, nacked: nacked.collect() })
        }
        Message::SyncOpen { round, part, root, pruning } => Kind::SyncOpen(pb::SyncOpen {
            sixteenths: inner::sixteenths(*part),
            round: *round,
            root: Some(sum(*root)),
            digest_version: 1,
            pruning: some_news(pruning),
        }),
        Message::SyncSame { round, pruning } => {
            Kind::SyncSame(pb::SyncSame { round: *round, pruning: some_news(pruning) })
        }
        Message::SyncDiffers { round, pruning } => {
            Kind::SyncDiffers(pb::SyncDiffers { round: *round, pruning: some_news(pruning) })
        }
        Message::SyncNodes { round: id, number, parents } => {
            let parents = parents.iter().map(|(part, sums)| pb::Parent {
                prefix: Some(prefix(*part)),
                counts: sums.iter().map(|sum| sum.count).collect(),
                high: sums.iter().map(|sum| digest(sum.total).high).collect(),
                low: sums.iter().map(|sum| digest(sum.total).low).collect(),
            });
            Kind::SyncNodes(pb::SyncNodes { round: Some(round(*id)), number: *number, parents: parents.collect() })
        }
        Message::SyncList { round: id, number, prefixes, keys } => Kind::SyncList(pb::SyncList {
            round: Some(round(*id)),
            number: *number,
            prefixes: prefixes.iter().copied().map(prefix).collect(),
            hashes: keys.iter().map(|held| held.hash).collect(),
            high: keys.iter().map(|held| digest(held.digest).high).collect(),
            low: keys.iter().map(|held| digest(held.digest).low).collect(),
            used: used_times(keys),
        }),
        Message::SyncWant { round: id, number, hashes } => {
            Kind::SyncWant(pb::SyncWant { round: id.map(round), number: *number, hashes: hashes.clone() })
        }
        Message::Gossip { round: id, number, send_back, entries } => Kind::Gossip(pb::Gossip {
            round: id.map(round),
            number: *number,
            send_back: *send_back,
            entries: entries.iter().map(keyed).collect(),
        }),
        Message::SyncAck { round: id, number, received, sent, idle } => Kind::SyncAck(pb::SyncAck {
            round: Some(round(*id)),
            number: *number,
            received: *received,
            sent: *sent,
            idle: *idle,
        }),
        Message::SyncDone { round } => Kind::SyncDone(pb::SyncDone { round: *round }),
        Message::InnerNodes { round, number, key, snapshot, offer, nodes } => {
            Kind::InnerNodes(inner::nodes(*round, *number, key, *snapshot, offer.as_deref(), nodes))
        }
        Message::InnerWant { round, number, key, snapshot, ranges } => {
            Kind::InnerWant(inner::want(*round, *number, key, *snapshot, ranges))
        }
        Message::Bucket { round, number, key, snapshot, part } => {
            Kind::Bucket(inner::bucket(*round, *number, key, *snapshot, part))
        }
    }
}

/// Encodes used-times; a list without any takes no byte.
fn used_times(keys: &[Listed]) -> Vec<i64> {
    if keys.iter().all(|held| held.used_ms.is_none()) {
        return Vec::new();
    }
    keys.iter().map(|held| held.used_ms.unwrap_or(i64::MIN)).collect()
}

fn from_listed(hashes: Vec<u64>, high: &[u64], low: &[u64], used: &[i64]) -> Result<Vec<Listed>, WireError> {
    let count = hashes.len();
    if count != high.len() || count != low.len() || (!used.is_empty() && used.len() != count) {
        return Err(WireError::Missing("a digest or used-time of a listed entry"));
    }
    let listed = hashes.into_iter().zip(high).zip(low).enumerate().map(|(at, ((hash, high), low))| Listed {
        hash,
        digest: digest_of(*high, *low),
        used_ms: used.get(at).copied().filter(|used| *used != i64::MIN),
    });
    Ok(listed.collect())
}

fn write_reply(request: u64, reply: &WriteReply) -> pb::WriteReply {
    use pb::write_reply::Reply;
    let reply = match reply {
        WriteReply::Ack => Reply::Ack(pb::Empty {}),
        WriteReply::Deleted { deleted_at } => Reply::Deleted(*deleted_at),
        WriteReply::DeltaNack { have, full } => Reply::Gap(pb::Gap { have: *have, full: *full }),
        WriteReply::Nack(reason) => Reply::Nack(refusal(*reason)),
    };
    pb::WriteReply { request, reply: Some(reply) }
}

fn read_reply(request: u64, reply: &ReadReply) -> pb::ReadReply {
    use pb::read_reply::Reply;
    let reply = match reply {
        ReadReply::Same => Reply::Same(pb::Empty {}),
        ReadReply::Value(value) => Reply::Value(envelope(value)),
        ReadReply::Absent => Reply::Absent(pb::Empty {}),
        ReadReply::NotReady => Reply::NotReady(pb::Empty {}),
        ReadReply::Nack(reason) => Reply::Nack(refusal(*reason)),
    };
    pb::ReadReply { request, reply: Some(reply) }
}

fn batch_item(item: &BatchItem) -> pb::BatchItem {
    use pb::batch_item::Item;
    let item = match item {
        BatchItem::Delta(item) => Item::Delta(delta(item)),
        BatchItem::Full { key, envelope: value } => {
            Item::Full(pb::KeyedEnvelope { key: key.to_string(), envelope: Some(envelope(value)) })
        }
        BatchItem::Hint { hash } => Item::Hint(*hash),
        BatchItem::Touch { hash, used_ms } => Item::Touch(pb::Touch { hash: *hash, used: *used_ms }),
    };
    pb::BatchItem { item: Some(item) }
}

fn from_kind(kind: pb::message::Kind) -> Result<Message, WireError> {
    use pb::message::Kind;
    check_counts(&kind)?;
    Ok(match kind {
        Kind::Write(m) => Message::Write { request: m.request, key: m.key.into(), envelope: from_envelope(m.envelope) },
        Kind::Check(m) => Message::Check { request: m.request, key: m.key.into(), digest: m.digest.map(from_digest) },
        Kind::DeltaWrite(m) => {
            let request = m.request;
            match from_delta(m.delta.ok_or(WireError::Missing("the delta"))?) {
                Ok(item) => Message::DeltaWrite { request, item },
                Err(key) => Message::Write { request, key, envelope: Envelope::of(Content::Unreadable) },
            }
        }
        Kind::WriteReply(m) => {
            use pb::write_reply::Reply;
            let reply = match m.reply.ok_or(WireError::Missing("the reply"))? {
                Reply::Ack(_) => WriteReply::Ack,
                Reply::Deleted(deleted_at) => WriteReply::Deleted { deleted_at },
                Reply::Gap(gap) => WriteReply::DeltaNack { have: gap.have, full: gap.full },
                Reply::Nack(reason) => WriteReply::Nack(from_refusal(reason)?),
            };
            Message::WriteReply { request: m.request, reply }
        }
        Kind::Read(m) => Message::Read {
            request: m.request,
            key: m.key.into(),
            tag: m.tag.into(),
            digest: m.digest.map(from_digest),
        },
        Kind::ReadReply(m) => {
            use pb::read_reply::Reply;
            let reply = match m.reply.ok_or(WireError::Missing("the reply"))? {
                Reply::Same(_) => ReadReply::Same,
                Reply::Value(value) => ReadReply::Value(from_envelope(Some(value))),
                Reply::Absent(_) => ReadReply::Absent,
                Reply::NotReady(_) => ReadReply::NotReady,
                Reply::Nack(reason) => ReadReply::Nack(from_refusal(reason)?),
            };
            Message::ReadReply { request: m.request, reply }
        }
        Kind::DeltaBatch(m) => {
            let items = m.items.into_iter().map(from_batch_item).collect::<Result<_, _>>()?;
            Message::DeltaBatch { from_seq: m.from_seq, to_seq: m.to_seq, items }
        }
        Kind::DeltaAck(m) => {
            let nacked = m.nacked.into_iter();
            let nacked = nacked.map(|n| Nacked { key: n.key.into(), have: n.have, full: n.full }).collect();
            Message::DeltaAck { from_seq: m.from_seq, to_seq: m.to_seq, nacked }
        }
        Kind::SyncOpen(m) => {
            let part = inner::from_sixteenths(m.sixteenths)?;
            Message::SyncOpen { round: m.round, part, root: from_sum(m.root)?, pruning: from_news(m.pruning)? }
        }
        Kind::SyncSame(m) => Message::SyncSame { round: m.round, pruning: from_news(m.pruning)? },
        Kind::SyncDiffers(m) => Message::SyncDiffers { round: m.round, pruning: from_news(m.pruning)? },
        Kind::SyncNodes(m) => {
            let parents = m.parents.into_iter().map(from_parent).collect::<Result<_, _>>()?;
            Message::SyncNodes { round: a_round(m.round)?, number: m.number, parents }
        }
        Kind::SyncList(m) => {
            let keys = from_listed(m.hashes, &m.high, &m.low, &m.used)?;
            let prefixes = m.prefixes.into_iter().map(|prefix| from_prefix(Some(prefix))).collect::<Result<_, _>>()?;
            Message::SyncList { round: a_round(m.round)?, number: m.number, prefixes, keys }
        }
        Kind::SyncWant(m) => Message::SyncWant { round: m.round.map(from_round), number: m.number, hashes: m.hashes },
        Kind::Gossip(m) => Message::Gossip {
            round: m.round.map(from_round),
            number: m.number,
            send_back: m.send_back,
            entries: m.entries.into_iter().map(from_keyed).collect(),
        },
        Kind::SyncAck(m) => Message::SyncAck {
            round: a_round(m.round)?,
            number: m.number,
            received: m.received,
            sent: m.sent,
            idle: m.idle,
        },
        Kind::SyncDone(m) => Message::SyncDone { round: m.round },
        Kind::InnerNodes(m) => inner::from_nodes(m)?,
        Kind::InnerWant(m) => inner::from_want(m)?,
        Kind::Bucket(m) => inner::from_bucket(m)?,
    })
}

fn from_batch_item(item: pb::BatchItem) -> Result<BatchItem, WireError> {
    use pb::batch_item::Item;
    Ok(match item.item.ok_or(WireError::Missing("an item of a batch"))? {
        Item::Delta(delta) => match from_delta(delta) {
            Ok(delta) => BatchItem::Delta(delta),
            Err(key) => BatchItem::Full { key, envelope: Envelope::of(Content::Unreadable) },
        },
        Item::Full(full) => {
            let (key, envelope) = from_keyed(full);
            BatchItem::Full { key, envelope }
        }
        Item::Hint(hash) => BatchItem::Hint { hash },
        Item::Touch(touch) => BatchItem::Touch { hash: touch.hash, used_ms: touch.used },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use greylag_crdt::{Digest, KeyRange, Markers, Part, RangeSum, ReplicaId};

    use super::*;
    use crate::data::tree::{Prefix, Sixteenths, Sum};
    use crate::gate::{GateState, Standing, Start, Starts, StartsOrDigest};
    use crate::messages::message::{DeltaItem, Offer, RoundId, Wanted};
    use crate::pruning::{PruningNews, PruningRound};

    use proptest::prelude::*;

    fn messages() -> Vec<Message> {
        let mut marker = greylag_crdt::Performed::new(ReplicaId(3), ReplicaId(4));
        marker.add_ranges(&[greylag_crdt::Range { lo: 1, hi: 9, offset: 70 }]);
        let mut markers = Markers::new();
        markers.add(&marker);
        let value = Envelope {
            content: Content::Value { tag: "gl.gcounter/1".into(), bytes: Bytes::from_static(b"\x01\x00") },
            versions: [(ReplicaId(7), 9)].into(),
            markers: markers.clone(),
            used_ms: Some(0),
        };
        let deleted = Envelope {
            content: Content::Tombstone { deleted_at: -5 },
            versions: BTreeMap::new(),
            markers: Markers::new(),
            used_ms: None,
        };
        let delta = Bytes::from_static(b"d");
        let used_ms = Some(-1);
        let item = DeltaItem { key: "k".into(), tag: "t".into(), prev: 1, version: 2, delta, markers, used_ms };
        let listed = |hash, used_ms| Listed { hash, digest: Digest(5), used_ms };
        let pruned = PruningRound { removed: ReplicaId(u64::MAX), epoch: 3, owner: ReplicaId(1), created_at: -1 };
        let starts = Starts::of([None, Some(-7)].map(|base| Start { maker: ReplicaId(9), base }));
        let standing = Standing {
            number: u64::MAX,
            forget_horizon: Some(0),
            synced_at: Some(-1),
            starts: StartsOrDigest::Listed(starts),
            state: GateState::Closed,
            is_current: true,
        };
        let pruning = PruningNews { rounds: vec![pruned], standing };
        let starts = StartsOrDigest::Known(u64::MAX);
        let refused = Standing { starts, state: GateState::Refused, ..Standing::default() };
        let refused = PruningNews { rounds: Vec::new(), standing: refused };
        let round = RoundId { number: 4, opened_by_sender: true };
        let sum = Sum { count: 3, total: Digest(u128::MAX - 1) };
        let head = Envelope {
            content: Content::Value { tag: "t".into(), bytes: Bytes::new() },
            versions: [(ReplicaId(7), 9)].into(),
            ..value.clone()
        };
        let range = KeyRange { from: Some(vec![]), to: Some(vec![7, 7]) };
        let part = Prefix::new(0xab00_0000_0000_0000, 2).unwrap();
        vec![
            Message::Write { request: 1, key: "k".into(), envelope: value.clone() },
            Message::Check { request: 1, key: "k".into(), digest: None },
            Message::DeltaWrite { request: 1, item: item.clone() },
            Message::WriteReply { request: 1, reply: WriteReply::Ack },
            Message::WriteReply { request: 1, reply: WriteReply::Deleted { deleted_at: 0 } },
            Message::WriteReply { request: 1, reply: WriteReply::DeltaNack { have: 0, full: true } },
            Message::WriteReply { request: 1, reply: WriteReply::Nack(Refusal::Store) },
            Message::Read { request: 1, key: "k".into(), tag: "t".into(), digest: Some(Digest(1 << 64)) },
            Message::ReadReply { request: 1, reply: ReadReply::Same },
            Message::ReadReply { request: 1, reply: ReadReply::Value(deleted.clone()) },
            Message::ReadReply { request: 1, reply: ReadReply::Absent },
            Message::ReadReply { request: 1, reply: ReadReply::NotReady },
            Message::ReadReply { request: 1, reply: ReadReply::Nack(Refusal::TypeMismatch) },
            Message::DeltaBatch {
                from_seq: 1,
                to_seq: 3,
                items: vec![
                    BatchItem::Delta(item),
                    BatchItem::Full { key: "f".into(), envelope: value.clone() },
                    BatchItem::Hint { hash: 0 },
                    BatchItem::Touch { hash: 7, used_ms: -7 },
                ],
            },
            Message::DeltaAck {
                from_seq: 1,
                to_seq: 3,
                nacked: vec![Nacked { key: "k".into(), have: 1, full: false }],
            },
            Message::SyncOpen { round: 4, part: Sixteenths::ALL, root: sum, pruning: PruningNews::default() },
            Message::SyncOpen { round: 4, part: Sixteenths::share(1, 3), root: sum, pruning: refused },
            Message::SyncOpen { round: 4, part: Sixteenths::NONE, root: sum, pruning: PruningNews::default() },
            Message::SyncSame { round: 4, pruning: pruning.clone() },
            Message::SyncDiffers { round: 4, pruning },
            Message::SyncNodes {
                round,
                number: 1,
                parents: vec![(part, vec![sum; 16]), (Prefix::ROOT, vec![Sum::default(); 16])],
            },
            Message::SyncList {
                round,
                number: 2,
                prefixes: vec![part, Prefix::ROOT],
                keys: vec![listed(0, None), listed(9, None)],
            },
            Message::SyncList {
                round,
                number: 2,
                prefixes: vec![part],
                keys: vec![listed(0, Some(0)), listed(9, None)],
            },
            Message::SyncWant { round: None, number: 0, hashes: vec![0, 7] },
            Message::Gossip {
                round: Some(round),
                number: 3,
                send_back: true,
                entries: vec![("k".into(), value), ("d".into(), deleted)],
            },
            Message::InnerNodes {
                round,
                number: 4,
                key: "k".into(),
                snapshot: Digest(9),
                offer: Some(Box::new(Offer { head, context: Bytes::from_static(b"\x00"), send_back: true })),
                nodes: vec![(KeyRange::ALL, RangeSum { count: 5_000, total: Digest(1) })],
            },
            Message::InnerNodes { round, number: 5, key: "k".into(), snapshot: Digest(9), offer: None, nodes: vec![] },
            Message::InnerWant {
                round,
                number: 6,
                key: "k".into(),
                snapshot: Digest(9),
                ranges: vec![
                    Wanted { range: range.clone(), split: true },
                    Wanted { range: KeyRange::ALL, split: false },
                ],
            },
            Message::Bucket {
                round,
                number: 7,
                key: "k".into(),
                snapshot: Digest(9),
                part: Part { range, bytes: vec![1, 0] },
            },
            Message::SyncAck { round, number: 1, received: 2, sent: 3, idle: true },
            Message::SyncDone { round: 4 },
        ]
    }

    /// ddata G17: every message decodes to itself, and no part of its bytes makes the decoder panic.
    #[test]
    fn every_message_returns_and_no_part_of_it_panics() {
        for message in messages() {
            let mut buffer = BytesMut::new();
            encode(&message, &mut buffer).unwrap();
            let bytes = buffer.freeze();
            assert_eq!(decode(bytes.clone()), Ok(message));
            for end in 0..bytes.len() {
                let _ = decode(bytes.slice(..end));
            }
        }
    }

    /// ddata §9: a message in which any list is longer than one step handles is refused; one at the limit is accepted.
    #[test]
    fn no_list_of_a_message_is_longer_than_a_step_takes() {
        let ack = |nacked| Message::DeltaAck { from_seq: 1, to_seq: 1, nacked };
        let batch = |items| Message::DeltaBatch { from_seq: 1, to_seq: 1, items };
        let round = RoundId { number: 4, opened_by_sender: true };
        let listed = Listed { hash: 7, digest: Digest(8), used_ms: None };
        let listed = |keys, prefixes| Message::SyncList {
            round,
            number: 1,
            prefixes: vec![Prefix::ROOT; prefixes],
            keys: vec![listed; keys],
        };
        let (range, sum) = (KeyRange::ALL, RangeSum::default());
        type Of<'a> = &'a dyn Fn(usize) -> Message;
        let messages: [Of<'_>; 8] = [
            &|count| ack(vec![Nacked { key: "k".into(), have: 1, full: false }; count]),
            &|count| batch(vec![BatchItem::Hint { hash: 7 }; count]),
            &|count| listed(count, 1),
            &|count| listed(1, count),
            &|count| Message::SyncWant { round: None, number: 1, hashes: vec![7; count] },
            &|count| {
                let entries = vec![("k".into(), Envelope::of(Content::Tombstone { deleted_at: 7 })); count];
                Message::Gossip { round: None, number: 1, send_back: false, entries }
            },
            &|count| {
                let nodes = vec![(range.clone(), sum); count];
                Message::InnerNodes { round, number: 1, key: "k".into(), snapshot: Digest(5), offer: None, nodes }
            },
            &|count| {
                let ranges = vec![Wanted { range: range.clone(), split: true }; count];
                Message::InnerWant { round, number: 1, key: "k".into(), snapshot: Digest(5), ranges }
            },
        ];
        let read = |message: &Message| {
            let mut buffer = BytesMut::new();
            encode(message, &mut buffer).unwrap();
            decode(buffer.freeze())
        };
        for message in messages {
            let fits = message(MAX_ITEMS);
            assert_eq!(read(&fits), Ok(fits.clone()), "{}", fits.kind());
            assert_eq!(read(&message(MAX_ITEMS + 1)), Err(WireError::TooMany(MAX_ITEMS + 1)), "{}", fits.kind());
        }
        let parents = |count| vec![(Prefix::ROOT, vec![Sum::default(); 16]); count];
        let nodes = |count| Message::SyncNodes { round, number: 1, parents: parents(count) };
        assert_eq!(read(&nodes(MAX_ITEMS / 16)), Ok(nodes(MAX_ITEMS / 16)));
        assert!(matches!(read(&nodes(MAX_ITEMS / 16 + 1)), Err(WireError::TooMany(_))));
    }

    /// ddata §9, Y4: an entry whose markers or content a newer version wrote is refused alone; the rest of its message
    /// is read.
    #[test]
    fn one_entry_that_cannot_be_read_does_not_lose_the_message() {
        let readable = Envelope::of(Content::Tombstone { deleted_at: 7 });
        let sent = pb::Envelope { markers: Bytes::from_static(b"\xff\xff"), ..envelope(&readable) };
        let other = pb::Envelope { content: None, ..envelope(&readable) };
        let keyed =
            |key: &str, sent: &pb::Envelope| pb::KeyedEnvelope { key: key.into(), envelope: Some(sent.clone()) };
        let gossip = pb::Gossip {
            entries: vec![keyed("new", &sent), keyed("k", &envelope(&readable)), keyed("other", &other)],
            ..pb::Gossip::default()
        };
        let Message::Gossip { entries, .. } = from_kind(pb::message::Kind::Gossip(gossip)).unwrap() else { panic!() };
        let unreadable = || Envelope::of(Content::Unreadable);
        assert_eq!(
            entries,
            [("new".into(), unreadable()), ("k".into(), readable.clone()), ("other".into(), unreadable())]
        );
        let delta = pb::Delta { key: "new".into(), markers: Bytes::from_static(b"\xff"), ..pb::Delta::default() };
        let full = pb::batch_item::Item::Full(keyed("k", &envelope(&readable)));
        let items = [pb::batch_item::Item::Delta(delta.clone()), full].map(|item| pb::BatchItem { item: Some(item) });
        let batch = pb::DeltaBatch { from_seq: 1, to_seq: 2, items: items.to_vec() };
        let Message::DeltaBatch { items, .. } = from_kind(pb::message::Kind::DeltaBatch(batch)).unwrap() else {
            panic!()
        };
        let expected = [("new", unreadable()), ("k", readable)];
        assert_eq!(items, expected.map(|(key, envelope)| BatchItem::Full { key: key.into(), envelope }));
        let write = pb::DeltaWrite { request: 3, delta: Some(delta) };
        let write = from_kind(pb::message::Kind::DeltaWrite(write)).unwrap();
        assert_eq!(write, Message::Write { request: 3, key: "new".into(), envelope: unreadable() });
        let round = Some(pb::Round { opened_by_sender: true, number: 4 });
        let offer = Some(pb::Offer { head: Some(sent), context: Bytes::from_static(b"c"), send_back: true });
        let key = "new".to_owned();
        let nodes =
            pb::InnerNodes { round, number: 1, key, snapshot: Some(digest(Digest(5))), offer, nodes: Vec::new() };
        let Message::InnerNodes { offer: Some(offer), .. } = from_kind(pb::message::Kind::InnerNodes(nodes)).unwrap()
        else {
            panic!()
        };
        assert_eq!(offer.head, unreadable());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
            let _ = decode(bytes.into());
        }
    }
}
