//! What most programs name.
//!
//! Neither of the two types `Signal` is here, an entity's (`greylag::sharding::Signal`) and that of one with a history
//! (`greylag::persistence::Signal`): a program that names one says which.

pub use greylag_cluster::{Mailbox, NoMessages, SingletonContext, SingletonRef};
pub use greylag_codec::{json, prost};
pub use greylag_core::{EntityError, NodeAddress, ReplyTo, UniqueAddress};
#[cfg(feature = "ddata")]
pub use greylag_crdt::{
    Flag, GCounter, GSet, LwwMap, LwwRegister, MvRegister, OrMultiMap, OrSet, PNCounter, PnCounterMap,
};
#[cfg(feature = "ddata")]
pub use greylag_ddata::Replicated;
#[cfg(feature = "delivery")]
pub use greylag_delivery::{
    Dedupe, Delivery, DeliveryEntity, DeliveryType, DeliveryTypeSettings, ProducerId, ProxyDelivery, WithDelivery,
    WorkKey,
};
#[cfg(all(feature = "delivery", feature = "persistence"))]
pub use greylag_delivery::{DeliveryCommand, DeliveryEffects, EventSourcedDelivery};
#[cfg(feature = "persistence")]
pub use greylag_persistence::{
    Ctx, DurableState, Effect, EventMeta, EventSourced, EventSourcedSettings, PersistenceId, StateEffect, StoredCodec,
    Stores,
};
#[cfg(feature = "sharding")]
pub use greylag_sharding::{
    AskError, Backoff, DaemonInit, DaemonProcesses, DirectRef, Directive, Entity, EntityCtx, EntityInit, EntityKey,
    EntityRef, EntityType, ExternalAllocation, Extractor, Failure, InitError, NotStarted, Passivation, Region,
    RememberStore, SendError, Sharding, Supervision,
};
pub use serde::{Deserialize, Serialize};

pub use crate::{Node, NodeBuilder, NodeSettings, SingletonInstance};
