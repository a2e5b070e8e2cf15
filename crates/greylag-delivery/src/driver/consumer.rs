//! Consumer controllers inside entities, and their state as operators see it.
//!
//! Source: delivery §3.2, §6 (observability), §9.

#[cfg(feature = "sharding")]
mod answers;
#[cfg(feature = "sharding")]
mod controller;
pub(crate) mod counters;
mod event;
#[cfg(feature = "sharding")]
mod node_removals;
#[cfg(feature = "sharding")]
mod of_type;
mod operator_state;
mod undecodable;

use std::sync::Arc;

use crate::delivery::Outcomes;

#[cfg(feature = "sharding")]
pub(crate) use controller::Controller;
pub use event::{DeliveryEvent, DeliveryEvents, DeliveryHealth};
#[cfg(feature = "sharding")]
pub use of_type::ConsumerDelivery;
pub(crate) use operator_state::OperatorState;
pub use undecodable::Undecodable;

/// Resolves when a delivery was confirmed or given up.
pub(crate) async fn changed(outcomes: Arc<Outcomes>) {
    std::future::poll_fn(|cx| outcomes.poll_changed(cx)).await;
}
