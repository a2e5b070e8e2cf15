//! Conversion between protobuf and the nouns that several messages have.

use greylag_core::{DecodeError, Generation, NodeAddress, Uid, UniqueAddress};

use crate::error::ReadError;
use crate::fingerprint::{Fingerprint, StateStoreMode};
use crate::generated as proto;
use crate::horizon::Horizon;
use crate::ids::{RegionId, ShardId};
use crate::machine::message::{Attempt, Epoch};

/// The fault of the field that made a message unreadable.
pub(super) enum Fault {
    Missing,
    BeyondReach,
}

/// The field that made a message unreadable.
pub(super) struct Invalid(pub(super) &'static str, pub(super) Fault);

impl Invalid {
    pub(super) fn of(self, manifest: &str) -> ReadError {
        match self {
            Self(what, Fault::Missing) => {
                DecodeError::malformed(manifest, format!("{what} is missing or invalid")).into()
            }
            Self(what, Fault::BeyondReach) => ReadError::BeyondReach(what),
        }
    }
}

pub(super) fn node(address: &UniqueAddress) -> proto::Node {
    proto::Node {
        host: address.address().host().to_owned(),
        port: address.address().port().into(),
        uid: address.uid().get(),
    }
}

pub(super) fn read_node(node: Option<proto::Node>) -> Result<UniqueAddress, Invalid> {
    let node = node.ok_or(Invalid("node", Fault::Missing))?;
    let port = u16::try_from(node.port).map_err(|_| Invalid("port", Fault::Missing))?;
    let address = NodeAddress::new(&node.host, port).map_err(|_| Invalid("node address", Fault::Missing))?;
    Ok(UniqueAddress::new(address, Uid::new(node.uid).ok_or(Invalid("uid", Fault::Missing))?))
}

pub(super) fn region(region: &RegionId) -> proto::Region {
    proto::Region { node: Some(node(&region.node)), incarnation: region.incarnation }
}

pub(super) fn read_region(region: Option<proto::Region>) -> Result<RegionId, Invalid> {
    let region = region.ok_or(Invalid("region", Fault::Missing))?;
    Ok(RegionId { node: read_node(region.node)?, incarnation: region.incarnation })
}

pub(super) fn read_regions(regions: Vec<proto::Region>) -> Result<Vec<RegionId>, Invalid> {
    regions.into_iter().map(|region| read_region(Some(region))).collect()
}

pub(super) fn read_shard(shard: String) -> Result<ShardId, Invalid> {
    ShardId::new(shard).map_err(|_| Invalid("shard", Fault::Missing))
}

pub(super) fn names<'a>(shards: impl IntoIterator<Item = &'a ShardId>) -> Vec<String> {
    shards.into_iter().map(ToString::to_string).collect()
}

pub(super) fn read_names<C: FromIterator<ShardId>>(shards: Vec<String>) -> Result<C, Invalid> {
    shards.into_iter().map(read_shard).collect()
}

pub(super) fn read_generation(generation: u64, horizon: Horizon) -> Result<Generation, Invalid> {
    horizon.generation(generation).ok_or(Invalid("generation", Fault::BeyondReach))
}

pub(super) fn read_epoch(epoch: Epoch, horizon: Horizon) -> Result<Epoch, Invalid> {
    horizon.epoch(epoch).ok_or(Invalid("epoch", Fault::BeyondReach))
}

pub(super) fn read_attempt(attempt: u64, horizon: Horizon) -> Result<Attempt, Invalid> {
    horizon.attempt(attempt).ok_or(Invalid("attempt", Fault::BeyondReach))
}

pub(super) fn generations(shards: &[(ShardId, Generation)]) -> Vec<proto::ShardGeneration> {
    let one = |(shard, generation): &(ShardId, Generation)| proto::ShardGeneration {
        shard: shard.to_string(),
        generation: generation.as_u64(),
    };
    shards.iter().map(one).collect()
}

pub(super) fn read_generations(
    shards: Vec<proto::ShardGeneration>,
    horizon: Horizon,
) -> Result<Vec<(ShardId, Generation)>, Invalid> {
    shards.into_iter().map(|one| Ok((read_shard(one.shard)?, read_generation(one.generation, horizon)?))).collect()
}

pub(super) fn fingerprint(own: &Fingerprint) -> proto::Fingerprint {
    proto::Fingerprint {
        protocol_major: own.protocol_major,
        type_name: own.type_name.clone(),
        extractor_name: own.extractor.0.clone(),
        extractor_version: own.extractor.1,
        number_of_shards: own.number_of_shards,
        remember_entities: own.remember_entities,
        remember_entities_store: own.remember_entities_store.clone(),
        state_store_mode: match own.state_store_mode {
            StateStoreMode::Ddata => 0,
            StateStoreMode::Persistence => 1,
        },
        role: own.role.clone(),
        codec: own.codec.clone(),
    }
}

pub(super) fn read_fingerprint(read: Option<proto::Fingerprint>) -> Result<Fingerprint, Invalid> {
    let read = read.ok_or(Invalid("fingerprint", Fault::Missing))?;
    Ok(Fingerprint {
        protocol_major: read.protocol_major,
        type_name: read.type_name,
        extractor: (read.extractor_name, read.extractor_version),
        number_of_shards: read.number_of_shards,
        remember_entities: read.remember_entities,
        remember_entities_store: read.remember_entities_store,
        state_store_mode: match read.state_store_mode {
            0 => StateStoreMode::Ddata,
            1 => StateStoreMode::Persistence,
            _ => return Err(Invalid("state store mode", Fault::Missing)),
        },
        role: read.role,
        codec: read.codec,
    })
}
