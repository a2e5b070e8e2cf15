//! The task of a consumer controller: runs the machine, hands deliveries to the consumer, and collects the
//! confirmations.

use std::collections::BTreeSet;
use std::sync::Arc;

use greylag_core::DeadLetterReason;
use greylag_transport::Remoting;
use tokio::sync::mpsc;

use super::downstream::FromProducer;
use crate::delivery::payload::{Payload, Unreadable, UnreadableError};
use crate::delivery::{Delivery, Outcome, Outcomes};
use crate::driver::consumer::counters::{DeliveryCounters, LinkTotals};
use crate::driver::consumer::{DeliveryEvent, OperatorState, Undecodable, changed};
use crate::driver::sending::{now, send_upstream};
use crate::driver::work_pulling::RegisteredWorker;
use crate::ids::{ControllerRef, Epoch, MessageId};
use crate::machine::consumer_controller::{ConsumerController as Machine, Input};
use crate::machine::dedupe::Dedupe;
use crate::machine::sharding_consumer::{DeliveryHandle, Effect};
use crate::message::{Frames, Upstream, UpstreamMessage};
use crate::settings::OnUndecodable;
use crate::wire;

/// Maximum number of batches handled before the other inputs are polled.
const RUN: usize = 64;

/// Commands of the handles to the task.
pub(super) enum Command<T> {
    Start { consumer: u64, dedupe: Dedupe, to: mpsc::UnboundedSender<Delivery<T>> },
    WatchUndecodable(mpsc::UnboundedSender<Undecodable>),
    RegisterTo(ControllerRef),
    DeliverThenStop,
    ConsumerEnded(u64),
    HandleDropped,
}

/// The consumer that gets the deliveries.
struct Consumer<T> {
    number: u64,
    to: mpsc::UnboundedSender<Delivery<T>>,
}

/// See the module's documentation.
pub(super) struct Task<T> {
    machine: Machine<Payload<T>>,
    remoting: Arc<dyn Remoting>,
    me: ControllerRef,
    /// The controller's reference, as events name it.
    name: Arc<str>,
    on_undecodable: OnUndecodable,
    max_message_bytes: u64,
    pub(super) counters: DeliveryCounters,
    pub(super) operator_state: Arc<OperatorState>,
    /// The link totals already added to `counters`.
    links: LinkTotals,
    outcomes: Arc<Outcomes>,
    /// Undecodable messages that are not confirmed yet.
    unreadable: BTreeSet<MessageId>,
    /// Subscribers to undecodable messages.
    watchers: Vec<mpsc::UnboundedSender<Undecodable>>,
    consumer: Option<Consumer<T>>,
    effects: Vec<Effect<Payload<T>>>,
    stopped: bool,
}

