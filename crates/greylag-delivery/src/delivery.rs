//! Messages as applications hand them over and get them.
//!
//! A producer's message becomes a [`payload`]. A delivery is a message in the hands of the consumer's application, and
//! reports its outcome to its controller ([`handle`]); several deliveries make a [`batch`]. Entities get deliveries beside
//! other messages ([`with_delivery`]), and event-sourced entities get them as commands ([`command`]).

pub(crate) mod batch;
#[cfg(all(feature = "persistence", feature = "sharding"))]
pub(crate) mod command;
mod handle;
pub(crate) mod payload;
#[cfg(feature = "sharding")]
pub(crate) mod with_delivery;

pub use handle::{ConfirmHandle, Delivery};
pub(crate) use handle::{Outcome, Outcomes};
