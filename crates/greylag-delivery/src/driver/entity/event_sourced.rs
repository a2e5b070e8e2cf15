//! Event-sourced entities under delivery: every effect is stored with the mark of its delivery.
//!
//! Two wrappers, one inside the other. [`MarkedBehavior`] wraps the user's behaviour inside the machine of persistence:
//! it compares each delivery with the marks folded from the history just before the handler runs, and attaches the mark
//! to the events that the handler persists. [`DeliveryHost`] wraps the entity that hosts this machine: it receives
//! frames, hands deliveries to the machine as commands, and returns confirmations. The events that belong to a
//! confirmation are always stored first.
//!
//! ```text
//! frames ─▶ DeliveryHost ─▶ DeliveryCommand ─▶ EventSourcedEntity ─▶ MarkedBehavior ─▶ the user's on_command
//!              ◀── Outcomes (confirmed, given up, recovered) ◀── side effects after the append
//! ```
//!
//! Source: delivery §7; persistence §2.2, §10.5.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use greylag_core::EntityError;
use greylag_persistence::{
    Ctx, Effect, EventCodecs, EventMeta, EventSourced, EventSourcedSettings, Mark, MarkLimits, Marks, PersistenceId,
    SeqNr as EventNr, Signal as EventSignal, StreamId as MarkStream, Tags, Timestamp, Tracked,
};
use greylag_sharding::host::{EventSourcedEntity, HostedEntity, ShardCx};
use greylag_sharding::{EntityInit, Failure, Signal};

use crate::delivery::command::{Carried, Delivered, DeliveryCommand, UnderDelivery};
use crate::delivery::with_delivery::{Protocol, ProtocolMessage, WithDelivery};
use crate::delivery::{Delivery, Outcome, Outcomes};
use crate::driver::consumer::{ConsumerDelivery, Controller, changed};
use crate::ids::{MessageId, SeqNr, StreamId};
use crate::machine::dedupe::Dedupe;

/// Effects that end a delivery.
pub trait DeliveryEffects<B: EventSourced> {
    /// Persists the events of the delivery, and confirms the delivery when they are stored. The events carry the
    /// delivery's mark, so the delivery is applied once even if the confirmation is lost.
    ///
    /// Without events this is [`DeliveryEffects::confirm_delivery`].
    ///
    /// ```
    /// # use greylag_delivery::{Delivery, DeliveryEffects};
    /// # use greylag_persistence::{Ctx, Effect, EventSourced};
    /// # struct Account;
    /// # impl EventSourced for Account {
    /// #     type Command = Delivery<u64>;
    /// #     type Event = u64;
    /// #     type State = u64;
    /// #     fn apply(balance: &mut u64, paid: &u64) { *balance += paid }
    /// fn on_command(&mut self, _: &mut Ctx<'_, Self::Command>, _: &u64, payment: Delivery<u64>) -> Effect<Self> {
    ///     let paid = *payment;
    ///     // A payment of nothing is not looked at again either: its mark is stored alone.
    ///     let events = if paid > 0 { vec![paid] } else { Vec::new() };
    ///     Effect::persist_delivery(payment, events).mark_empty(true)
    /// }
    /// # }
    /// ```
    fn persist_delivery<T: Send + Sync + 'static>(delivery: Delivery<T>, events: Vec<B::Event>) -> Effect<B>;

    /// Confirms a delivery that leads to no events, once it is proved that this entity still owns its journal. The
    /// delivery leaves no mark, and may be evaluated again; [`Effect::mark_empty`] stores its mark instead.
    fn confirm_delivery<T: Send + Sync + 'static>(delivery: Delivery<T>) -> Effect<B>;
}

