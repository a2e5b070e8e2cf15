//! The coordinator's history as bytes of its journal: events, and snapshots of the state that they yield.
//!
//! A record that cannot be read, or whose kind this version does not know, is refused whole: a history with a hole
//! could give a shard a second home. Source: sharding §2.14.

use greylag_core::{DecodeError, Generation};
use prost::Message;

use super::nouns::{
    Fault, Invalid, fingerprint, node, read_epoch, read_fingerprint, read_generation, read_node, read_region,
    read_shard, region,
};
use super::{read_stored_home, read_stored_meta, stored_home, stored_meta};
use crate::error::ReadError;
use crate::generated as proto;
use crate::generated::history_event::{
    Body, EpochStarted, Initialized, Migrated, ShardHomeAllocated, ShardHomeDeallocated, ShardsRemembered,
};
use crate::horizon::Horizon;
use crate::ids::RegionId;
use crate::machine::coordinator::StoredState;
use crate::machine::coordinator::replay::HistoryEvent;
use crate::machine::message::CoordinatorId;

/// Manifest of an event.
pub const EVENT_MANIFEST: &str = "greylag.sharding.coordinator.event";
/// Manifest of a snapshot.
pub const SNAPSHOT_MANIFEST: &str = "greylag.sharding.coordinator.snapshot";
/// Version of both formats.
pub const SCHEMA_VERSION: u32 = 1;

/// The stored form of an event.
pub fn encode_event(event: &HistoryEvent) -> Vec<u8> {
    let leftovers = |from: &Option<RegionId>| from.as_ref().map(region);
    let body = match event {
        HistoryEvent::EpochStarted { epoch, coordinator } => Body::EpochStarted(EpochStarted {
            epoch: *epoch,
            coordinator_node: Some(node(&coordinator.node)),
            coordinator_incarnation: coordinator.incarnation,
        }),
        HistoryEvent::FingerprintRecorded(recorded) => Body::FingerprintRecorded(fingerprint(recorded)),
        HistoryEvent::Initialized => Body::Initialized(Initialized {}),
        HistoryEvent::RegionRegistered(registered) => Body::RegionRegistered(region(registered)),
        HistoryEvent::RegionTerminated(terminated) => Body::RegionTerminated(region(terminated)),
        HistoryEvent::ShardHomeAllocated { shard, region: owner, generation, previous, leftovers_from } => {
            Body::ShardHomeAllocated(ShardHomeAllocated {
                shard: shard.to_string(),
                region: Some(region(owner)),
                generation: generation.as_u64(),
                previous: previous.map(Generation::as_u64),
                leftovers_from: leftovers(leftovers_from),
            })
        }
        HistoryEvent::ShardHomeDeallocated { shard, generation, leftovers_from } => {
            Body::ShardHomeDeallocated(ShardHomeDeallocated {
                shard: shard.to_string(),
                generation: generation.as_u64(),
                leftovers_from: leftovers(leftovers_from),
            })
        }
        HistoryEvent::ShardsRemembered(shards) => {
            Body::ShardsRemembered(ShardsRemembered { shards: shards.iter().map(ToString::to_string).collect() })
        }
        HistoryEvent::Migrated => Body::Migrated(Migrated {}),
    };
    proto::HistoryEvent { body: Some(body) }.encode_to_vec()
}

/// Reads what [`encode_event`] wrote.
///
/// # Errors
/// [`ReadError`], also for an event that only a later version knows.
pub fn decode_event(bytes: &[u8], horizon: Horizon) -> Result<HistoryEvent, ReadError> {
    let event = proto::HistoryEvent::decode(bytes).map_err(|error| DecodeError::malformed(EVENT_MANIFEST, error))?;
    read_event(event, horizon).map_err(|invalid| invalid.of(EVENT_MANIFEST))
}