impl<T: Send + Sync + 'static> Task<T> {
    pub(super) fn new(
        machine: Machine<Payload<T>>,
        remoting: Arc<dyn Remoting>,
        me: ControllerRef,
        on_undecodable: OnUndecodable,
        max_message_bytes: u64,
    ) -> Self {
        let name = me.to_string().into();
        Self {
            machine,
            remoting,
            me,
            name,
            on_undecodable,
            max_message_bytes,
            counters: DeliveryCounters::default(),
            operator_state: Arc::default(),
            links: LinkTotals::default(),
            outcomes: Arc::default(),
            unreadable: BTreeSet::new(),
            watchers: Vec::new(),
            consumer: None,
            effects: Vec::new(),
            stopped: false,
        }
    }

    pub(super) async fn run(
        mut self,
        mut commands: mpsc::UnboundedReceiver<Command<T>>,
        mut from_producers: mpsc::Receiver<FromProducer<T>>,
        registered: Option<RegisteredWorker>,
    ) {
        let mut timer = std::pin::pin!(tokio::time::sleep_until(tokio::time::Instant::now()));
        while !self.stopped {
            let deadline = self.machine.next_deadline();
            if let Some(deadline) = deadline
                && timer.deadline() != deadline.into()
            {
                timer.as_mut().reset(deadline.into());
            }
            tokio::select! {
                () = timer.as_mut(), if deadline.is_some() => self.handle_input(Input::Tick),
                () = changed(self.outcomes.clone()) => {
                    // Handle commands first, so that a stop requested before a confirmation is handled before it.
                    while let Ok(command) = commands.try_recv() {
                        self.on_command(command);
                    }
                    self.collect();
                }
                Some(message) = from_producers.recv() => {
                    self.take(message);
                    for _ in 0..RUN {
                        let Ok(message) = from_producers.try_recv() else { break };
                        self.take(message);
                    }
                }
                Some(command) = commands.recv() => self.on_command(command),
            }
        }
        // Deregister only after producers got the last `Ack`, so that no confirmed job is given to another worker.
        drop(registered);
        self.remoting.unregister(&self.me.path);
        self.end();
    }

    /// Takes back the gauges (links, overdue deliveries) and the undecodable messages, since both end with the
    /// controller.
    fn end(&mut self) {
        let ended = LinkTotals { overdue: 0, links: 0, ..self.links };
        self.counters.links(&std::mem::replace(&mut self.links, ended), &ended);
        for id in std::mem::take(&mut self.unreadable) {
            self.operator_state.forget(&self.name, &id);
        }
    }

    fn take(&mut self, message: FromProducer<T>) {
        match message {
            FromProducer::Batch(batch) => self.handle_input(Input::Batch(batch)),
            FromProducer::Stopped(stopped) => self.handle_input(Input::ProducerStopped(stopped)),
        }
    }

    fn on_command(&mut self, command: Command<T>) {
        match command {
            Command::Start { consumer, dedupe, to } => {
                // Deliveries queued in the former consumer's stream are dropped with the stream; they are handed out
                // again.
                self.consumer = Some(Consumer { number: consumer, to });
                self.handle_input(Input::Start(dedupe));
            }
            Command::WatchUndecodable(watcher) => {
                if self.operator_state.undecodable().into_iter().all(|undecodable| watcher.send(undecodable).is_ok()) {
                    self.watchers.push(watcher);
                }
            }
            Command::RegisterTo(producer) => self.handle_input(Input::RegisterTo(producer)),
            Command::DeliverThenStop => self.handle_input(Input::DeliverThenStop),
            Command::ConsumerEnded(number) => {
                if self.consumer.as_ref().is_some_and(|consumer| consumer.number == number) {
                    self.stop();
                }
            }
            Command::HandleDropped => {
                if self.consumer.is_none() {
                    self.stop();
                }
            }
        }
    }

    /// Stops the links (C15), after handling earlier confirmations so that they are sent first.
    fn stop(&mut self) {
        self.collect();
        self.handle_input(Input::Stop);
    }

    /// Handles the queued outcomes of deliveries.
    fn collect(&mut self) {
        let (mut news, mut confirmed) = (Vec::new(), Vec::new());
        self.outcomes.take(&mut news);
        for outcome in news {
            match outcome {
                Outcome::Confirmed(handle) => confirmed.push(handle),
                Outcome::Abandoned(handle, pause) => {
                    self.confirm(std::mem::take(&mut confirmed));
                    self.counters.abandoned();
                    self.handle_input(Input::Abandon(handle, pause));
                }
                // Only entities produce these outcomes.
                Outcome::Recovered(_) | Outcome::Suppressed | Outcome::NodeGone(_) | Outcome::Deferred(_) => {}
            }
        }
        self.confirm(confirmed);
    }

    fn confirm(&mut self, handles: Vec<DeliveryHandle>) {
        if !handles.is_empty() {
            for handle in &handles {
                if self.unreadable.remove(&handle.id) {
                    self.operator_state.forget(&self.name, &handle.id);
                }
            }
            self.counters.confirmed(handles.len() as u64);
            self.handle_input(Input::ConfirmAll(handles));
        }
    }

    fn handle_input(&mut self, input: Input<Payload<T>>) {
        self.machine.handle(now(), input, &mut self.effects);
        for effect in std::mem::take(&mut self.effects) {
            self.apply_effect(effect);
        }
        let links = LinkTotals {
            counters: self.machine.counters(),
            refused: self.machine.refused(),
            overdue: self.machine.overdue(),
            links: self.machine.link_count() as u64,
        };
        if links != self.links {
            self.counters.links(&std::mem::replace(&mut self.links, links), &links);
        }
    }

    fn announce(&self, event: impl FnOnce(Arc<str>) -> DeliveryEvent) {
        self.operator_state.announce(event(self.name.clone()));
    }

    fn apply_effect(&mut self, effect: Effect<Payload<T>>) {
        match effect {
            Effect::Deliver { handle, parts } => self.deliver(handle, parts),
            Effect::Reply { to, epoch, message } => self.reply(to, epoch, message),
            Effect::Suppressed(id) => {
                self.outcomes.close(&id);
                self.counters.suppressed();
            }
            Effect::Poisoned { id, attempts } => {
                self.outcomes.close(&id);
                self.counters.poisoned();
                tracing::warn!(consumer = %self.me, message = ?id, attempts, "last permitted attempt at a message failed");
                self.remoting.dead_letter(DeadLetterReason::Poisoned, &self.me.path, wire::BATCH);
                self.announce(|entity| DeliveryEvent::Poisoned { entity, id, attempts });
            }
            Effect::Held(id) => self.outcomes.open(&id),
            Effect::Overdue(id) => {
                tracing::warn!(consumer = %self.me, message = ?id, "delivery unconfirmed for longer than confirm_warn_after");
                self.announce(|entity| DeliveryEvent::Overdue { entity, id });
            }
            Effect::Replaced { producer, former, by } => {
                tracing::info!(consumer = %self.me, %producer, %former, %by, "link switched to another producer controller");
                self.announce(|entity| DeliveryEvent::ProducerReplaced { entity, producer, former, by });
            }
            Effect::SameProducer(producer) => {
                if self.operator_state.is_to_warn(now()) {
                    tracing::warn!(consumer = %self.me, %producer, "two producers may use the same producer id (two streams active)");
                }
                self.announce(|entity| DeliveryEvent::SameProducer { entity, producer });
            }
            Effect::Refused(producer) => {
                tracing::warn!(consumer = %self.me, %producer, "producer refused: max_producers_per_entity reached");
                self.announce(|entity| DeliveryEvent::TooManyProducers { entity, producer });
            }
            Effect::Busy(_) => {}
            Effect::Stopped => self.stopped = true,
        }
    }

    fn reply(&self, to: ControllerRef, epoch: Option<Epoch>, message: Upstream) {
        send_upstream(&*self.remoting, UpstreamMessage { from: self.me.clone(), to, epoch, message });
    }

    fn deliver(&mut self, handle: DeliveryHandle, parts: Frames<Payload<T>>) {
        match (Payload::join(&parts, self.max_message_bytes), &self.consumer) {
            (Ok(message), Some(consumer)) => {
                self.counters.delivered();
                self.outcomes.open(&handle.id);
                // A consumer that has ended takes no delivery; dropping the delivery gives it up.
                consumer.to.send(Delivery::new(message, handle, self.outcomes.clone())).ok();
            }
            (Ok(_), None) => {}
            (Err(Unreadable { error, .. }), _) => self.undecodable(handle, error, parts),
        }
    }

    fn undecodable(&mut self, handle: DeliveryHandle, error: UnreadableError, parts: Frames<Payload<T>>) {
        self.counters.undecodable();
        tracing::warn!(consumer = %self.me, message = ?handle.id, %error, "message cannot be decoded");
        let (id, why) = (handle.id.clone(), error.clone());
        self.announce(|entity| DeliveryEvent::Undecodable { entity, id, error: why });
        match self.on_undecodable {
            OnUndecodable::Surface => {
                let (me, bytes) = (self.name.clone(), move || Payload::bytes(&parts));
                let undecodable = Undecodable::new(me, handle.clone(), error, bytes, self.outcomes.clone());
                self.watchers.retain(|watcher| watcher.send(undecodable.clone()).is_ok());
                self.unreadable.insert(handle.id.clone());
                self.operator_state.wait(undecodable);
                self.handle_input(Input::Unreadable(handle));
            }
            OnUndecodable::Skip => {
                self.remoting.dead_letter(DeadLetterReason::Undecodable, &self.me.path, wire::BATCH);
                self.outcomes.confirm([handle]);
            }
            OnUndecodable::Stop => self.handle_input(Input::Stop),
        }
    }
}
