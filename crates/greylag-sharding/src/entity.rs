//! Plain entities: synchronous handlers whose state lives as long as their incarnation.
//!
//! A shard calls its entities one at a time and never re-enters one. Work that has to wait is started through the
//! [`Ctx`], and its result comes back as a message. Requests of a handler to its context take effect when the handler
//! returns.
//!
//! ```text
//! first message --> factory --> on_start --> receive* --> on_signal(PostStop)
//! ```
//!
//! Source: sharding §1.2, §4.

mod backoff;
mod ctx;
mod failure;
mod plain;

use greylag_core::Generation;
use greylag_persistence::{Ctx, InvalidPersistenceId, PersistenceId, Stores};

pub use backoff::Backoff;
pub(crate) use backoff::Failures;
pub use ctx::EntityCtx;
pub use failure::{Decider, Directive, Failure, FailureCause, Supervision, Verdict};
pub use greylag_core::TimerKey;
pub(crate) use plain::PlainEntity;

use crate::driver::{Node, Sharding};
use crate::extensions::Extensions;
pub use crate::host::Signal;
use crate::ids::{EntityId, EntityTypeName, ShardId};

/// The behaviour of one entity that persists nothing.
///
/// Handlers run on the shard's task and must not block; a slow one delays its shard and no other.
/// Source: sharding §1.2, §4.1.
pub trait Entity: Sized + Send + 'static {
    /// The type of the messages that the entity receives.
    type Message: Send + 'static;

    /// Runs once, before the message that woke the entity.
    fn on_start(&mut self, cx: &mut Ctx<'_, Self::Message>) {
        let _ = cx;
    }

    /// Takes one message.
    ///
    /// # Errors
    /// A failure, like a panic, goes to the type's [`Supervision`]; by default the entity is started
    /// anew, without the message that failed.
    fn receive(&mut self, message: Self::Message, cx: &mut Ctx<'_, Self::Message>) -> Result<(), Failure>;

    /// Takes a signal about the incarnation's end.
    ///
    /// # Errors
    /// Counted and logged; the incarnation ends nevertheless.
    fn on_signal(&mut self, signal: Signal, cx: &mut Ctx<'_, Self::Message>) -> Result<(), Failure> {
        let _ = (signal, cx);
        Ok(())
    }
}

/// The facts that a factory gets about the entity that it makes.
#[derive(Debug, Clone)]
pub struct EntityInit {
    /// The entity type's name.
    pub entity_type: EntityTypeName,
    /// The entity's id.
    pub id: EntityId,
    /// Its shard.
    pub shard: ShardId,
    /// The allocation of the shard under which the entity starts; named in journal claims.
    pub generation: Generation,
    /// Number of this incarnation; never used twice by a process.
    pub incarnation: u64,
    /// Whether its history or state may be in a store that only this node reaches.
    pub allow_local_journal: bool,
    pub(crate) node: std::sync::Arc<Node>,
}

impl EntityInit {
    /// The persistence id of the entity's history or state, unless its type has another rule: its type and its id.
    ///
    /// # Errors
    /// [`InvalidPersistenceId`] if the two are too long together, or one of them contains a `|`.
    pub fn persistence_id(&self) -> Result<PersistenceId, InvalidPersistenceId> {
        PersistenceId::of(self.entity_type.as_str(), self.id.as_str())
    }

    /// The sharding of the entity's node, by which a factory finds other entities; handlers have [`EntityCtx`]. `None` once
    /// the node has ended.
    pub fn sharding(&self) -> Option<Sharding> {
        self.node.sharding()
    }

    /// Values that layers above keep with this node's sharding.
    pub fn extensions(&self) -> &Extensions {
        &self.node.extensions
    }

    /// The stores that this node's sharding was started with.
    pub fn stores(&self) -> Option<&Stores> {
        self.node.stores.as_ref()
    }
}
