//! What comes in from the transport: decoded where it is carried, and put into the inbox of the
//! driver's task.
//!
//! Nothing is lost silently: a message that finds the inbox full is a dead letter, counted and told
//! to whoever watches those. Source: cluster C7.

use std::sync::{Arc, Weak};

use greylag_core::{DeadLetterReason, DecodeError};
use greylag_transport::{Inbound, LaneKind, Receiver, Remoting, TransportEvent, TransportListener};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};

use super::DriverInput;
use super::clock::Clock;
use crate::core::Input;
use crate::wire;

/// Takes the messages of the membership protocol.
pub(super) struct MembershipReceiver {
    pub(super) inbox: mpsc::Sender<DriverInput>,
    /// The transport holds its receivers, so they do not hold it.
    pub(super) remoting: Weak<dyn Remoting>,
    pub(super) clock: Clock,
}

impl Receiver for MembershipReceiver {
    fn receive(&self, message: Inbound) {
        match wire::decode(&message.manifest, message.payload.clone()) {
            Ok(decoded) => {
                let from = message.from.clone();
                let input = Input::Message { from, message: decoded, received_at: self.clock.now() };
                put(&self.inbox, &self.remoting, DriverInput::Core(input), &message);
            }
            Err(error) => unreadable(&self.remoting, &message, &error),
        }
    }
}

/// A full inbox drops the newest: every protocol here repeats itself, and the task that empties the
/// inbox must not wait for what fills it.
fn put(inbox: &mpsc::Sender<DriverInput>, remoting: &Weak<dyn Remoting>, input: DriverInput, message: &Inbound) {
    if let Err(mpsc::error::TrySendError::Full(_)) = inbox.try_send(input)
        && let Some(remoting) = remoting.upgrade()
    {
        remoting.dead_letter(DeadLetterReason::MailboxFull, &message.recipient.path, &message.manifest);
    }
}

/// The recipient under which membership's faulty messages are counted, which no chatter hides.
pub(super) const UNREADABLE: &str = "cluster";

/// Counts a message that cannot be read; the log's share of such messages is limited by dead letters.
fn unreadable(remoting: &Weak<dyn Remoting>, message: &Inbound, error: &DecodeError) {
    tracing::debug!(from = %message.from, %error, "an unreadable message of the cluster");
    if let Some(remoting) = remoting.upgrade() {
        remoting.dead_letter(DeadLetterReason::Undecodable, UNREADABLE, &message.manifest);
    }
}

/// The same for the managers of one singleton.
pub(super) struct SingletonReceiver {
    pub(super) name: Arc<str>,
    pub(super) inbox: mpsc::Sender<DriverInput>,
    /// The transport holds its receivers, so they do not hold it.
    pub(super) remoting: Weak<dyn Remoting>,
}

impl Receiver for SingletonReceiver {
    fn receive(&self, message: Inbound) {
        match wire::decode_singleton(message.payload.clone()) {
            // Nobody speaks for another address; for an older process of its own it may.
            Ok(decoded) if decoded.from.address() == message.from.address() => {
                let input = DriverInput::SingletonMessage { name: self.name.clone(), message: decoded };
                put(&self.inbox, &self.remoting, input, &message);
            }
            Ok(_) => tracing::warn!(from = %message.from, "a singleton message in a foreign name"),
            Err(error) => unreadable(&self.remoting, &message, &error),
        }
    }
}

/// Forwards what the transport tells.
pub(super) struct Listener {
    inbox: mpsc::Sender<DriverInput>,
    runtime: Handle,
    /// Room for events that wait until the inbox has room.
    waiting: Arc<Semaphore>,
}

/// Handshakes that wait for room in a full inbox. Whoever may connect can cause handshakes, so there is an end to
/// it; all other events come of this node's own peers.
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
            // For people only, and the next dial says it again.
            self.inbox.try_send(DriverInput::Core(input)).ok();
            return;
        }
        let is_handshake = matches!(input, Input::PeerHandshake { .. });
        // These are not repeated, so a full inbox must not lose them.
        if let Err(mpsc::error::TrySendError::Full(input)) = self.inbox.try_send(DriverInput::Core(input)) {
            let room = self.waiting.clone().try_acquire_owned().ok();
            if room.is_none() && is_handshake {
                // The process says Hello again with its next stream.
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
