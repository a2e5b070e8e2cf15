//! The consumer controller inside an entity: the machine, hosted by the entity's own handlers.
//!
//! Both kinds of entities (handlers, event-sourced) hold one. It has no task and no channel: frames
//! are messages of the entity, deadlines are a timer of the entity, answers leave by the transport.
//!
//! Source: delivery §3.2.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use greylag_core::{CodecId, DeadLetterReason};
use greylag_sharding::host::ShardCx;
use greylag_transport::{Destination, Envelope, Recipient};

use crate::counters::DeliveryCounters;
use crate::delivery::{Delivery, Outcome, Outcomes};
use crate::ids::ControllerRef;
use crate::machine::producer_link::Frames;
use crate::machine::sharding_consumer::{DeliveryHandle, Effect, Input, ShardingConsumer, ShardingConsumerSettings};
use crate::message::UpstreamMessage;
use crate::payload::{Payload, Unreadable};
use crate::settings::{DeliverySettings, SettingsError};
use crate::wire;
use crate::with_delivery::{ProtocolMessage, WithDelivery};

/// What becomes of a delivery that cannot be read. Never a crash loop. Source: delivery §9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnUndecodable {
    /// The link waits, with a warning; a newer version of the entity may read it.
    #[default]
    Wait,
    /// The message is a dead letter, and confirmed.
    Skip,
    /// The entity stops.
    Stop,
}

/// How entities of one type take deliveries on this node, with the counters of that.
#[derive(Debug, Clone)]
pub struct ConsumerDelivery {
    settings: ShardingConsumerSettings,
    on_undecodable: OnUndecodable,
    counters: DeliveryCounters,
}

impl ConsumerDelivery {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn new(settings: &DeliverySettings) -> Result<Self, SettingsError> {
        settings.validate()?;
        let counters = DeliveryCounters::default();
        Ok(Self { settings: settings.sharding_consumer(), on_undecodable: OnUndecodable::default(), counters })
    }

    /// What becomes of deliveries that cannot be read. Default: the link waits.
    #[must_use]
    pub fn on_undecodable(self, on_undecodable: OnUndecodable) -> Self {
        Self { on_undecodable, ..self }
    }

    /// What entities of this type have seen on this node.
    pub fn counters(&self) -> &DeliveryCounters {
        &self.counters
    }

    /// For simulations: entities forget which messages they have applied, to prove that the checkers notice.
    #[doc(hidden)]
    #[must_use]
    pub fn sabotage_marks(mut self) -> Self {
        self.settings.sabotage_marks = true;
        self
    }

    #[cfg(feature = "persistence")]
    pub(crate) fn forgets_marks(&self) -> bool {
        self.settings.sabotage_marks
    }
}

/// Resolves when something was confirmed or given up.
pub(crate) async fn changed(outcomes: Arc<Outcomes>) {
    std::future::poll_fn(|cx| outcomes.poll_changed(cx)).await;
}

/// The name of the controller's timer within its entity.
const TIMER: &str = "gl.delivery";

/// See the module's documentation.
pub(crate) struct Controller<T> {
    machine: ShardingConsumer<Payload<T>>,
    delivery: ConsumerDelivery,
    pub(crate) outcomes: Arc<Outcomes>,
    /// Deliveries that the entity has not been given yet.
    ready: VecDeque<Delivery<T>>,
    me: Option<ControllerRef>,
    timer: Option<Instant>,
    finished: bool,
    effects: Vec<Effect<Payload<T>>>,
}

