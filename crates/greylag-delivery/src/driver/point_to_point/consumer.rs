//! The consumer's side: the consumer controller on one node, and its handles.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::Stream;
use greylag_core::Codec;
use greylag_transport::Remoting;
use tokio::sync::mpsc;

use super::consumer_task::{Command, Task};
use super::deliveries::Deliveries;
use super::downstream::Downstream;
use crate::driver::consumer::counters::DeliveryCounters;
use crate::driver::consumer::{DeliveryEvents, DeliveryHealth, OperatorState, Undecodable};
use crate::driver::sending::register;
use crate::driver::work_pulling::WorkerDirectory;
use crate::error::StartError;
use crate::ids::{ControllerRef, ServiceKey};
use crate::machine::consumer_controller::{ConsumerController as Machine, ConsumerKind};
use crate::machine::dedupe::Dedupe;
use crate::machine::producer_link::LinkMode;
use crate::settings::DeliverySettings;
use crate::settings::OnUndecodable;

/// Receives the messages of one producer controller at a time, and hands them out in order.
///
/// The controller is attached by [`ConsumerController::register_to`], or at the other end by
/// [`ProducerController::register_consumer`](crate::ProducerController::register_consumer). The controller ends with
/// its consumer, that is when its [`Deliveries`] are dropped; or with this handle, if no consumer was started. Source:
/// delivery §1.3, §1.4.
pub struct ConsumerController<T> {
    commands: mpsc::UnboundedSender<Command<T>>,
    reference: ControllerRef,
    consumers: AtomicU64,
    counters: DeliveryCounters,
    operator_state: Arc<OperatorState>,
}

/// Makes a [`ConsumerController`].
pub struct ConsumerBuilder<T> {
    codec: Arc<dyn Codec<T>>,
    settings: DeliverySettings,
    on_undecodable: Option<OnUndecodable>,
    work: Option<(ServiceKey, Arc<dyn WorkerDirectory>)>,
}

impl<T: Send + Sync + 'static> ConsumerController<T> {
    /// A controller whose messages `codec` decodes.
    pub fn builder(codec: impl Codec<T>) -> ConsumerBuilder<T> {
        let (codec, settings) = (Arc::new(codec), DeliverySettings::default());
        ConsumerBuilder { codec, settings, on_undecodable: None, work: None }
    }

    /// The reference by which producers find the controller: a value that may be sent to other nodes.
    pub fn reference(&self) -> &ControllerRef {
        &self.reference
    }

    /// Attaches to this producer controller. The registration is repeated until the producer's first frame arrives;
    /// from the call on, frames of the former producer are dropped. Deliveries already handed out stay valid.
    pub fn register_to(&self, producer: &ControllerRef) {
        self.commands.send(Command::RegisterTo(producer.clone())).ok();
    }

    /// Starts the consumer: messages up to the totals in `dedupe` count as processed and are not handed out. If called
    /// again before the former [`Deliveries`] are dropped, the new consumer takes over, and gets the deliveries that
    /// the former one did not confirm.
    pub fn start(&self, dedupe: Dedupe) -> Deliveries<T> {
        let consumer = self.consumers.fetch_add(1, Ordering::Relaxed) + 1;
        let (to, from_task) = mpsc::unbounded_channel();
        self.commands.send(Command::Start { consumer, dedupe, to }).ok();
        Deliveries::new(from_task, self.commands.clone(), consumer)
    }

    /// The undecodable messages, those waiting now and those to come. With [`OnUndecodable::Surface`] (the default)
    /// each of them blocks its link until it is confirmed, that is skipped.
    pub fn undecodable(&self) -> impl Stream<Item = Undecodable> + Send + Unpin + use<T> {
        let (watcher, mut undecodable) = mpsc::unbounded_channel();
        self.commands.send(Command::WatchUndecodable(watcher)).ok();
        futures::stream::poll_fn(move |cx| undecodable.poll_recv(cx))
    }

    /// Ends the controller in order: messages already here are handed out, and the controller stops when they are
    /// confirmed. A new producer that attaches meanwhile cancels the stop.
    pub fn deliver_then_stop(&self) {
        self.commands.send(Command::DeliverThenStop).ok();
    }

    /// Subscribes to events of deliveries, for operators: messages that failed or cannot be decoded, and producers that
    /// were replaced.
    pub fn events(&self) -> DeliveryEvents {
        self.operator_state.events()
    }

    /// Degraded while links are blocked by undecodable messages, until an operator acts.
    pub fn health(&self) -> DeliveryHealth {
        self.operator_state.health()
    }

    pub(crate) fn operator_state(&self) -> &Arc<OperatorState> {
        &self.operator_state
    }

    /// A handle that ends the controller in order, but does not keep it alive.
    pub(crate) fn shutdown_handle(&self) -> ConsumerShutdown<T> {
        ConsumerShutdown(self.commands.clone())
    }

    /// Counters of the deliveries since the controller's start.
    pub fn counters(&self) -> &DeliveryCounters {
        &self.counters
    }
}