impl<B: EventSourced> DeliveryEffects<B> for Effect<B> {
    fn persist_delivery<T: Send + Sync + 'static>(delivery: Delivery<T>, events: Vec<B::Event>) -> Effect<B> {
        let mark = mark_of(delivery.id());
        Effect::persist_all(events).with_mark(mark).when_owned().then_run(move |_| delivery.confirm_proved())
    }

    fn confirm_delivery<T: Send + Sync + 'static>(delivery: Delivery<T>) -> Effect<B> {
        let mark = mark_of(delivery.id());
        Effect::none().with_mark(mark).when_owned().then_run(move |_| delivery.confirm_proved())
    }
}

fn mark_of(id: &MessageId) -> Mark {
    Mark {
        producer_id: id.producer_id.as_str().to_owned(),
        stream_id: MarkStream::from_u128(id.stream_id.0),
        total_seq_nr: id.seq_nr.get(),
    }
}

/// Builds one entity: its behaviour behind a consumer controller.
pub(crate) fn delivery_host<B>(
    behavior: B,
    persistence_id: PersistenceId,
    codecs: &EventCodecs<MarkedBehavior<B>>,
    delivery: ConsumerDelivery,
    init: &EntityInit,
) -> DeliveryHost<B>
where
    B: EventSourced,
    B::Command: UnderDelivery,
{
    let limits = delivery.mark_limits();
    let controller = Controller::new(delivery, init.id.as_str(), Outcomes::requiring_proof());
    let marked = MarkedBehavior { inner: behavior, outcomes: controller.outcomes.clone(), limits };
    // The producer sends unfinished deliveries again to the successor; handed on out of order, they would hide earlier
    // ones.
    let inner = EventSourcedEntity::new(codecs.of(persistence_id, marked), init).hands_on(UnderDelivery::is_bypass);
    DeliveryHost { inner, controller, stop: None, waiting: false }
}

/// Wraps the user's behaviour; checks and attaches marks.
pub(crate) struct MarkedBehavior<B> {
    inner: B,
    outcomes: Arc<Outcomes>,
    /// The number of marks kept for ever, and the retention of the other marks.
    limits: MarkLimits,
}

impl<B: EventSourced> MarkedBehavior<B>
where
    B::Command: UnderDelivery,
{
    fn on_delivery(
        &mut self,
        cx: &mut Ctx<'_, B::Command>,
        state: &B::State,
        delivery: Delivery<Delivered<B>>,
    ) -> Effect<Self> {
        let mark = mark_of(delivery.id());
        if cx.marks().covers(mark.stream_id, mark.total_seq_nr) {
            // An earlier attempt stored the delivery, but its answer was lost. The stored mark is proof enough to
            // confirm.
            self.outcomes.push(Outcome::Suppressed);
            return Effect::none().then_run(move |_| delivery.confirm_proved());
        }
        let id = delivery.id().clone();
        let overtakes = self.outcomes.has_earlier(&id);
        // Attach the mark even if the handler did not ask for it: an effect without its mark would be applied twice.
        let effect = self.inner.on_command(cx, state, B::Command::of_delivery(delivery)).with_mark(mark);
        if !effect.is_persisting() {
            return effect.wrapped(|command| command);
        }
        if overtakes {
            // The mark of this delivery would cover the earlier delivery, which is not applied yet.
            let refused = effect.refused(EntityError::NotInOrder).wrapped(|command| command);
            self.outcomes.defer(&id);
            return refused;
        }
        effect.wrapped(|command| command)
    }

    /// Ties confirmations without proof to an append of the handler: the successful append proves ownership.
    fn proved_by_append(&self, effect: Effect<Self>) -> Effect<Self> {
        if !effect.is_persisting() {
            return effect;
        }
        match self.outcomes.take_unproved() {
            Some(unproved) => effect.then_run(move |_| unproved.confirm()),
            None => effect,
        }
    }

    /// Confirms every confirmation without proof after a read of the journal's head has shown ownership.
    fn prove(&self) -> Effect<Self> {
        match self.outcomes.take_unproved() {
            Some(unproved) => Effect::none().when_owned().then_run(move |_| unproved.confirm()),
            None => Effect::none(),
        }
    }
}

