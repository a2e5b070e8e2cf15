//! Conversion between protobuf and domain types: questions and answers between nodes about the entities of a type.

use bytes::Bytes;
use prost::Message;

use super::nouns::{Fault, Invalid, names, read_names, read_shard};
use crate::generated as proto;
use crate::generated::inspection::{AskEntities, AskStats, Body, Entities, ShardCounts, ShardEntities, Stats};
use crate::ids::EntityId;
use crate::inspection::{
    EntityCounts, Inquiry, InspectionMessage, InspectionResult, Position, RegionEntities, RegionStats,
};

/// Manifest of questions and answers between nodes about a type.
pub const INSPECTION_MANIFEST: &str = "greylag.sharding.inspection";

/// The manifest and bytes of a question or an answer.
pub fn encode_inspection(message: &InspectionMessage) -> (&'static str, Bytes) {
    let (request, body) = match message {
        InspectionMessage::Ask { request, patience_ms, inquiry } => (request, ask(*patience_ms, inquiry)),
        InspectionMessage::Tell { request, result: InspectionResult::Stats(found) } => {
            (request, Body::Stats(stats(found)))
        }
        InspectionMessage::Tell { request, result: InspectionResult::Entities(found) } => {
            (request, Body::Entities(entities(found)))
        }
    };
    (INSPECTION_MANIFEST, proto::Inspection { request: *request, body: Some(body) }.encode_to_vec().into())
}

fn ask(patience_ms: u32, inquiry: &Inquiry) -> Body {
    match inquiry {
        Inquiry::Stats => Body::AskStats(AskStats { patience_ms }),
        Inquiry::Entities { from } => Body::AskEntities(AskEntities { patience_ms, from: from.as_ref().map(position) }),
    }
}

fn position(position: &Position) -> proto::inspection::Position {
    let after = position.after.as_ref().map(ToString::to_string).unwrap_or_default();
    proto::inspection::Position { shard: position.shard.to_string(), after }
}

fn stats(stats: &RegionStats) -> Stats {
    let counts = stats.shards.iter().map(|(shard, counts)| ShardCounts {
        shard: shard.to_string(),
        active: counts.active,
        passivating: counts.passivating,
        remembered_not_started: counts.remembered_not_started,
        waiting_restart: counts.waiting_restart,
    });
    Stats { shards: counts.collect(), failed: names(&stats.failed) }
}

fn entities(found: &RegionEntities) -> Entities {
    let shards = found.shards.iter().map(|(shard, ids)| ShardEntities {
        shard: shard.to_string(),
        entities: ids.iter().map(ToString::to_string).collect(),
    });
    Entities { shards: shards.collect(), failed: names(&found.failed), next: found.next.as_ref().map(position) }
}

pub(super) fn read_inspection(read: proto::Inspection) -> Result<InspectionMessage, Invalid> {
    let request = read.request;
    Ok(match read.body.ok_or(Invalid("body", Fault::Missing))? {
        Body::AskStats(AskStats { patience_ms }) => {
            InspectionMessage::Ask { request, patience_ms, inquiry: Inquiry::Stats }
        }
        Body::AskEntities(AskEntities { patience_ms, from }) => {
            let from = from.map(read_position).transpose()?;
            InspectionMessage::Ask { request, patience_ms, inquiry: Inquiry::Entities { from } }
        }
        Body::Stats(read) => InspectionMessage::Tell { request, result: InspectionResult::Stats(read_stats(read)?) },
        Body::Entities(read) => {
            InspectionMessage::Tell { request, result: InspectionResult::Entities(read_entities(read)?) }
        }
    })
}

fn read_position(read: proto::inspection::Position) -> Result<Position, Invalid> {
    let after = (!read.after.is_empty()).then(|| read_entity(read.after)).transpose()?;
    Ok(Position { shard: read_shard(read.shard)?, after })
}

fn read_entity(id: String) -> Result<EntityId, Invalid> {
    EntityId::new(id).map_err(|_| Invalid("entity", Fault::Missing))
}

fn read_stats(read: Stats) -> Result<RegionStats, Invalid> {
    let counts = |read: ShardCounts| {
        let ShardCounts { shard, active, passivating, remembered_not_started, waiting_restart } = read;
        Ok((read_shard(shard)?, EntityCounts { active, passivating, remembered_not_started, waiting_restart }))
    };
    let shards = read.shards.into_iter().map(counts).collect::<Result<_, _>>()?;
    Ok(RegionStats { shards, failed: read_names(read.failed)? })
}

fn read_entities(read: Entities) -> Result<RegionEntities, Invalid> {
    let of_shard = |read: ShardEntities| {
        let ids = read.entities.into_iter().map(read_entity).collect::<Result<_, _>>()?;
        Ok((read_shard(read.shard)?, ids))
    };
    let shards = read.shards.into_iter().map(of_shard).collect::<Result<_, _>>()?;
    let next = read.next.map(read_position).transpose()?;
    Ok(RegionEntities { shards, failed: read_names(read.failed)?, next })
}

#[cfg(test)]
mod tests {
    use super::super::{Control, decode};
    use super::*;
    use crate::horizon::Horizon;
    use crate::ids::ShardId;

    #[test]
    fn questions_and_answers_read_back() {
        let shard = ShardId::from_index;
        let entity = |id: &str| EntityId::new(id).unwrap();
        let counts = EntityCounts { active: 4, passivating: 3, remembered_not_started: 2, waiting_restart: 1 };
        let stats = RegionStats { shards: [(shard(1), counts)].into(), failed: [shard(2)].into() };
        let next = |after| Some(Position { shard: shard(3), after });
        let page = RegionEntities {
            shards: [(shard(1), [entity("a"), entity("b")].into()), (shard(2), [].into())].into(),
            failed: [shard(4)].into(),
            next: next(Some(entity("b"))),
        };
        let last = RegionEntities { next: None, ..page.clone() };
        let asks = [Inquiry::Stats, Inquiry::Entities { from: None }, Inquiry::Entities { from: next(None) }];
        let asks = asks.map(|inquiry| InspectionMessage::Ask { request: 7, patience_ms: 800, inquiry });
        let tells =
            [InspectionResult::Stats(stats), InspectionResult::Entities(page), InspectionResult::Entities(last)];
        let tells = tells.map(|result| InspectionMessage::Tell { request: u64::MAX, result });
        for message in asks.into_iter().chain(tells) {
            let (manifest, bytes) = encode_inspection(&message);
            let read = decode(manifest, bytes, Horizon::after(1_800_000_000));
            assert_eq!(read, Ok(Control::Inspection(message)));
        }
    }
}
