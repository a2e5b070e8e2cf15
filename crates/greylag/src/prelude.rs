//! The names that most programs use.
//!
//! Neither of the two types named `Signal` is included, that of entities (`greylag::sharding::Signal`) and that of
//! event-sourced entities (`greylag::persistence::Signal`): a program that uses one imports it.

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