fn read_event(event: proto::HistoryEvent, horizon: Horizon) -> Result<HistoryEvent, Invalid> {
    let leftovers = |from: Option<proto::Region>| from.map(|from| read_region(Some(from))).transpose();
    Ok(match event.body.ok_or(Invalid("kind of event", Fault::Missing))? {
        Body::EpochStarted(started) => HistoryEvent::EpochStarted {
            epoch: read_epoch(started.epoch, horizon)?,
            coordinator: CoordinatorId {
                node: read_node(started.coordinator_node)?,
                incarnation: started.coordinator_incarnation,
            },
        },
        Body::Initialized(Initialized {}) => HistoryEvent::Initialized,
        Body::FingerprintRecorded(recorded) => HistoryEvent::FingerprintRecorded(read_fingerprint(Some(recorded))?),
        Body::RegionRegistered(registered) => HistoryEvent::RegionRegistered(read_region(Some(registered))?),
        Body::RegionTerminated(terminated) => HistoryEvent::RegionTerminated(read_region(Some(terminated))?),
        Body::ShardHomeAllocated(home) => HistoryEvent::ShardHomeAllocated {
            shard: read_shard(home.shard)?,
            region: read_region(home.region)?,
            generation: read_generation(home.generation, horizon)?,
            previous: home.previous.map(|previous| read_generation(previous, horizon)).transpose()?,
            leftovers_from: leftovers(home.leftovers_from)?,
        },
        Body::ShardHomeDeallocated(ended) => HistoryEvent::ShardHomeDeallocated {
            shard: read_shard(ended.shard)?,
            generation: read_generation(ended.generation, horizon)?,
            leftovers_from: leftovers(ended.leftovers_from)?,
        },
        Body::ShardsRemembered(ShardsRemembered { shards }) => {
            HistoryEvent::ShardsRemembered(shards.into_iter().map(read_shard).collect::<Result<_, Invalid>>()?)
        }
        Body::Migrated(Migrated {}) => HistoryEvent::Migrated,
    })
}

/// The stored form of the state that the events so far yield.
pub fn encode_snapshot(state: &StoredState) -> Vec<u8> {
    let home = |(shard, home): (&crate::ids::ShardId, &crate::machine::coordinator::StoredHome)| {
        proto::history_snapshot::ShardHome { shard: shard.to_string(), home: Some(stored_home(home)) }
    };
    proto::HistorySnapshot {
        meta: state.meta.as_ref().map(stored_meta),
        initialized: state.initialized,
        regions: state.regions.iter().map(region).collect(),
        homes: state.homes.iter().map(home).collect(),
        remembered: state.remembered.iter().map(ToString::to_string).collect(),
        migrated: state.migrated,
    }
    .encode_to_vec()
}

/// Reads what [`encode_snapshot`] wrote.
///
/// # Errors
/// [`ReadError`].
pub fn decode_snapshot(bytes: &[u8], horizon: Horizon) -> Result<StoredState, ReadError> {
    let read =
        proto::HistorySnapshot::decode(bytes).map_err(|error| DecodeError::malformed(SNAPSHOT_MANIFEST, error))?;
    read_snapshot(read, horizon).map_err(|invalid| invalid.of(SNAPSHOT_MANIFEST))
}

