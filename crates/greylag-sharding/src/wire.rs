//! Conversion between protobuf and domain types: control messages, and the coordinator's stored state.
//!
//! A message that cannot be read is refused whole, never applied in parts. Every list is bounded by the frame that
//! carried it, since each element takes bytes there.

mod daemon;
pub mod history;
pub mod inspection;
mod nouns;
pub mod remembered;

use bytes::Bytes;
use greylag_core::{DecodeError, Generation};
use prost::Message;

use self::inspection::INSPECTION_MANIFEST;
use self::nouns::{
    Fault, Invalid, fingerprint, generations, names, node, read_attempt, read_epoch, read_fingerprint, read_generation,
    read_generations, read_names, read_node, read_region, read_regions, read_shard, region,
};
pub use daemon::{decode_daemon_answer, decode_daemon_record, encode_daemon_answer, encode_daemon_record};

use crate::error::ReadError;
use crate::fingerprint::Mismatch;
use crate::generated as proto;
use crate::horizon::Horizon;
use crate::inspection::InspectionMessage;
use crate::machine::coordinator::{Meta, StoredHome};
use crate::machine::message::{
    Claim, ClaimState, CoordinatorId, CoordinatorMessage, FromCoordinator, Home, PeerMessage, RegionMessage, Register,
    TypeClaim,
};

/// Manifest of messages of regions to coordinators.
pub const REGION_MANIFEST: &str = "greylag.sharding.region";
/// Manifest of messages of coordinators to regions and nodes.
pub const COORDINATOR_MANIFEST: &str = "greylag.sharding.coordinator";
/// Manifest of messages between regions.
pub const PEER_MANIFEST: &str = "greylag.sharding.peer";

/// The kinds of control messages.
pub const MANIFESTS: [&str; 4] = [REGION_MANIFEST, COORDINATOR_MANIFEST, PEER_MANIFEST, INSPECTION_MANIFEST];

/// Any message on the control path of an entity type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// For the coordinator, if it runs on this node.
    ToCoordinator(RegionMessage),
    /// For the region, or for the node that has none.
    FromCoordinator(FromCoordinator),
    /// For the region.
    Peer(PeerMessage),
    /// A question about entities, or an answer to one.
    Inspection(InspectionMessage),
}

/// The manifest and bytes of a message to the coordinator.
pub fn encode_region(message: &RegionMessage) -> (&'static str, Bytes) {
    (REGION_MANIFEST, to_coordinator(message).encode_to_vec().into())
}

/// The manifest and bytes of a coordinator's message.
pub fn encode_coordinator(message: &FromCoordinator) -> (&'static str, Bytes) {
    (COORDINATOR_MANIFEST, from_coordinator(message).encode_to_vec().into())
}

/// The manifest and bytes of a message between regions.
pub fn encode_peer(message: &PeerMessage) -> (&'static str, Bytes) {
    use proto::to_peer::{Body, FlushEcho, StaleRoute, TypeClaimed, TypeOk};
    let body = match message {
        PeerMessage::StaleRoute(routes) => Body::StaleRoute(StaleRoute { routes: generations(routes) }),
        PeerMessage::FlushEcho { shard, nonce, to } => {
            Body::FlushEcho(FlushEcho { shard: shard.to_string(), nonce: *nonce, to: Some(region(to)) })
        }
        PeerMessage::AnnounceType { round, claim } => {
            Body::AnnounceType(TypeClaimed { round: *round, claim: Some(type_claim(claim)) })
        }
        PeerMessage::TypeOk { round } => Body::TypeOk(TypeOk { round: *round }),
        PeerMessage::TypeConflict { round, claim } => {
            Body::TypeConflict(TypeClaimed { round: *round, claim: Some(type_claim(claim)) })
        }
    };
    (PEER_MANIFEST, proto::ToPeer { body: Some(body) }.encode_to_vec().into())
}

