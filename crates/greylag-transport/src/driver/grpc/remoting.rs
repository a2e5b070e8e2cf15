//! What layers above ask of the transport.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::{DeadLetterReason, NodeAddress, Registry, ReplyPort, UniqueAddress};

use super::local::Announcement;
use super::transport::{GrpcTransport, NO_PANIC};
use crate::association::Input;
use crate::endpoints::dead_letters::DeadLetterEvents;
use crate::holder::Holder;
use crate::lanes::lane::{Lane, LaneKind};
use crate::messages::envelope::{Envelope, Inbound, Recipient};
use crate::remoting::{
    AskError, Destination, OpenAsk, PeerInfo, QuarantineReason, Receiver, Remoting, SendRejected, Sending,
    TransportListener,
};

impl Remoting for GrpcTransport {
    fn self_address(&self) -> &UniqueAddress {
        &self.shared.node.endpoint.self_address
    }

    fn host_id(&self) -> Option<String> {
        self.shared.node.facts.host_id()
    }

    fn send(&self, to: &Destination, envelope: Envelope) -> Result<(), SendRejected> {
        self.shared.send(to, envelope)
    }

    fn send_async(&self, to: &Destination, envelope: Envelope, deadline: Option<Duration>) -> Sending {
        self.shared.send_async(to, envelope, deadline)
    }

    fn send_reliable(&self, to: &UniqueAddress, envelope: Envelope) -> Result<(), SendRejected> {
        self.shared.send_reliable(to, envelope)
    }

    fn flush(&self, to: &UniqueAddress, done: Box<dyn FnOnce() + Send + Sync>) {
        self.shared.flush(to, done);
    }

    fn termination_flush_timeout(&self) -> Duration {
        self.shared.node.settings.termination_flush_timeout
    }

    fn instance(&self, path: &str) -> Option<u64> {
        self.shared.node.endpoint.instance(path)
    }

    fn register(&self, path: &str, receiver: Arc<dyn Receiver>) -> u64 {
        let (instance, replaced) = self.shared.node.endpoint.register(path, receiver);
        replaced.into_iter().for_each(|event| self.shared.node.announce(Announcement::Event(event)));
        instance
    }

    fn unregister(&self, path: &str) {
        let stopped = self.shared.node.endpoint.unregister(path);
        stopped.into_iter().for_each(|event| self.shared.node.announce(Announcement::Event(event)));
    }

    fn listen(&self, hand_back_prefix: Option<&str>, listener: Arc<dyn TransportListener>) {
        self.shared.node.endpoint.listen(hand_back_prefix, listener);
    }

    fn lane_of(&self, recipient: &Recipient) -> Lane {
        self.shared.lanes.lane(recipient)
    }

    fn maximum_message_size(&self, lane: LaneKind) -> usize {
        self.shared.node.settings.maximum_message_size(lane)
    }

    fn peer(&self, address: &NodeAddress) -> Option<PeerInfo> {
        self.shared.node.endpoint.peer(address)
    }

    fn quarantine(&self, peer: &UniqueAddress, reason: QuarantineReason, harmless: bool) {
        if peer.address() != self.self_address().address() {
            let uid = peer.uid();
            let input = Input::Quarantine { uid, reason, harmless };
            self.shared.input(&self.shared.peer(peer.address()), input);
        }
    }

    fn set_tombstones(&self, tombstones: &BTreeSet<UniqueAddress>) {
        self.shared.set_tombstones(tombstones);
    }

    fn declare_chatter(&self, path_prefix: &str) {
        self.shared.node.endpoint.declare_chatter(path_prefix);
    }

    fn declare_repeated(&self, path_prefix: &str, manifest: Option<&str>, reasons: &[DeadLetterReason]) {
        self.shared.node.endpoint.declare_repeated(path_prefix, manifest, reasons);
    }

    fn dead_letters(&self, capacity: usize) -> DeadLetterEvents {
        self.shared.node.endpoint.dead_letters.subscribe(capacity)
    }

    fn set_cluster_id(&self, cluster_id: u128) {
        if self.shared.node.facts.learn_cluster_id(cluster_id) {
            for peer in self.shared.peers.all() {
                peer.lanes().for_each(|lane| peer.greet_again(&self.shared.node, lane));
            }
        }
    }

    fn set_members(&self, members: &mut dyn Iterator<Item = &UniqueAddress>) {
        self.shared.node.trust(members);
    }

    fn open_to_strangers(&self, path: &str, is_open: bool) {
        self.shared.node.endpoint.membership.open(path, is_open);
    }

    fn set_holders(&self, holders: Vec<Holder>) {
        self.shared.set_holders(holders);
    }

    fn ask_who(&self, address: &NodeAddress) {
        self.shared.input(&self.shared.peer(address), Input::Ask);
    }

    fn keep_port(&self) {
        if let Some(running) = &*self.running.lock().expect(NO_PANIC) {
            // Leak one clone, so that the socket stays bound.
            std::mem::forget(running.port.clone());
        }
    }

    fn dead_letter(&self, reason: DeadLetterReason, recipient: &str, manifest: &str) {
        self.shared.node.endpoint.dead_letter_above(Instant::now(), reason, recipient, manifest);
    }

    fn certificate_days_left(&self) -> Option<i64> {
        self.shared.tls.as_ref().map(|files| files.days_left())
    }

    fn dead_letter_totals(&self) -> BTreeMap<DeadLetterReason, u64> {
        self.shared.node.endpoint.dead_letters.totals()
    }

    fn refuse(&self, message: &Inbound, reason: DeadLetterReason) {
        let lane = self.lane_of(&message.recipient);
        self.shared.refuse(self.shared.node.endpoint.refuse(Instant::now(), Some(lane), message, reason));
    }

    fn registry(&self) -> &Arc<Registry> {
        &self.shared.node.endpoint.registry
    }

    fn reply_port(&self) -> Arc<dyn ReplyPort> {
        self.port.clone()
    }

    fn open_ask(&self, timeout: Duration) -> OpenAsk {
        self.shared.asks.open(&self.shared.node.endpoint.asks, timeout)
    }

    fn provide_resource(&self, what: Arc<dyn Any + Send + Sync>) {
        self.shared.node.endpoint.provide_resource(what);
    }

    fn fail_ask(&self, ask_id: u64, error: AskError) {
        self.shared.node.endpoint.asks.complete(ask_id, Err(error));
    }
}
