//! What reaches an instance, in order.

use std::fmt;
use std::sync::Arc;

use greylag_core::DeadLetterReason;
use tokio::sync::mpsc;

use super::definition::StopToken;
use super::port::{Parcel, Port};

/// The messages of one instance.
///
/// Dropped with messages in it, those are dead letters `NotSingletonHost`, and their askers hear so.
pub struct Mailbox<M: Send + 'static> {
    pub(super) messages: mpsc::Receiver<Parcel<M>>,
    pub(super) stop: StopToken,
    pub(super) port: Arc<Port<M>>,
}

impl<M: Send + 'static> Mailbox<M> {
    /// The next message, in the order in which each node sent them; `None` once the instance must end
    /// and has taken all that came before. Safe to use in `select!`.
    pub async fn recv(&mut self) -> Option<M> {
        self.messages.recv().await.map(|parcel| parcel.message)
    }

    /// Tells when the instance must end, for one that would rather not take all that waits.
    pub fn stop_token(&self) -> StopToken {
        self.stop.clone()
    }
}

impl<M: Send + 'static> Drop for Mailbox<M> {
    fn drop(&mut self) {
        self.messages.close();
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