impl<B: EventSourced> EventSourced for MarkedBehavior<B>
where
    B::Command: UnderDelivery,
{
    type Command = B::Command;
    type Event = B::Event;
    type State = B::State;

    fn settings(&self, node: &EventSourcedSettings) -> EventSourcedSettings {
        // Makes persistence refuse settings under which marks could be missing.
        EventSourcedSettings { under_delivery: true, ..self.inner.settings(node) }
    }

    fn on_command(
        &mut self,
        cx: &mut Ctx<'_, Self::Command>,
        state: &B::State,
        command: Self::Command,
    ) -> Effect<Self> {
        let effect = match command.into_parts() {
            DeliveryCommand::Delivered(delivery) if delivery.is_for_proof() => return self.prove(),
            DeliveryCommand::Delivered(delivery) => self.on_delivery(cx, state, delivery),
            DeliveryCommand::Bypass(message) => {
                self.inner.on_command(cx, state, B::Command::of_bypass(message)).wrapped(|command| command)
            }
        };
        self.proved_by_append(effect)
    }

    fn apply(state: &mut B::State, event: &B::Event) {
        B::apply(state, event);
    }

    fn apply_with(&self, state: &mut B::State, event: &B::Event, meta: &EventMeta<'_>) {
        self.inner.apply_with(state, event, meta);
    }

    fn on_signal(&mut self, cx: &mut Ctx<'_, Self::Command>, state: &B::State, signal: &EventSignal) {
        if matches!(signal, EventSignal::RecoveryCompleted) {
            self.outcomes.push(Outcome::Recovered(dedupe(cx.marks())));
        }
        self.inner.on_signal(cx, state, signal);
    }

    fn tags(&self, state: &B::State, event: &B::Event, meta: &EventMeta<'_>) -> Tags {
        self.inner.tags(state, event, meta)
    }

    fn snapshot_when(&self, state: &B::State, event: &B::Event, seq_nr: EventNr) -> bool {
        self.inner.snapshot_when(state, event, seq_nr)
    }

    fn tracker<'a>(&'a mut self, state: &'a mut B::State) -> Option<Tracked<'a>> {
        self.inner.tracker(state)
    }

    fn replay_from(&self, state: &B::State) -> Option<EventNr> {
        self.inner.replay_from(state)
    }

    fn prune_marks(&self, marks: &mut Marks, now: Timestamp) {
        marks.prune(self.limits, now, |stream| self.outcomes.has_stream(StreamId(stream.as_u128())));
    }

    fn rollback_copy(&self, state: &B::State) -> Option<B::State> {
        self.inner.rollback_copy(state)
    }
}

fn dedupe(marks: &Marks) -> Dedupe {
    marks.iter().map(|(stream, applied)| (StreamId(stream.as_u128()), SeqNr(applied.total_seq_nr))).collect()
}

/// The entity that hosts the machine of persistence, behind a consumer controller.
pub(crate) struct DeliveryHost<B: EventSourced>
where
    B::Command: UnderDelivery,
{
    inner: EventSourcedEntity<MarkedBehavior<B>>,
    controller: Controller<Delivered<B>>,
    /// The stop request, kept until the deliveries in hand are confirmed or given up.
    stop: Option<Option<B::Command>>,
    /// A task is waiting for a delivery to be confirmed or given up.
    waiting: bool,
}

/// Wraps a message of the inner entity to itself into a message of the outer entity.
fn wrap<C: UnderDelivery>(command: C) -> WithDelivery<C::Message, C::Bypass> {
    match command.into_parts() {
        DeliveryCommand::Delivered(delivery) => WithDelivery::protocol(ProtocolMessage::Delivered(Box::new(delivery))),
        DeliveryCommand::Bypass(message) => WithDelivery::Bypass(message),
    }
}

