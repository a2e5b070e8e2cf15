//! The mailboxes of a replicator: how messages of peers come in, and how messages go out.

mod bulk_sender;
pub(super) mod inbound;
pub(super) mod limits;

use std::sync::Arc;

use greylag_core::{CodecId, DeadLetterReason, UniqueAddress};
use greylag_crdt::DotSource;
use greylag_transport::{Destination, Envelope, Payload, Recipient, Remoting};
use tokio::sync::watch;

use crate::api::settings::ReplicatorSettings;
use crate::membership::replicas::Replicas;
use crate::messages::message::Message;
use crate::messages::wire::MANIFEST;
use bulk_sender::BulkSender;
use inbound::{InboundQueues, InboundReceiver, inbound_queues};

/// The most messages of peers that wait for the machine; a message beyond is lost, as on the network.
const INBOX: usize = 16_384;
/// The most bytes that these messages have together, or four times the largest entry where that is more. A message
/// beyond is lost and counted, and the protocol repeats it.
const INBOX_BYTES: usize = 64 * 1024 * 1024;

/// Both mailboxes, for ordinary messages and for larger ones.
pub(super) struct Mail {
    remoting: Arc<dyn Remoting>,
    ordinary: Recipient,
    bulk: Recipient,
    bulk_sender: BulkSender,
    inbound: Arc<InboundReceiver>,
    /// What came in.
    pub(super) queues: InboundQueues,
}

impl Mail {
    /// Opens the mailboxes.
    pub(super) fn open(
        settings: &ReplicatorSettings,
        remoting: Arc<dyn Remoting>,
        replicas: watch::Receiver<Arc<Replicas>>,
        numbers: DotSource,
    ) -> Self {
        let (ordinary, bulk) = mailboxes(&settings.name);
        let largest = settings.max_entry_bytes.saturating_mul(4);
        let (senders, queues) = inbound_queues(INBOX, largest.max(INBOX_BYTES));
        let inbound = Arc::new(InboundReceiver::new(senders, largest, replicas));
        let fragment_bytes = settings.bulk_fragment_bytes;
        let bulk_sender = BulkSender::new(remoting.clone(), bulk.clone(), numbers, fragment_bytes, largest);
        remoting.register(&ordinary.path, inbound.clone());
        remoting.register(&bulk.path, inbound.clone());
        Self { remoting, ordinary, bulk, bulk_sender, inbound, queues }
    }

    /// Closes the mailboxes.
    pub(super) fn close(&self) {
        self.remoting.unregister(&self.ordinary.path);
        self.remoting.unregister(&self.bulk.path);
    }

    /// Gives up transfers that made no progress, and those of processes that are no replicas any more.
    pub(super) fn tidy(&self) {
        self.inbound.tidy();
    }

    /// Takes a change of membership: what waits for peers that are gone is dropped.
    pub(super) fn on_replicas(&mut self, replicas: &Replicas) {
        self.bulk_sender.keep(replicas);
        self.inbound.tidy();
    }

    /// How many messages were lost because too many waited.
    pub(super) fn lost(&self) -> u64 {
        self.inbound.lost()
    }

    /// Sends a message. Returns whether the transport took it.
    pub(super) fn send(&mut self, to: &UniqueAddress, bulk: bool, message: Message) -> bool {
        if bulk {
            return self.bulk_sender.try_send(to, message);
        }
        let payload = Payload::Value(Box::new(message));
        let envelope = Envelope::with_payload(self.ordinary.clone(), CodecId::PROST, MANIFEST, payload);
        self.remoting.send(&Destination::Incarnation(to.clone()), envelope.to_uid(to.uid())).is_ok()
    }
}

/// The mailboxes of the replicators of this name: for ordinary messages, and for larger ones.
pub(super) fn mailboxes(name: &str) -> (Recipient, Recipient) {
    (Recipient::new(format!("ddata/{name}")), Recipient::new(format!("{}ddata/{name}", Recipient::BULK_PREFIX)))
}

/// Declares to a node's transport that replicators begin and end one by one. Messages of peers that arrive before the
/// beginning or after the end cause no warning, since peers repeat them; nor do messages still queued for a replicator
/// that has left. The facade and sharding call this when a node starts.
pub fn expect_replicators(remoting: &dyn Remoting) {
    let (ordinary, bulk) = mailboxes("");
    for mailbox in [ordinary, bulk] {
        remoting.declare_repeated(&mailbox.path, None, &DeadLetterReason::OF_STARTS_AND_ENDS);
    }
}
