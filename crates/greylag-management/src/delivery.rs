//! What the service shows of reliable delivery. The node's delivery layer implements [`Delivery`], because this crate knows
//! the cluster and no producers.

use crate::v1;

/// Reliable delivery on one node.
pub trait Delivery: Send + Sync + 'static {
    /// The node's producers and consumers now. Answers at once.
    fn report(&self) -> v1::DeliveryReply;
}
