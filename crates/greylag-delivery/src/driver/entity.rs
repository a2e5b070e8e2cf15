//! Entities under delivery: the trait and the host of entities with handlers, event-sourced entities, and outboxes.

#[cfg(feature = "persistence")]
mod event_sourced;
mod host;
#[cfg(feature = "persistence")]
mod outbox;

#[cfg(feature = "persistence")]
pub use event_sourced::DeliveryEffects;
#[cfg(feature = "persistence")]
pub(crate) use event_sourced::delivery_host;
pub use host::{DeliveryEntity, DeliveryType};
pub(crate) use host::{DeliveryHost, Factory, is_activity};
#[cfg(feature = "persistence")]
pub use outbox::{EntityOutbox, EntityOutboxQueue, OutboxRequest, WithOutbox};