/// Reads a control message.
///
/// # Errors
/// [`ReadError`] for an unknown manifest, malformed bytes, a field that is missing or invalid, or an epoch, generation or
/// attempt beyond `horizon`.
pub fn decode(manifest: &str, bytes: Bytes, horizon: Horizon) -> Result<Control, ReadError> {
    let malformed = |why: String| DecodeError::malformed(manifest, why);
    let bad = |error: prost::DecodeError| malformed(error.to_string());
    match manifest {
        REGION_MANIFEST => {
            let message = proto::ToCoordinator::decode(bytes).map_err(bad)?;
            read_to_coordinator(message, horizon).map(Control::ToCoordinator)
        }
        COORDINATOR_MANIFEST => {
            let message = proto::FromCoordinator::decode(bytes).map_err(bad)?;
            read_from_coordinator(message, horizon).map(Control::FromCoordinator)
        }
        PEER_MANIFEST => read_peer(proto::ToPeer::decode(bytes).map_err(bad)?, horizon).map(Control::Peer),
        INSPECTION_MANIFEST => {
            inspection::read_inspection(proto::Inspection::decode(bytes).map_err(bad)?).map(Control::Inspection)
        }
        _ => {
            let (codec, manifest) = (greylag_core::CodecId::INTERNAL, manifest.to_owned());
            return Err(DecodeError::UnknownManifest { codec, manifest }.into());
        }
    }
    .map_err(|invalid| invalid.of(manifest))
}

/// The stored form of a home.
pub fn encode_home(home: &StoredHome) -> Vec<u8> {
    stored_home(home).encode_to_vec()
}

/// Reads a stored home.
///
/// # Errors
/// [`ReadError`].
pub fn decode_home(bytes: &[u8], horizon: Horizon) -> Result<StoredHome, ReadError> {
    const MANIFEST: &str = "greylag.sharding.home";
    let home = proto::StoredHome::decode(bytes).map_err(|error| DecodeError::malformed(MANIFEST, error))?;
    read_stored_home(home, horizon).map_err(|invalid| invalid.of(MANIFEST))
}

/// The stored form of an incarnation's epoch record.
pub fn encode_meta(meta: &Meta) -> Vec<u8> {
    stored_meta(meta).encode_to_vec()
}

/// Reads what [`encode_meta`] wrote.
///
/// # Errors
/// [`ReadError`].
pub fn decode_meta(bytes: &[u8], horizon: Horizon) -> Result<Meta, ReadError> {
    const MANIFEST: &str = "greylag.sharding.meta";
    let meta = proto::StoredMeta::decode(bytes).map_err(|error| DecodeError::malformed(MANIFEST, error))?;
    read_stored_meta(meta, horizon).map_err(|invalid| invalid.of(MANIFEST))
}

fn stored_home(home: &StoredHome) -> proto::StoredHome {
    proto::StoredHome {
        region: Some(region(&home.region)),
        generation: home.generation.as_u64(),
        deallocated: home.deallocated,
        previous: home.previous.map(Generation::as_u64),
        leftovers_from: home.leftovers_from.as_ref().map(region),
    }
}

fn read_stored_home(home: proto::StoredHome, horizon: Horizon) -> Result<StoredHome, Invalid> {
    Ok(StoredHome {
        region: read_region(home.region)?,
        generation: read_generation(home.generation, horizon)?,
        deallocated: home.deallocated,
        previous: home.previous.map(|previous| read_generation(previous, horizon)).transpose()?,
        leftovers_from: home.leftovers_from.map(|from| read_region(Some(from))).transpose()?,
    })
}

fn stored_meta(meta: &Meta) -> proto::StoredMeta {
    proto::StoredMeta {
        epoch: meta.epoch,
        coordinator_node: Some(node(&meta.coordinator.node)),
        coordinator_incarnation: meta.coordinator.incarnation,
        fingerprint: Some(fingerprint(&meta.fingerprint)),
    }
}

