//! Entity types with handlers and delivery, described by a key of their deliveries' message type.

use std::convert::Infallible;
use std::sync::Arc;

use greylag_core::Codec;
use greylag_sharding::{EntityInit, EntityKey, EntityType, Failure};

use super::layer::register_type;
use crate::delivery::with_delivery::{DeliveryCodec, NoBypass, WithDelivery};
use crate::driver::entity::{DeliveryEntity, DeliveryHost, DeliveryType, Factory, is_activity};
use crate::driver::node::state::NodeState;

impl DeliveryType {
    /// An entity type for `key`, whose entities `factory` makes. The entities take deliveries, encoded by `codec`, and
    /// no bypass messages. Their settings are those of the node ([`NodeDelivery`](crate::NodeDelivery)).
    ///
    /// ```
    /// use std::convert::Infallible;
    ///
    /// use greylag_codec::json;
    /// use greylag_delivery::{Delivery, DeliveryEntity, DeliveryType, WithDelivery};
    /// use greylag_sharding::{Ctx, EntityKey, Failure};
    ///
    /// const PRINTER: EntityKey<String> = EntityKey::new("Printer");
    ///
    /// struct Printer;
    ///
    /// impl DeliveryEntity<String> for Printer {
    ///     type Bypass = Infallible;
    ///
    ///     fn on_delivery(
    ///         &mut self,
    ///         page: Delivery<String>,
    ///         _: &mut Ctx<'_, WithDelivery<String, Infallible>>,
    ///     ) -> Result<(), Failure> {
    ///         println!("{}", *page);
    ///         page.confirm(); // a page that is not confirmed comes again
    ///         Ok(())
    ///     }
    ///
    ///     fn on_bypass(
    ///         &mut self,
    ///         nothing: Infallible,
    ///         _: &mut Ctx<'_, WithDelivery<String, Infallible>>,
    ///     ) -> Result<(), Failure> {
    ///         match nothing {}
    ///     }
    /// }
    ///
    /// let printers = DeliveryType::of(PRINTER, json("printer.page"), |_| Ok(Printer)).role("printers");
    /// ```
    pub fn of<T, E>(
        key: EntityKey<T>,
        codec: impl Codec<T>,
        factory: impl Fn(&EntityInit) -> Result<E, Failure> + Send + Sync + 'static,
    ) -> EntityType<WithDelivery<T, E::Bypass>>
    where
        T: Send + Sync + 'static,
        E: DeliveryEntity<T, Bypass = Infallible>,
    {
        Self::of_both(key, codec, NoBypass, factory)
    }

    /// As [`of`](Self::of), for entities that also take bypass messages: `bypass` encodes them, and references whose
    /// key has the type name and the bypass type send them.
    #[allow(clippy::needless_pass_by_value, reason = "keys are constants, and are named as such elsewhere")]
    pub fn of_both<T, E>(
        key: EntityKey<T>,
        codec: impl Codec<T>,
        bypass: impl Codec<E::Bypass>,
        factory: impl Fn(&EntityInit) -> Result<E, Failure> + Send + Sync + 'static,
    ) -> EntityType<WithDelivery<T, E::Bypass>>
    where
        T: Send + Sync + 'static,
        E: DeliveryEntity<T>,
    {
        let (codec, factory): (Arc<dyn Codec<T>>, Arc<Factory<E>>) = (Arc::new(codec), Arc::new(factory));
        let hosting = EntityType::hosting(EntityKey::named(key.name()), move |init| {
            let consumers = NodeState::of(init.extensions()).consumers(init.entity_type.as_str());
            DeliveryHost::new(&factory, consumers, init)
        });
        let hosting = hosting.codec(DeliveryCodec::new(codec.clone(), bypass));
        hosting.is_activity(is_activity).on_set_up(register_type(Some(codec)))
    }
}
