//! The nouns of messages: digests, sums, parts, envelopes, markers, and what replicas tell of pruning.

use std::collections::BTreeMap;

use bytes::Bytes;
use greylag_crdt::{Decoder, Digest, Encoder, Markers, ReplicaId};

use crate::api::key::KeyId;
use crate::data::envelope::{Content, Envelope};
use crate::data::tree::{Prefix, Sum};
use crate::gate::{GateState, Standing, Start, Starts, StartsOrDigest};
use crate::generated as pb;
use crate::messages::message::{DeltaItem, RoundId};
use crate::pruning::{PruningNews, PruningRound};

/// Why bytes are not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    #[error("malformed: {0}")]
    Malformed(String),
    #[error("{0} is missing or unknown")]
    Missing(&'static str),
    #[error("{0} items exceed the limit of a message")]
    TooMany(usize),
}

pub(super) fn digest(digest: Digest) -> pb::Digest {
    pb::Digest { high: (digest.0 >> 64) as u64, low: digest.0 as u64 }
}

pub(super) fn digest_of(high: u64, low: u64) -> Digest {
    Digest(u128::from(high) << 64 | u128::from(low))
}

pub(super) fn from_digest(digest: pb::Digest) -> Digest {
    digest_of(digest.high, digest.low)
}

pub(super) fn sum(sum: Sum) -> pb::Sum {
    pb::Sum { count: sum.count, total: Some(digest(sum.total)) }
}

pub(super) fn from_sum(sum: Option<pb::Sum>) -> Result<Sum, WireError> {
    let sum = sum.ok_or(WireError::Missing("a sum"))?;
    Ok(Sum { count: sum.count, total: sum.total.map(from_digest).unwrap_or_default() })
}

pub(super) fn prefix(prefix: Prefix) -> pb::Prefix {
    pb::Prefix { bits: prefix.bits(), depth: prefix.depth().into() }
}

pub(super) fn from_prefix(prefix: Option<pb::Prefix>) -> Result<Prefix, WireError> {
    let prefix = prefix.unwrap_or_default();
    let depth = u8::try_from(prefix.depth).ok();
    depth.and_then(|depth| Prefix::new(prefix.bits, depth)).ok_or(WireError::Missing("a valid prefix"))
}

pub(super) fn from_parent(parent: pb::Parent) -> Result<(Prefix, Vec<Sum>), WireError> {
    let prefix = from_prefix(parent.prefix)?;
    let children = prefix.children().count();
    if [parent.counts.len(), parent.high.len(), parent.low.len()] != [children; 3] || children == 0 {
        return Err(WireError::Missing("a sum over a part"));
    }
    let totals = parent.high.into_iter().zip(parent.low).map(|(high, low)| digest_of(high, low));
    Ok((prefix, parent.counts.into_iter().zip(totals).map(|(count, total)| Sum { count, total }).collect()))
}

pub(super) fn round(round: RoundId) -> pb::Round {
    pb::Round { number: round.number, opened_by_sender: round.opened_by_sender }
}

pub(super) fn from_round(round: pb::Round) -> RoundId {
    RoundId { number: round.number, opened_by_sender: round.opened_by_sender }
}

pub(super) fn a_round(round: Option<pb::Round>) -> Result<RoundId, WireError> {
    round.map(from_round).ok_or(WireError::Missing("the round"))
}

pub(super) fn envelope(envelope: &Envelope) -> pb::Envelope {
    let content = match &envelope.content {
        Content::Value { tag, bytes } => {
            Some(pb::envelope::Content::Value(pb::Value { tag: tag.to_string(), data: bytes.clone() }))
        }
        Content::Tombstone { deleted_at } => Some(pb::envelope::Content::Tombstone(*deleted_at)),
        Content::Unreadable => None,
    };
    let versions = envelope.versions.iter();
    let versions = versions.map(|(replica, version)| pb::Version { replica: replica.0, version: *version });
    let markers = markers(&envelope.markers);
    pb::Envelope { content, versions: versions.collect(), markers, used: envelope.used_ms }
}

/// Encodes markers; no markers, the usual case, take no byte.
pub(super) fn markers(markers: &Markers) -> Bytes {
    if markers.is_empty() {
        return Bytes::new();
    }
    let mut out = Encoder::new();
    markers.encode(&mut out);
    out.finish().into()
}

/// Decodes markers; `None` if they cannot be read, since a newer version may write them in another format.
pub(super) fn from_markers(bytes: &[u8]) -> Option<Markers> {
    if bytes.is_empty() {
        return Some(Markers::new());
    }
    let mut inp = Decoder::new(bytes);
    Markers::decode(&mut inp).and_then(|markers| inp.finish().map(|()| markers)).ok()
}