fn read_stored_meta(meta: proto::StoredMeta, horizon: Horizon) -> Result<Meta, Invalid> {
    Ok(Meta {
        epoch: read_epoch(meta.epoch, horizon)?,
        coordinator: CoordinatorId {
            node: read_node(meta.coordinator_node)?,
            incarnation: meta.coordinator_incarnation,
        },
        fingerprint: read_fingerprint(meta.fingerprint)?,
    })
}

fn type_claim(claim: &TypeClaim) -> proto::TypeClaim {
    proto::TypeClaim {
        fingerprint: Some(fingerprint(&claim.fingerprint)),
        active: claim.active,
        refused: claim.refused,
    }
}

fn read_type_claim(read: Option<proto::TypeClaim>) -> Result<TypeClaim, Invalid> {
    let read = read.ok_or(Invalid("claim", Fault::Missing))?;
    let fingerprint = read_fingerprint(read.fingerprint)?;
    Ok(TypeClaim { fingerprint, active: read.active, refused: read.refused })
}

fn to_coordinator(message: &RegionMessage) -> proto::ToCoordinator {
    use proto::to_coordinator::{
        BeginHandOffAck, Body, GetCurrentRegions, GetShardHome, GracefulShutdownReq, NoRegion, RegionStopped,
        Register as Reg, ShardStarted, ShardStopped, StaleEpoch, StopShards,
    };
    let body = match message {
        RegionMessage::Register(register) => Body::Register(Reg {
            proxy: register.proxy,
            serial: register.serial,
            fingerprint: Some(fingerprint(&register.fingerprint)),
            highest_epoch: register.highest_epoch,
            hosted: register.hosted.iter().map(claim).collect(),
        }),
        RegionMessage::GetShardHome { shards, .. } => Body::GetShardHome(GetShardHome { shards: names(shards) }),
        RegionMessage::ShardStarted { shards, .. } => Body::ShardStarted(ShardStarted { shards: generations(shards) }),
        RegionMessage::BeginHandOffAck { shard, generation, attempt, flushed, .. } => {
            Body::BeginHandoffAck(BeginHandOffAck {
                shard: shard.to_string(),
                generation: generation.as_u64(),
                attempt: attempt.0,
                flushed: *flushed,
            })
        }
        RegionMessage::ShardStopped { shard, generation, leftovers, .. } => Body::ShardStopped(ShardStopped {
            shard: shard.to_string(),
            generation: generation.as_u64(),
            leftovers: *leftovers,
        }),
        RegionMessage::GracefulShutdownReq { .. } => Body::GracefulShutdownReq(GracefulShutdownReq {}),
        RegionMessage::RegionStopped { .. } => Body::RegionStopped(RegionStopped {}),
        RegionMessage::StaleEpoch { epoch, .. } => Body::StaleEpoch(StaleEpoch { epoch: *epoch }),
        RegionMessage::NoRegion { epoch } => Body::NoRegion(NoRegion { epoch: *epoch }),
        RegionMessage::StopShards { request, shards, .. } => {
            Body::StopShards(StopShards { request: *request, shards: names(shards) })
        }
        RegionMessage::GetCurrentRegions { request, .. } => {
            Body::GetCurrentRegions(GetCurrentRegions { request: *request })
        }
    };
    proto::ToCoordinator { region: message.region().map(region), body: Some(body) }
}

fn claim(claim: &Claim) -> proto::Claim {
    let state = match claim.state {
        ClaimState::Running => 0,
        ClaimState::Starting => 1,
        ClaimState::Stopping => 2,
    };
    proto::Claim { shard: claim.shard.to_string(), generation: claim.generation.as_u64(), state }
}

fn read_claim(claim: proto::Claim, horizon: Horizon) -> Result<Claim, Invalid> {
    let state = match claim.state {
        0 => ClaimState::Running,
        1 => ClaimState::Starting,
        2 => ClaimState::Stopping,
        _ => return Err(Invalid("claim state", Fault::Missing)),
    };
    Ok(Claim { shard: read_shard(claim.shard)?, generation: read_generation(claim.generation, horizon)?, state })
}

