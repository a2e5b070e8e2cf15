//! An entity as its shard calls it.

use std::any::Any;

use super::cx::ShardCx;
use super::signal::Signal;
use crate::entity::Failure;

/// An entity as hosted by a shard. See the [module](super).
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
