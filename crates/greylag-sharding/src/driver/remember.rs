//! Stores of remembered entities, as used by the shards and the coordinator of one type.
//!
//! A shard opens its part anew with each allocation, and a coordinator its part with each incarnation, so that an
//! earlier one's unfinished work cannot be mistaken for the work of its successor. Source: sharding §4.8.

mod calls;
mod custom;
mod ddata;
mod journal;
mod memory;
mod shard_memory;
mod starter;
mod store;

use std::sync::Arc;

use greylag_crdt::OrSet;
use greylag_ddata::{
    DurableSettings, DurableStore, Membership, Replicator, ReplicatorSettings, StaleStore, StartError, TypeTable,
};
use greylag_transport::Remoting;

pub(crate) use self::calls::StoreCalls;
pub(crate) use self::memory::{Memory, StoreKind};
pub(crate) use self::shard_memory::{LoadError, ShardSet};
pub(crate) use self::starter::StarterTask;
pub use self::store::{InMemoryRememberStore, RememberEntitiesStore, RememberError, RememberStore, ShardTerm};
use crate::settings::ShardingSettings;

/// Opens the place in which a node keeps the durable entries of the named replicator.
pub(crate) type OpenDurable = Box<dyn Fn(&str) -> Arc<dyn DurableStore> + Send + Sync>;

/// The replicator of remembered entities among the nodes that may host types of one role. Separate from that of the
/// coordinators' homes, which must not wait until the data on disk have been loaded and compared.
///
/// # Errors
/// [`StartError`].
pub(crate) fn start_replicator(
    remoting: &Arc<dyn Remoting>,
    membership: Membership,
    role: &str,
    settings: &ShardingSettings,
    open: Option<&OpenDurable>,
) -> Result<Replicator, StartError> {
    let name = if role.is_empty() { "remembered-entities".to_owned() } else { format!("remembered-entities-{role}") };
    let store = open.filter(|_| !settings.remember.durable_keys.is_empty()).map(|open| open(&name));
    let mut durable = DurableSettings { stale_store: StaleStore::Discard, ..DurableSettings::default() };
    if store.is_some() {
        durable.keys.clone_from(&settings.remember.durable_keys);
    }
    let replicator_settings = ReplicatorSettings {
        name,
        roles: Some(role.to_owned()).filter(|role| !role.is_empty()).into_iter().collect(),
        majority_min_cap: settings.majority_min_cap,
        max_delta_elements: 5,
        prefer_oldest: true,
        durable,
        ..ReplicatorSettings::default()
    };
    let types = TypeTable::new().with::<OrSet<String>>();
    match store {
        Some(store) => Replicator::start_durable(replicator_settings, types, remoting.clone(), membership, store),
        None => Replicator::start(replicator_settings, types, remoting.clone(), membership),
    }
}
