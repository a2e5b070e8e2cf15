//! State of delivery on a node; kept among the extensions of the node's sharding.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use greylag_core::Codec;
use greylag_sharding::{EntityKey, Extensions, Sharding};

use super::registry::{ConsumerRegistry, ConsumersReport, DeliveryReport, Outboxes, ProducerReport, Reporting};
use crate::delivery::with_delivery::WithDelivery;
use crate::driver::consumer::ConsumerDelivery;
use crate::driver::consumer::counters::DeliveryCounters;
use crate::driver::region::Downstream;
use crate::driver::work_pulling::{LocalWorkerDirectory, WorkerDirectory};
use crate::error::StartError;
use crate::settings::{DeliverySettings, SettingsError};

/// See the module's documentation.
pub(crate) struct NodeState {
    settings: DeliverySettings,
    types: Mutex<BTreeMap<String, Type>>,
    producers: Mutex<Vec<Box<dyn Reporting>>>,
    workers: Mutex<Workers>,
    consumer_registry: ConsumerRegistry,
    outboxes: Outboxes,
}

/// The directory of workers, opened at its first use.
enum Workers {
    Unopened(Box<OpenWorkers>),
    Open(Arc<dyn WorkerDirectory>),
    Failed(String),
}

pub(crate) type OpenWorkers = dyn FnOnce() -> Result<Arc<dyn WorkerDirectory>, String> + Send;

const BEING_OPENED: &str = "the directory is being opened by another call";

/// An entity type under delivery.
#[derive(Clone)]
struct Type {
    consumers: ConsumerDelivery,
    /// An `Arc<ProducerTarget<T>>`, once the type is set up.
    producer_target: Option<Arc<dyn Any + Send + Sync>>,
}

/// Codec and region of an entity type, as a producer needs them.
pub(crate) struct ProducerTarget<T> {
    /// The codec of deliveries.
    pub(crate) codec: Option<Arc<dyn Codec<T>>>,
    /// Looks the type's region up. The region itself is not kept here: it would keep its own node alive.
    find: Box<Find<T>>,
}

type Find<T> = dyn Fn(&Sharding) -> Option<Arc<dyn Downstream<T>>> + Send + Sync;

impl<T> ProducerTarget<T> {
    /// The region of the type, while it is set up.
    pub(crate) fn region(&self, sharding: &Sharding) -> Option<Arc<dyn Downstream<T>>> {
        (self.find)(sharding)
    }
}

impl NodeState {
    /// The state kept for a node; made with default settings if there is none yet.
    pub(crate) fn of(extensions: &Extensions) -> Arc<Self> {
        extensions.get().unwrap_or_else(|| extensions.get_or_insert(Self::new(DeliverySettings::default())))
    }

    pub(crate) fn new(settings: DeliverySettings) -> Self {
        let workers = Mutex::new(Workers::Open(Arc::new(LocalWorkerDirectory::new())));
        let (types, producers, consumer_registry) = (Mutex::default(), Mutex::default(), ConsumerRegistry::default());
        Self { settings, types, producers, workers, consumer_registry, outboxes: Outboxes::default() }
    }

    pub(crate) fn settings(&self) -> &DeliverySettings {
        &self.settings
    }

    /// Changes the settings by which entities of a type take deliveries here. Only the first change of a type applies,
    /// so that running entities keep their settings.
    pub(crate) fn change_settings(
        &self,
        name: &str,
        change: &(dyn Fn(&mut DeliverySettings) + Send + Sync),
    ) -> Result<(), SettingsError> {
        // Not under the lock: `change` is code of the program.
        let mut settings = self.settings.clone();
        change(&mut settings);
        let consumers = ConsumerDelivery::new(&settings)?;
        self.lock().entry(name.to_owned()).or_insert(Type { consumers, producer_target: None });
        Ok(())
    }

    /// Settings and shared state of the type's consumers; with the settings of the node if the type has none of its
    /// own.
    pub(crate) fn consumers(&self, name: &str) -> ConsumerDelivery {
        self.of_type(&mut self.lock(), name).consumers.clone()
    }

    pub(crate) fn known_consumers(&self, name: &str) -> Option<ConsumerDelivery> {
        self.lock().get(name).map(|known| known.consumers.clone())
    }

    pub(crate) fn counters(&self, name: &str) -> Option<DeliveryCounters> {
        self.lock().get(name).map(|known| known.consumers.counters().clone())
    }

