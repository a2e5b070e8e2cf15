//! Messages about values that travel in parts.

use greylag_crdt::{Digest, KeyRange, Part, RangeSum};

use super::nouns::{WireError, a_round, digest, envelope, from_digest, from_envelope, round};
use crate::data::envelope::Content;
use crate::data::tree::Sixteenths;
use crate::generated as pb;
use crate::messages::message::{Message, Offer, RoundId, Wanted};

/// Stands for none of the sixteenths, since 0 stands for all.
const NO_SIXTEENTHS: u32 = 1 << 16;

pub(super) fn sixteenths(part: Sixteenths) -> u32 {
    match part {
        Sixteenths::ALL => 0,
        Sixteenths::NONE => NO_SIXTEENTHS,
        part => part.bits().into(),
    }
}

pub(super) fn from_sixteenths(bits: u32) -> Result<Sixteenths, WireError> {
    match u16::try_from(bits) {
        Err(_) if bits == NO_SIXTEENTHS => Ok(Sixteenths::NONE),
        Ok(0) => Ok(Sixteenths::ALL),
        Ok(bits) => Ok(Sixteenths::of(bits)),
        Err(_) => Err(WireError::Missing("a valid part of the hash space")),
    }
}

fn range(range: &KeyRange) -> pb::KeyRange {
    let bound = |bytes: &Option<Vec<u8>>| bytes.as_ref().map(|bytes| bytes.clone().into());
    pb::KeyRange { from: bound(&range.from), to: bound(&range.to) }
}

fn from_range(range: Option<pb::KeyRange>) -> KeyRange {
    let range = range.unwrap_or_default();
    KeyRange { from: range.from.map(Into::into), to: range.to.map(Into::into) }
}

pub(super) fn nodes(
    id: RoundId,
    number: u64,
    key: &str,
    snapshot: Digest,
    offer: Option<&Offer>,
    nodes: &[(KeyRange, RangeSum)],
) -> pb::InnerNodes {
    let offer = offer.map(|offer| pb::Offer {
        head: Some(envelope(&offer.head)),
        context: offer.context.clone(),
        send_back: offer.send_back,
    });
    let nodes = nodes.iter().map(|(part, sum)| pb::RangeNode {
        range: Some(range(part)),
        count: sum.count,
        total: Some(digest(sum.total)),
    });
    let (round, snapshot) = (Some(round(id)), Some(digest(snapshot)));
    pb::InnerNodes { round, number, key: key.to_owned(), snapshot, offer, nodes: nodes.collect() }
}

pub(super) fn from_nodes(m: pb::InnerNodes) -> Result<Message, WireError> {
    let offer = m.offer.map(|offer| {
        let head = from_envelope(offer.head);
        match &head.content {
            Content::Value { bytes, .. } if bytes.is_empty() => {}
            Content::Unreadable => {}
            _ => return Err(WireError::Missing("the head of an offer")),
        }
        Ok(Box::new(Offer { head, context: offer.context, send_back: offer.send_back }))
    });
    let nodes = m.nodes.into_iter().map(|node| {
        let total = node.total.map(from_digest).unwrap_or_default();
        (from_range(node.range), RangeSum { count: node.count, total })
    });
    Ok(Message::InnerNodes {
        round: a_round(m.round)?,
        number: m.number,
        key: m.key.into(),
        snapshot: a_snapshot(m.snapshot)?,
        offer: offer.transpose()?,
        nodes: nodes.collect(),
    })
}

pub(super) fn want(id: RoundId, number: u64, key: &str, snapshot: Digest, ranges: &[Wanted]) -> pb::InnerWant {
    let ranges = ranges.iter().map(|wanted| pb::Wanted { range: Some(range(&wanted.range)), split: wanted.split });
    let (round, snapshot) = (Some(round(id)), Some(digest(snapshot)));
    pb::InnerWant { round, number, key: key.to_owned(), snapshot, ranges: ranges.collect() }
}

pub(super) fn from_want(m: pb::InnerWant) -> Result<Message, WireError> {
    let ranges = m.ranges.into_iter().map(|wanted| Wanted { range: from_range(wanted.range), split: wanted.split });
    Ok(Message::InnerWant {
        round: a_round(m.round)?,
        number: m.number,
        key: m.key.into(),
        snapshot: a_snapshot(m.snapshot)?,
        ranges: ranges.collect(),
    })
}

pub(super) fn bucket(id: RoundId, number: u64, key: &str, snapshot: Digest, part: &Part) -> pb::Bucket {
    let (round, snapshot) = (Some(round(id)), Some(digest(snapshot)));
    let (range, store) = (Some(range(&part.range)), part.bytes.clone().into());
    pb::Bucket { round, number, key: key.to_owned(), snapshot, range, store }
}

pub(super) fn from_bucket(m: pb::Bucket) -> Result<Message, WireError> {
    Ok(Message::Bucket {
        round: a_round(m.round)?,
        number: m.number,
        key: m.key.into(),
        snapshot: a_snapshot(m.snapshot)?,
        part: Part { range: from_range(m.range), bytes: m.store.into() },
    })
}

fn a_snapshot(snapshot: Option<pb::Digest>) -> Result<Digest, WireError> {
    snapshot.map(from_digest).ok_or(WireError::Missing("the digest of an offered value"))
}
