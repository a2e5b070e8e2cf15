//! Every key, section by section. `docs/configuration.md` is made from these tables.

mod cluster;
#[cfg(feature = "ddata")]
mod ddata;
#[cfg(feature = "delivery")]
mod delivery;
mod discovery;
mod downing;
#[cfg(feature = "sharding")]
mod entities;
#[cfg(feature = "persistence")]
mod journal;
#[cfg(feature = "management")]
mod management;
#[cfg(feature = "persistence")]
mod persistence;
#[cfg(feature = "sharding")]
mod sharding;
mod shutdown;
mod transport;

use super::key::Key;

/// The sections, in the order in which they are documented.
pub(super) const SECTIONS: [(&str, &str); 7] = [
    ("transport", "Links between nodes."),
    ("cluster", "Membership, failure detection, downing, singletons."),
    ("ddata", "Replicated data."),
    (
        "persistence",
        "What behaviours that persist start from, the journal that the node opens, its breakers, queries and projections.",
    ),
    ("sharding", "The defaults of all entity types."),
    ("delivery", "Reliable delivery: what `NodeSettings::delivery` holds."),
    ("management", "The admin service, which the command line `greylag` calls."),
];

/// All keys of the sections that are compiled in.
pub(super) fn all() -> Vec<Key> {
    let mut keys = transport::keys();
    keys.extend(cluster::keys());
    keys.extend(discovery::keys());
    keys.extend(downing::keys());
    keys.extend(shutdown::keys());
    #[cfg(feature = "ddata")]
    keys.extend(ddata::keys());
    #[cfg(feature = "persistence")]
    keys.extend(persistence::keys());
    #[cfg(feature = "persistence")]
    keys.extend(journal::keys());
    #[cfg(feature = "sharding")]
    keys.extend(sharding::keys());
    #[cfg(feature = "sharding")]
    keys.extend(entities::keys());
    #[cfg(feature = "delivery")]
    keys.extend(delivery::keys());
    #[cfg(feature = "management")]
    keys.extend(management::keys());
    keys
}
