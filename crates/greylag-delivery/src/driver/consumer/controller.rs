//! The consumer controller inside an entity: drives the protocol machine from the entity's own handlers.
//!
//! Entities with handlers and event-sourced entities each hold one. The controller has no task and no channel: frames
//! arrive as messages of the entity, deadlines are a timer of the entity, answers leave through the transport.
//!
//! Source: delivery §3.2.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::{DeadLetterReason, UniqueAddress};
use greylag_sharding::host::ShardCx;

use super::{ConsumerDelivery, DeliveryEvent, Undecodable};
use crate::delivery::payload::{Payload, Unreadable};
use crate::delivery::with_delivery::{ProtocolMessage, WithDelivery};
use crate::delivery::{Delivery, Outcome, Outcomes};
use crate::driver::consumer::counters::LinkTotals;
use crate::ids::{ControllerRef, MessageId};
use crate::machine::sharding_consumer::{DeliveryHandle, Effect, Input, ShardingConsumer};
use crate::message::{Frames, UpstreamMessage};
use crate::settings::OnUndecodable;
use crate::wire;

/// The name of the controller's timer within its entity.
const TIMER: &str = "gl.delivery";

/// Pause before a deferred delivery is handed out again, where the settings have no redelivery back-off.
const LEAST_PAUSE: Duration = Duration::from_millis(1);

/// See the module's documentation.
pub(crate) struct Controller<T> {
    machine: ShardingConsumer<Payload<T>>,
    delivery: ConsumerDelivery,
    entity: Arc<str>,
    pub(crate) outcomes: Arc<Outcomes>,
    /// Deliveries not yet handed to the entity.
    ready: VecDeque<Delivery<T>>,
    /// Undecodable messages of which the entity is still to be told.
    unreadable: VecDeque<Undecodable>,
    /// Undecodable messages that are not confirmed yet.
    waiting: Vec<MessageId>,
    /// Nodes whose removal from the cluster is watched for this entity.
    watched: Vec<UniqueAddress>,
    links: ReportedLinks,
    vetoes: Vetoes,
    me: Option<ControllerRef>,
    timer: Option<Instant>,
    finished: bool,
    effects: Vec<Effect<Payload<T>>>,
    news: Vec<Outcome>,
}

/// The link totals and the version that were last reported.
#[derive(Default)]
struct ReportedLinks {
    version: u64,
    totals: LinkTotals,
}

/// Sources of a veto against passivation. Kept apart, so that the entity cannot lift a veto of its links, nor the links
/// one of the entity.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Vetoes {
    entity: bool,
    links: bool,
    reported: bool,
}

