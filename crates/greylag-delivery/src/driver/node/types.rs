//! What sets entity types up with delivery: hosted ones by their kind, and proxies.

#[cfg(feature = "persistence")]
mod delivered;
mod layer;
mod plain;

#[cfg(feature = "persistence")]
pub use delivered::EventSourcedDelivery;
pub use layer::{DeliveryTypeSettings, ProxyDelivery};
