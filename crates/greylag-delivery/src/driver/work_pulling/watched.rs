//! A producer of work, as its node watches it: without keeping it alive.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::BoxFuture;

use super::producer::WorkPullingProducer;
use crate::driver::node::{ProducerCounts, ProducerKind, ProducerReport, Reporting};
use crate::driver::sending::{Sending, Shared, WeakSending};
use crate::error::ProducerError;
use crate::ids::{ProducerId, ServiceKey};

/// See the module's documentation.
pub(crate) struct Watched<T> {
    producer_id: ProducerId,
    key: ServiceKey,
    is_durable: bool,
    sending: WeakSending<T>,
    shared: Weak<Shared>,
    drain_on_drop: Duration,
}

impl<T: Send + Sync + 'static> Watched<T> {
    pub(crate) fn new(
        producer: &WorkPullingProducer<T>,
        producer_id: ProducerId,
        key: ServiceKey,
        drain_on_drop: Duration,
    ) -> Self {
        let sending: &Sending<T> = producer.sending();
        let (is_durable, shared) = (sending.is_durable(), Arc::downgrade(&sending.shared));
        Self { producer_id, key, is_durable, sending: sending.downgrade(), shared, drain_on_drop }
    }
}

impl<T: Send + Sync + 'static> Reporting for Watched<T> {
    fn report(&self) -> Option<ProducerReport> {
        let shared = self.shared.upgrade().filter(|shared| shared.is_running())?;
        let (stats, workers) = (shared.stats(), shared.workers());
        let failure = shared.failure().map(|failure| ProducerError::from(failure).to_string());
        let no_workers = (workers.selectable == 0 && workers.pending > 0).then(|| "no worker is there".to_owned());
        Some(ProducerReport {
            producer_id: self.producer_id.clone(),
            kind: ProducerKind::WorkPulling,
            to: self.key.to_string(),
            is_durable: self.is_durable,
            trouble: failure.or(no_workers),
            counts: ProducerCounts {
                links: workers.number_of_workers,
                links_with_demand: stats.links_with_demand,
                waiting: stats.waiting,
                buffered: workers.pending,
                unconfirmed: stats.unconfirmed,
                oldest_unconfirmed: None,
                sent: stats.sent,
                resent: stats.resent,
                confirmed: stats.confirmed,
            },
        })
    }

    fn end(&self) -> BoxFuture<'static, ()> {
        let Some(sending) = self.sending.upgrade() else { return Box::pin(std::future::ready(())) };
        let (id, key, patience, is_durable) =
            (self.producer_id.clone(), self.key.clone(), self.drain_on_drop, self.is_durable);
        Box::pin(async move {
            match sending.drain(patience).await {
                Err(left) if is_durable => {
                    tracing::info!(producer = %id, work = %key, "a producer ends: {left}, and stay in its queue");
                }
                Err(left) => tracing::warn!(producer = %id, work = %key, "a producer ends: {left}, and are given up"),
                Ok(()) => {}
            }
            sending.close().await;
        })
    }
}
