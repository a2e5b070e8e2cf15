//! Paths of controllers, and the messages of consumers to the controller of a path (upstream messages).
//!
//! A consumer on the producer's own node does not use the transport: its messages are neither encoded nor decoded, and
//! no other thread hands them over. Source: delivery K7, "What it stands on".

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use greylag_core::{CodecId, DeadLetterReason};
use greylag_transport::{Destination, Envelope, Inbound, LaneKind, Receiver, Recipient, Remoting};
use tokio::sync::mpsc;

use crate::ids::ControllerRef;
use crate::message::UpstreamMessage;
use crate::settings::LANE_MARGIN;
use crate::wire;

/// The prefix of the paths of controllers.
const PATHS: &str = "delivery/";
/// Capacity of a producer's inbox, in upstream messages; further ones are dropped, and consumers repeat them.
const INBOX: usize = 16 * 1024;
/// Maximum bytes of upstream messages in one transport message; a single larger one travels alone.
const MAX_BYTES: usize = 64 << 10;
/// Maximum encoded bytes of one upstream message, without its path.
const MAX_WORD_BYTES: usize = 80;

/// The inboxes of all producers of this process, by path. Nodes of one process share the map, since paths are unique.
static LOCAL_INBOXES: LazyLock<RwLock<HashMap<Arc<str>, mpsc::Sender<UpstreamMessage>>>> =
    LazyLock::new(RwLock::default);

/// Registers `receiver` under a fresh path, which no other controller ever gets. The returned reference has the path
/// and the node.
pub(crate) fn register(remoting: &Arc<dyn Remoting>, receiver: Arc<dyn Receiver>) -> ControllerRef {
    // Not worth a dead letter: both ends repeat messages that find an inbox full, and a message to an ended controller
    // has no effect.
    let repeated = [DeadLetterReason::NoSuchRecipient, DeadLetterReason::StaleRecipient, DeadLetterReason::MailboxFull];
    remoting.declare_repeated(PATHS, None, &repeated);
    let path: Arc<str> = format!("{PATHS}{}", uuid::Uuid::new_v4().simple()).into();
    let instance = remoting.register(&path, receiver);
    ControllerRef { node: remoting.self_address().clone(), path, instance }
}

/// Registers a producer controller: its reference, and the upstream messages to it.
pub(in crate::driver::sending) fn open(
    remoting: &Arc<dyn Remoting>,
) -> (LocalRegistration, mpsc::Receiver<UpstreamMessage>) {
    let (inbox, upstream) = mpsc::channel(INBOX);
    let receiver = Upstream { inbox: inbox.clone(), remoting: remoting.clone() };
    let reference = register(remoting, Arc::new(receiver));
    LOCAL_INBOXES.write().unwrap_or_else(PoisonError::into_inner).insert(reference.path.clone(), inbox);
    (LocalRegistration(reference), upstream)
}

/// Registration of a producer controller: consumers on its node reach it without the transport, until this value is
/// dropped.
pub(crate) struct LocalRegistration(ControllerRef);

impl LocalRegistration {
    /// The reference to which consumers send their answers.
    pub(crate) fn reference(&self) -> &ControllerRef {
        &self.0
    }
}

impl Drop for LocalRegistration {
    fn drop(&mut self) {
        LOCAL_INBOXES.write().unwrap_or_else(PoisonError::into_inner).remove(&self.0.path);
    }
}

/// Sends an upstream message. A message without room is lost, and its consumer repeats it.
pub(crate) fn send_upstream(remoting: &dyn Remoting, message: UpstreamMessage) {
    if let Some(message) = send_upstream_local(remoting, message) {
        send_upstream_remote(remoting, &[message]);
    }
}

/// Hands the message to a producer of this node. Returns the message if there is no such producer, or no room, so that
/// the transport reports it.
pub(crate) fn send_upstream_local(remoting: &dyn Remoting, message: UpstreamMessage) -> Option<UpstreamMessage> {
    if message.to.node != *remoting.self_address() {
        return Some(message);
    }
    let local = LOCAL_INBOXES.read().unwrap_or_else(PoisonError::into_inner);
    match local.get(&message.to.path) {
        Some(inbox) => inbox.try_send(message).err().map(mpsc::error::TrySendError::into_inner),
        None => Some(message),
    }
}