impl<T: Send + Sync + 'static> Controller<T> {
    pub(crate) fn new(delivery: ConsumerDelivery) -> Self {
        Self {
            machine: ShardingConsumer::new(delivery.settings.clone()),
            delivery,
            outcomes: Arc::default(),
            ready: VecDeque::new(),
            me: None,
            timer: None,
            finished: false,
            effects: Vec::new(),
        }
    }

    /// The next delivery for the entity, if there is one.
    pub(crate) fn next_delivery(&mut self) -> Option<Delivery<T>> {
        let delivery = self.ready.pop_front()?;
        self.delivery.counters.delivered();
        Some(delivery)
    }

    /// Whether a delivery waits for the entity.
    pub(crate) fn has_delivery(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The entity ends, to be replaced or not. Producers with something in hand here are to find its
    /// successor at once; nothing else would tell them before their idle probe.
    pub(crate) fn end<Q: 'static>(&mut self, replaced: bool, cx: &mut ShardCx<'_, WithDelivery<T, Q>>) {
        self.collect(cx);
        let input = if replaced || self.machine.is_busy() { Input::StartOver } else { Input::Stop };
        self.handle(input, cx);
    }

    /// Whether everything has ended after `Finish`.
    pub(crate) fn is_finished(&self) -> bool {
        self.finished
    }

    /// Takes a message of the protocol.
    pub(crate) fn receive<Q: 'static>(
        &mut self,
        message: ProtocolMessage<T>,
        cx: &mut ShardCx<'_, WithDelivery<T, Q>>,
    ) {
        match message {
            ProtocolMessage::Batch(batch) => self.handle(Input::Batch(batch), cx),
            ProtocolMessage::Stopped(stopped) => self.handle(Input::ProducerStopped(stopped), cx),
            ProtocolMessage::Tick => {
                self.timer = None;
                self.handle(Input::Tick, cx);
            }
            ProtocolMessage::Wake | ProtocolMessage::Next => {}
            ProtocolMessage::Delivered(delivery) => self.ready.push_back(*delivery),
        }
    }

    /// Gives the machine an input, and carries out its effects.
    pub(crate) fn handle<Q: 'static>(&mut self, input: Input<Payload<T>>, cx: &mut ShardCx<'_, WithDelivery<T, Q>>) {
        self.machine.handle(cx.now(), input, &mut self.effects);
        for effect in std::mem::take(&mut self.effects) {
            self.carry_out(effect, cx);
        }
        self.arm(cx);
    }

    /// Takes in deliveries that were confirmed or given up since; returns whether there were any.
    pub(crate) fn collect<Q: 'static>(&mut self, cx: &mut ShardCx<'_, WithDelivery<T, Q>>) -> bool {
        let outcomes = self.outcomes.take();
        let any = !outcomes.is_empty();
        for outcome in outcomes {
            match outcome {
                Outcome::Confirmed(handle) => {
                    self.delivery.counters.confirmed();
                    self.confirm(handle, cx);
                }
                Outcome::Abandoned(handle, pause) => {
                    self.delivery.counters.abandoned();
                    self.handle(Input::Abandon(handle, pause), cx);
                }
                Outcome::Recovered(dedupe) => {
                    // Attempts to deliver processed messages are answered by the machine itself.
                    self.handle(Input::Start(dedupe), cx);
                }
                Outcome::Suppressed => self.delivery.counters.suppressed(),
            }
        }
        any
    }

    fn confirm<Q: 'static>(&mut self, handle: DeliveryHandle, cx: &mut ShardCx<'_, WithDelivery<T, Q>>) {
        self.outcomes.close(&handle.id);
        self.handle(Input::Confirm(handle), cx);
    }

    fn carry_out<Q: 'static>(&mut self, effect: Effect<Payload<T>>, cx: &mut ShardCx<'_, WithDelivery<T, Q>>) {
        match effect {
            Effect::Deliver { handle, parts } => {
                cx.touch();
                self.deliver(handle, parts, cx);
            }
            Effect::Reply { to, epoch, message } => {
                let from = self.me(cx);
                let message = UpstreamMessage { from, to, epoch, message };
                let recipient = Recipient::new(message.to.path.clone());
                let bytes = wire::write_upstream(&message);
                let envelope = Envelope::new(recipient, CodecId::INTERNAL, wire::UPSTREAM, bytes);
                let envelope = envelope.to_uid(message.to.node.uid());
                // A message that is not taken here is repeated, like one that is lost on the way.
                cx.remoting().send(&Destination::Incarnation(message.to.node), envelope).ok();
            }
            Effect::Suppressed(id) => {
                self.outcomes.close(&id);
                self.delivery.counters.suppressed();
            }
            Effect::Poisoned { id, attempts } => {
                self.delivery.counters.poisoned();
                tracing::warn!(entity_type = %cx.entity_type(), id = %cx.id(), message = ?id, attempts, "poisoned");
                cx.remoting().dead_letter(DeadLetterReason::Poisoned, cx.id().as_str(), wire::BATCH);
            }
            Effect::Busy(busy) => cx.veto_passivation(busy),
            Effect::Stopped => self.finished = true,
        }
    }

    fn deliver<Q: 'static>(
        &mut self,
        handle: DeliveryHandle,
        parts: Frames<Payload<T>>,
        cx: &mut ShardCx<'_, WithDelivery<T, Q>>,
    ) {
        match Payload::join(&parts, self.delivery.settings.link.max_message_bytes) {
            Ok(message) => {
                self.outcomes.open(&handle.id);
                self.ready.push_back(Delivery::new(message, handle, self.outcomes.clone()));
            }
            Err(Unreadable { error, .. }) => {
                self.delivery.counters.undecodable();
                tracing::warn!(entity_type = %cx.entity_type(), id = %cx.id(), message = ?handle.id, %error, "undecodable");
                match self.delivery.on_undecodable {
                    OnUndecodable::Wait => {}
                    OnUndecodable::Skip => {
                        cx.remoting().dead_letter(DeadLetterReason::Undecodable, cx.id().as_str(), wire::BATCH);
                        self.outcomes.push(Outcome::Confirmed(handle));
                    }
                    OnUndecodable::Stop => cx.stop(),
                }
            }
        }
    }

    /// The controller's address, which is the incarnation's.
    fn me<Q: 'static>(&mut self, cx: &mut ShardCx<'_, WithDelivery<T, Q>>) -> ControllerRef {
        self.me
            .get_or_insert_with(|| {
                let direct = cx.direct_ref();
                ControllerRef { node: direct.node, path: direct.path, instance: direct.instance }
            })
            .clone()
    }

    fn arm<Q: 'static>(&mut self, cx: &mut ShardCx<'_, WithDelivery<T, Q>>) {
        if let Some(deadline) = self.machine.next_deadline()
            && self.timer.is_none_or(|timer| deadline < timer)
        {
            self.timer = Some(deadline);
            let delay = deadline.saturating_duration_since(cx.now());
            cx.once(TIMER, delay, WithDelivery::protocol(ProtocolMessage::Tick));
        }
    }
}
