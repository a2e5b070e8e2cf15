//! Reports of a producer for operators.

use std::time::{Duration, Instant};

use futures::future::BoxFuture;

use super::report::{ProducerCounts, ProducerKind, ProducerReport, Reporting};
use crate::driver::producer::PublishedEntities;
use crate::driver::sending::{Address, PublishedLinks, PublishedState, Sending, WeakSending, now};
use crate::ids::ProducerId;
use crate::machine::storing::StoringState;

/// Reports a producer without keeping it alive.
pub(in crate::driver::node) struct ProducerReporter<T, A: Address> {
    producer_id: ProducerId,
    to: String,
    is_durable: bool,
    drain_on_drop: Duration,
    sending: WeakSending<T, A>,
}

impl<T, A: Address> ProducerReporter<T, A> {
    /// A producer reported with the target `to`, unless its state names a consumer ([`ReportSource::to`]).
    pub(in crate::driver::node) fn new(
        sending: &Sending<T, A>,
        producer_id: ProducerId,
        to: String,
        drain_on_drop: Duration,
    ) -> Self {
        Self { producer_id, to, is_durable: sending.is_durable(), drain_on_drop, sending: sending.downgrade() }
    }
}

/// The part of a producer's report that is read from the state shown to its handles.
pub(super) trait ReportSource: PublishedState {
    /// The kind of the producer.
    fn kind(&self) -> ProducerKind;

    /// The producer's present consumer; `None` for a producer whose target never changes.
    fn to(&self) -> Option<String> {
        None
    }

    fn counts(&self) -> ProducerCounts;

    fn store(&self) -> StoringState;

    /// Why messages wait, other than for the queue.
    fn waits_for(&self) -> Option<String> {
        None
    }
}

impl ReportSource for PublishedEntities {
    fn kind(&self) -> ProducerKind {
        ProducerKind::Sharding
    }

    fn counts(&self) -> ProducerCounts {
        let stats = &self.stats;
        ProducerCounts {
            links: stats.entities,
            links_with_demand: stats.with_demand,
            waiting: stats.waiting,
            buffered: stats.buffered,
            unconfirmed: stats.unconfirmed,
            oldest_unconfirmed: stats.oldest_unconfirmed.map(age),
            sent: stats.sent,
            resent: stats.resent,
            confirmed: stats.confirmed,
        }
    }

    fn store(&self) -> StoringState {
        self.store
    }
}

impl ReportSource for PublishedLinks {
    fn kind(&self) -> ProducerKind {
        if self.workers.is_some() { ProducerKind::WorkPulling } else { ProducerKind::PointToPoint }
    }

    fn to(&self) -> Option<String> {
        let is_one = self.workers.is_none();
        is_one.then(|| self.consumer.as_ref().map(ToString::to_string).unwrap_or_default())
    }

    fn counts(&self) -> ProducerCounts {
        let stats = &self.stats;
        let links = match &self.workers {
            Some(workers) => workers.number_of_workers,
            None => u64::from(self.consumer.is_some()),
        };
        ProducerCounts {
            links,
            links_with_demand: stats.links_with_demand,
            waiting: stats.waiting,
            buffered: self.workers.map_or(0, |workers| workers.pending),
            unconfirmed: stats.unconfirmed,
            oldest_unconfirmed: self.oldest_unconfirmed.map(age),
            sent: stats.sent,
            resent: stats.resent,
            confirmed: stats.confirmed,
        }
    }

    fn store(&self) -> StoringState {
        self.store
    }

    fn waits_for(&self) -> Option<String> {
        match &self.workers {
            Some(workers) if workers.selectable == 0 && workers.pending > 0 => Some("no worker is there".to_owned()),
            None if self.consumer.is_none() && self.stats.waiting + self.stats.unconfirmed > 0 => {
                Some("no consumer is registered".to_owned())
            }
            _ => None,
        }
    }
}

impl<T, A> Reporting for ProducerReporter<T, A>
where
    T: Send + Sync + 'static,
    A: Address<State: ReportSource>,
{
    fn report(&self) -> Option<ProducerReport> {
        self.sending.published(|published| ProducerReport {
            producer_id: self.producer_id.clone(),
            kind: published.kind(),
            to: published.to().unwrap_or_else(|| self.to.clone()),
            is_durable: self.is_durable,
            trouble: of_store(published.store()).or_else(|| published.waits_for()),
            counts: published.counts(),
        })
    }

    fn end(&self) -> BoxFuture<'static, ()> {
        let Some(sending) = self.sending.upgrade() else { return Box::pin(std::future::ready(())) };
        let (id, to, patience) = (self.producer_id.clone(), self.to.clone(), self.drain_on_drop);
        Box::pin(async move {
            match sending.drain(patience).await {
                Err(left) if sending.is_durable() => {
                    tracing::info!(producer = %id, %to, "producer ends; {left}: kept in its queue");
                }
                Err(left) => tracing::warn!(producer = %id, %to, "producer ends; {left}: dropped"),
                Ok(()) => {}
            }
            sending.close().await;
        })
    }
}

fn age(since: Instant) -> Duration {
    now().saturating_duration_since(since)
}

fn of_store(store: StoringState) -> Option<String> {
    match store {
        StoringState::Loading => Some("its queue is being loaded; senders wait".to_owned()),
        StoringState::Degraded => Some("its queue does not answer and is opened again; senders wait".to_owned()),
        StoringState::InMemory | StoringState::Open | StoringState::Ended => None,
    }
}