pub(super) fn news(news: &PruningNews) -> pb::PruningNews {
    let rounds = news.rounds.iter().map(|round| pb::PruningRound {
        removed: round.removed.0,
        epoch: round.epoch,
        owner: round.owner.0,
        created_at: round.created_at,
    });
    let Standing { number, forget_horizon, synced_at, starts, state, is_current } = &news.standing;
    let (starts, starts_digest) = match starts {
        StartsOrDigest::Listed(starts) => (starts.iter().map(start).collect(), None),
        StartsOrDigest::Known(digest) => (Vec::new(), Some(*digest)),
    };
    let gate = match state {
        GateState::Open => pb::GateState::Open,
        GateState::Closed => pb::GateState::Closed,
        GateState::Refused => pb::GateState::Refused,
    };
    pb::PruningNews {
        rounds: rounds.collect(),
        forget_horizon: *forget_horizon,
        synced_at: *synced_at,
        starts,
        starts_digest,
        gate: gate.into(),
        current: *is_current,
        number: *number,
    }
}

pub(super) fn start(start: &Start) -> pb::Start {
    pb::Start { maker: start.maker.0, base: start.base }
}

pub(super) fn from_standing(news: &pb::PruningNews) -> Result<Standing, WireError> {
    let starts = news.starts.iter().map(|start| Start { maker: ReplicaId(start.maker), base: start.base });
    let state = match pb::GateState::try_from(news.gate) {
        Ok(pb::GateState::Open) => GateState::Open,
        Ok(pb::GateState::Closed) => GateState::Closed,
        Ok(pb::GateState::Refused) => GateState::Refused,
        Err(_) => return Err(WireError::Missing("the state of a gate")),
    };
    Ok(Standing {
        number: news.number,
        forget_horizon: news.forget_horizon,
        synced_at: news.synced_at,
        starts: news.starts_digest.map_or_else(|| StartsOrDigest::Listed(Starts::of(starts)), StartsOrDigest::Known),
        state,
        is_current: news.current,
    })
}

pub(super) fn from_news(news: Option<pb::PruningNews>) -> Result<PruningNews, WireError> {
    let news = news.unwrap_or_default();
    let standing = from_standing(&news)?;
    let rounds = news.rounds.into_iter().map(|round| PruningRound {
        removed: ReplicaId(round.removed),
        epoch: round.epoch,
        owner: ReplicaId(round.owner),
        created_at: round.created_at,
    });
    Ok(PruningNews { rounds: rounds.collect(), standing })
}

/// Encodes nothing for empty news, so that an idle pair of messages stays small.
pub(super) fn some_news(told: &PruningNews) -> Option<pb::PruningNews> {
    (*told != PruningNews::default()).then(|| news(told))
}

/// Decodes an envelope. An unreadable one is refused where it would be merged; the rest of the message is taken.
pub(super) fn from_envelope(envelope: Option<pb::Envelope>) -> Envelope {
    let envelope = envelope.unwrap_or_default();
    let (Some(content), Some(markers)) = (envelope.content, from_markers(&envelope.markers)) else {
        return Envelope::of(Content::Unreadable);
    };
    let content = match content {
        pb::envelope::Content::Value(value) => Content::Value { tag: value.tag.into(), bytes: value.data },
        pb::envelope::Content::Tombstone(deleted_at) => Content::Tombstone { deleted_at },
    };
    let versions = envelope.versions.into_iter().map(|version| (ReplicaId(version.replica), version.version));
    Envelope { content, versions: versions.collect::<BTreeMap<_, _>>(), markers, used_ms: envelope.used }
}

pub(super) fn delta(item: &DeltaItem) -> pb::Delta {
    pb::Delta {
        key: item.key.to_string(),
        tag: item.tag.to_string(),
        prev: item.prev,
        version: item.version,
        delta: item.delta.clone(),
        markers: markers(&item.markers),
        used: item.used_ms,
    }
}

/// Decodes a delta; returns only the key if its markers cannot be read.
pub(super) fn from_delta(delta: pb::Delta) -> Result<DeltaItem, KeyId> {
    let Some(markers) = from_markers(&delta.markers) else { return Err(delta.key.into()) };
    Ok(DeltaItem {
        markers,
        key: delta.key.into(),
        tag: delta.tag.into(),
        prev: delta.prev,
        version: delta.version,
        delta: delta.delta,
        used_ms: delta.used,
    })
}

pub(super) fn keyed((key, value): &(KeyId, Envelope)) -> pb::KeyedEnvelope {
    pb::KeyedEnvelope { key: key.to_string(), envelope: Some(envelope(value)) }
}

pub(super) fn from_keyed(keyed: pb::KeyedEnvelope) -> (KeyId, Envelope) {
    (keyed.key.into(), from_envelope(keyed.envelope))
}
