//! The state that all tasks of one transport share.

use std::any::{Any, TypeId};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use greylag_core::{
    AnswerReader, DeadLetterReason, NodeAddress, ReplyAddress, ReplyOutcome, ReplyPort, Room, Share, Uid, UniqueAddress,
};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};

use super::flushes::Flushes;
use super::holders::ByAddress;
use super::peer::{DropOutcome, Peer};
use super::resolve::Resolver;
use super::retired_uids::RetiredUids;
use super::streams::Streams;
use super::table::{Blocked, RandomAddressHash};
use super::tls::TlsFiles;
use super::workers::Workers;
use crate::admission_control::{AdmissionControl, Intrusion};
use crate::association::{Input, RetiredUid};
use crate::callers::Callers;
use crate::endpoint::{Endpoint, Refusal, Reply};
use crate::envelope::{Envelope, Recipient};
use crate::holder::Holder;
use crate::lane::{Lane, LaneKind, LaneMap};
use crate::queue::{Item, Waiter};
use crate::remoting::TransportEvent;
use crate::settings::TransportSettings;
use crate::wire::REPLY_PATH;

/// The shared state of one transport.
pub(super) struct Shared {
    pub(super) settings: TransportSettings,
    pub(super) lanes: LaneMap,
    pub(super) endpoint: Endpoint,
    pub(super) host_id: Option<String>,
    /// `None` means plain text.
    pub(super) tls: Option<Arc<TlsFiles>>,
    admission_control: Mutex<AdmissionControl>,
    pub(super) cluster_id: Mutex<Option<u128>>,
    /// The members that hold each address.
    pub(super) holders: ByAddress<Holder>,
    /// The processes of each address that were removed from the cluster.
    pub(super) tombstones: ByAddress<Uid>,
    /// The runtime of control streams and everything that must not wait for user messages.
    pub(super) control: Handle,
    /// The runtime of data streams and the decoding of messages.
    pub(super) data: Handle,
    pub(super) streams: Streams,
    pub(super) workers: Workers,
    pub(super) counters: Counters,
    pub(super) is_shutting_down: AtomicBool,
    /// Notified when an ask gets the earliest deadline of all.
    pub(super) deadline_moved: Notify,
    peers: ArcSwap<HashMap<NodeAddress, Arc<Peer>, RandomAddressHash>>,
    adding: Mutex<()>,
    blocked: Blocked,
    announcements: mpsc::UnboundedSender<(Announcement, Option<Share>)>,
    /// Bounds the events that non-members cause; see [`Announcement`].
    room_for_strangers: Room,
    pub(super) flushes: Flushes,
    /// The largest message so far of each manifest above `log_frame_size_exceeding`.
    largest: Mutex<HashMap<String, usize>>,
    /// Lanes on which the last word was sent and not yet read.
    terminating: Mutex<BTreeSet<(NodeAddress, Lane)>>,
    terminating_done: Notify,
    /// The number of the next sender that waits for room.
    pub(super) next_waiting: AtomicU64,
    pub(super) resolver: Resolver,
    /// The dead processes of addresses whose peer was dropped.
    pub(super) retired_uids: Mutex<RetiredUids>,
    callers: Mutex<Callers>,
    /// Notified when the last stream of a caller with a slot has ended.
    pub(super) caller_left: Notify,
}

/// Limit of queued events about processes that are no members.
const ANNOUNCED_STRANGERS: usize = 4096;

/// Something for the listeners; one task tells them, in order, so that no listener runs under a lock.
///
/// The queue has no bound for events of this node and its members, and for messages of its users: those are limited by
/// the number of members, recipients and queues, and no listener may miss one. Events that non-members cause have
/// [`ANNOUNCED_STRANGERS`] places: a process whose event found none says Hello again with its next stream.
pub(super) enum Announcement {
    Event(TransportEvent),
    /// `reason`: why the envelopes that no listener takes become dead letters.
    HandBack {
        peer: UniqueAddress,
        unsent: Vec<Envelope>,
        reason: DeadLetterReason,
    },
}

