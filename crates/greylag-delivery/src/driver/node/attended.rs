//! The consumers and workers of a node: counts for the node's report, and their end with the node.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use futures::future::BoxFuture;

use super::report::ConsumersReport;
use crate::counters::{DeliveryCounters, DeliverySnapshot};
use crate::driver::point_to_point::Ending;
use crate::driver::work_pulling::Stopping;

/// Ends a consumer or worker of the node in order.
pub(super) trait Ends: Send + Sync {
    /// Whether the consumer or worker has ended.
    fn has_ended(&self) -> bool;

    /// Ends the consumer or worker, and waits until it has ended.
    fn end(&self) -> BoxFuture<'static, ()>;
}

impl<T: Send + Sync + 'static> Ends for Ending<T> {
    fn has_ended(&self) -> bool {
        Ending::has_ended(self)
    }

    fn end(&self) -> BoxFuture<'static, ()> {
        self.clone().end().boxed()
    }
}

impl Ends for Stopping {
    fn has_ended(&self) -> bool {
        self.has_stopped()
    }

    fn end(&self) -> BoxFuture<'static, ()> {
        let stopping = self.clone();
        async move { stopping.stop().await }.boxed()
    }
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Attended(Mutex<State>);

#[derive(Default)]
struct State {
    running: Vec<Consumer>,
    /// Counts of ended consumers, by name, so that the counts in the report never fall.
    ended: BTreeMap<String, DeliverySnapshot>,
}

struct Consumer {
    name: String,
    counters: DeliveryCounters,
    ends: Box<dyn Ends>,
}

impl State {
    fn settle(&mut self) {
        for consumer in self.running.extract_if(.., |consumer| consumer.ends.has_ended()) {
            let counted = self.ended.entry(consumer.name).or_default();
            *counted = counted.plus(consumer.counters.snapshot());
        }
    }
}

impl Attended {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a consumer or worker under `name`.
    pub(super) fn add(&self, name: String, counters: DeliveryCounters, ends: impl Ends + 'static) {
        let mut state = self.lock();
        state.settle();
        state.running.push(Consumer { name, counters, ends: Box::new(ends) });
    }

    /// The counts of all consumers of each name, added up.
    pub(super) fn report(&self) -> Vec<ConsumersReport> {
        let mut state = self.lock();
        state.settle();
        let mut all = state.ended.clone();
        for consumer in &state.running {
            let counted = all.entry(consumer.name.clone()).or_default();
            *counted = counted.plus(consumer.counters.snapshot());
        }
        all.into_iter().map(|(name, counts)| ConsumersReport { name, counts }).collect()
    }

    /// Ends every running consumer and worker.
    pub(super) fn end(&self) -> Vec<BoxFuture<'static, ()>> {
        self.lock().running.iter().map(|consumer| consumer.ends.end()).collect()
    }
}