fn read_to_coordinator(message: proto::ToCoordinator, horizon: Horizon) -> Result<RegionMessage, Invalid> {
    use proto::to_coordinator::Body;
    let body = message.body.ok_or(Invalid("body", Fault::Missing))?;
    if let Body::NoRegion(read) = &body {
        return Ok(RegionMessage::NoRegion { epoch: read_epoch(read.epoch, horizon)? });
    }
    let region = read_region(message.region)?;
    Ok(match body {
        Body::Register(read) => RegionMessage::Register(Register {
            region,
            proxy: read.proxy,
            serial: read.serial,
            fingerprint: read_fingerprint(read.fingerprint)?,
            highest_epoch: read_epoch(read.highest_epoch, horizon)?,
            hosted: read.hosted.into_iter().map(|claim| read_claim(claim, horizon)).collect::<Result<_, _>>()?,
        }),
        Body::GetShardHome(read) => RegionMessage::GetShardHome { region, shards: read_names(read.shards)? },
        Body::ShardStarted(read) => {
            RegionMessage::ShardStarted { region, shards: read_generations(read.shards, horizon)? }
        }
        Body::BeginHandoffAck(read) => RegionMessage::BeginHandOffAck {
            region,
            shard: read_shard(read.shard)?,
            generation: read_generation(read.generation, horizon)?,
            attempt: read_attempt(read.attempt, horizon)?,
            flushed: read.flushed,
        },
        Body::ShardStopped(read) => RegionMessage::ShardStopped {
            region,
            shard: read_shard(read.shard)?,
            generation: read_generation(read.generation, horizon)?,
            leftovers: read.leftovers,
        },
        Body::GracefulShutdownReq(_) => RegionMessage::GracefulShutdownReq { region },
        Body::RegionStopped(_) => RegionMessage::RegionStopped { region },
        Body::StaleEpoch(read) => RegionMessage::StaleEpoch { region, epoch: read_epoch(read.epoch, horizon)? },
        Body::NoRegion(read) => RegionMessage::NoRegion { epoch: read_epoch(read.epoch, horizon)? },
        Body::StopShards(read) => {
            RegionMessage::StopShards { region, request: read.request, shards: read_names(read.shards)? }
        }
        Body::GetCurrentRegions(read) => RegionMessage::GetCurrentRegions { region, request: read.request },
    })
}

fn home(home: &Home) -> proto::Home {
    proto::Home {
        shard: home.shard.to_string(),
        region: Some(region(&home.region)),
        generation: home.generation.as_u64(),
        flushed: home.flushed.map_or(0, |attempt| attempt.0),
        given_up: home.given_up.map_or(0, |attempt| attempt.0),
        previous: home.previous.map(Generation::as_u64),
        leftovers_from: home.leftovers_from.as_ref().map(region),
    }
}

fn read_home(home: proto::Home, horizon: Horizon) -> Result<Home, Invalid> {
    Ok(Home {
        shard: read_shard(home.shard)?,
        region: read_region(home.region)?,
        generation: read_generation(home.generation, horizon)?,
        flushed: (home.flushed != 0).then(|| read_attempt(home.flushed, horizon)).transpose()?,
        given_up: (home.given_up != 0).then(|| read_attempt(home.given_up, horizon)).transpose()?,
        previous: home.previous.map(|previous| read_generation(previous, horizon)).transpose()?,
        leftovers_from: home.leftovers_from.map(|from| read_region(Some(from))).transpose()?,
    })
}