/// Sends upstream messages of this node's consumers to one recipient path, in as few transport messages as the lane
/// permits.
pub(crate) fn send_upstream_remote(remoting: &dyn Remoting, messages: &[UpstreamMessage]) {
    let lane = remoting.maximum_message_size(LaneKind::Ordinary).saturating_sub(LANE_MARGIN).min(MAX_BYTES);
    let mut rest = messages;
    while let Some(UpstreamMessage { to, .. }) = rest.first() {
        let mut bytes = 0;
        let fitting = rest.iter().take_while(|message| {
            bytes += message.from.path.len() + MAX_WORD_BYTES;
            bytes <= lane
        });
        // A message too large for the lane is sent alone, for the transport to report it.
        let (now, later) = rest.split_at(fitting.count().max(1));
        let (recipient, written) = (Recipient::new(to.path.clone()), wire::write_upstream(now));
        let envelope = Envelope::new(recipient, CodecId::INTERNAL, wire::UPSTREAM, written).to_uid(to.node.uid());
        remoting.send(&Destination::Incarnation(to.node.clone()), envelope).ok();
        rest = later;
    }
}

/// The receiver of upstream messages at a producer's path.
struct Upstream {
    inbox: mpsc::Sender<UpstreamMessage>,
    remoting: Arc<dyn Remoting>,
}

impl Receiver for Upstream {
    fn receive(&self, message: Inbound) {
        match wire::read_upstream(message.payload.clone()) {
            // The controllers named as senders must be on the node that sent the message.
            Ok(said) if said.iter().all(|said| said.from.node == message.from) => {
                let is_taken = said.into_iter().all(|said| self.inbox.try_send(said).is_ok());
                if !is_taken {
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

#[cfg(test)]
mod tests {
    use greylag_core::Registry;
    use greylag_transport::memory::MemoryNetwork;

    use super::*;
    use crate::ids::Epoch;
    use crate::message::Upstream as Word;

    fn word(from: &ControllerRef, to: &ControllerRef) -> UpstreamMessage {
        let message = Word::Ack { confirmed: 1, up_to: 2 };
        UpstreamMessage { from: from.clone(), to: to.clone(), epoch: Some(Epoch::FIRST), message }
    }

    #[tokio::test]
    async fn upstream_messages_to_a_local_producer_bypass_the_transport() {
        let network = MemoryNetwork::new();
        let node = |name: &str| network.node(name.parse().unwrap(), Arc::new(Registry::new()));
        let (a, b) = (node("a:1#1"), node("b:1#2"));
        let (local, mut upstream) = open(&a);
        let to = local.reference().clone();
        let from = |node: &Arc<dyn Remoting>| ControllerRef { node: node.self_address().clone(), ..to.clone() };
        // The producer is unregistered, so the transport cannot reach it: a message that arrives came without the
        // transport.
        a.unregister(&to.path);
        send_upstream(&*a, word(&from(&a), &to));
        assert_eq!(upstream.try_recv(), Ok(word(&from(&a), &to)));

        // A consumer of another node must use the transport, even if both nodes share a process.
        send_upstream(&*b, word(&from(&b), &to));
        tokio::time::timeout(std::time::Duration::from_secs(20), async {
            while a.dead_letter_totals().is_empty() {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        })
        .await
        .expect("the transport found no recipient");
        assert!(upstream.try_recv().is_err());
    }

    #[tokio::test]
    async fn upstream_messages_without_room_or_local_producer_use_the_transport() {
        let network = MemoryNetwork::new();
        let a = network.node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
        let (local, mut upstream) = open(&a);
        let to = local.reference().clone();
        (0..INBOX).for_each(|_| assert!(send_upstream_local(&*a, word(&to, &to)).is_none()));
        assert_eq!(send_upstream_local(&*a, word(&to, &to)), Some(word(&to, &to)), "there is no room");
        upstream.try_recv().unwrap();
        assert!(send_upstream_local(&*a, word(&to, &to)).is_none());
        drop(local);
        assert_eq!(send_upstream_local(&*a, word(&to, &to)), Some(word(&to, &to)), "the producer has ended");
    }
}
