//! Entities with handlers: the trait that a user implements, and the entity type around it.
//!
//! Source: delivery §6 (`DeliveryEntity`), S11 to S16.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use greylag_sharding::host::{HostedEntity, ShardCx};
use greylag_sharding::{Ctx, EntityInit, Failure, Signal};

use crate::delivery::with_delivery::{Protocol, ProtocolMessage, WithDelivery};
use crate::delivery::{Delivery, Outcomes};
use crate::driver::consumer::{ConsumerDelivery, Controller, Undecodable, changed};
use crate::machine::dedupe::Dedupe;
use crate::machine::sharding_consumer::Input;

/// An entity that takes deliveries of `T`.
///
/// Handlers are synchronous, as in sharding. Longer work is started through the context and takes the [`Delivery`]
/// along, to confirm it when the work is done.
pub trait DeliveryEntity<T: Send + Sync + 'static>: Send + 'static {
    /// The type of bypass messages, sent to the entity beside its deliveries; [`Infallible`](std::convert::Infallible)
    /// for none.
    type Bypass: Send + 'static;

    /// Runs once, before the first delivery. Returns how far the entity knows each stream to be processed already.
    ///
    /// # Errors
    /// A failure is a start failure.
    fn on_start(&mut self, cx: &mut Ctx<'_, WithDelivery<T, Self::Bypass>>) -> Result<Dedupe, Failure> {
        let _ = cx;
        Ok(Dedupe::none())
    }

    /// Handles a delivery. An unconfirmed delivery blocks the later ones of the same producer.
    ///
    /// # Errors
    /// A failure, like a panic, replaces this value by a new one from the factory; unconfirmed deliveries are handed
    /// out again.
    fn on_delivery(
        &mut self,
        delivery: Delivery<T>,
        cx: &mut Ctx<'_, WithDelivery<T, Self::Bypass>>,
    ) -> Result<(), Failure>;

    /// Handles a bypass message.
    ///
    /// # Errors
    /// As [`DeliveryEntity::on_delivery`]; the message is not handed out again.
    fn on_bypass(
        &mut self,
        message: Self::Bypass,
        cx: &mut Ctx<'_, WithDelivery<T, Self::Bypass>>,
    ) -> Result<(), Failure>;

    /// Called for a message that cannot be decoded; the producer's later messages are blocked until this one is
    /// confirmed. Called only under [`OnUndecodable::Surface`](crate::OnUndecodable), once per incarnation. By default
    /// the message stays visible in [`ConsumerDelivery::undecodable`].
    ///
    /// # Errors
    /// As [`DeliveryEntity::on_delivery`].
    fn on_undecodable(
        &mut self,
        undecodable: Undecodable,
        cx: &mut Ctx<'_, WithDelivery<T, Self::Bypass>>,
    ) -> Result<(), Failure> {
        let _ = (undecodable, cx);
        Ok(())
    }

    /// Called when the shard stops the entity; deliveries in hand were confirmed or given up before.
    ///
    /// # Errors
    /// A failing entity is stopped all the same.
    fn on_stop(
        &mut self,
        stop: Option<Self::Bypass>,
        cx: &mut Ctx<'_, WithDelivery<T, Self::Bypass>>,
    ) -> Result<(), Failure> {
        let _ = stop;
        cx.stop();
        Ok(())
    }
}

/// Makes entity types of [`DeliveryEntity`]s.
#[derive(Debug)]
pub struct DeliveryType;

pub(crate) type Factory<E> = dyn Fn(&EntityInit) -> Result<E, Failure> + Send + Sync;

/// Whether a message counts as activity for passivation. Protocol messages do not, so that they cannot keep an entity
/// awake; a delivery counts when it is handed out.
pub(crate) fn is_activity<T, Q>(message: &WithDelivery<T, Q>) -> bool {
    matches!(message, WithDelivery::Bypass(_))
}

pub(crate) struct DeliveryHost<T, E: DeliveryEntity<T>>
where
    T: Send + Sync + 'static,
{
    entity: E,
    factory: Arc<Factory<E>>,
    init: EntityInit,
    controller: Controller<T>,
    /// The stop request, kept until the deliveries in hand are confirmed or given up.
    stop: Option<Option<E::Bypass>>,
    /// A task is waiting for a delivery to be confirmed or given up.
    waiting: bool,
}