    /// Registers a type that was set up, whose region carries `WithDelivery<T, Q>`.
    pub(crate) fn add<T, Q>(&self, name: &str, codec: Option<Arc<dyn Codec<T>>>)
    where
        T: Send + Sync + 'static,
        Q: Send + 'static,
    {
        let key = name.to_owned();
        let find: Box<Find<T>> = Box::new(move |sharding| {
            let region = sharding.region(EntityKey::<WithDelivery<T, Q>>::named(key.clone())).ok()?;
            Some(Arc::new(region))
        });
        let producer_target: Arc<dyn Any + Send + Sync> = Arc::new(ProducerTarget { codec, find });
        let mut types = self.lock();
        let former = self.of_type(&mut types, name).producer_target.replace(producer_target);
        drop(types);
        // Not under the lock: the value may hold the last handle to a codec of the program.
        drop(former);
    }

    /// Codec and region of the type for a producer of `T`s; `None` if the type is not set up here, or delivers another
    /// message type.
    pub(crate) fn producer_target<T: 'static>(&self, name: &str) -> Option<Arc<ProducerTarget<T>>> {
        let known = self.lock().get(name)?.producer_target.clone()?;
        known.downcast().ok()
    }

    /// Sets the directory by which producers and workers of this node find each other.
    pub(crate) fn find_workers_by(&self, open: Box<OpenWorkers>) {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let former = std::mem::replace(&mut *workers, Workers::Unopened(open));
        drop(workers);
        drop(former);
    }

    /// The directory of workers, opened at the first call. A failed attempt to open is final.
    pub(crate) fn workers(&self) -> Result<Arc<dyn WorkerDirectory>, StartError> {
        let known = |workers: &Workers| match workers {
            Workers::Open(directory) => Some(Ok(directory.clone())),
            Workers::Failed(why) => Some(Err(StartError::NoWorkerDirectory { why: why.clone() })),
            Workers::Unopened(_) => None,
        };
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known(&workers) {
            return known;
        }
        let Workers::Unopened(open) = std::mem::replace(&mut *workers, Workers::Failed(BEING_OPENED.to_owned())) else {
            return Err(StartError::NoWorkerDirectory { why: BEING_OPENED.to_owned() });
        };
        drop(workers);
        let opened = open();
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        *workers = match opened {
            Ok(directory) => Workers::Open(directory),
            Err(why) => Workers::Failed(why),
        };
        known(&workers).unwrap_or(Err(StartError::NoWorkerDirectory { why: BEING_OPENED.to_owned() }))
    }

    /// Adds a producer that was started here to the report.
    pub(crate) fn watch(&self, producer: Box<dyn Reporting>) {
        let mut producers = self.producers.lock().unwrap_or_else(PoisonError::into_inner);
        producers.retain(|known| known.report().is_some());
        producers.push(producer);
    }

    /// The consumers and workers that were started here.
    pub(super) fn consumer_registry(&self) -> &ConsumerRegistry {
        &self.consumer_registry
    }

    /// The outboxes of the entities of this node.
    #[cfg(feature = "persistence")]
    pub(super) fn outboxes(&self) -> &Outboxes {
        &self.outboxes
    }

    /// Ends the producers that were started here.
    pub(crate) fn end_producers(&self) -> Vec<BoxFuture<'static, ()>> {
        let producers = std::mem::take(&mut *self.producers.lock().unwrap_or_else(PoisonError::into_inner));
        producers.iter().map(|producer| producer.end()).collect()
    }

    /// The report of delivery on this node.
    pub(crate) fn report(&self) -> DeliveryReport {
        let reporters = self.producers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut producers: Vec<ProducerReport> = reporters.iter().filter_map(|producer| producer.report()).collect();
        drop(reporters);
        producers.extend(self.outboxes.report());
        producers.sort_by(|a, b| (&a.producer_id, &a.to).cmp(&(&b.producer_id, &b.to)));
        let types = self.lock();
        let consumers = types.iter().map(|(name, known)| (name.clone(), known.consumers.counters().snapshot()));
        let mut consumers: Vec<_> = consumers.map(|(name, counts)| ConsumersReport { name, counts }).collect();
        drop(types);
        consumers.extend(self.consumer_registry.report());
        consumers.sort_by(|a, b| a.name.cmp(&b.name));
        DeliveryReport { producers, consumers }
    }

    fn of_type<'a>(&self, types: &'a mut BTreeMap<String, Type>, name: &str) -> &'a mut Type {
        types.entry(name.to_owned()).or_insert_with(|| Type {
            consumers: ConsumerDelivery::new(&self.settings).expect("they were checked when the node was made"),
            producer_target: None,
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Type>> {
        self.types.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
