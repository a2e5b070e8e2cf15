//! Puts delivery in front of the entities of a type, in the type's description; also for proxies, which host no
//! entities.

use std::convert::Infallible;
use std::sync::Arc;

use greylag_core::Codec;
use greylag_sharding::{EntityType, Failure, Proxy, Region, Sharding};

use crate::delivery::with_delivery::{DeliveryCodec, NoBypass, WithDelivery};
use crate::driver::node::state::NodeState;
use crate::settings::DeliverySettings;

/// Puts delivery in front of the entities of a type to which a node only sends (a proxy), in the type's description.
///
/// ```
/// use greylag_codec::json;
/// use greylag_delivery::ProxyDelivery;
/// use greylag_sharding::EntityKey;
///
/// const ACCOUNT: EntityKey<u64> = EntityKey::new("Account");
///
/// let accounts = ACCOUNT.proxy().role("accounts").commands(json("account.deposit")).with_delivery();
/// ```
pub trait ProxyDelivery<T: Send + Sync + 'static>: Sized {
    /// The type with delivery in front of its entities; this node sends no bypass messages.
    fn with_delivery(self) -> EntityType<WithDelivery<T, Infallible>, Proxy> {
        self.with_delivery_and(NoBypass)
    }

    /// The type with delivery in front of its entities; this node also sends bypass messages, encoded by `codec`.
    fn with_delivery_and<Q: Send + 'static>(self, codec: impl Codec<Q>) -> EntityType<WithDelivery<T, Q>, Proxy>;
}

impl<T: Send + Sync + 'static> ProxyDelivery<T> for EntityType<T, Proxy> {
    fn with_delivery_and<Q: Send + 'static>(self, bypass: impl Codec<Q>) -> EntityType<WithDelivery<T, Q>, Proxy> {
        let mut deliveries = None;
        let layered = self.carried_as(layered_codec(&mut deliveries, bypass));
        layered.on_set_up(register_type(deliveries))
    }
}

/// Settings of deliveries for the entities of one type, in its description.
///
/// ```
/// use std::convert::Infallible;
///
/// use greylag_codec::json;
/// use greylag_delivery::{DeliveryEntity, DeliveryType, DeliveryTypeSettings, WithDelivery};
/// use greylag_sharding::EntityKey;
///
/// # fn describe<P: DeliveryEntity<String, Bypass = Infallible> + Default>() -> greylag_sharding::EntityType<WithDelivery<String, Infallible>> {
/// const PRINTER: EntityKey<String> = EntityKey::new("Printer");
///
/// // A page that fails three times is given up.
/// let printers = DeliveryType::of(PRINTER, json("printer.page"), |_| Ok(P::default()))
///     .delivery_settings(|settings| settings.consumer.max_delivery_attempts = 3);
/// # printers
/// # }
/// ```
pub trait DeliveryTypeSettings: Sized {
    /// Changes settings for the entities of this type alone; `change` starts from the settings of the node. Invalid
    /// settings keep the type from being set up ([`InitError::Refused`](greylag_sharding::InitError::Refused)). On a
    /// node the first change of a type applies until the node ends.
    #[must_use]
    fn delivery_settings(self, change: impl Fn(&mut DeliverySettings) + Send + Sync + 'static) -> Self;
}

impl<T, Q, K> DeliveryTypeSettings for EntityType<WithDelivery<T, Q>, K>
where
    T: Send + Sync + 'static,
    Q: Send + 'static,
{
    fn delivery_settings(self, change: impl Fn(&mut DeliverySettings) + Send + Sync + 'static) -> Self {
        let name = self.name().to_owned();
        self.before_set_up(move |sharding| {
            let changed = NodeState::of(sharding.extensions()).change_settings(&name, &change);
            changed.map_err(|error| Failure::new(error.to_string()))
        })
    }
}

type SharedCodec<M> = Arc<dyn Codec<M>>;

/// Combines the codec of deliveries, which is also stored in `deliveries`, and the codec of bypass messages into the
/// codec of the region's messages.
pub(super) fn layered_codec<T, Q>(
    deliveries: &mut Option<SharedCodec<T>>,
    bypass: impl Codec<Q>,
) -> impl FnOnce(SharedCodec<T>) -> SharedCodec<WithDelivery<T, Q>>
where
    T: Send + Sync + 'static,
    Q: Send + 'static,
{
    |codec| {
        *deliveries = Some(codec.clone());
        Arc::new(DeliveryCodec::new(codec, bypass))
    }
}

/// Registers the type where producers find it, and adds a view of its region that sends bypass messages.
pub(super) fn register_type<T, Q>(
    deliveries: Option<SharedCodec<T>>,
) -> impl Fn(&Sharding, &Region<WithDelivery<T, Q>>) + Send + Sync
where
    T: Send + Sync + 'static,
    Q: Send + 'static,
{
    move |sharding, region| {
        NodeState::of(sharding.extensions()).add::<T, Q>(region.name().as_str(), deliveries.clone());
        sharding.add_view(region, WithDelivery::<T, Q>::Bypass);
    }
}
