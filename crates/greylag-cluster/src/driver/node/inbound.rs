//! Takes messages and events from the transport: decodes them on the worker that carries them, and puts them into the
//! inbox of the driver's task.
//!
//! No message is lost silently: one that finds the inbox full is a dead letter, counted and published to subscribers of
//! dead letters. Source: cluster C7.

use std::sync::{Arc, Weak};

use greylag_core::{DeadLetterReason, DecodeError, Room};
use greylag_transport::{Inbound, LaneKind, Receiver, Remoting, TransportEvent, TransportListener};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};

use crate::core::Input;
use crate::driver::clock::Clock;
use crate::driver::input::DriverInput;
use crate::wire;

/// Takes the messages of the membership protocol.
pub(super) struct MembershipReceiver {
    pub(super) inbox_handle: InboxHandle,
    pub(super) clock: Clock,
}

impl Receiver for MembershipReceiver {
    fn receive(&self, message: Inbound) {
        match wire::decode(&message.manifest, message.payload.clone()) {
            Ok(decoded) => {
                let from = message.from.clone();
                let input = Input::Message { from, message: decoded, received_at: self.clock.now() };
                self.inbox_handle.put(DriverInput::Core(input), &message);
            }
            Err(error) => self.inbox_handle.unreadable(&message, &error),
        }
    }
}

/// Access to the inbox of the driver's task, for messages of peers.
#[derive(Clone)]
pub(super) struct InboxHandle {
    pub(super) inbox: mpsc::Sender<DriverInput>,
    /// The room in the inbox that messages of peers may take together.
    pub(super) room: Room,
    /// Weak, because the transport holds its receivers.
    pub(super) remoting: Weak<dyn Remoting>,
}

/// The recipient under which faulty messages of the membership are counted; not declared as chatter, so they are
/// logged.
pub(super) const UNREADABLE: &str = "cluster";

impl InboxHandle {
    /// Puts an input into the inbox; drops it if the inbox is full. Every protocol here repeats itself, and the task
    /// that empties the inbox must not wait for those that fill it.
    fn put(&self, input: DriverInput, message: &Inbound) {
        let is_full = match self.room.take(message.size()) {
            Some(share) => {
                let received = DriverInput::Received(Box::new(input), share);
                matches!(self.inbox.try_send(received), Err(mpsc::error::TrySendError::Full(_)))
            }
            None => true,
        };
        if is_full && let Some(remoting) = self.remoting.upgrade() {
            remoting.dead_letter(DeadLetterReason::MailboxFull, &message.recipient.path, &message.manifest);
        }
    }

    /// Counts a message that cannot be decoded; the rationing of dead letters limits its log lines.
    fn unreadable(&self, message: &Inbound, error: &DecodeError) {
        tracing::debug!(from = %message.from, %error, "an unreadable message of the cluster");
        if let Some(remoting) = self.remoting.upgrade() {
            remoting.dead_letter(DeadLetterReason::Undecodable, UNREADABLE, &message.manifest);
        }
    }
}

/// Takes the messages between the managers of one singleton.
pub(super) struct SingletonReceiver {
    pub(super) name: Arc<str>,
    pub(super) inbox_handle: InboxHandle,
}

impl Receiver for SingletonReceiver {
    fn receive(&self, message: Inbound) {
        match wire::decode_singleton(message.payload.clone()) {
            // A process may speak for a former process at its own address, and for no other address.
            Ok(decoded) if decoded.from.address() == message.from.address() => {
                let input = DriverInput::SingletonMessage { name: self.name.clone(), message: decoded };
                self.inbox_handle.put(input, &message);
            }
            Ok(_) => {
                tracing::warn!(
                    from = %message.from,
                    "singleton message dropped: its `from` is another address than the sender's"
                );
            }
            Err(error) => self.inbox_handle.unreadable(&message, &error),
        }
    }
}

/// Forwards the events of the transport.
pub(super) struct Listener {
    inbox: mpsc::Sender<DriverInput>,
    runtime: Handle,
    /// Permits for events that wait for room in the inbox.
    waiting: Arc<Semaphore>,
}

/// Limit of handshakes that wait for room in a full inbox. Every process that may connect can cause handshakes; all
/// other events come from this node's own peers, and are not limited.
const WAITING: usize = 1024;

