//! The behaviour of a plain entity.

use greylag_persistence::Ctx;

use super::failure::Failure;
use crate::host::Signal;

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
    /// A failure, like a panic, goes to the type's [`Supervision`](super::Supervision); by default the entity is started
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