impl<T: Send + Sync + 'static, E: DeliveryEntity<T>> DeliveryHost<T, E> {
    pub(crate) fn new(
        factory: &Arc<Factory<E>>,
        delivery: ConsumerDelivery,
        init: &EntityInit,
    ) -> Result<Self, Failure> {
        let controller = Controller::new(delivery, init.id.as_str(), Outcomes::default());
        let entity = factory(init)?;
        Ok(Self { entity, factory: factory.clone(), init: init.clone(), controller, stop: None, waiting: false })
    }

    /// Collects outcomes, and hands out at most one delivery, because its handler may suspend the entity.
    fn run_next_delivery(&mut self, cx: &mut ShardCx<'_, WithDelivery<T, E::Bypass>>) -> Result<(), Failure> {
        self.controller.collect(cx);
        if let Some(undecodable) = self.controller.next_undecodable() {
            self.run(cx, |entity, cx| entity.on_undecodable(undecodable, cx))?;
        } else if let Some(delivery) = self.controller.next_delivery() {
            self.run(cx, |entity, cx| entity.on_delivery(delivery, cx))?;
        }
        self.controller.collect(cx);
        if self.controller.has_next() {
            cx.tell_self(WithDelivery::protocol(ProtocolMessage::Next));
        } else if self.controller.outcomes.has_open() && !std::mem::replace(&mut self.waiting, true) {
            let outcomes = self.controller.outcomes.clone();
            cx.spawn(changed(outcomes), |()| WithDelivery::protocol(ProtocolMessage::Wake));
        }
        if self.controller.is_finished()
            && let Some(stop) = self.stop.take()
        {
            cx.run(|cx| self.entity.on_stop(stop, cx))?;
        }
        self.controller.settle_vetoes(cx);
        Ok(())
    }

    /// Runs a handler. If the handler fails, the entity value is replaced, but the controller keeps its links.
    fn run(
        &mut self,
        cx: &mut ShardCx<'_, WithDelivery<T, E::Bypass>>,
        handler: impl FnOnce(&mut E, &mut Ctx<'_, WithDelivery<T, E::Bypass>>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let entity = &mut self.entity;
        let why = match catch_unwind(AssertUnwindSafe(|| cx.run(|cx| handler(entity, cx)))) {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(failure)) => failure.to_string(),
            Err(_) => "the handler panicked".to_owned(),
        };
        tracing::warn!(entity_type = %cx.entity_type(), id = %cx.id(), why, "a handler failed; the entity starts anew");
        self.replace(cx)
    }

    /// Replaces the entity value after a failure. Its unconfirmed deliveries are handed out again, once; deliveries not
    /// handed to it yet go to the new value without an attempt being counted.
    fn replace(&mut self, cx: &mut ShardCx<'_, WithDelivery<T, E::Bypass>>) -> Result<(), Failure> {
        let former = std::mem::replace(&mut self.entity, (self.factory)(&self.init)?);
        // Drop the former value, which gives up its deliveries, before the new value starts; otherwise the new value
        // would get them twice.
        if catch_unwind(AssertUnwindSafe(|| drop(former))).is_err() {
            tracing::warn!(entity_type = %cx.entity_type(), id = %cx.id(), "the failed entity panicked as it was dropped");
        }
        self.controller.collect(cx);
        self.controller.take_back(cx);
        self.controller.forget_entity_veto();
        self.start(cx)
    }

    fn start(&mut self, cx: &mut ShardCx<'_, WithDelivery<T, E::Bypass>>) -> Result<(), Failure> {
        let dedupe = cx.run(|cx| self.entity.on_start(cx))?;
        self.controller.handle(Input::Start(dedupe), cx);
        self.controller.settle_vetoes(cx);
        Ok(())
    }
}

impl<T: Send + Sync + 'static, E: DeliveryEntity<T>> HostedEntity for DeliveryHost<T, E> {
    type Message = WithDelivery<T, E::Bypass>;

    fn on_start(&mut self, cx: &mut ShardCx<'_, Self::Message>) -> Result<(), Failure> {
        self.start(cx)
    }

    fn receive(&mut self, message: Self::Message, cx: &mut ShardCx<'_, Self::Message>) -> Result<(), Failure> {
        match message {
            WithDelivery::Bypass(message) => {
                if self.controller.admits_bypass(cx) {
                    self.run(cx, |entity, cx| entity.on_bypass(message, cx))?;
                }
                if self.controller.collect(cx) || self.controller.has_next() {
                    // The next delivery, or the end, may be due. Handle it in a message of its own, because the handler
                    // may have suspended the entity; the waiting task finds no outcome left.
                    cx.tell_self(WithDelivery::protocol(ProtocolMessage::Next));
                }
                self.controller.settle_vetoes(cx);
                return Ok(());
            }
            WithDelivery::Protocol(Protocol(message)) => {
                if matches!(message, ProtocolMessage::Wake) {
                    self.waiting = false;
                }
                self.controller.receive(message, cx);
            }
        }
        self.run_next_delivery(cx)
    }

    fn on_stop(&mut self, stop: Option<Self::Message>, cx: &mut ShardCx<'_, Self::Message>) -> Result<(), Failure> {
        let stop = stop.and_then(|message| match message {
            WithDelivery::Bypass(message) => Some(message),
            WithDelivery::Protocol(_) => None,
        });
        self.stop = Some(stop);
        self.controller.finish(cx);
        self.run_next_delivery(cx)
    }

    fn on_signal(&mut self, signal: Signal, cx: &mut ShardCx<'_, Self::Message>) -> Result<(), Failure> {
        self.controller.end(signal == Signal::PreRestart, cx);
        Ok(())
    }

    fn on_resume(&mut self, _: Box<dyn Any + Send>, cx: &mut ShardCx<'_, Self::Message>) -> Result<(), Failure> {
        self.run_next_delivery(cx)
    }
}

impl<T: Send + Sync + 'static, E: DeliveryEntity<T>> fmt::Debug for DeliveryHost<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeliveryHost").field("id", &self.init.id).finish_non_exhaustive()
    }
}