fn from_coordinator(message: &FromCoordinator) -> proto::FromCoordinator {
    use proto::from_coordinator::{
        BeginHandOff, Body, CurrentRegions, HandOff, Homes, RegionInquiry, RegionStoppedAck, RegisterAck,
        RegisterRefused, ShardsStopped, StopHere, StopShardsRefused,
    };
    let homes = |homes: &[Home]| Homes { homes: homes.iter().map(home).collect() };
    let body = match &message.message {
        CoordinatorMessage::RegisterAck { serial } => Body::RegisterAck(RegisterAck { serial: *serial }),
        CoordinatorMessage::RegisterRefused { serial, mismatch } => {
            let Mismatch { field, expected, got } = mismatch.clone();
            Body::RegisterRefused(RegisterRefused {
                serial: *serial,
                mismatch: Some(proto::Mismatch { field, expected, got }),
            })
        }
        CoordinatorMessage::RegionInquiry => Body::RegionInquiry(RegionInquiry {}),
        CoordinatorMessage::ShardHomes(list) => Body::ShardHomes(homes(list)),
        CoordinatorMessage::HostShard(list) => Body::HostShard(homes(list)),
        CoordinatorMessage::BeginHandOff { shard, generation, attempt, owner } => Body::BeginHandoff(BeginHandOff {
            shard: shard.to_string(),
            generation: generation.as_u64(),
            attempt: attempt.0,
            owner: Some(region(owner)),
        }),
        CoordinatorMessage::HandOff { shard, generation, attempt, flush_from } => Body::Handoff(HandOff {
            shard: shard.to_string(),
            generation: generation.as_u64(),
            attempt: attempt.0,
            flush_from: flush_from.iter().map(region).collect(),
        }),
        CoordinatorMessage::DropShard { shard, generation } => {
            Body::DropShard(proto::ShardGeneration { shard: shard.to_string(), generation: generation.as_u64() })
        }
        CoordinatorMessage::StopHere => Body::StopHere(StopHere {}),
        CoordinatorMessage::RegionStoppedAck => Body::RegionStoppedAck(RegionStoppedAck {}),
        CoordinatorMessage::ShardsStopped { request, shards } => {
            Body::ShardsStopped(ShardsStopped { request: *request, shards: names(shards) })
        }
        CoordinatorMessage::StopShardsRefused { request } => {
            Body::StopShardsRefused(StopShardsRefused { request: *request })
        }
        CoordinatorMessage::CurrentRegions { request, regions } => {
            Body::CurrentRegions(CurrentRegions { request: *request, regions: regions.iter().map(region).collect() })
        }
    };
    proto::FromCoordinator {
        coordinator_node: Some(node(&message.coordinator.node)),
        coordinator_incarnation: message.coordinator.incarnation,
        epoch: message.epoch,
        to: message.to.as_ref().map(region),
        body: Some(body),
    }
}

fn read_from_coordinator(message: proto::FromCoordinator, horizon: Horizon) -> Result<FromCoordinator, Invalid> {
    use proto::from_coordinator::{Body, Homes};
    let homes =
        |read: Homes| read.homes.into_iter().map(|home| read_home(home, horizon)).collect::<Result<Vec<_>, _>>();
    let body = match message.body.ok_or(Invalid("body", Fault::Missing))? {
        Body::RegisterAck(read) => CoordinatorMessage::RegisterAck { serial: read.serial },
        Body::RegisterRefused(read) => {
            let proto::Mismatch { field, expected, got } = read.mismatch.ok_or(Invalid("mismatch", Fault::Missing))?;
            let mismatch = Mismatch { field, expected, got };
            CoordinatorMessage::RegisterRefused { serial: read.serial, mismatch }
        }
        Body::RegionInquiry(_) => CoordinatorMessage::RegionInquiry,
        Body::ShardHomes(read) => CoordinatorMessage::ShardHomes(homes(read)?),
        Body::HostShard(read) => CoordinatorMessage::HostShard(homes(read)?),
        Body::BeginHandoff(read) => CoordinatorMessage::BeginHandOff {
            shard: read_shard(read.shard)?,
            generation: read_generation(read.generation, horizon)?,
            attempt: read_attempt(read.attempt, horizon)?,
            owner: read_region(read.owner)?,
        },
        Body::Handoff(read) => CoordinatorMessage::HandOff {
            shard: read_shard(read.shard)?,
            generation: read_generation(read.generation, horizon)?,
            attempt: read_attempt(read.attempt, horizon)?,
            flush_from: read_regions(read.flush_from)?,
        },
        Body::DropShard(read) => CoordinatorMessage::DropShard {
            shard: read_shard(read.shard)?,
            generation: read_generation(read.generation, horizon)?,
        },
        Body::StopHere(_) => CoordinatorMessage::StopHere,
        Body::RegionStoppedAck(_) => CoordinatorMessage::RegionStoppedAck,
        Body::ShardsStopped(read) => {
            CoordinatorMessage::ShardsStopped { request: read.request, shards: read_names(read.shards)? }
        }
        Body::StopShardsRefused(read) => CoordinatorMessage::StopShardsRefused { request: read.request },
        Body::CurrentRegions(read) => {
            CoordinatorMessage::CurrentRegions { request: read.request, regions: read_regions(read.regions)? }
        }
    };
    Ok(FromCoordinator {
        coordinator: CoordinatorId {
            node: read_node(message.coordinator_node)?,
            incarnation: message.coordinator_incarnation,
        },
        epoch: read_epoch(message.epoch, horizon)?,
        to: message.to.map(|to| read_region(Some(to))).transpose()?,
        message: body,
    })
}

