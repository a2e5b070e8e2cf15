//! Stateful entities spread over many nodes: found by name, kept alive through crashes, never alive
//! twice.
//!
//! The facade puts the layers together; each is a crate of its own and can be used alone.

mod builder;
mod node;
pub mod prelude;
mod settings;

pub use builder::{NodeBuilder, StartError};
pub use node::Node;
pub use settings::NodeSettings;

pub use greylag_cluster as cluster;
pub use greylag_codec as codec;
pub use greylag_core as core;
#[cfg(feature = "ddata")]
pub use greylag_crdt as crdt;
#[cfg(feature = "ddata")]
pub use greylag_ddata as ddata;
#[cfg(feature = "delivery")]
pub use greylag_delivery as delivery;
#[cfg(feature = "journal-service")]
pub use greylag_journal_service as journal_service;
#[cfg(feature = "journal-sled")]
pub use greylag_journal_sled as journal_sled;
#[cfg(feature = "persistence")]
pub use greylag_persistence as persistence;
#[cfg(feature = "sharding")]
pub use greylag_sharding as sharding;
pub use greylag_transport as transport;
