//! The node's ways to the network: where its messages leave, and the receivers that put those of peers into its inbox.
//!
//! Source: cluster T5, T17, T41.

use std::sync::Arc;

use bytes::Bytes;
use greylag_core::{CodecId, DeadLetterReason, Room, UniqueAddress};
use greylag_transport::{Destination, Envelope, Recipient, Remoting};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::dial::dial;
use super::inbound::{InboxHandle, Listener, MembershipReceiver, SingletonReceiver, UNREADABLE};
use crate::driver::clock::Clock;
use crate::driver::input::{DriverInput, INBOX_BYTES};
use crate::membership::message::Message;
use crate::settings::ProofOfDeath;
use crate::singleton::SingletonMessage;
use crate::wire;

const CLUSTER: &str = "control/cluster";
const HEARTBEAT: &str = Recipient::HEARTBEAT;
const BULK: &str = "bulk/cluster";
const SINGLETON_PREFIX: &str = "control/singleton/";

/// Limit of a state in a control frame, with room for the envelope around it; bigger states take the bulk recipient.
/// Source: cluster T5.
const CONTROL_LIMIT: usize = 60 * 1024;

/// The network as the node's task uses it.
pub(super) struct Network {
    remoting: Arc<dyn Remoting>,
    inbox: mpsc::Sender<DriverInput>,
    /// The room in the inbox for messages of peers.
    room: Room,
}

impl Network {
    pub(super) fn new(remoting: Arc<dyn Remoting>, inbox: mpsc::Sender<DriverInput>) -> Self {
        Self { remoting, inbox, room: Room::new(usize::MAX, INBOX_BYTES) }
    }

    pub(super) fn remoting(&self) -> &Arc<dyn Remoting> {
        &self.remoting
    }

    /// The inbox of the node's task.
    pub(super) fn inbox(&self) -> &mpsc::Sender<DriverInput> {
        &self.inbox
    }

    /// Registers the receivers of the membership; events that wait for room in the inbox wait on `user`.
    pub(super) fn register(&self, clock: &Clock, user: &Handle) {
        self.remoting.set_members(&mut std::iter::empty());
        for path in [CLUSTER, HEARTBEAT, BULK] {
            // Open to non-members: joining, probing and answering heartbeats involve them. The machine judges each
            // message by its sender (cluster T17, F1).
            self.remoting.open_to_strangers(path, true);
            // Declare chatter: every message there is repeated by its protocol (cluster T41).
            self.remoting.declare_chatter(path);
            let receiver = MembershipReceiver { inbox_handle: self.inbox_handle(), clock: clock.clone() };
            self.remoting.register(path, Arc::new(receiver));
        }
        // No warning for these losses: managers begin and end one by one, and repeat a question that was not answered.
        self.remoting.declare_repeated(SINGLETON_PREFIX, None, &DeadLetterReason::OF_STARTS_AND_ENDS);
        self.remoting.listen(None, Arc::new(Listener::new(self.inbox.clone(), user.clone())));
    }

    /// Registers the receiver of a singleton's managers.
    pub(super) fn register_singleton(&self, name: &Arc<str>) {
        let path = format!("{SINGLETON_PREFIX}{name}");
        let receiver = SingletonReceiver { name: name.clone(), inbox_handle: self.inbox_handle() };
        self.remoting.register(&path, Arc::new(receiver));
    }

    /// Takes back all receivers, those of these singletons included.
    pub(super) fn unregister<'a>(&self, singletons: impl Iterator<Item = &'a Arc<str>>) {
        for path in [CLUSTER, HEARTBEAT, BULK] {
            self.remoting.unregister(path);
        }
        for name in singletons {
            self.remoting.unregister(&format!("{SINGLETON_PREFIX}{name}"));
        }
    }

    /// Closes the bulk recipient to strangers, since this node is a member: from now on only members send large states;
    /// the Welcome of a stranger came before.
    pub(super) fn on_joined(&self) {
        self.remoting.open_to_strangers(BULK, false);
    }

    pub(super) fn count_dropped(&self, from: &UniqueAddress, reason: DeadLetterReason) {
        tracing::debug!(%from, %reason, "a membership message was dropped");
        // Not a fault: a member that joined a moment ago gossips before all others know it. Other reasons are faults.
        let recipient = if reason == DeadLetterReason::NotAMember { CLUSTER } else { UNREADABLE };
        self.remoting.dead_letter(reason, recipient, "cluster");
    }

    pub(super) fn send(&self, to: &Destination, message: &Message) {
        let bytes = wire::encode(message);
        let path = match message {
            Message::Heartbeat { .. } | Message::HeartbeatRsp { .. } => HEARTBEAT,
            _ if bytes.len() > CONTROL_LIMIT => BULK,
            _ => CLUSTER,
        };
        self.send_bytes(to, path.into(), message.manifest(), bytes);
    }

    pub(super) fn send_singleton(&self, name: &str, message: &SingletonMessage) {
        let to = Destination::Address(message.to.address().clone());
        let path = format!("{SINGLETON_PREFIX}{name}");
        self.send_bytes(&to, path.into(), wire::SINGLETON, wire::encode_singleton(message));
    }

    fn send_bytes(&self, to: &Destination, path: Arc<str>, manifest: &'static str, bytes: Bytes) {
        let mut envelope = Envelope::new(Recipient::new(path), CodecId::INTERNAL, manifest, bytes);
        if let Destination::Incarnation(address) = to {
            envelope = envelope.to_uid(address.uid());
        }
        if let Err(rejected) = self.remoting.send(to, envelope) {
            // Do not retry: every protocol here repeats itself, and the transport has counted the loss.
            tracing::debug!(to = ?to, manifest, error = %rejected.error, "not sent");
        }
    }

    /// Dials a process for a proof of its death; the outcome comes as an input.
    pub(super) fn dial(&self, policy: ProofOfDeath, peer: UniqueAddress) {
        let remoting = self.remoting.clone();
        let inbox = self.inbox.clone();
        tokio::spawn(async move {
            let outcome = dial(policy, &*remoting, peer).await;
            let _node_has_ended = inbox.send(DriverInput::Core(outcome)).await;
        });
    }

    /// Access to this node's inbox; all messages of peers share one room in it.
    fn inbox_handle(&self) -> InboxHandle {
        let (inbox, room) = (self.inbox.clone(), self.room.clone());
        InboxHandle { inbox, room, remoting: Arc::downgrade(&self.remoting) }
    }
}