impl<T: Send + Sync + 'static> Controller<T> {
    pub(crate) fn new(delivery: ConsumerDelivery, entity: &str, outcomes: Outcomes) -> Self {
        let mut machine = ShardingConsumer::new(Arc::clone(&delivery.settings));
        if let Some(handover) = delivery.take_handover(entity) {
            machine.take_over(handover);
        }
        Self {
            machine,
            delivery,
            entity: entity.into(),
            outcomes: Arc::new(outcomes),
            ready: VecDeque::new(),
            unreadable: VecDeque::new(),
            waiting: Vec::new(),
            watched: Vec::new(),
            links: ReportedLinks::default(),
            vetoes: Vetoes::default(),
            me: None,
            timer: None,
            finished: false,
            effects: Vec::new(),
            news: Vec::new(),
        }
    }

    /// The next delivery for the entity, if there is one.
    pub(crate) fn next_delivery(&mut self) -> Option<Delivery<T>> {
        let delivery = self.ready.pop_front()?;
        self.delivery.counters.delivered();
        Some(delivery)
    }

    /// The next undecodable message of which the entity is to be told.
    pub(crate) fn next_undecodable(&mut self) -> Option<Undecodable> {
        self.unreadable.pop_front()
    }

    /// Whether a delivery or an undecodable message waits for the entity.
    pub(crate) fn has_next(&self) -> bool {
        !self.ready.is_empty() || !self.unreadable.is_empty()
    }

    /// Whether bypass messages may reach the entity; otherwise the message becomes a dead letter.
    pub(crate) fn admits_bypass<Q: 'static>(&self, cx: &ShardCx<'_, WithDelivery<T, Q>>) -> bool {
        if !self.delivery.allow_bypass {
            tracing::debug!(entity_type = %cx.entity_type(), id = %cx.id(), "bypass message refused (allow_bypass = false)");
            cx.remoting().dead_letter(DeadLetterReason::UnexpectedMessage, cx.id().as_str(), wire::BYPASS);
        }
        self.delivery.allow_bypass
    }

    /// Begins the end of the entity: no delivery is handed out any more, including the ones not yet handed to the
    /// entity.
    pub(crate) fn finish<Q: 'static>(&mut self, cx: &mut ShardCx<'_, WithDelivery<T, Q>>) {
        self.handle(Input::Finish, cx);
        self.take_back(cx);
    }

    /// Returns deliveries not yet handed to the entity; no attempt is counted for them.
    pub(crate) fn take_back<Q: 'static>(&mut self, cx: &mut ShardCx<'_, WithDelivery<T, Q>>) {
        for handle in std::mem::take(&mut self.ready).into_iter().filter_map(Delivery::into_handle) {
            self.handle(Input::Return(handle, Duration::ZERO), cx);
        }
    }

    /// Ends the links; `replaced` if a new incarnation of the entity follows. Producers with unconfirmed messages here
    /// are told to start over, so that they find the successor at once instead of at their next idle probe.
    pub(crate) fn end<Q: 'static>(&mut self, replaced: bool, cx: &mut ShardCx<'_, WithDelivery<T, Q>>) {
        self.collect(cx);
        self.take_back(cx);
        if replaced {
            self.delivery.store_handover(&self.entity, self.machine.handover_state(cx.now()));
        }
        let starts_over = replaced || self.machine.has_unconfirmed();
        self.handle(if starts_over { Input::StartOver } else { Input::Stop }, cx);
    }

    /// Whether every link has ended after `finish`.
    pub(crate) fn is_finished(&self) -> bool {
        self.finished
    }

    /// Handles a protocol message.
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

    /// Passes an input to the machine, and carries out its effects.
    pub(crate) fn handle<Q: 'static>(&mut self, input: Input<Payload<T>>, cx: &mut ShardCx<'_, WithDelivery<T, Q>>) {
        let mut effects = std::mem::take(&mut self.effects);
        self.machine.handle(cx.now(), input, &mut effects);
        for effect in effects.drain(..) {
            self.apply_effect(effect, cx);
        }
        if self.effects.capacity() == 0 {
            self.effects = effects;
        }
        self.report_links(cx);
        self.arm(cx);
    }

    /// Handles the queued outcomes of deliveries; returns whether there were any.
    pub(crate) fn collect<Q: 'static>(&mut self, cx: &mut ShardCx<'_, WithDelivery<T, Q>>) -> bool {
        let mut news = std::mem::take(&mut self.news);
        self.outcomes.take(&mut news);
        let any = !news.is_empty();
        let mut confirmed = Vec::new();
        for outcome in news.drain(..) {
            if let Outcome::Confirmed(handle) = outcome {
                confirmed.push(handle);
                continue;
            }
            self.confirm(std::mem::take(&mut confirmed), cx);
            self.on_outcome(outcome, cx);
        }
        self.confirm(confirmed, cx);
        self.news = news;
        any
    }

    fn on_outcome<Q: 'static>(&mut self, outcome: Outcome, cx: &mut ShardCx<'_, WithDelivery<T, Q>>) {
        match outcome {
            Outcome::Confirmed(handle) => self.confirm(vec![handle], cx),
            Outcome::Abandoned(handle, pause) => {
                self.delivery.counters.abandoned();
                self.handle(Input::Abandon(handle, pause), cx);
            }
            Outcome::Deferred(handle) => {
                let pause = self.delivery.settings.link.redelivery_backoff.max(LEAST_PAUSE);
                self.handle(Input::Return(handle, pause), cx);
            }
            // From here on the machine itself answers deliveries of messages that the history has processed.
            Outcome::Recovered(dedupe) => self.handle(Input::Start(dedupe), cx),
            Outcome::Suppressed => self.delivery.counters.suppressed(),
            Outcome::NodeGone(node) => {
                self.watched.retain(|watched| *watched != node);
                self.handle(Input::NodeRemoved(node), cx);
            }
        }
    }

    fn confirm<Q: 'static>(&mut self, mut handles: Vec<DeliveryHandle>, cx: &mut ShardCx<'_, WithDelivery<T, Q>>) {
        self.delivery.counters.confirmed(handles.len() as u64);
        if !self.waiting.is_empty() {
            handles.iter().for_each(|handle| self.forget_waiting(&handle.id));
        }
        match handles.len() {
            0 => {}
            1 => handles.into_iter().for_each(|handle| self.handle(Input::Confirm(handle), cx)),
            _ => self.handle(Input::ConfirmAll(std::mem::take(&mut handles)), cx),
        }
    }

    fn forget_waiting(&mut self, id: &MessageId) {
        if let Some(index) = self.waiting.iter().position(|waiting| waiting == id) {
            self.waiting.swap_remove(index);
            self.delivery.operator_state().forget(&self.entity, id);
        }
    }

    fn apply_effect<Q: 'static>(&mut self, effect: Effect<Payload<T>>, cx: &mut ShardCx<'_, WithDelivery<T, Q>>) {
        let entity = || self.entity.clone();
        match effect {
            Effect::Deliver { handle, parts } => {
                cx.touch();
                self.deliver(handle, parts, cx);
            }
            Effect::Reply { to, epoch, message } => {
                let from = self.me(cx);
                self.delivery.answers().enqueue(cx.remoting(), UpstreamMessage { from, to, epoch, message });
            }
            Effect::Suppressed(id) => {
                self.outcomes.close(&id);
                self.delivery.counters.suppressed();
            }
            Effect::Poisoned { id, attempts } => {
                // No further attempt follows, so the message must not stay open: an open message counts as neither
                // persisted nor confirmed, and holds back later ones.
                self.outcomes.close(&id);
                self.delivery.counters.poisoned();
                tracing::warn!(entity_type = %cx.entity_type(), id = %cx.id(), message = ?id, attempts, "last permitted attempt at a message failed");
                cx.remoting().dead_letter(DeadLetterReason::Poisoned, cx.id().as_str(), wire::BATCH);
                self.announce(DeliveryEvent::Poisoned { entity: entity(), id, attempts });
            }
            // Open the message, so that no later message of its stream is persisted before it.
            Effect::Held(id) => self.outcomes.open(&id),
            Effect::Overdue(id) => {
                tracing::warn!(entity_type = %cx.entity_type(), id = %cx.id(), message = ?id, "delivery unconfirmed for longer than confirm_warn_after");
                self.announce(DeliveryEvent::Overdue { entity: entity(), id });
            }
            Effect::Replaced { producer, former, by } => {
                self.announce(DeliveryEvent::ProducerReplaced { entity: entity(), producer, former, by });
            }
            Effect::SameProducer(producer) => {
                if self.delivery.operator_state().is_to_warn(cx.now()) {
                    tracing::warn!(entity_type = %cx.entity_type(), id = %cx.id(), %producer, "two producers may use the same producer id (two streams active)");
                }
                self.announce(DeliveryEvent::SameProducer { entity: entity(), producer });
            }
            Effect::Refused(producer) => {
                self.announce(DeliveryEvent::TooManyProducers { entity: entity(), producer });
            }
            Effect::Busy(busy) => self.vetoes.links = busy,
            Effect::Stopped => self.finished = true,
        }
    }

    fn announce(&self, event: DeliveryEvent) {
        self.delivery.operator_state().announce(event);
    }

    fn deliver<Q: 'static>(
        &mut self,
        handle: DeliveryHandle,
        parts: Frames<Payload<T>>,
        cx: &mut ShardCx<'_, WithDelivery<T, Q>>,
    ) {
        self.outcomes.open(&handle.id);
        match Payload::join(&parts, self.delivery.settings.link.max_message_bytes) {
            Ok(message) => self.ready.push_back(Delivery::new(message, handle, self.outcomes.clone())),
            Err(Unreadable { error, .. }) => {
                self.delivery.counters.undecodable();
                tracing::warn!(entity_type = %cx.entity_type(), id = %cx.id(), message = ?handle.id, %error, "message cannot be decoded");
                let (entity, id) = (self.entity.clone(), handle.id.clone());
                self.announce(DeliveryEvent::Undecodable { entity, id, error: error.clone() });
                let bytes = move || Payload::bytes(&parts);
                self.on_undecodable(
                    Undecodable::new(self.entity.clone(), handle.clone(), error, bytes, self.outcomes.clone()),
                    handle,
                    cx,
                );
            }
        }
    }

    fn on_undecodable<Q: 'static>(
        &mut self,
        undecodable: Undecodable,
        handle: DeliveryHandle,
        cx: &mut ShardCx<'_, WithDelivery<T, Q>>,
    ) {
        match self.delivery.on_undecodable {
            OnUndecodable::Surface => {
                self.waiting.push(handle.id.clone());
                self.delivery.operator_state().wait(undecodable.clone());
                self.unreadable.push_back(undecodable);
                self.handle(Input::Unreadable(handle), cx);
            }
            OnUndecodable::Skip => {
                cx.remoting().dead_letter(DeadLetterReason::Undecodable, cx.id().as_str(), wire::BATCH);
                self.outcomes.confirm([handle]);
            }
            OnUndecodable::Stop => {
                self.outcomes.close(&handle.id);
                self.handle(Input::GiveUp(handle), cx);
            }
        }
    }

    /// The controller's reference, which has the address of this incarnation of the entity.
    fn me<Q: 'static>(&mut self, cx: &mut ShardCx<'_, WithDelivery<T, Q>>) -> ControllerRef {
        self.me
            .get_or_insert_with(|| {
                let direct = cx.direct_ref();
                ControllerRef { node: direct.node, path: direct.path, instance: direct.instance }
            })
            .clone()
    }

    /// Publishes changes of the links: counters, the streams that have a link, and the producers' nodes to watch.
    fn report_links<Q: 'static>(&mut self, cx: &ShardCx<'_, WithDelivery<T, Q>>) {
        let totals = LinkTotals {
            counters: self.machine.counters(),
            refused: self.machine.refused(),
            overdue: self.machine.overdue(),
            links: self.machine.link_count() as u64,
        };
        if totals != self.links.totals {
            self.delivery.counters.links(&std::mem::replace(&mut self.links.totals, totals), &totals);
        }
        if self.machine.links_version() == self.links.version {
            return;
        }
        self.links.version = self.machine.links_version();
        self.outcomes.set_streams(self.machine.streams());
        let node_removals = self.delivery.node_removals();
        let nodes: Vec<UniqueAddress> = self.machine.producer_nodes().cloned().collect();
        for node in &nodes {
            if !self.watched.contains(node) && node != cx.node() {
                node_removals.watch(&**cx.remoting(), node, &self.outcomes);
                self.watched.push(node.clone());
            }
        }
        let outcomes = &self.outcomes;
        self.watched
            .extract_if(.., |watched| !nodes.contains(watched))
            .for_each(|gone| node_removals.forget(&gone, outcomes));
    }

    /// Called at the end of each handler: passivation is vetoed while the entity or its links veto it.
    pub(crate) fn settle_vetoes<Q: 'static>(&mut self, cx: &mut ShardCx<'_, WithDelivery<T, Q>>) {
        self.vetoes.entity = cx.take_veto().unwrap_or(self.vetoes.entity);
        let veto = self.vetoes.entity || self.vetoes.links;
        if std::mem::replace(&mut self.vetoes.reported, veto) != veto {
            cx.veto_passivation(veto);
        }
    }

    /// Drops the veto of an entity value that failed.
    pub(crate) fn forget_entity_veto(&mut self) {
        self.vetoes.entity = false;
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

/// Takes back the gauges, the undecodable messages and the watched nodes of an entity that ends.
impl<T> Drop for Controller<T> {
    fn drop(&mut self) {
        let ended = LinkTotals { overdue: 0, links: 0, ..self.links.totals };
        self.delivery.counters.links(&self.links.totals, &ended);
        for id in &self.waiting {
            self.delivery.operator_state().forget(&self.entity, id);
        }
        for node in &self.watched {
            self.delivery.node_removals().forget(node, &self.outcomes);
        }
    }
}
