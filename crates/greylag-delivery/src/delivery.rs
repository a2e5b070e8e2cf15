//! Messages as applications hand them over and get them.
//!
//! A producer's message becomes a [`payload`]. A [`handle`] brings it to the consumer, and the outcome back;
//! several make a [`batch`]. Entities get deliveries beside other messages ([`with_delivery`]), and event-sourced ones as
//! commands ([`command`]).

pub(crate) mod batch;
#[cfg(all(feature = "persistence", feature = "sharding"))]
pub(crate) mod command;
mod handle;
pub(crate) mod payload;
#[cfg(feature = "sharding")]
pub(crate) mod with_delivery;

pub use handle::{ConfirmHandle, Delivery};
pub(crate) use handle::{Outcome, Outcomes};
