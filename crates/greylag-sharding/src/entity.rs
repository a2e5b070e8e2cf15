//! Entities: synchronous handlers that live inside a shard's task.
//!
//! A shard calls its entities one at a time and never re-enters one. Work that has to wait is started
//! through the [`Ctx`], and its result comes back: as a message at the back of the queue ([`Ctx::spawn`]),
//! or ahead of everything that queued meanwhile ([`Ctx::suspend`]). Requests that a handler makes through
//! its context take effect when the handler returns.
//!
//! ```text
//! first message --> factory --> on_start --> receive* --> on_stop --> receive* --> on_signal(PostStop)
//! ```
//!
//! Source: sharding §1.2, §4.

mod ctx;
mod failure;

use std::any::Any;
use std::fmt;

use greylag_core::Generation;
use greylag_persistence::{InvalidPersistenceId, PersistenceId, Stores};

pub use ctx::{AlreadySuspended, Ctx, DirectRef, Suspension};
#[allow(unused_imports)]
pub(crate) use ctx::{CtxScope, Requests, Resumption, TimerRequest, Work};
pub use failure::{Decider, Directive, Failure, FailureCause, Supervision};
pub use greylag_core::TimerKey;

use crate::ids::{EntityId, EntityTypeName, ShardId};

/// The behaviour of one entity.
///
/// Handlers run on the shard's task and must not block; a slow one delays its shard and no other.
/// Source: sharding §1.2, §4.1.
pub trait Entity: Send + 'static {
    /// What it is sent.
    type Msg: Send + 'static;

    /// Runs once, before the message that woke the entity.
    ///
    /// # Errors
    /// A failure is a start failure: by default the entity is given up, and the message that woke it
    /// is a dead letter `EntityStartFailed`.
    fn on_start(&mut self, cx: &mut Ctx<'_, Self::Msg>) -> Result<(), Failure> {
        let _ = cx;
        Ok(())
    }

    /// Takes one message.
    ///
    /// # Errors
    /// A failure, like a panic, goes to the type's [`Supervision`]; by default the entity is started
    /// anew, without the message that failed.
    fn receive(&mut self, msg: Self::Msg, cx: &mut Ctx<'_, Self::Msg>) -> Result<(), Failure>;

    /// The shard wants this incarnation to end: it is passivated, or its shard moves or stops.
    ///
    /// `stop` is the type's stop message, if it has one. The default hands that to
    /// [`Entity::receive`], which is then expected to call [`Ctx::stop`], and stops at once where
    /// there is none. An entity with work in flight may stop later; after the type's deadline it is
    /// stopped by force. Called at most once per incarnation. Source: sharding §4.5, §2.9.
    ///
    /// # Errors
    /// As [`Entity::receive`]; a failing entity is then stopped without a restart.
    fn on_stop(&mut self, stop: Option<Self::Msg>, cx: &mut Ctx<'_, Self::Msg>) -> Result<(), Failure> {
        match stop {
            Some(message) => self.receive(message, cx),
            None => {
                cx.stop();
                Ok(())
            }
        }
    }

    /// Is told of the incarnation's end.
    ///
    /// # Errors
    /// Counted and logged; the incarnation ends all the same.
    fn on_signal(&mut self, signal: Signal, cx: &mut Ctx<'_, Self::Msg>) -> Result<(), Failure> {
        let _ = (signal, cx);
        Ok(())
    }

    /// Takes the output of a future begun by [`Ctx::suspend_for`] or [`Ctx::spawn_for`], for
    /// entities whose asynchronous results are no messages of theirs.
    ///
    /// # Errors
    /// As [`Entity::receive`].
    fn on_resume(&mut self, value: Box<dyn Any + Send>, cx: &mut Ctx<'_, Self::Msg>) -> Result<(), Failure> {
        let _ = (value, cx);
        Ok(())
    }
}

/// What an entity is told about its own end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// It failed and is about to be replaced by a new value from the factory.
    PreRestart,
    /// It has stopped; no message follows. A killed entity does not get it.
    PostStop,
}

/// What a factory knows of the entity that it makes.
#[derive(Debug, Clone)]
pub struct EntityInit {
    /// The entity type's name.
    pub entity_type: EntityTypeName,
    /// The entity's id.
    pub id: EntityId,
    /// Its shard.
    pub shard: ShardId,
    /// Under which allocation of the shard it starts; named in journal claims.
    pub generation: Generation,
    /// Number of this incarnation; never used twice by a process.
    pub incarnation: u64,
    /// What this node's sharding was started with.
    pub stores: Option<Stores>,
    /// Whether its history or state may lie where only this node reaches it.
    pub allow_local_journal: bool,
}

impl EntityInit {
    /// The name under which an entity's history or state is stored: its type and its id.
    ///
    /// # Errors
    /// [`InvalidPersistenceId`] if the two are too long together, or one of them contains a `|`.
    pub fn persistence_id(&self) -> Result<PersistenceId, InvalidPersistenceId> {
        PersistenceId::of(self.entity_type.as_str(), self.id.as_str())
    }
}

/// Why an entity type's journal knows a newer owner; see [`Ctx::fenced`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fenced {
    /// The generation that the journal holds, if that was the reason for the refusal.
    pub stored: Option<Generation>,
}

impl fmt::Display for Fenced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stored {
            Some(stored) => write!(f, "fenced by generation {stored}"),
            None => f.write_str("fenced by another writer"),
        }
    }
}
