//! What most programs name.

pub use greylag_codec::{json, prost};
pub use greylag_core::{EntityError, NodeAddress, ReplyTo, UniqueAddress};

#[cfg(feature = "persistence")]
pub use greylag_persistence::{
    CommandContext, DurableState, Effect, EventMeta, EventSourced, EventSourcedSettings, PersistenceId, StateContext,
    StateEffect, StoredCodec, Stores,
};
#[cfg(feature = "sharding")]
pub use greylag_sharding::{Ctx, Entity, EntityInit, EntityRef, EntityType, Failure, Region, Sharding};

pub use crate::{Node, NodeBuilder, NodeSettings};
