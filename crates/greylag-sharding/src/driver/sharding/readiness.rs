//! The readiness of a node, as far as its entity types decide it.
//!
//! Source: sharding §2.3, §6.4.

use std::collections::BTreeMap;
use std::sync::Arc;

use greylag_cluster::Readiness;

use crate::driver::node::clock;
use crate::driver::region::any_region::AnyRegion;
use crate::healthcheck::{HealthCheck, RegionStatus};
use crate::ids::EntityTypeName;
use crate::machine::region::RegionState;

/// Checks all types of a node.
pub(crate) fn readiness(
    regions: &BTreeMap<EntityTypeName, Arc<dyn AnyRegion>>,
    is_up: bool,
    check: &mut HealthCheck,
) -> Readiness {
    let mut not_ready: Vec<_> = regions.values().filter_map(|region| region.not_ready()).collect();
    let status = |name: &str| {
        let region = regions.get(name)?;
        Some(RegionStatus { registered: region.state() == RegionState::Registered, answered: region.has_answered() })
    };
    not_ready.extend(check.check(clock::now(), is_up, status));
    for region in check.names().iter().filter_map(|name| regions.get(name.as_str())) {
        region.ask_liveness();
    }
    Readiness { not_ready, ..Readiness::default() }
}
