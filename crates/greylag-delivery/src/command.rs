//! The command type of an event-sourced behaviour under delivery.

use std::convert::Infallible;

use greylag_persistence::EventSourced;

use crate::delivery::Delivery;
use crate::with_delivery::WithDelivery;

/// A command type for a behaviour under delivery: [`Delivery<T>`] where the behaviour takes deliveries alone,
/// [`DeliveryCommand`] or an enum of the program's own where it is asked other things, too.
pub trait UnderDelivery: Send + 'static {
    /// What is delivered.
    type Message: Send + Sync + 'static;
    /// What comes beside the deliveries; [`Infallible`] for nothing.
    type Bypass: Send + 'static;

    /// The command of a delivery.
    fn of_delivery(delivery: Delivery<Self::Message>) -> Self;

    /// The command of a message beside the deliveries.
    fn of_bypass(message: Self::Bypass) -> Self;

    /// What the command was made of.
    fn into_parts(self) -> DeliveryCommand<Self::Message, Self::Bypass>;

    /// Whether it was made of a message beside the deliveries.
    fn is_bypass(&self) -> bool;
}

/// A delivery, or a message beside the deliveries.
#[derive(Debug)]
pub enum DeliveryCommand<T, Q> {
    /// A message that is to be processed exactly once.
    Delivered(Delivery<T>),
    /// A message that came beside the deliveries.
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

/// What is delivered to a behaviour.
pub(crate) type Delivered<B> = <<B as EventSourced>::Command as UnderDelivery>::Message;
/// What comes to a behaviour beside its deliveries.
pub(crate) type Beside<B> = <<B as EventSourced>::Command as UnderDelivery>::Bypass;
/// What the region of a behaviour's entities carries.
pub(crate) type Carried<B> = WithDelivery<Delivered<B>, Beside<B>>;
