//! The mailbox of an instance: its messages, in order.

use std::fmt;
use std::sync::Arc;

use greylag_core::DeadLetterReason;
use tokio::sync::mpsc;

use super::instance::StopToken;
use super::port::{Gate, Port, QueuedMessage};
use crate::driver::pulse::Pulse;

/// The messages of one instance.
///
/// Messages left when the mailbox is dropped are dead letters `NotSingletonHost`, and their asks fail.
pub struct Mailbox<M: Send + 'static> {
    messages: mpsc::Receiver<QueuedMessage<M>>,
    /// A message that waits for a fresh tick.
    taken: Option<QueuedMessage<M>>,
    pulse: Pulse,
    stop: StopToken,
    port: Arc<Port<M>>,
}

impl<M: Send + 'static> Mailbox<M> {
    /// Opens the mailbox of an instance, which takes messages from now on.
    pub(super) fn open(port: &Arc<Port<M>>, instance: u64, stop: StopToken) -> (Self, Gate<M>) {
        let (messages, gate) = port.open(instance);
        (Self { messages, taken: None, stop, pulse: port.pulse().clone(), port: port.clone() }, gate)
    }

    /// The next message, in the order in which each node sent them; `None` once the instance must end and has taken all
    /// messages that came before. `None` at once if another instance may have started: this node was declared dead, or
    /// lost the instance's lease. Safe to use in `select!`.
    ///
    /// After a sleep of the process the mailbox returns no message before the node has checked how long it slept, so an
    /// answer from an instance's memory is as new as the answers of any other instance. Source: cluster F9.
    pub async fn recv(&mut self) -> Option<M> {
        if self.taken.is_none() && !self.stop.is_stopped_at_once() {
            self.taken = self.messages.recv().await;
        }
        // Take the message before reading the tick: a message that was sent after this process woke must not be covered
        // by a tick from before the sleep.
        self.taken.as_ref()?;
        if !self.pulse.is_fresh() {
            let goes_on = tokio::select! {
                fresh = self.pulse.fresh() => fresh,
                () = self.stop.stopped_at_once() => false,
            };
            if !goes_on {
                return None;
            }
        }
        if self.stop.is_stopped_at_once() { None } else { self.taken.take().map(|queued| queued.message) }
    }

    /// A token that tells when the instance must end, for an instance that would rather not take all waiting messages.
    pub fn stop_token(&self) -> StopToken {
        self.stop.clone()
    }
}

impl<M: Send + 'static> Drop for Mailbox<M> {
    fn drop(&mut self) {
        self.messages.close();
        if let Some(queued) = self.taken.take() {
            self.port.drop_message(queued, DeadLetterReason::NotSingletonHost);
        }
        while let Ok(queued) = self.messages.try_recv() {
            self.port.drop_message(queued, DeadLetterReason::NotSingletonHost);
        }
    }
}

impl<M: Send + 'static> fmt::Debug for Mailbox<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("waiting", &self.messages.len()).finish_non_exhaustive()
    }
}