/// The counters since the start.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) sent_envelopes: AtomicU64,
    pub(super) swallowed_envelopes: AtomicU64,
    pub(super) sent_frames: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
    pub(super) compressed_frames: AtomicU64,
    pub(super) moved_connections: AtomicU64,
    pub(super) received_envelopes: AtomicU64,
    pub(super) received_frames: AtomicU64,
    pub(super) skipped_frames: AtomicU64,
    pub(super) malformed_frames: AtomicU64,
}

impl Counters {
    pub(super) fn sent(&self, envelopes: u64, bytes: usize) {
        self.sent_envelopes.fetch_add(envelopes, Ordering::Relaxed);
        self.sent_frames.fetch_add(1, Ordering::Relaxed);
        self.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn received_frame(&self) {
        self.received_frames.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn received_envelopes(&self, count: u64) {
        self.received_envelopes.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn skipped(&self) {
        self.skipped_frames.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn malformed(&self) {
        self.malformed_frames.fetch_add(1, Ordering::Relaxed);
    }
}

impl Shared {
    #[allow(clippy::too_many_arguments, reason = "one caller puts a node together from its parts")]
    pub(super) fn new(
        settings: TransportSettings,
        endpoint: Endpoint,
        host_id: Option<String>,
        tls: Option<Arc<TlsFiles>>,
        control: Handle,
        data: Handle,
        workers: Workers,
        announcements: mpsc::UnboundedSender<(Announcement, Option<Share>)>,
    ) -> Self {
        let admission_control = Mutex::new(AdmissionControl::new(settings.dead_letter_log_rate));
        Self {
            lanes: settings.lane_map(),
            settings,
            endpoint,
            host_id,
            tls,
            admission_control,
            cluster_id: Mutex::default(),
            holders: ByAddress::default(),
            tombstones: ByAddress::default(),
            control,
            data,
            streams: Streams::default(),
            workers,
            counters: Counters::default(),
            is_shutting_down: AtomicBool::new(false),
            deadline_moved: Notify::new(),
            peers: ArcSwap::default(),
            adding: Mutex::default(),
            blocked: Blocked::default(),
            announcements,
            room_for_strangers: Room::new(ANNOUNCED_STRANGERS, usize::MAX),
            flushes: Flushes::default(),
            largest: Mutex::default(),
            terminating: Mutex::default(),
            terminating_done: Notify::new(),
            next_waiting: AtomicU64::new(0),
            resolver: Resolver::default(),
            retired_uids: Mutex::default(),
            callers: Mutex::default(),
            caller_left: Notify::new(),
        }
    }

    /// The peer at an address; made on first use.
    pub(super) fn peer(self: &Arc<Self>, address: &NodeAddress) -> Arc<Peer> {
        if let Some(peer) = self.peers.load().get(address) {
            return peer.clone();
        }
        let _adding = self.adding.lock().expect(NO_PANIC);
        let peers = self.peers.load_full();
        if let Some(peer) = peers.get(address) {
            return peer.clone();
        }
        let peer = Peer::start(self, address.clone());
        let mut peers = HashMap::clone(&peers);
        peers.insert(address.clone(), peer.clone());
        self.peers.store(Arc::new(peers));
        peer
    }

    /// Calls `act` with the peer at an address, without counting a reference, since every message does this.
    pub(super) fn with_peer<T>(self: &Arc<Self>, address: &NodeAddress, act: impl FnOnce(&Arc<Peer>) -> T) -> T {
        let peers = self.peers.load();
        match peers.get(address) {
            Some(peer) => act(peer),
            None => act(&self.peer(address)),
        }
    }

    /// Queues an item for the process that runs at an address; the item comes back if there is no room.
    #[allow(clippy::result_large_err, reason = "the caller gets back what it gave")]
    pub(super) fn push(
        self: &Arc<Self>,
        to: &NodeAddress,
        lane: Lane,
        mut item: Item,
        force: bool,
    ) -> Result<(), Item> {
        loop {
            let peer = self.peer(to);
            match peer.push(self, lane, item, force) {
                Err(returned) if peer.is_dropped() => {
                    item = returned;
                    self.await_drop();
                }
                outcome => return outcome,
            }
        }
    }

    /// Queues an envelope for the process that runs at an address. Returns false, and leaves the envelope in its place,
    /// if there is no room.
    pub(super) fn push_envelope(
        self: &Arc<Self>,
        to: &NodeAddress,
        lane: Lane,
        envelope: &mut Option<Envelope>,
        force: bool,
        waiting: Option<Waiter<'_>>,
    ) -> bool {
        loop {
            let (went, was_let_go) = self.with_peer(to, |peer| {
                let went = peer.push_envelope(self, lane, envelope, force, waiting);
                (went, !went && peer.is_dropped())
            });
            if !was_let_go {
                return went;
            }
            self.await_drop();
        }
    }

    /// Waits until a dropped peer is out of the table.
    pub(super) fn await_drop(&self) {
        drop(self.adding.lock().expect(NO_PANIC));
    }

    /// Drops a peer that has been of no use for long from the table. Messages to its address make a new peer, which
    /// remembers the old one's retired uids.
    pub(super) fn drop_peer(&self, peer: &Peer) {
        let _adding = self.adding.lock().expect(NO_PANIC);
        if let Some(retired) = peer.close_if_idle() {
            self.forget(peer, retired);
        }
    }

    /// Drops the peer of a process that called and was never reached; returns true if nothing of it is left in the
    /// table.
    pub(super) fn drop_caller(&self, address: &NodeAddress) -> bool {
        let _adding = self.adding.lock().expect(NO_PANIC);
        let Some(peer) = self.peers.load().get(address).cloned() else { return true };
        match peer.close_caller() {
            Some(DropOutcome::Dropped { retired, blocked }) => {
                blocked.iter().for_each(|process| self.unblock(process));
                self.forget(&peer, retired);
                true
            }
            // Keep the peer: this node has business of its own with the process.
            Some(DropOutcome::Kept) => true,
            None => false,
        }
    }

    fn forget(&self, peer: &Peer, retired: Vec<RetiredUid>) {
        self.retired_uids.lock().expect(NO_PANIC).keep(&peer.address, retired);
        let mut peers = HashMap::clone(&self.peers.load_full());
        peers.remove(&peer.address);
        self.peers.store(Arc::new(peers));
        self.endpoint.forget_peer(&peer.address);
    }

    /// Replaces the members that hold addresses.
    pub(super) fn hold(self: &Arc<Self>, holders: Vec<Holder>) {
        let changed = {
            // Locked against new peers: a peer that is made meanwhile starts with the old holders and is told the
            // difference below, or starts with the new ones.
            let _adding = self.adding.lock().expect(NO_PANIC);
            self.holders.replace(holders.into_iter().map(|holder| (holder.member.address().clone(), holder)))
        };
        for (address, holders) in changed {
            let peer = self.peers.load().get(&address).cloned();
            if let Some(peer) = peer {
                peer.input(self, Input::Holders { holders });
            }
        }
    }

    /// Replaces the processes that were removed from the cluster.
    pub(super) fn set_tombstones(self: &Arc<Self>, tombstones: &BTreeSet<UniqueAddress>) {
        let changed = {
            // Locked against new peers, as for the holders: a peer that is made meanwhile misses nothing.
            let _adding = self.adding.lock().expect(NO_PANIC);
            self.tombstones.replace(tombstones.iter().map(|gone| (gone.address().clone(), gone.uid())))
        };
        for (address, uids) in changed {
            let peer = self.peers.load().get(&address).cloned();
            if let Some(peer) = peer {
                peer.input(self, Input::Tombstones { uids: uids.into_iter().collect() });
            }
        }
    }

    /// Whether there is a peer at the address.
    pub(super) fn knows(&self, address: &NodeAddress) -> bool {
        self.peers.load().contains_key(address)
    }

    pub(super) fn callers(&self) -> MutexGuard<'_, Callers> {
        self.callers.lock().expect(NO_PANIC)
    }

    pub(super) fn peers(&self) -> Vec<Arc<Peer>> {
        self.peers.load().values().cloned().collect()
    }

    pub(super) fn cluster_id(&self) -> Option<u128> {
        *self.cluster_id.lock().expect(NO_PANIC)
    }

    /// Replaces the members. A node in untrusted mode that has no members yet listens to every process, because
    /// otherwise it could not join.
    pub(super) fn trust(&self, members: &mut dyn Iterator<Item = &UniqueAddress>) {
        let members: HashSet<_> = members.cloned().collect();
        let listens_to_all = self.settings.untrusted_mode && members.is_empty();
        self.endpoint.membership.set_members((!listens_to_all).then_some(members));
    }

    /// Whether this process may speak only to the recipients that are open to strangers (cluster T17).
    pub(super) fn is_stranger(&self, peer: &UniqueAddress) -> bool {
        self.endpoint.membership.is_stranger(peer)
    }

    /// Why a message of a process that is no member does not reach this recipient; `None` if it does. In untrusted mode
    /// strangers never reach the cluster's own protocols, the join among them.
    pub(super) fn closed_to_strangers(&self, recipient: &Recipient) -> Option<DeadLetterReason> {
        let is_trusted = recipient.lane_kind() == LaneKind::Ordinary
            && self.settings.trusted_recipients.iter().any(|trusted| **trusted == *recipient.path);
        match self.settings.untrusted_mode {
            true => (!is_trusted).then(|| self.stranger_reason()),
            false if is_trusted || self.endpoint.membership.is_open(&recipient.path) => None,
            false => Some(self.stranger_reason()),
        }
    }

    /// The reason of a dead letter whose only fault is that its sender is a stranger.
    pub(super) fn stranger_reason(&self) -> DeadLetterReason {
        if self.settings.untrusted_mode { DeadLetterReason::Untrusted } else { DeadLetterReason::NotAMember }
    }

    /// Whether this node has itself reached the process at the address that the process names.
    pub(super) fn has_reached(&self, process: &UniqueAddress) -> bool {
        self.endpoint.peer(process.address()).is_some_and(|known| known.reached && known.peer == *process)
    }

    pub(super) fn admission_control(&self) -> MutexGuard<'_, AdmissionControl> {
        self.admission_control.lock().expect(NO_PANIC)
    }

    /// Counts an intrusion of a remote host, and logs it.
    pub(super) fn intruded(&self, ip: IpAddr, intrusion: Intrusion, detail: &str) {
        let report = self.admission_control().report(Instant::now(), ip, intrusion);
        if let Some(suppressed) = report.line {
            tracing::warn!(%ip, ?intrusion, suppressed, "refused: {detail}");
        }
        if report.banned {
            tracing::error!(%ip, "too many offences: host banned for one minute");
        }
    }

    pub(super) fn is_blocked(&self, peer: &UniqueAddress) -> bool {
        self.blocked.contains(peer)
    }

    pub(super) fn block(&self, peer: &UniqueAddress) {
        self.blocked.change(|blocked| {
            blocked.insert(peer.clone());
        });
    }

    pub(super) fn unblock(&self, peer: &UniqueAddress) {
        self.blocked.change(|blocked| {
            blocked.remove(peer);
        });
    }

    /// Sends an answer; an answer without room is a dead letter, and its asker waits until the timeout.
    pub(super) fn send_reply(self: &Arc<Self>, to: &UniqueAddress, ask_id: u64, reply: Reply) {
        let now = Instant::now();
        if *to == self.endpoint.self_address {
            self.endpoint.accept_reply(now, to, ask_id, reply, || Arc::new(SharedPort(self.clone())));
            return;
        }
        let lane = self.reply_lane(ask_id);
        let dead = |reason| {
            let what = || format!("the answer to question {ask_id}");
            self.endpoint.count_dead_letter(now, reason, Some(lane), Some(to.address()), 1, what);
        };
        if to.address() == self.endpoint.self_address.address() {
            // The asker was a former process of this address, which asked before this process started.
            return dead(DeadLetterReason::StaleIncarnation);
        }
        if self.is_blocked(to) {
            return dead(DeadLetterReason::Quarantined);
        }
        let item = Item::Reply { to: to.uid(), ask_id, reply };
        if self.push(to.address(), lane, item, false).is_err() {
            let is_ending = self.is_shutting_down.load(Ordering::Acquire);
            return dead(if is_ending { DeadLetterReason::ShuttingDown } else { DeadLetterReason::QueueFull });
        }
        self.hand_back_if_blocked(to);
    }

    /// Hands back messages that were queued for a process while it was being quarantined, too late to be handed back
    /// with the rest (cluster T18).
    pub(super) fn hand_back_if_blocked(self: &Arc<Self>, to: &UniqueAddress) {
        if self.is_blocked(to) {
            self.peer(to.address()).hand_back(self, to.uid(), DeadLetterReason::Quarantined);
        }
    }

    /// The lane of an answer. Answers need no order among each other, so they spread over the ordinary lanes, unless
    /// the patterns name them as large.
    fn reply_lane(&self, ask_id: u64) -> Lane {
        if self.lanes.is_plain() {
            return Lane::ordinary(0);
        }
        self.lanes.configured(REPLY_PATH, &ask_id.to_string())
    }

    pub(super) fn refuse(self: &Arc<Self>, refusal: Option<Refusal>) {
        if let Some(Refusal { to, ask_id, reason }) = refusal {
            self.send_reply(&to, ask_id, Reply::Dropped(reason));
        }
    }

    pub(super) fn announce(&self, announcement: Announcement) {
        let stranger = match &announcement {
            Announcement::Event(TransportEvent::PeerHandshake(info)) => Some(&info.peer),
            Announcement::Event(TransportEvent::LinkLost { peer, .. }) => Some(peer),
            Announcement::Event(_) | Announcement::HandBack { .. } => None,
        };
        let mut share = None;
        if stranger.is_some_and(|peer| self.is_stranger(peer)) {
            share = self.room_for_strangers.take(0);
            if share.is_none() {
                return;
            }
        }
        // The send fails only if the runtime is gone, and then no listener is left.
        self.announcements.send((announcement, share)).ok();
    }

    /// Logs a message that is larger by a tenth than any of its manifest so far, if the settings want it (cluster T41).
    pub(super) fn note_size(&self, manifest: &str, size: usize) {
        let Some(limit) = self.settings.log_frame_size_exceeding.filter(|limit| size > *limit) else { return };
        let mut largest = self.largest.lock().expect(NO_PANIC);
        let known = largest.entry(manifest.to_owned()).or_default();
        if size > *known + *known / 10 {
            *known = size;
            tracing::info!(manifest, size, limit, "largest message of this manifest so far");
        }
    }

    /// Notes that the last word was sent on a lane.
    pub(super) fn terminating_sent(&self, peer: &NodeAddress, lane: Lane) {
        self.terminating().insert((peer.clone(), lane));
    }

    /// Notes that a peer has read everything on a lane, or reads no more of it.
    pub(super) fn terminating_done(&self, peer: &NodeAddress, lane: Lane) {
        self.terminating().remove(&(peer.clone(), lane));
        self.terminating_done.notify_one();
    }

    /// Waits until every last word was read.
    pub(super) async fn all_terminating_done(&self) {
        while !self.terminating().is_empty() {
            self.terminating_done.notified().await;
        }
    }

    fn terminating(&self) -> MutexGuard<'_, BTreeSet<(NodeAddress, Lane)>> {
        self.terminating.lock().expect("nothing panics that holds it")
    }
}

impl ReplyPort for SharedPort {
    fn reply(&self, to: &ReplyAddress, outcome: ReplyOutcome) {
        let Self(shared) = self;
        if to.node == shared.endpoint.self_address {
            shared.endpoint.reply_locally(Instant::now(), to.ask_id, outcome);
        } else {
            shared.send_reply(&to.node, to.ask_id, shared.endpoint.encode_reply(outcome));
        }
    }

