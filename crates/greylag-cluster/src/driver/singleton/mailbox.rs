//! What reaches an instance, in order.

use std::fmt;
use std::sync::Arc;

use greylag_core::DeadLetterReason;
use tokio::sync::mpsc;

use super::definition::StopToken;
use super::port::{Parcel, Port};
use crate::driver::pulse::Pulse;

/// The messages of one instance.
///
/// Dropped with messages in it, those are dead letters `NotSingletonHost`, and their askers hear so.
pub struct Mailbox<M: Send + 'static> {
    pub(super) messages: mpsc::Receiver<Parcel<M>>,
    /// Waits for the tick.
    pub(super) taken: Option<Parcel<M>>,
    pub(super) pulse: Pulse,
    pub(super) stop: StopToken,
    pub(super) port: Arc<Port<M>>,
}

impl<M: Send + 'static> Mailbox<M> {
    /// The next message, in the order in which each node sent them; `None` once the instance must end
    /// and has taken all that came before, or at once where another instance may have started: this node
    /// was declared dead, or lost the instance's lease. Safe to use in `select!`.
    ///
    /// After a sleep of the process the mailbox hands out nothing before the node has looked at how long it
    /// slept, so an answer from an instance's memory is as new as the answers of any other instance. Source:
    /// cluster F9.
    pub async fn recv(&mut self) -> Option<M> {
        if self.taken.is_none() && !self.stop.is_stopped_at_once() {
            self.taken = self.messages.recv().await;
        }
        // Takes the message first and reads the tick then: a message that was sent after this process woke must
        // not pass by a tick from before it slept.
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
        if self.stop.is_stopped_at_once() { None } else { self.taken.take().map(|parcel| parcel.message) }
    }

    /// Tells when the instance must end, for one that would rather not take all that waits.
    pub fn stop_token(&self) -> StopToken {
        self.stop.clone()
    }
}

impl<M: Send + 'static> Drop for Mailbox<M> {
    fn drop(&mut self) {
        self.messages.close();
        if let Some(parcel) = self.taken.take() {
            self.port.bury(parcel, DeadLetterReason::NotSingletonHost);
        }
        while let Ok(parcel) = self.messages.try_recv() {
            self.port.bury(parcel, DeadLetterReason::NotSingletonHost);
        }
    }
}

impl<M: Send + 'static> fmt::Debug for Mailbox<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("waiting", &self.messages.len()).finish_non_exhaustive()
    }
}