fn read_snapshot(read: proto::HistorySnapshot, horizon: Horizon) -> Result<StoredState, Invalid> {
    let home = |one: proto::history_snapshot::ShardHome| {
        let home = one.home.ok_or(Invalid("home", Fault::Missing))?;
        Ok((read_shard(one.shard)?, read_stored_home(home, horizon)?))
    };
    Ok(StoredState {
        meta: read.meta.map(|meta| read_stored_meta(meta, horizon)).transpose()?,
        homes: read.homes.into_iter().map(home).collect::<Result<_, Invalid>>()?,
        regions: read.regions.into_iter().map(|one| read_region(Some(one))).collect::<Result<_, Invalid>>()?,
        initialized: read.initialized,
        remembered: read.remembered.into_iter().map(read_shard).collect::<Result<_, Invalid>>()?,
        migrated: read.migrated,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::{Fingerprint, StateStoreMode};
    use crate::ids::ShardId;
    use crate::machine::coordinator::{Meta, StoredHome};

    fn horizon() -> Horizon {
        Horizon::after(1_000)
    }

    fn owner(n: u64) -> RegionId {
        RegionId { node: format!("n{n}:1#{n}").parse().unwrap(), incarnation: n }
    }

    fn generation(seq: u64) -> Generation {
        Generation::new(7, seq).unwrap()
    }

    fn print() -> Fingerprint {
        Fingerprint {
            protocol_major: 1,
            type_name: "Cart".into(),
            extractor: ("HashV1".into(), 1),
            number_of_shards: 12,
            remember_entities: false,
            remember_entities_store: "ddata".into(),
            state_store_mode: StateStoreMode::Persistence,
            role: "shop".into(),
            codec: vec!["2:cart".into()],
        }
    }

    fn coordinator() -> CoordinatorId {
        CoordinatorId { node: owner(1).node, incarnation: 8 }
    }

    fn events() -> Vec<HistoryEvent> {
        let shard = ShardId::from_index(3);
        let allocated = |previous, leftovers_from| HistoryEvent::ShardHomeAllocated {
            shard: shard.clone(),
            region: owner(2),
            generation: generation(4),
            previous,
            leftovers_from,
        };
        let ended = |leftovers_from| HistoryEvent::ShardHomeDeallocated {
            shard: shard.clone(),
            generation: generation(4),
            leftovers_from,
        };
        vec![
            HistoryEvent::EpochStarted { epoch: 7, coordinator: coordinator() },
            HistoryEvent::FingerprintRecorded(print()),
            HistoryEvent::Initialized,
            HistoryEvent::RegionRegistered(owner(2)),
            HistoryEvent::RegionTerminated(owner(2)),
            allocated(None, None),
            allocated(Some(generation(2)), Some(owner(1))),
            ended(None),
            ended(Some(owner(2))),
            HistoryEvent::ShardsRemembered([shard.clone(), ShardId::from_index(4)].into()),
            HistoryEvent::Migrated,
        ]
    }

    #[test]
    fn events_read_back() {
        for event in events() {
            assert_eq!(decode_event(&encode_event(&event), horizon()), Ok(event));
        }
    }

    /// The bytes are those of docs/formats/coordinator-journal.md: every later release must read journals of this one.
    #[test]
    fn the_format_is_the_documented_one() {
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let page = include_str!("../../../../docs/formats/coordinator-journal.md");
        let events = events().into_iter().map(|event| (format!("{event:?}"), hex(encode_event(&event))));
        let snapshots = [("snapshot", state()), ("migrated snapshot", migrated())];
        let snapshots = snapshots.map(|(name, state)| (name.to_owned(), hex(encode_snapshot(&state))));
        let all = events.chain(snapshots);
        let missing: Vec<_> = all.filter(|(_, bytes)| !page.contains(&format!("`{bytes}`"))).collect();
        assert!(missing.is_empty(), "not on the page: {missing:#?}");
    }

    fn state() -> StoredState {
        let home = StoredHome {
            region: owner(2),
            generation: generation(4),
            deallocated: true,
            previous: None,
            leftovers_from: Some(owner(2)),
        };
        StoredState {
            meta: Some(Meta { epoch: 7, coordinator: coordinator(), fingerprint: print() }),
            homes: [(ShardId::from_index(3), home)].into(),
            regions: [owner(1), owner(2)].into(),
            initialized: true,
            ..StoredState::default()
        }
    }

    /// A state after homes were moved out of the journal.
    fn migrated() -> StoredState {
        let remembered = [ShardId::from_index(3), ShardId::from_index(4)].into();
        StoredState { homes: Default::default(), regions: Default::default(), remembered, migrated: true, ..state() }
    }

    #[test]
    fn snapshots_read_back() {
        for state in [state(), migrated(), StoredState::default()] {
            assert_eq!(decode_snapshot(&encode_snapshot(&state), horizon()), Ok(state));
        }
    }

    /// Field 15 is the kind of an event that a later version might write.
    #[test]
    fn an_event_of_a_later_version_is_refused() {
        assert!(decode_event(&[0x7a, 0x00], horizon()).is_err());
        assert!(decode_event(&[], horizon()).is_err());
    }

    #[test]
    fn numbers_beyond_the_horizon_are_refused() {
        let ahead = HistoryEvent::EpochStarted { epoch: 1 << 33, coordinator: coordinator() };
        assert!(decode_event(&encode_event(&ahead), horizon()).is_err());
        let ahead = HistoryEvent::ShardHomeDeallocated {
            shard: ShardId::from_index(1),
            generation: Generation::new(1 << 33, 1).unwrap(),
            leftovers_from: None,
        };
        assert!(decode_event(&encode_event(&ahead), horizon()).is_err());
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_are_refused_without_a_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = decode_event(&bytes, horizon());
            let _ = decode_snapshot(&bytes, horizon());
        }
    }
}
