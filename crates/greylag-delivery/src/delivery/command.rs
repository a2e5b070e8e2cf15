//! The command type of an event-sourced behaviour under delivery.

use std::convert::Infallible;

use greylag_persistence::EventSourced;

use crate::delivery::Delivery;
use crate::delivery::with_delivery::WithDelivery;

/// A command type for a behaviour under delivery: [`Delivery<T>`] where the behaviour takes deliveries alone,
/// [`DeliveryCommand`] or an enum of the program's own where other messages (bypass messages) reach the behaviour, too.
pub trait UnderDelivery: Send + 'static {
    /// The message type of the deliveries.
    type Message: Send + Sync + 'static;
    /// The type of bypass messages, which reach the entity beside its deliveries; [`Infallible`] for none.
    type Bypass: Send + 'static;

    /// Makes a command of a delivery.
    fn of_delivery(delivery: Delivery<Self::Message>) -> Self;

    /// Makes a command of a bypass message.
    fn of_bypass(message: Self::Bypass) -> Self;

    /// Splits the command into the delivery or the bypass message of which it was made.
    fn into_parts(self) -> DeliveryCommand<Self::Message, Self::Bypass>;

    /// Whether the command was made of a bypass message.
    fn is_bypass(&self) -> bool;
}

/// A delivery, or a bypass message.
#[derive(Debug)]
pub enum DeliveryCommand<T, Q> {
    /// A delivery, to be processed exactly once.
    Delivered(Delivery<T>),
    /// A bypass message: sent to the entity beside its deliveries.
    Bypass(Q),
}

impl<T: Send + Sync + 'static> UnderDelivery for Delivery<T> {
    type Message = T;
    type Bypass = Infallible;

    fn of_delivery(delivery: Delivery<T>) -> Self {
        delivery
    }

    fn of_bypass(message: Infallible) -> Self {
        match message {}
    }

    fn into_parts(self) -> DeliveryCommand<T, Infallible> {
        DeliveryCommand::Delivered(self)
    }

    fn is_bypass(&self) -> bool {
        false
    }
}

impl<T: Send + Sync + 'static, Q: Send + 'static> UnderDelivery for DeliveryCommand<T, Q> {
    type Message = T;
    type Bypass = Q;

    fn of_delivery(delivery: Delivery<T>) -> Self {
        Self::Delivered(delivery)
    }

    fn of_bypass(message: Q) -> Self {
        Self::Bypass(message)
    }

    fn into_parts(self) -> Self {
        self
    }

    fn is_bypass(&self) -> bool {
        matches!(self, Self::Bypass(_))
    }
}

/// The message type of the deliveries to a behaviour.
pub(crate) type Delivered<B> = <<B as EventSourced>::Command as UnderDelivery>::Message;
/// The type of a behaviour's bypass messages.
pub(crate) type Beside<B> = <<B as EventSourced>::Command as UnderDelivery>::Bypass;
/// The message type of the region of a behaviour's entities.
pub(crate) type Carried<B> = WithDelivery<Delivered<B>, Beside<B>>;
