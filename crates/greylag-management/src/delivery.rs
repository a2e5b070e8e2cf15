//! Reliable delivery as the service shows it. The node's delivery layer implements [`Delivery`], because this crate
//! knows the cluster but no producers.

use crate::v1;

/// Reliable delivery on one node.
pub trait Delivery: Send + Sync + 'static {
    /// The node's present producers and consumers. Must not block.
    fn report(&self) -> v1::DeliveryReply;
}
