//! `with_delivery` for descriptions of event-sourced entity types.

use greylag_core::Codec;
use greylag_persistence::EventSourced;
use greylag_sharding::{ByEvents, EntityType};
use std::convert::Infallible;

use super::layer::{layered_codec, register_type};
use crate::delivery::command::{Beside, UnderDelivery};
use crate::delivery::with_delivery::{NoBypass, WithDelivery};
use crate::driver::entity::{delivery_host, is_activity};
use crate::driver::node::state::NodeState;

/// Puts delivery in front of the entities of an event-sourced type, in the type's description.
///
/// ```
/// use std::{sync::Arc, time::Duration};
///
/// use greylag_codec::json;
/// use greylag_core::{Registry, ReplyTo};
/// use greylag_delivery::{Delivery, DeliveryCommand, DeliveryEffects, EventSourcedDelivery};
/// use greylag_persistence::{Ctx, Effect, EventSourced};
/// use greylag_sharding::{EntityKey, EntityType};
///
/// const ACCOUNT: EntityKey<u64> = EntityKey::new("Account");
///
/// struct Account;
///
/// impl EventSourced for Account {
///     type Command = DeliveryCommand<u64, ReplyTo<u64>>;
///     type Event = u64;
///     type State = u64;
///
///     fn on_command(&mut self, _: &mut Ctx<'_, Self::Command>, cents: &u64, command: Self::Command) -> Effect<Self> {
///         match command {
///             DeliveryCommand::Delivered(deposit) => {
///                 let cents = *deposit;
///                 Effect::persist_delivery(deposit, vec![cents])
///             }
///             DeliveryCommand::Bypass(reply_to) => Effect::reply(reply_to, *cents),
///         }
///     }
///
///     fn apply(cents: &mut u64, deposit: &u64) {
///         *cents += deposit;
///     }
/// }
///
/// let accounts = EntityType::event_sourced(ACCOUNT, |_| Ok(Account))
///     .commands(json("account.deposit"))
///     .events(json("account.deposited"))
///     .with_delivery_and(json("account.balance"));
/// ```
pub trait EventSourcedDelivery: Sized {
    /// The message type of the deliveries.
    type Message: Send + Sync + 'static;
    /// The type of bypass messages, sent beside the deliveries.
    type Bypass: Send + 'static;

    /// The type with delivery in front of its entities, which take no bypass messages. The codec of the type's commands
    /// becomes the codec of its deliveries.
    fn with_delivery(self) -> EntityType<WithDelivery<Self::Message, Infallible>>
    where
        Self: EventSourcedDelivery<Bypass = Infallible>,
    {
        self.with_delivery_and(NoBypass)
    }

    /// The type with delivery in front of its entities, which also take bypass messages: `codec` encodes them, and
    /// references whose key has the type name and the bypass type send them.
    fn with_delivery_and(
        self,
        codec: impl Codec<Self::Bypass>,
    ) -> EntityType<WithDelivery<Self::Message, Self::Bypass>>;
}

impl<T, B> EventSourcedDelivery for EntityType<T, ByEvents<B>>
where
    T: Send + Sync + 'static,
    B: EventSourced,
    B::Command: UnderDelivery<Message = T>,
{
    type Message = T;
    type Bypass = Beside<B>;

    fn with_delivery_and(self, bypass: impl Codec<Beside<B>>) -> EntityType<WithDelivery<T, Beside<B>>> {
        let mut deliveries = None;
        let layered = self.hosted_by(layered_codec(&mut deliveries, bypass), |parts, init| {
            let consumers = NodeState::of(init.extensions()).consumers(init.entity_type.as_str());
            let (behavior, persistence_id) = (parts.behavior(init)?, parts.persistence_id(init)?);
            Ok(delivery_host(behavior, persistence_id, &parts.codecs().of_wrapper(), consumers, init))
        });
        layered.is_activity(is_activity).on_set_up(register_type(deliveries))
    }
}
