//! Starts the producers and consumers of a node.

#[cfg(feature = "persistence")]
mod outbox;
mod point_to_point;
mod producer;
mod work;

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use greylag_core::Codec;
use greylag_sharding::EntityKey;

use super::node_delivery::NodeDelivery;
use crate::delivery::Delivery;

pub use point_to_point::{StartConsumerController, StartProducerController};
pub use producer::{ProducerName, StartProducer};
pub use work::{StartWorkProducer, StartWorker, WorkKey};

impl NodeDelivery {
    /// A producer of messages for the entities of a type that is set up on this node with delivery, as a host or as a
    /// proxy.
    ///
    /// ```no_run
    /// # use greylag_delivery::{NodeDelivery, ProducerId};
    /// # use greylag_sharding::EntityKey;
    /// # struct Pay { cents: u64 }
    /// # const PAYMENT: EntityKey<Pay> = EntityKey::new("Payment");
    /// # async fn pay(delivery: &NodeDelivery) -> Result<(), Box<dyn std::error::Error>> {
    /// let payments = delivery.producer(PAYMENT, ProducerId::per_node("orders")).start().await?;
    /// payments.send("order-4711", Pay { cents: 990 }).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[allow(clippy::needless_pass_by_value, reason = "keys are constants, and are named as such elsewhere")]
    pub fn producer<T: Send + Sync + 'static>(
        &self,
        key: EntityKey<T>,
        name: impl Into<ProducerName>,
    ) -> StartProducer<T> {
        StartProducer::new(self.clone(), &key, name.into())
    }

    /// The controller of a producer that sends to one consumer at a time, with messages encoded by `codec`. The
    /// controller starts with the settings of the node, appears in `greylag delivery`, and delivers its messages before
    /// the node leaves.
    ///
    /// ```no_run
    /// use greylag_codec::json;
    /// use greylag_delivery::{Dedupe, NodeDelivery, ProducerId};
    ///
    /// # async fn copy(one: &NodeDelivery, other: &NodeDelivery) -> Result<(), Box<dyn std::error::Error>> {
    /// let orders = one.producer_controller(ProducerId::per_node("orders"), json::<String>("order")).durable().start().await?;
    /// let picking = other.consumer_controller("picking", json::<String>("order")).start().await?;
    /// picking.register_to(orders.reference()); // a value that may be sent to other nodes
    ///
    /// orders.start().send("one pear".to_owned()).await?;
    /// let mut deliveries = picking.start(Dedupe::none());
    /// while let Some(order) = deliveries.next().await {
    ///     println!("{}", *order);
    ///     order.confirm();
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn producer_controller<T: Send + Sync + 'static>(
        &self,
        name: impl Into<ProducerName>,
        codec: impl Codec<T>,
    ) -> StartProducerController<T> {
        StartProducerController::new(self.clone(), name.into(), Arc::new(codec))
    }

    /// The controller of a consumer of one producer at a time, with messages decoded by `codec`. Operators see it as
    /// `name`; the counts of several consumers with one name are added up. It is ended in order when the node leaves.
    /// See [`NodeDelivery::producer_controller`].
    pub fn consumer_controller<T: Send + Sync + 'static>(
        &self,
        name: impl Into<String>,
        codec: impl Codec<T>,
    ) -> StartConsumerController<T> {
        StartConsumerController::new(self.clone(), name.into(), Arc::new(codec))
    }

    /// A producer of work: each job goes to any worker of this kind that has capacity, on any node. See [`WorkKey`].
    pub fn work_producer<T: Send + Sync + 'static>(
        &self,
        key: &WorkKey<T>,
        name: impl Into<ProducerName>,
    ) -> StartWorkProducer<T> {
        StartWorkProducer::new(self.clone(), key.clone(), name.into())
    }

    /// A worker on this node: `handler` is called for each job, and confirms the job when it is done. See [`WorkKey`].
    pub fn worker<T, F, Fut, E>(&self, key: &WorkKey<T>, handler: F) -> StartWorker<T, F>
    where
        T: Send + Sync + 'static,
        F: Fn(Delivery<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        StartWorker::new(self.clone(), key.clone(), handler)
    }
}