fn read_peer(message: proto::ToPeer, horizon: Horizon) -> Result<PeerMessage, Invalid> {
    use proto::to_peer::Body;
    Ok(match message.body.ok_or(Invalid("body", Fault::Missing))? {
        Body::StaleRoute(read) => PeerMessage::StaleRoute(read_generations(read.routes, horizon)?),
        Body::FlushEcho(read) => {
            PeerMessage::FlushEcho { shard: read_shard(read.shard)?, nonce: read.nonce, to: read_region(read.to)? }
        }
        Body::AnnounceType(read) => {
            PeerMessage::AnnounceType { round: read.round, claim: read_type_claim(read.claim)? }
        }
        Body::TypeOk(read) => PeerMessage::TypeOk { round: read.round },
        Body::TypeConflict(read) => {
            PeerMessage::TypeConflict { round: read.round, claim: read_type_claim(read.claim)? }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::{Fingerprint, StateStoreMode};
    use crate::ids::{RegionId, ShardId};
    use crate::machine::message::Attempt;

    const WALL: u64 = 1_800_000_000;
    const YEARS_200: u64 = 200 * 365 * 24 * 60 * 60;
    /// Epochs that no coordinator can have reached.
    const BEYOND: [u64; 4] = [WALL + YEARS_200, Generation::MAX_EPOCH - 1, Generation::MAX_EPOCH, u64::MAX];

    fn horizon() -> Horizon {
        Horizon::after(WALL)
    }

    fn region(n: u64) -> RegionId {
        RegionId { node: format!("node-{n}:7000#{n}").parse().unwrap(), incarnation: n }
    }

    fn generation(seq: u64) -> Generation {
        Generation::new(1_800_000_000, seq).unwrap()
    }

    fn print() -> Fingerprint {
        Fingerprint {
            protocol_major: 1,
            type_name: "Customer".into(),
            extractor: ("HashV1".into(), 1),
            number_of_shards: 12,
            remember_entities: false,
            remember_entities_store: "ddata".into(),
            state_store_mode: StateStoreMode::Ddata,
            role: "shop".into(),
            codec: vec!["2:customer".into(), "2:order".into()],
        }
    }

    #[test]
    fn control_messages_read_back() {
        let shard = ShardId::from_index(7);
        let claim = Claim { shard: shard.clone(), generation: generation(1), state: ClaimState::Stopping };
        let to_coordinator = [
            RegionMessage::Register(Register {
                region: region(1),
                proxy: false,
                serial: 3,
                fingerprint: print(),
                highest_epoch: 9,
                hosted: vec![claim],
            }),
            RegionMessage::GetShardHome { region: region(1), shards: vec![shard.clone()] },
            RegionMessage::ShardStarted { region: region(1), shards: vec![(shard.clone(), generation(2))] },
            RegionMessage::BeginHandOffAck {
                region: region(1),
                shard: shard.clone(),
                generation: generation(2),
                attempt: Attempt(5),
                flushed: true,
            },
            RegionMessage::ShardStopped {
                region: region(1),
                shard: shard.clone(),
                generation: generation(2),
                leftovers: true,
            },
            RegionMessage::GracefulShutdownReq { region: region(1) },
            RegionMessage::RegionStopped { region: region(1) },
            RegionMessage::StaleEpoch { region: region(1), epoch: 4 },
            RegionMessage::NoRegion { epoch: 4 },
            RegionMessage::StopShards { region: region(1), request: 8, shards: vec![shard.clone()] },
            RegionMessage::GetCurrentRegions { region: region(1), request: 9 },
        ];
        for message in to_coordinator {
            let (manifest, bytes) = encode_region(&message);
            assert_eq!(decode(manifest, bytes, horizon()), Ok(Control::ToCoordinator(message)));
        }
        let home = Home {
            shard: shard.clone(),
            region: region(2),
            generation: generation(3),
            flushed: Some(Attempt(5)),
            given_up: Some(Attempt(4)),
            previous: Some(generation(2)),
            leftovers_from: Some(region(1)),
        };
        let mismatch = Mismatch { field: "role".into(), expected: "a".into(), got: "b".into() };
        let orders = [
            CoordinatorMessage::RegisterAck { serial: 3 },
            CoordinatorMessage::RegisterRefused { serial: 3, mismatch },
            CoordinatorMessage::RegionInquiry,
            CoordinatorMessage::ShardHomes(vec![home.clone()]),
            CoordinatorMessage::HostShard(vec![home]),
            CoordinatorMessage::BeginHandOff {
                shard: shard.clone(),
                generation: generation(3),
                attempt: Attempt(6),
                owner: region(2),
            },
            CoordinatorMessage::HandOff {
                shard: shard.clone(),
                generation: generation(3),
                attempt: Attempt(6),
                flush_from: vec![region(1)],
            },
            CoordinatorMessage::DropShard { shard: shard.clone(), generation: generation(3) },
            CoordinatorMessage::StopHere,
            CoordinatorMessage::RegionStoppedAck,
            CoordinatorMessage::ShardsStopped { request: 8, shards: vec![shard.clone()] },
            CoordinatorMessage::StopShardsRefused { request: 8 },
            CoordinatorMessage::CurrentRegions { request: 9, regions: vec![region(1), region(2)] },
        ];
        for message in orders {
            let coordinator = CoordinatorId { node: region(1).node, incarnation: 8 };
            let message = FromCoordinator { coordinator, epoch: 9, to: Some(region(2)), message };
            let (manifest, bytes) = encode_coordinator(&message);
            assert_eq!(decode(manifest, bytes, horizon()), Ok(Control::FromCoordinator(message)));
        }
        for message in [
            PeerMessage::StaleRoute(vec![(shard.clone(), generation(3))]),
            PeerMessage::FlushEcho { shard, nonce: 77, to: region(1) },
        ] {
            let (manifest, bytes) = encode_peer(&message);
            assert_eq!(decode(manifest, bytes, horizon()), Ok(Control::Peer(message)));
        }
    }

    fn beyond(what: &'static str) -> Result<Control, ReadError> {
        Err(ReadError::BeyondReach(what))
    }

    /// Sharding scenario 103: a message with an epoch that no coordinator can have reached is refused whole.
    #[test]
    fn scenario_103_epochs_beyond_the_horizon_are_refused() {
        for epoch in BEYOND {
            let register = |highest_epoch, hosted| {
                RegionMessage::Register(Register {
                    region: region(1),
                    proxy: false,
                    serial: 3,
                    fingerprint: print(),
                    highest_epoch,
                    hosted,
                })
            };
            let coordinator = CoordinatorId { node: region(1).node, incarnation: 8 };
            let order = FromCoordinator { coordinator, epoch, to: None, message: CoordinatorMessage::StopHere };
            for (manifest, bytes) in [
                encode_region(&register(epoch, Vec::new())),
                encode_region(&RegionMessage::StaleEpoch { region: region(1), epoch }),
                encode_coordinator(&order),
            ] {
                assert_eq!(decode(manifest, bytes, horizon()), beyond("epoch"));
            }
            let meta = Meta { epoch, coordinator: order.coordinator, fingerprint: print() };
            assert!(decode_meta(&encode_meta(&meta), horizon()).is_err());
        }
    }

    /// Sharding scenario 103, for generations and attempts.
    #[test]
    fn scenario_103_generations_beyond_the_horizon_are_refused() {
        let shard = ShardId::from_index(7);
        for epoch in &BEYOND[..3] {
            let ahead = Generation::new(*epoch, 1).unwrap();
            let attempt = Attempt(ahead.as_u64());
            let claim = Claim { shard: shard.clone(), generation: ahead, state: ClaimState::Running };
            let home = |generation, previous, flushed| Home {
                shard: shard.clone(),
                region: region(2),
                generation,
                flushed,
                previous,
                leftovers_from: None,
                given_up: flushed,
            };
            let (now, own) = (generation(1), region(1));
            let stopped = RegionMessage::ShardStopped {
                region: own.clone(),
                shard: shard.clone(),
                generation: ahead,
                leftovers: false,
            };
            let order = |message| {
                let coordinator = CoordinatorId { node: region(1).node, incarnation: 8 };
                encode_coordinator(&FromCoordinator { coordinator, epoch: WALL, to: None, message })
            };
            let (drop, owner) = ((shard.clone(), ahead), region(2));
            for (manifest, bytes) in [
                encode_region(&RegionMessage::Register(Register {
                    region: own.clone(),
                    proxy: false,
                    serial: 3,
                    fingerprint: print(),
                    highest_epoch: WALL,
                    hosted: vec![claim],
                })),
                encode_region(&RegionMessage::ShardStarted { region: own.clone(), shards: vec![drop.clone()] }),
                encode_region(&stopped),
                encode_peer(&PeerMessage::StaleRoute(vec![drop.clone()])),
                order(CoordinatorMessage::ShardHomes(vec![home(ahead, None, None)])),
                order(CoordinatorMessage::HostShard(vec![home(now, Some(ahead), None)])),
                order(CoordinatorMessage::HostShard(vec![home(now, None, Some(attempt))])),
                order(CoordinatorMessage::DropShard { shard: shard.clone(), generation: ahead }),
                order(CoordinatorMessage::BeginHandOff { shard: shard.clone(), generation: now, attempt, owner }),
            ] {
                let read = decode(manifest, bytes, horizon());
                assert!(read == beyond("generation") || read == beyond("attempt"), "{read:?}");
            }
            let stored = |generation, previous| StoredHome {
                region: region(2),
                generation,
                deallocated: false,
                previous,
                leftovers_from: None,
            };
            assert!(decode_home(&encode_home(&stored(ahead, None)), horizon()).is_err());
            assert!(decode_home(&encode_home(&stored(now, Some(ahead))), horizon()).is_err());
        }
    }

    #[test]
    fn stored_records_read_back() {
        let home = StoredHome {
            region: region(2),
            generation: generation(3),
            deallocated: true,
            previous: None,
            leftovers_from: Some(region(1)),
        };
        assert_eq!(decode_home(&encode_home(&home), horizon()), Ok(home));
        let coordinator = CoordinatorId { node: region(1).node, incarnation: 8 };
        let meta = Meta { epoch: 9, coordinator, fingerprint: print() };
        assert_eq!(decode_meta(&encode_meta(&meta), horizon()), Ok(meta));
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_are_refused_without_a_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            for manifest in MANIFESTS.into_iter().chain(["other"]) {
                let _ = decode(manifest, bytes.clone().into(), horizon());
            }
            let _ = decode_home(&bytes, horizon());
            let _ = decode_meta(&bytes, horizon());
        }
    }
}
