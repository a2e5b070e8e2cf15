//! A sharding producer as operators see it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;

use super::{Command, ShardingProducer, SharedState, lock};
use crate::driver::entrance::WeakEntrance;
use crate::driver::node::{ProducerCounts, ProducerKind, ProducerReport, Reporting};
use crate::ids::ProducerId;
use crate::machine::sharding_producer::ProducerStats;
use crate::machine::storing::StoringState;

/// A producer whose end is not put off by being watched.
pub(in crate::driver) struct Watched<T> {
    producer_id: ProducerId,
    entity_type: String,
    shared: Weak<SharedState<T>>,
    entrance: WeakEntrance<Command<T>>,
    drain_on_drop: Duration,
}

impl<T> ShardingProducer<T> {
    /// This producer, of these names, to be watched.
    pub(in crate::driver) fn watched(
        &self,
        producer_id: ProducerId,
        entity_type: String,
        drain_on_drop: Duration,
    ) -> Watched<T> {
        let (shared, entrance) = (Arc::downgrade(&self.shared), self.entrance.downgrade());
        Watched { producer_id, entity_type, shared, entrance, drain_on_drop }
    }
}

impl<T: Send + Sync + 'static> Reporting for Watched<T> {
    fn report(&self) -> Option<ProducerReport> {
        let shared = self.shared.upgrade().filter(|shared| shared.is_running.load(Ordering::Relaxed))?;
        let seen = lock(&shared.seen);
        let (stats, store) = (seen.stats, seen.store);
        drop(seen);
        Some(ProducerReport {
            producer_id: self.producer_id.clone(),
            kind: ProducerKind::Sharding,
            to: self.entity_type.clone(),
            is_durable: shared.is_durable,
            trouble: trouble(store),
            counts: counts(stats, Instant::now()),
        })
    }

    fn end(&self) -> BoxFuture<'static, ()> {
        let (Some(shared), Some(entrance)) = (self.shared.upgrade(), self.entrance.upgrade()) else {
            return Box::pin(std::future::ready(()));
        };
        let (producer, patience) = (ShardingProducer { entrance, shared }, self.drain_on_drop);
        let (id, entity_type) = (self.producer_id.clone(), self.entity_type.clone());
        Box::pin(async move {
            match producer.drain(patience).await {
                Err(left) if producer.shared.is_durable => {
                    tracing::info!(producer = %id, %entity_type, "a producer ends: {left}, and stay in its queue");
                }
                Err(left) => tracing::warn!(producer = %id, %entity_type, "a producer ends: {left}, and are given up"),
                Ok(()) => {}
            }
            producer.close().await;
        })
    }
}

fn trouble(store: StoringState) -> Option<String> {
    match store {
        StoringState::Loading => Some("its queue is being loaded; senders wait".to_owned()),
        StoringState::Degraded => Some("its queue does not answer and is opened again; senders wait".to_owned()),
        StoringState::InMemory | StoringState::Open | StoringState::Ended => None,
    }
}

fn counts(stats: ProducerStats, now: Instant) -> ProducerCounts {
    ProducerCounts {
        links: stats.entities,
        links_with_demand: stats.with_demand,
        waiting: stats.waiting,
        buffered: stats.buffered,
        unconfirmed: stats.unconfirmed,
        oldest_unconfirmed: stats.oldest_unconfirmed.map(|since| now.saturating_duration_since(since)),
        sent: stats.sent,
        resent: stats.resent,
        confirmed: stats.confirmed,
    }
}
