//! Paths of controllers, and what consumers say to the one behind a path.

use std::sync::Arc;

use greylag_core::DeadLetterReason;
use greylag_transport::{Inbound, Receiver, Remoting};
use tokio::sync::mpsc;

use crate::ids::ControllerRef;
use crate::message::UpstreamMessage;
use crate::wire;

/// What the paths of controllers begin with.
const PATHS: &str = "delivery/";
/// Upstream messages that wait for the task; beyond it they are dropped, and repeated by consumers.
const INBOX: usize = 16 * 1024;

/// Gives a controller a path that no other one ever has, and what arrives there to `receiver`. The reference of the
/// controller names both.
pub(crate) fn register(remoting: &Arc<dyn Remoting>, receiver: Arc<dyn Receiver>) -> ControllerRef {
    // Both ends repeat messages that find an inbox full, and messages after the end do not matter any more.
    let repeated = [DeadLetterReason::NoSuchRecipient, DeadLetterReason::StaleRecipient, DeadLetterReason::MailboxFull];
    remoting.declare_repeated(PATHS, None, &repeated);
    let path: Arc<str> = format!("{PATHS}{}", uuid::Uuid::new_v4().simple()).into();
    let instance = remoting.register(&path, receiver);
    ControllerRef { node: remoting.self_address().clone(), path, instance }
}

/// A producer controller's reference, and what consumers say to it.
pub(super) fn open(remoting: &Arc<dyn Remoting>) -> (ControllerRef, mpsc::Receiver<UpstreamMessage>) {
    let (inbox, upstream) = mpsc::channel(INBOX);
    let reference = register(remoting, Arc::new(Upstream { inbox, remoting: remoting.clone() }));
    (reference, upstream)
}

/// Takes what consumers say.
struct Upstream {
    inbox: mpsc::Sender<UpstreamMessage>,
    remoting: Arc<dyn Remoting>,
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