    fn expect(&self, to: &ReplyAddress, reader: AnswerReader) {
        let Self(shared) = self;
        if to.node == shared.endpoint.self_address {
            shared.endpoint.asks.expect(to.ask_id, reader);
        }
    }

    fn resource(&self, what: TypeId) -> Option<Arc<dyn Any + Send + Sync>> {
        self.0.endpoint.resource(what)
    }
}

/// The reply port of the node.
pub(super) struct SharedPort(pub(super) Arc<Shared>);

const NO_PANIC: &str = "nothing under this lock panics";

/// Tells the listeners, one announcement after the other.
pub(super) async fn announce_all(
    shared: Arc<Shared>,
    mut announcements: mpsc::UnboundedReceiver<(Announcement, Option<Share>)>,
) {
    while let Some((announcement, _share)) = announcements.recv().await {
        match announcement {
            Announcement::Event(event) => shared.endpoint.publish(event),
            Announcement::HandBack { peer, unsent, reason } => hand_back(&shared, &peer, unsent, reason),
        }
    }
}

fn hand_back(shared: &Shared, peer: &UniqueAddress, unsent: Vec<Envelope>, reason: DeadLetterReason) {
    let now = Instant::now();
    for envelope in shared.endpoint.hand_back(peer, unsent) {
        let lane = shared.lanes.lane(&envelope.recipient);
        shared.endpoint.drop_unsent(now, lane, peer.address(), &envelope, reason);
    }
}

/// Drops peers that could be dropped for as long as a quarantine is remembered.
pub(super) async fn drop_idle_peers(shared: Arc<Shared>) {
    let memory = shared.settings.remove_quarantined_association_after;
    let mut droppable_since: HashMap<NodeAddress, Instant> = HashMap::new();
    loop {
        tokio::time::sleep(memory / 4).await;
        let now = Instant::now();
        let droppable: Vec<_> = shared.peers().into_iter().filter(|peer| peer.is_droppable()).collect();
        droppable_since.retain(|address, _| droppable.iter().any(|peer| peer.address == *address));
        for peer in droppable {
            let since = *droppable_since.entry(peer.address.clone()).or_insert(now);
            if now.saturating_duration_since(since) >= memory {
                shared.drop_peer(&peer);
            }
        }
    }
}

/// Logs, once a minute is over, how many dead letters the log suppressed, and how many events of strangers listeners
/// missed.
pub(super) async fn log_suppressed(shared: Arc<Shared>) {
    let mut untold = 0;
    loop {
        tokio::time::sleep(Duration::from_secs(15)).await;
        shared.endpoint.log_suppressed(Instant::now());
        let refused = shared.room_for_strangers.refused();
        if refused > untold {
            tracing::warn!(events = refused - untold, "events of non-members dropped: listeners are too slow");
            untold = refused;
        }
    }
}

/// Ends asks whose time is over.
pub(super) async fn expire_asks(shared: Arc<Shared>) {
    loop {
        let deadline = shared.endpoint.asks.next_deadline();
        let due = async {
            match deadline {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => shared.endpoint.asks.expire(Instant::now()),
            () = shared.deadline_moved.notified() => {}
        }
    }
}
