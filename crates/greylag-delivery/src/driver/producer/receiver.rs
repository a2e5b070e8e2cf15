//! Takes what consumers say to a producer.

use std::sync::Arc;

use greylag_core::DeadLetterReason;
use greylag_transport::{Inbound, Receiver, Remoting};
use tokio::sync::mpsc;

use crate::message::UpstreamMessage;
use crate::wire;

/// See the module's documentation.
pub(super) struct Upstream {
    pub(super) inbox: mpsc::Sender<UpstreamMessage>,
    pub(super) remoting: Arc<dyn Remoting>,
}

impl Receiver for Upstream {
    fn receive(&self, message: Inbound) {
        match wire::read_upstream(message.payload.clone()) {
            // The controller that the message names must be at the node that sent it.
            Ok(upstream) if upstream.from.node == message.from => {
                if self.inbox.try_send(upstream).is_err() {
                    self.remoting.refuse(&message, DeadLetterReason::MailboxFull);
                }
            }
            Ok(_) => self.remoting.refuse(&message, DeadLetterReason::Untrusted),
            Err(error) => {
                tracing::warn!(%error, "message of a consumer controller could not be read");
                self.remoting.refuse(&message, DeadLetterReason::Undecodable);
            }
        }
    }
}
