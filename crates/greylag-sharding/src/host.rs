//! Hosted entities: the layer below [`Entity`](crate::Entity), for wrappers with a protocol of their own.
//!
//! A shard calls its hosted entities one at a time and never re-enters one. Plain and persistent entities are built on
//! this layer; so is delivery, whose wrapper takes protocol messages in front of the entity that it holds. Requests of
//! a handler to its [`ShardCx`] take effect when the handler returns.
//!
//! ```text
//! first message --> factory --> on_start --> receive* --> on_stop --> receive* --> on_signal(PostStop)
//! ```
//!
//! Source: sharding §4.

mod cx;

use std::any::Any;
use std::fmt;

use greylag_core::Generation;

pub use cx::{AlreadySuspended, DirectRef, ShardCx, Suspension};
pub(crate) use cx::{CtxScope, MakeMessage, ReceiveTimeoutRequest, Requests, Resumption, TimerRequest, Work};

pub use crate::driver::{DurableStateEntity, EventSourcedEntity, HostedMachine, MachineState, PersistentEntity};
use crate::entity::Failure;

/// An entity as hosted by a shard. See the [module](self).
///
/// Handlers run on the shard's task and must not block; a slow one delays its shard and no other.
pub trait HostedEntity: Send + 'static {
    /// The type of the messages that the entity receives.
    type Message: Send + 'static;

    /// Runs once, before the message that woke the entity.
    ///
    /// # Errors
    /// A failure is a start failure: by default the entity is given up, and the message that woke it
    /// is a dead letter `EntityStartFailed`.
    fn on_start(&mut self, cx: &mut ShardCx<'_, Self::Message>) -> Result<(), Failure> {
        let _ = cx;
        Ok(())
    }

    /// Takes one message.
    ///
    /// # Errors
    /// A failure, like a panic, goes to the type's [`Supervision`](crate::Supervision); by default the entity is started
    /// anew, without the message that failed.
    fn receive(&mut self, message: Self::Message, cx: &mut ShardCx<'_, Self::Message>) -> Result<(), Failure>;

    /// Takes the shard's request to end this incarnation: it is passivated, or its shard moves or stops.
    ///
    /// `stop` is the type's stop message, if it has one. The default passes the message to [`HostedEntity::receive`],
    /// which is then expected to call [`ShardCx::stop`], and stops at once if there is none. An entity with work in
    /// flight may stop later; after the type's deadline it is stopped by force. Called at most once per incarnation.
    /// Source: sharding §4.5, §2.9.
    ///
    /// # Errors
    /// As [`HostedEntity::receive`]; a failing entity is then stopped without a restart.
    fn on_stop(&mut self, stop: Option<Self::Message>, cx: &mut ShardCx<'_, Self::Message>) -> Result<(), Failure> {
        match stop {
            Some(message) => self.receive(message, cx),
            None => {
                cx.stop();
                Ok(())
            }
        }
    }

    /// Takes a signal about the incarnation's end.
    ///
    /// # Errors
    /// Counted and logged; the incarnation ends nevertheless.
    fn on_signal(&mut self, signal: Signal, cx: &mut ShardCx<'_, Self::Message>) -> Result<(), Failure> {
        let _ = (signal, cx);
        Ok(())
    }

    /// Takes the output of a future begun by [`ShardCx::suspend_for`] or [`ShardCx::spawn_for`], for entities whose
    /// asynchronous results are not messages.
    ///
    /// # Errors
    /// As [`HostedEntity::receive`].
    fn on_resume(&mut self, value: Box<dyn Any + Send>, cx: &mut ShardCx<'_, Self::Message>) -> Result<(), Failure> {
        let _ = (value, cx);
        Ok(())
    }
}

/// A signal to an entity just before its incarnation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// The entity failed, and a new value from the factory is about to replace this one.
    PreRestart,
    /// The entity has stopped; no message follows. A killed entity does not get this signal.
    PostStop,
}

/// Why an entity type's journal knows a newer owner; see [`ShardCx::fenced`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fenced {
    /// The generation in the journal, if that was the reason for the refusal.
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