impl<B: EventSourced> DeliveryHost<B>
where
    B::Command: UnderDelivery,
{
    fn command(&mut self, command: B::Command, cx: &mut ShardCx<'_, Carried<B>>) -> Result<(), Failure> {
        cx.nested(wrap, |cx| self.inner.receive(command, cx))
    }

    /// Hands on deliveries while the entity is not suspended. When the entity suspends itself to persist, the remaining
    /// deliveries wait until it resumes; `run_deliveries` must not be called before.
    fn run_deliveries(&mut self, cx: &mut ShardCx<'_, Carried<B>>) -> Result<(), Failure> {
        self.controller.collect(cx);
        while self.inner.is_running()
            && let Some(delivery) = self.controller.next_delivery()
        {
            self.command(B::Command::of_delivery(delivery), cx)?;
            self.controller.collect(cx);
        }
        if self.inner.is_running() && self.controller.outcomes.has_unproved() {
            self.command(B::Command::of_delivery(Delivery::for_proof()), cx)?;
            self.controller.collect(cx);
        }
        self.controller.settle_vetoes(cx);
        if !self.inner.is_running() {
            return Ok(());
        }
        if self.controller.is_finished()
            && let Some(stop) = self.stop.take()
        {
            return cx.nested(wrap, |cx| self.inner.on_stop(stop, cx));
        }
        // The behaviour moved a delivery elsewhere and will confirm it there, or a proof is under way.
        if self.controller.outcomes.has_open() && !std::mem::replace(&mut self.waiting, true) {
            let outcomes = self.controller.outcomes.clone();
            cx.spawn(changed(outcomes), |()| WithDelivery::protocol(ProtocolMessage::Wake));
        }
        Ok(())
    }
}

impl<B: EventSourced> HostedEntity for DeliveryHost<B>
where
    B::Command: UnderDelivery,
{
    type Message = Carried<B>;

    fn on_start(&mut self, cx: &mut ShardCx<'_, Self::Message>) -> Result<(), Failure> {
        cx.nested(wrap, |cx| self.inner.on_start(cx))
    }

    fn receive(&mut self, message: Self::Message, cx: &mut ShardCx<'_, Self::Message>) -> Result<(), Failure> {
        match message {
            WithDelivery::Bypass(message) if self.controller.admits_bypass(cx) => {
                self.command(B::Command::of_bypass(message), cx)?;
            }
            WithDelivery::Bypass(message) => drop(message),
            WithDelivery::Protocol(Protocol(message)) => {
                if matches!(message, ProtocolMessage::Wake) {
                    self.waiting = false;
                }
                self.controller.receive(message, cx);
            }
        }
        self.run_deliveries(cx)
    }

    fn on_stop(&mut self, stop: Option<Self::Message>, cx: &mut ShardCx<'_, Self::Message>) -> Result<(), Failure> {
        let stop = stop.and_then(|message| match message {
            WithDelivery::Bypass(message) => Some(B::Command::of_bypass(message)),
            WithDelivery::Protocol(_) => None,
        });
        self.controller.finish(cx);
        if !self.inner.is_running() {
            return cx.nested(wrap, |cx| self.inner.on_stop(stop, cx));
        }
        self.stop = Some(stop);
        self.run_deliveries(cx)
    }

    fn on_signal(&mut self, signal: Signal, cx: &mut ShardCx<'_, Self::Message>) -> Result<(), Failure> {
        self.controller.end(signal == Signal::PreRestart, cx);
        cx.nested(wrap, |cx| self.inner.on_signal(signal, cx))
    }

    fn on_resume(&mut self, value: Box<dyn Any + Send>, cx: &mut ShardCx<'_, Self::Message>) -> Result<(), Failure> {
        cx.nested(wrap, |cx| self.inner.on_resume(value, cx))?;
        self.run_deliveries(cx)
    }
}

impl<B: EventSourced> fmt::Debug for DeliveryHost<B>
where
    B::Command: UnderDelivery,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeliveryHost").field("entity", &self.inner).finish_non_exhaustive()
    }
}
