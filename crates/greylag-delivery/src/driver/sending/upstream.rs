//! Paths of controllers, and what consumers say to the one behind a path.
//!
//! A consumer of the producer's own node speaks to it without the transport: its words are neither written nor read, and no
//! other thread hands them over. Source: delivery K7, "What it stands on".

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
/// Upstream messages that wait for the task; beyond it they are dropped, and repeated by consumers.
const INBOX: usize = 16 * 1024;
/// Bytes of what consumers say in one message of the transport, unless a single word has more.
const MAX_BYTES: usize = 64 << 10;
/// Bytes of what one consumer says, without its path, at most.
const MAX_WORD_BYTES: usize = 80;

/// The inboxes of all producers of this process, by path. Nodes that share a process share the map, since no path is ever
/// given twice.
static NEAR: LazyLock<RwLock<HashMap<Arc<str>, mpsc::Sender<UpstreamMessage>>>> = LazyLock::new(RwLock::default);

/// Gives a controller a path that no other one ever has, and what arrives there to `receiver`. The reference of the
/// controller names both.
pub(crate) fn register(remoting: &Arc<dyn Remoting>, receiver: Arc<dyn Receiver>) -> ControllerRef {
    // Both ends repeat messages that find an inbox full, and a message to a controller that has ended has no effect.
    let repeated = [DeadLetterReason::NoSuchRecipient, DeadLetterReason::StaleRecipient, DeadLetterReason::MailboxFull];
    remoting.declare_repeated(PATHS, None, &repeated);
    let path: Arc<str> = format!("{PATHS}{}", uuid::Uuid::new_v4().simple()).into();
    let instance = remoting.register(&path, receiver);
    ControllerRef { node: remoting.self_address().clone(), path, instance }
}

/// A producer controller's reference, and what consumers say to it.
pub(super) fn open(remoting: &Arc<dyn Remoting>) -> (Near, mpsc::Receiver<UpstreamMessage>) {
    let (inbox, upstream) = mpsc::channel(INBOX);
    let receiver = Upstream { inbox: inbox.clone(), remoting: remoting.clone() };
    let reference = register(remoting, Arc::new(receiver));
    NEAR.write().unwrap_or_else(PoisonError::into_inner).insert(reference.path.clone(), inbox);
    (Near(reference), upstream)
}

/// A producer controller to which consumers of its node may speak without the transport, until this is dropped.
pub(crate) struct Near(ControllerRef);

impl Near {
    /// Where consumers answer to.
    pub(crate) fn reference(&self) -> &ControllerRef {
        &self.0
    }
}

impl Drop for Near {
    fn drop(&mut self) {
        NEAR.write().unwrap_or_else(PoisonError::into_inner).remove(&self.0.path);
    }
}

/// Tells a producer controller what a consumer of this node says. A message that finds no room is repeated, like one that is
/// lost on the way.
pub(crate) fn say(remoting: &dyn Remoting, message: UpstreamMessage) {
    if let Some(message) = say_near(remoting, message) {
        say_far(remoting, &[message]);
    }
}

/// Hands the message to a producer of this node. A message that finds no such producer, or no room, comes back, for the
/// transport to report it.
pub(crate) fn say_near(remoting: &dyn Remoting, message: UpstreamMessage) -> Option<UpstreamMessage> {
    if message.to.node != *remoting.self_address() {
        return Some(message);
    }
    let near = NEAR.read().unwrap_or_else(PoisonError::into_inner);
    match near.get(&message.to.path) {
        Some(inbox) => inbox.try_send(message).err().map(mpsc::error::TrySendError::into_inner),
        None => Some(message),
    }
}

/// Sends what consumers of this node say to one recipient path, in as few messages as the lane takes.
pub(crate) fn say_far(remoting: &dyn Remoting, messages: &[UpstreamMessage]) {
    let lane = remoting.maximum_message_size(LaneKind::Ordinary).saturating_sub(LANE_MARGIN).min(MAX_BYTES);
    let mut rest = messages;
    while let Some(UpstreamMessage { to, .. }) = rest.first() {
        let mut bytes = 0;
        let fitting = rest.iter().take_while(|message| {
            bytes += message.from.path.len() + MAX_WORD_BYTES;
            bytes <= lane
        });
        // A message that fits nowhere goes alone, for the transport to report it.
        let (now, later) = rest.split_at(fitting.count().max(1));
        let (recipient, written) = (Recipient::new(to.path.clone()), wire::write_upstream(now));
        let envelope = Envelope::new(recipient, CodecId::INTERNAL, wire::UPSTREAM, written).to_uid(to.node.uid());
        remoting.send(&Destination::Incarnation(to.node.clone()), envelope).ok();
        rest = later;
    }
}

/// Takes what consumers say.
struct Upstream {
    inbox: mpsc::Sender<UpstreamMessage>,
    remoting: Arc<dyn Remoting>,
}

impl Receiver for Upstream {
    fn receive(&self, message: Inbound) {
        match wire::read_upstream(message.payload.clone()) {
            // The controllers that speak must be at the node that sent it.
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
    async fn a_producer_of_the_same_node_hears_without_the_transport() {
        let network = MemoryNetwork::new();
        let node = |name: &str| network.node(name.parse().unwrap(), Arc::new(Registry::new()));
        let (a, b) = (node("a:1#1"), node("b:1#2"));
        let (near, mut upstream) = open(&a);
        let to = near.reference().clone();
        let from = |node: &Arc<dyn Remoting>| ControllerRef { node: node.self_address().clone(), ..to.clone() };
        // Unregistered, the producer is out of the transport's reach, so a message that arrives came without the transport.
        a.unregister(&to.path);
        say(&*a, word(&from(&a), &to));
        assert_eq!(upstream.try_recv(), Ok(word(&from(&a), &to)));

        // A consumer of another node has the transport alone, also where both nodes share a process.
        say(&*b, word(&from(&b), &to));
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
    async fn what_finds_no_room_or_no_producer_goes_by_the_transport() {
        let network = MemoryNetwork::new();
        let a = network.node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
        let (near, mut upstream) = open(&a);
        let to = near.reference().clone();
        (0..INBOX).for_each(|_| assert!(say_near(&*a, word(&to, &to)).is_none()));
        assert_eq!(say_near(&*a, word(&to, &to)), Some(word(&to, &to)), "there is no room");
        upstream.try_recv().unwrap();
        assert!(say_near(&*a, word(&to, &to)).is_none());
        drop(near);
        assert_eq!(say_near(&*a, word(&to, &to)), Some(word(&to, &to)), "the producer has ended");
    }
}
