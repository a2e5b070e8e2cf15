//! The cluster of the tests of single machines: an entity type, and members that are Up.

#![allow(dead_code, unreachable_pub, reason = "each of the programs that include this file uses a part")]

use std::collections::BTreeSet;
use std::sync::Arc;

use greylag_cluster::AppVersion;
use greylag_sharding::Omissions;
use greylag_sharding::fingerprint::{Fingerprint, StateStoreMode};
use greylag_sharding::ids::RegionId;
use greylag_sharding::machine::membership::{MemberFacts, MemberPhase};
use greylag_sharding::machine::region::RegionConfig;
use greylag_sharding::settings::ShardingSettings;
use greylag_transport::Lane;

/// A type of `number_of_shards` shards that every node hosts.
pub fn fingerprint(number_of_shards: u32) -> Fingerprint {
    Fingerprint {
        protocol_major: 1,
        type_name: "Entity".into(),
        extractor: ("HashV1".into(), 1),
        number_of_shards,
        remember_entities: false,
        remember_entities_store: "ddata".into(),
        state_store_mode: StateStoreMode::Ddata,
        role: String::new(),
        codec: Vec::new(),
    }
}

/// A region of that type, in twelve shards, by the settings of tests.
pub fn config(id: RegionId) -> RegionConfig {
    RegionConfig {
        id,
        proxy: false,
        fingerprint: fingerprint(12),
        coordinator_role: String::new(),
        settings: ShardingSettings::test(),
        lane_of: Arc::new(|_| Lane::ordinary(0)),
        omissions: Omissions::default(),
    }
}

/// A reachable member that is Up. The smallest number is the oldest member's.
pub fn up(up_number: u32) -> MemberFacts {
    MemberFacts {
        phase: MemberPhase::Up,
        up_number,
        reachable: true,
        roles: BTreeSet::new(),
        app_version: AppVersion::default(),
    }
}
