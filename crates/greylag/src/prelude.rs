//! What most programs name.

pub use greylag_cluster::{Mailbox, NoMessages, SingletonContext, SingletonRef};
pub use greylag_codec::{json, prost};
pub use greylag_core::{EntityError, NodeAddress, ReplyTo, UniqueAddress};
#[cfg(feature = "ddata")]
pub use greylag_crdt::{
    Flag, GCounter, GSet, LwwMap, LwwRegister, MvRegister, OrMultiMap, OrSet, PNCounter, PnCounterMap,
};
#[cfg(feature = "ddata")]
pub use greylag_ddata::Replicated;
#[cfg(feature = "persistence")]
pub use greylag_persistence::{
    Ctx, DurableState, Effect, EventMeta, EventSourced, EventSourcedSettings, PersistenceId, StateEffect, StoredCodec,
    Stores,
};
#[cfg(feature = "sharding")]
pub use greylag_sharding::{
    AskError, DaemonInit, DaemonProcesses, Entity, EntityCtx, EntityInit, EntityKey, EntityRef, EntityType, Failure,
    Passivation, Region, SendError, Sharding,
};
pub use serde::{Deserialize, Serialize};

pub use crate::{Node, NodeBuilder, NodeSettings, SingletonInstance};