impl Listener {
    pub(super) fn new(inbox: mpsc::Sender<DriverInput>, runtime: Handle) -> Self {
        Self { inbox, runtime, waiting: Arc::new(Semaphore::new(WAITING)) }
    }
}

impl TransportListener for Listener {
    fn on_event(&self, event: &mut TransportEvent) {
        let input = match event {
            TransportEvent::PeerHandshake(info) => {
                Input::PeerHandshake { peer: info.peer.clone(), cluster_id: info.cluster_id }
            }
            TransportEvent::Quarantined { peer, reason, harmless } => {
                Input::PeerQuarantined { peer: peer.clone(), reason: *reason, harmless: *harmless }
            }
            TransportEvent::HandshakeRejected { address, code, holder, detail } => {
                let (address, holder, detail) = (address.clone(), holder.clone(), detail.clone());
                Input::HelloRefused { address, code: *code, holder, detail }
            }
            TransportEvent::DialFailed { address, failure } => {
                Input::Unreached { address: address.clone(), failure: failure.clone() }
            }
            TransportEvent::DialAnswered(info) => {
                Input::DialOther { peer: info.peer.clone(), host_id: info.host_id.as_deref().map(Into::into) }
            }
            TransportEvent::AddressHeld { holder, claimant } => {
                Input::AddressHeld { holder: holder.clone(), claimant: claimant.clone() }
            }
            TransportEvent::LinkLost { peer, lane } if lane.kind() == LaneKind::Control => {
                Input::LinkLost(peer.clone())
            }
            TransportEvent::ThisNodeQuarantined { by, reason } => {
                Input::ThisNodeQuarantined { by: by.clone(), reason: *reason }
            }
            _ => return,
        };
        if matches!(input, Input::Unreached { .. }) {
            // Drop if the inbox is full: the event is for people only, and the next dial repeats it.
            self.inbox.try_send(DriverInput::Core(input)).ok();
            return;
        }
        let is_handshake = matches!(input, Input::PeerHandshake { .. });
        // Wait for room: the transport does not repeat these events, so a full inbox must not lose them.
        if let Err(mpsc::error::TrySendError::Full(input)) = self.inbox.try_send(DriverInput::Core(input)) {
            let room = self.waiting.clone().try_acquire_owned().ok();
            if room.is_none() && is_handshake {
                // Drop the handshake: the process says Hello again with its next stream.
                return;
            }
            let inbox = self.inbox.clone();
            self.runtime.spawn(async move {
                drop(inbox.send(input).await);
                drop(room);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use greylag_core::{CodecId, Registry};
    use greylag_transport::Recipient;
    use greylag_transport::memory::MemoryNetwork;

    use super::*;

    /// Cluster T39, 79: messages of peers wait in the one inbox within its bound in bytes, whatever their number; those
    /// beyond the bound are counted, and this node's inputs to itself pass all the same.
    #[tokio::test]
    async fn the_inbox_is_bounded_in_bytes() {
        let network = MemoryNetwork::new();
        let remoting = network.node("a.inbox:1#1".parse().unwrap(), Arc::new(Registry::new()));
        let (inbox, mut waiting) = mpsc::channel(100);
        let inbox_handle =
            InboxHandle { inbox, room: Room::new(usize::MAX, 1000), remoting: Arc::downgrade(&remoting) };
        let put = |bytes: usize| {
            let message = Inbound {
                from: "b.inbox:1#2".parse().unwrap(),
                recipient: Recipient::new("c"),
                codec: CodecId::INTERNAL,
                manifest: "m".into(),
                payload: vec![0; bytes - 2].into(),
                ask: None,
            };
            inbox_handle.put(DriverInput::HandlesGone, &message);
        };
        [400, 400, 400, 200, 100].into_iter().for_each(put);
        let full = BTreeMap::from([(DeadLetterReason::MailboxFull, 2)]);
        assert_eq!((waiting.len(), remoting.dead_letter_totals()), (3, full));
        assert!(inbox_handle.inbox.try_send(DriverInput::HandlesGone).is_ok());
        assert!(matches!(waiting.recv().await, Some(DriverInput::Received(..))));
        put(400);
        assert_eq!((waiting.len(), inbox_handle.room.bytes()), (4, 1000));
    }
}
