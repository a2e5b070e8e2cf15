//! The consumers and workers of a node: counts for the node's report, and their end with the node.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use futures::future::BoxFuture;

use super::report::ConsumersReport;
use crate::driver::consumer::counters::{DeliveryCounters, DeliverySnapshot};
use crate::driver::point_to_point::ConsumerShutdown;
use crate::driver::work_pulling::WorkerShutdown;

/// Ends a consumer or worker of the node in order.
pub(in crate::driver::node) trait ShutdownHandle: Send + Sync {
    /// Whether the consumer or worker has ended.
    fn has_ended(&self) -> bool;

    /// Ends the consumer or worker, and waits until it has ended.
    fn end(&self) -> BoxFuture<'static, ()>;
}

impl<T: Send + Sync + 'static> ShutdownHandle for ConsumerShutdown<T> {
    fn has_ended(&self) -> bool {
        ConsumerShutdown::has_ended(self)
    }

    fn end(&self) -> BoxFuture<'static, ()> {
        self.clone().end().boxed()
    }
}

impl ShutdownHandle for WorkerShutdown {
    fn has_ended(&self) -> bool {
        self.has_stopped()
    }

    fn end(&self) -> BoxFuture<'static, ()> {
        let shutdown = self.clone();
        async move { shutdown.stop().await }.boxed()
    }
}

/// See the module's documentation.
#[derive(Default)]
pub(in crate::driver::node) struct ConsumerRegistry(Mutex<State>);

#[derive(Default)]
struct State {
    running: Vec<Consumer>,
    /// Counts of ended consumers, by name, so that the counts in the report never fall.
    ended: BTreeMap<String, DeliverySnapshot>,
}

struct Consumer {
    name: String,
    counters: DeliveryCounters,
    shutdown: Box<dyn ShutdownHandle>,
}

impl State {
    fn remove_ended(&mut self) {
        for consumer in self.running.extract_if(.., |consumer| consumer.shutdown.has_ended()) {
            let counted = self.ended.entry(consumer.name).or_default();
            *counted = counted.plus(consumer.counters.snapshot());
        }
    }
}

impl ConsumerRegistry {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a consumer or worker under `name`.
    pub(in crate::driver::node) fn add(
        &self,
        name: String,
        counters: DeliveryCounters,
        shutdown: impl ShutdownHandle + 'static,
    ) {
        let mut state = self.lock();
        state.remove_ended();
        state.running.push(Consumer { name, counters, shutdown: Box::new(shutdown) });
    }

    /// The counts of all consumers of each name, added up.
    pub(in crate::driver::node) fn report(&self) -> Vec<ConsumersReport> {
        let mut state = self.lock();
        state.remove_ended();
        let mut all = state.ended.clone();
        for consumer in &state.running {
            let counted = all.entry(consumer.name.clone()).or_default();
            *counted = counted.plus(consumer.counters.snapshot());
        }
        all.into_iter().map(|(name, counts)| ConsumersReport { name, counts }).collect()
    }

    /// Ends every running consumer and worker.
    pub(in crate::driver::node) fn end(&self) -> Vec<BoxFuture<'static, ()>> {
        self.lock().running.iter().map(|consumer| consumer.shutdown.end()).collect()
    }
}