/// Ends a consumer controller in order; does not keep the controller alive.
pub(crate) struct ConsumerShutdown<T>(mpsc::UnboundedSender<Command<T>>);

impl<T> ConsumerShutdown<T> {
    /// Whether the controller has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.is_closed()
    }

    /// Calls [`ConsumerController::deliver_then_stop`], and waits until the controller has ended.
    pub(crate) async fn end(self) {
        self.0.send(Command::DeliverThenStop).ok();
        self.0.closed().await;
    }
}

impl<T> Clone for ConsumerShutdown<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Drop for ConsumerController<T> {
    fn drop(&mut self) {
        self.commands.send(Command::HandleDropped).ok();
    }
}

impl<T> fmt::Debug for ConsumerController<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerController").field("reference", &self.reference).finish_non_exhaustive()
    }
}

impl<T: Send + Sync + 'static> ConsumerBuilder<T> {
    /// Sets the settings; only their section `consumer` matters here.
    #[must_use]
    pub fn settings(self, settings: DeliverySettings) -> Self {
        Self { settings, ..self }
    }

    /// Sets how undecodable messages are handled. Default: as in the settings, whose default is
    /// [`OnUndecodable::Surface`].
    #[must_use]
    pub fn on_undecodable(self, on_undecodable: OnUndecodable) -> Self {
        Self { on_undecodable: Some(on_undecodable), ..self }
    }

    /// Makes the consumer a worker: every producer of the work `key` finds it in the directory until it stops. A worker
    /// takes jobs of all these producers, in any order; its window is
    /// [`worker_window`](crate::WorkPullingSettings::worker_window).
    #[must_use]
    pub fn service_key(self, key: ServiceKey, directory: Arc<dyn WorkerDirectory>) -> Self {
        Self { work: Some((key, directory)), ..self }
    }

    /// Starts the controller, on the tokio runtime of the caller.
    ///
    /// # Errors
    /// [`StartError`]; nothing was started.
    pub fn spawn(self, remoting: &Arc<dyn Remoting>) -> Result<ConsumerController<T>, StartError> {
        self.settings.validate()?;
        let (downstream, from_producers) = Downstream::new(remoting.clone(), self.codec);
        let reference = register(remoting, Arc::new(downstream));
        let on_undecodable = self.on_undecodable.unwrap_or(self.settings.consumer.on_undecodable);
        let (kind, settings) = match self.work {
            None => (ConsumerKind::PointToPoint, self.settings.consumer(LinkMode::PointToPoint)),
            Some(_) => (ConsumerKind::Worker, self.settings.worker()),
        };
        let max_message_bytes = settings.link.max_message_bytes;
        let machine = Machine::new(kind, settings);
        let (commands, inbox) = mpsc::unbounded_channel();
        let registered = self.work.map(|(key, directory)| directory.register(&key, reference.clone()));
        let task = Task::new(machine, remoting.clone(), reference.clone(), on_undecodable, max_message_bytes);
        let (counters, operator_state) = (task.counters.clone(), task.operator_state.clone());
        tokio::spawn(task.run(inbox, from_producers, registered));
        Ok(ConsumerController { commands, reference, consumers: AtomicU64::new(0), counters, operator_state })
    }
}

impl<T> fmt::Debug for ConsumerBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerBuilder").field("settings", &self.settings).finish_non_exhaustive()
    }
}
