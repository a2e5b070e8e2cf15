//! Envelopes over tonic streams.
//!
//! A transport owns two small runtimes: one for control streams, heartbeats and the listening
//! socket, on which membership runs too ([`GrpcTransport::control_runtime`]), and one for data
//! streams and the decoding of messages, so that neither user code nor load can stall a heartbeat
//! (cluster T6, C7). Dropping the transport ends both at once, as a crash would;
//! [`GrpcTransport::shutdown`] is the orderly way.

mod accept;
mod caller_slots;
mod codec;
mod connection_guard;
mod connector;
mod failure;
mod fault;
mod flushes;
mod holders;
mod host;
mod link;
mod opening;
mod outbound;
mod peer;
mod reliable;
mod resolve;
mod retired_uids;
mod sending;
mod server;
mod shared;
mod sorting;
mod streams;
mod table;
mod tls;
mod workers;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use greylag_core::{DeadLetterReason, NodeAddress, Registry, ReplyPort, Uid, UniqueAddress};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{mpsc, oneshot};

pub use fault::Fault;
pub use tls::{HandshakeError, TlsDialer, TlsFiles};

use crate::admission_control::Intrusion;
use crate::dead_letters::{DeadLetterEvents, DeadLetterKey};
use crate::endpoint::Endpoint;
use crate::envelope::{Envelope, Inbound, Recipient};
use crate::error::{BindError, TlsError};
use crate::holder::Holder;
use crate::lane::{Lane, LaneKind};
use crate::queue::Item;
use crate::reliable::SenderInput;
use crate::remoting::{
    AskError, Destination, OpenAsk, PeerInfo, QuarantineReason, Receiver, Remoting, SendRejected, Sending,
    TransportListener,
};
use crate::settings::TransportSettings;
use crate::tls::Tls;
use shared::{Announcement, Shared, SharedPort};
use workers::Workers;

/// The counters of a transport since its start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TransportStats {
    /// Envelopes that a [`Fault`] swallowed in place of writing them.
    pub swallowed_envelopes: u64,
    /// Envelopes written to streams.
    pub sent_envelopes: u64,
    /// Frames that the envelopes were written in.
    pub sent_frames: u64,
    /// Bytes of those frames, after compression.
    pub sent_bytes: u64,
    /// How many of those frames left compressed.
    pub compressed_frames: u64,
    /// Accepted connections that moved to the data runtime, because they carry a data lane.
    pub moved_connections: u64,
    /// Envelopes read from streams.
    pub received_envelopes: u64,
    /// Frames that the envelopes were read from.
    pub received_frames: u64,
    /// Frames of kinds that this version does not know, or does not expect.
    pub skipped_frames: u64,
    /// Frames that could not be read; each closed its stream.
    pub malformed_frames: u64,
    /// Streams that peers have open to this node now.
    pub inbound_streams: usize,
    /// Intrusions, by kind and remote host.
    pub intrusions: BTreeMap<(Intrusion, IpAddr), u64>,
    /// How often a new certificate was loaded from disk.
    pub tls_reloads: u64,
    /// How often the certificate files could not be used; the certificate before stayed in use.
    pub tls_reload_failures: u64,
    /// Whole days until this node's certificate ends, negative once it has; `None` without TLS.
    pub certificate_days_left: Option<i64>,
    /// Messages that were dropped, by reason, lane and peer.
    pub dead_letters: BTreeMap<DeadLetterKey, u64>,
}

impl TransportStats {
    /// How many messages were dropped for `reason`, over all lanes and peers.
    pub fn dropped(&self, reason: DeadLetterReason) -> u64 {
        self.dead_letters.iter().filter(|(key, _)| key.reason == reason).map(|(_, count)| count).sum()
    }

    /// How often something of this kind was refused, over all remote hosts.
    pub fn intruded(&self, intrusion: Intrusion) -> u64 {
        self.intrusions.iter().filter(|((kind, _), _)| *kind == intrusion).map(|(_, count)| count).sum()
    }
}

/// The transport of one node over gRPC.
pub struct GrpcTransport {
    shared: Arc<Shared>,
    port: Arc<SharedPort>,
    running: Mutex<Option<Running>>,
}

/// The parts that end with the transport, in this order.
struct Running {
    /// Ends before `control`: a connection of a data lane began on the control runtime, and the timers that the connection
    /// made there would panic on a data thread once the control runtime is gone.
    data: Threads,
    control: Threads,
    /// Opens the transport for connections; `None` once used.
    open: Option<oneshot::Sender<()>>,
    stop_listening: oneshot::Sender<()>,
    server: tokio::task::JoinHandle<()>,
    /// The listening socket, which stays bound as long as a clone is left.
    port: Arc<TcpListener>,
}

/// A runtime that, dropped, ends all its tasks without waiting: it may be dropped within a task, where tokio does not
/// allow waiting for a runtime's threads.
struct Threads(Option<Runtime>);

impl std::ops::Deref for Threads {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        self.0.as_ref().expect("it is taken out by its drop alone")
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

impl std::fmt::Debug for GrpcTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrpcTransport").field("self_address", self.self_address()).finish_non_exhaustive()
    }
}

impl GrpcTransport {
    /// Binds the socket, draws the uid, and listens. Messages that arrive for a path that is not registered yet are
    /// dead letters: if other nodes know the address beforehand, use [`GrpcTransport::bind_closed`].
    ///
    /// # Errors
    /// [`BindError`]; nothing runs then.
    pub async fn bind(settings: TransportSettings, registry: Arc<Registry>) -> Result<Arc<Self>, BindError> {
        let transport = Self::bind_closed(settings, registry).await?;
        transport.open();
        Ok(transport)
    }

    /// Binds like [`GrpcTransport::bind`], but accepts no connection before [`GrpcTransport::open`]. Nodes that know
    /// the address, such as those with the same list of seeds, connect meanwhile and wait, so their messages find the
    /// recipients that are registered before `open`.
    ///
    /// # Errors
    /// [`BindError`]; nothing runs then.
    pub async fn bind_closed(settings: TransportSettings, registry: Arc<Registry>) -> Result<Arc<Self>, BindError> {
        settings.check()?;
        let canonical_host = settings.canonical_host.clone().unwrap_or_else(|| host::outward_ip().to_string());
        let bind_host = settings.bind_host.clone().unwrap_or_else(|| canonical_host.clone());
        let bind_port = settings.bind_port.unwrap_or(settings.canonical_port);
        let target = resolve(&settings, &bind_host, bind_port).await?;
        if settings.tls == Tls::LoopbackOnly && !target.ip().is_loopback() {
            return Err(BindError::PlainText { address: target });
        }
        if settings.tls == Tls::None && host::is_public(target.ip(), &canonical_host) {
            tracing::warn!(address = %target, "tls = none: any process that reaches this address can speak as a node");
        }
        let tls = match &settings.tls {
            Tls::Files(files) => Some(Arc::new(TlsFiles::open(files.clone(), &canonical_host)?)),
            Tls::None | Tls::LoopbackOnly => None,
        };
        let canonical = NodeAddress::new(&canonical_host, settings.canonical_port.max(1))?;
        let (control, data) = runtimes(&settings)?;
        let (listener, bound) =
            listen(&control, target).map_err(|cause| BindError::Listen { address: target, cause })?;
        let port = if settings.canonical_port == 0 { bound.port() } else { settings.canonical_port };
        let address = NodeAddress::new(canonical.host(), port).expect("a host that was read, and a port that is bound");
        let address = UniqueAddress::new(address, draw_uid());
        Ok(Self::start(settings, registry, address, tls, listener, control, data))
    }

    fn start(
        settings: TransportSettings,
        registry: Arc<Registry>,
        address: UniqueAddress,
        tls: Option<Arc<TlsFiles>>,
        listener: TcpListener,
        control: Threads,
        data: Threads,
    ) -> Arc<Self> {
        tracing::info!(%address, cluster = settings.cluster_name, "listening");
        let endpoint = Endpoint::new(address, registry, settings.dead_letter_log_rate, rand::random());
        let (workers, receivers) = Workers::new(settings.inbound_lanes, settings.outbound_queue_bytes);
        let (announce, announcements) = mpsc::unbounded_channel();
        let handles = (control.handle().clone(), data.handle().clone());
        let shared =
            Arc::new(Shared::new(settings, endpoint, host::host_id(), tls, handles.0, handles.1, workers, announce));
        receivers.open(&shared);
        control.spawn(shared::announce_all(shared.clone(), announcements));
        control.spawn(shared::expire_asks(shared.clone()));
        if let Some(files) = shared.tls.clone() {
            control.spawn(files.keep_reading());
        }
        control.spawn(shared::log_suppressed(shared.clone()));
        control.spawn(shared::drop_idle_peers(shared.clone()));
        control.spawn(caller_slots::drop_callers(shared.clone()));
        let ((open, opened), (stop_listening, stop)) = (oneshot::channel(), oneshot::channel());
        let port = Arc::new(listener);
        let server = control.spawn(accept::serve(shared.clone(), port.clone(), opened, stop));
        let running = Running { control, data, open: Some(open), stop_listening, server, port };
        Arc::new(Self { port: Arc::new(SharedPort(shared.clone())), shared, running: Mutex::new(Some(running)) })
    }

    /// Accepts connections from now on, the waiting ones first. Later calls do nothing.
    pub fn open(&self) {
        let mut running = self.running.lock().expect(NO_PANIC);
        if let Some(open) = running.as_mut().and_then(|running| running.open.take()) {
            open.send(()).ok();
        }
    }

    /// The small runtime that carries control lanes and no user code. Membership runs there, so that load on the data
    /// lanes cannot make this node look dead. The runtime ends with the transport. Source: cluster C7.
    pub fn control_runtime(&self) -> Handle {
        self.shared.control.clone()
    }

    /// The cluster's name, the same on all its nodes.
    pub fn cluster_name(&self) -> &str {
        &self.shared.settings.cluster_name
    }

    /// The counters since the start.
    pub fn stats(&self) -> TransportStats {
        let counters = &self.shared.counters;
        let tls = |counter: fn(&TlsFiles) -> &AtomicU64| {
            self.shared.tls.as_ref().map_or(0, |files| counter(files).load(Ordering::Relaxed))
        };
        TransportStats {
            sent_envelopes: counters.sent_envelopes.load(Ordering::Relaxed),
            swallowed_envelopes: counters.swallowed_envelopes.load(Ordering::Relaxed),
            sent_frames: counters.sent_frames.load(Ordering::Relaxed),
            sent_bytes: counters.sent_bytes.load(Ordering::Relaxed),
            compressed_frames: counters.compressed_frames.load(Ordering::Relaxed),
            moved_connections: counters.moved_connections.load(Ordering::Relaxed),
            received_envelopes: counters.received_envelopes.load(Ordering::Relaxed),
            received_frames: counters.received_frames.load(Ordering::Relaxed),
            skipped_frames: counters.skipped_frames.load(Ordering::Relaxed),
            malformed_frames: counters.malformed_frames.load(Ordering::Relaxed),
            inbound_streams: self.shared.streams.count(),
            intrusions: self.shared.admission_control().counts(),
            tls_reloads: tls(|files| &files.reloads),
            tls_reload_failures: tls(|files| &files.failures),
            certificate_days_left: self.shared.tls.as_ref().map(|files| files.days_left()),
            dead_letters: self.shared.endpoint.dead_letters.counts(),
        }
    }

    /// Reads key, certificate and authorities from their files at once, as the transport does every
    /// `tls_reload_interval`; open connections stay as they are. Returns whether the files held something new; without
    /// TLS, false.
    ///
    /// # Errors
    /// [`TlsError`]; the certificates read before stay in use. Blocks on the disk.
    pub fn reload_tls(&self) -> Result<bool, TlsError> {
        self.shared.tls.as_ref().map_or(Ok(false), |files| files.reload())
    }

    /// Sets the fault on the traffic with `peer`. Without `fault_injection` in the settings nothing
    /// happens, and the log says so (cluster T42).
    pub fn fault(&self, peer: &NodeAddress, fault: Fault) {
        if self.may_fault() {
            self.shared.peer(peer).fault.set(fault);
        }
    }

    /// Breaks every stream to `peer`, as a fault; they are opened again after a pause.
    pub fn kill_streams(&self, peer: &NodeAddress) {
        if self.may_fault() {
            self.shared.peer(peer).kill_streams();
        }
    }

    /// Opens a second connection beside every open one to `peer`, as a fault; the second takes over.
    pub fn duplicate_connections(&self, peer: &NodeAddress) {
        if self.may_fault() {
            let peer = self.shared.peer(peer);
            peer.lanes().for_each(|lane| peer.input(&self.shared, crate::association::Input::Duplicate { lane }));
        }
    }

    fn may_fault(&self) -> bool {
        let may = self.shared.settings.fault_injection;
        if !may {
            tracing::error!("a fault was asked for, but transport.fault_injection is off");
        }
        may
    }

    /// Ends in order: refuses new messages, lets peers read the queued ones, announces the end to them, closes
    /// the streams, and stops listening last. Takes at most `shutdown_flush_timeout` plus
    /// `shutdown_streams_timeout`. Source: cluster T33.
    pub async fn shutdown(&self) {
        let Some(running) = self.running.lock().expect(NO_PANIC).take() else { return };
        let shared = &self.shared;
        shared.is_shutting_down.store(true, Ordering::Release);
        self.send_terminating();
        let flushed = tokio::time::timeout(shared.settings.shutdown_flush_timeout, shared.all_terminating_done()).await;
        if flushed.is_err() {
            tracing::warn!("shutdown timed out before all peers had read their queued messages");
        }
        let now = Instant::now();
        for peer in shared.peers() {
            peer.input(shared, crate::association::Input::Shutdown);
            peer.numbered_input(shared, SenderInput::Shutdown);
            peer.close();
            for lane in peer.lanes() {
                peer.queue(lane).close();
                for item in peer.queue(lane).extract(|_| true) {
                    peer.drop_item(shared, now, lane, &item, DeadLetterReason::ShuttingDown);
                }
            }
        }
        shared.endpoint.asks.close();
        shared.streams.end_all();
        let Running { control, data, open: _, stop_listening, server, port } = running;
        stop_listening.send(()).ok();
        if tokio::time::timeout(shared.settings.shutdown_streams_timeout, server).await.is_err() {
            tracing::warn!("some streams did not close in time");
        }
        drop((data, control));
        // Close the socket last of all: a port that refuses proves the process dead (cluster S20).
        drop(port);
    }

    /// Queues the last word behind the items of every lane that is in use. A peer that is itself ending gets the last
    /// word on its open lanes, and accepts no stream for the others.
    fn send_terminating(&self) {
        for peer in self.shared.peers() {
            for lane in peer.lanes() {
                let queue = peer.queue(lane);
                if queue.is_open() || !(queue.is_empty() || peer.is_terminating()) {
                    self.shared.terminating_sent(&peer.address, lane);
                    peer.push(&self.shared, lane, Item::Terminating, true).ok();
                    // The stream, or the peer, may have ended before the last word was counted as said.
                    if peer.is_terminating() && !queue.is_open() {
                        self.shared.terminating_done(&peer.address, lane);
                    }
                }
            }
        }
    }
}

impl Drop for GrpcTransport {
    fn drop(&mut self) {
        if let Some(running) = self.running.get_mut().expect(NO_PANIC).take() {
            self.shared.endpoint.asks.close();
            drop(running);
        }
    }
}

impl Remoting for GrpcTransport {
    fn self_address(&self) -> &UniqueAddress {
        &self.shared.endpoint.self_address
    }

    fn host_id(&self) -> Option<String> {
        self.shared.host_id.clone()
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
        self.shared.settings.termination_flush_timeout
    }

    fn instance(&self, path: &str) -> Option<u64> {
        self.shared.endpoint.instance(path)
    }

    fn register(&self, path: &str, receiver: Arc<dyn Receiver>) -> u64 {
        let (instance, replaced) = self.shared.endpoint.register(path, receiver);
        replaced.into_iter().for_each(|event| self.shared.announce(Announcement::Event(event)));
        instance
    }

    fn unregister(&self, path: &str) {
        let stopped = self.shared.endpoint.unregister(path);
        stopped.into_iter().for_each(|event| self.shared.announce(Announcement::Event(event)));
    }

    fn listen(&self, hand_back_prefix: Option<&str>, listener: Arc<dyn TransportListener>) {
        self.shared.endpoint.listen(hand_back_prefix, listener);
    }

    fn lane_of(&self, recipient: &Recipient) -> Lane {
        self.shared.lanes.lane(recipient)
    }

    fn maximum_message_size(&self, lane: LaneKind) -> usize {
        self.shared.settings.maximum_message_size(lane)
    }

    fn peer(&self, address: &NodeAddress) -> Option<PeerInfo> {
        self.shared.endpoint.peer(address)
    }

    fn quarantine(&self, peer: &UniqueAddress, reason: QuarantineReason, harmless: bool) {
        if peer.address() != self.self_address().address() {
            let uid = peer.uid();
            let input = crate::association::Input::Quarantine { uid, reason, harmless };
            self.shared.peer(peer.address()).input(&self.shared, input);
        }
    }

    fn set_tombstones(&self, tombstones: &BTreeSet<UniqueAddress>) {
        self.shared.set_tombstones(tombstones);
    }

    fn declare_chatter(&self, path_prefix: &str) {
        self.shared.endpoint.declare_chatter(path_prefix);
    }

    fn declare_repeated(&self, path_prefix: &str, manifest: Option<&str>, reasons: &[DeadLetterReason]) {
        self.shared.endpoint.declare_repeated(path_prefix, manifest, reasons);
    }

    fn dead_letters(&self, capacity: usize) -> DeadLetterEvents {
        self.shared.endpoint.dead_letters.subscribe(capacity)
    }

    fn set_cluster_id(&self, cluster_id: u128) {
        let before = self.shared.cluster_id.lock().expect(NO_PANIC).replace(cluster_id);
        if before != Some(cluster_id) {
            for peer in self.shared.peers() {
                peer.lanes().for_each(|lane| peer.greet_again(&self.shared, lane));
            }
        }
    }

    fn set_members(&self, members: &mut dyn Iterator<Item = &UniqueAddress>) {
        self.shared.trust(members);
    }

    fn open_to_strangers(&self, path: &str, is_open: bool) {
        self.shared.endpoint.membership.open(path, is_open);
    }

    fn set_holders(&self, holders: Vec<Holder>) {
        self.shared.hold(holders);
    }

    fn ask_who(&self, address: &NodeAddress) {
        self.shared.peer(address).input(&self.shared, crate::association::Input::Ask);
    }

    fn keep_port(&self) {
        if let Some(running) = &*self.running.lock().expect(NO_PANIC) {
            // Leak one clone, so that the socket stays bound.
            std::mem::forget(running.port.clone());
        }
    }

    fn dead_letter(&self, reason: DeadLetterReason, recipient: &str, manifest: &str) {
        self.shared.endpoint.dead_letter_above(Instant::now(), reason, recipient, manifest);
    }

    fn certificate_days_left(&self) -> Option<i64> {
        self.shared.tls.as_ref().map(|files| files.days_left())
    }

    fn dead_letter_totals(&self) -> BTreeMap<DeadLetterReason, u64> {
        self.shared.endpoint.dead_letters.totals()
    }

    fn refuse(&self, message: &Inbound, reason: DeadLetterReason) {
        let lane = self.lane_of(&message.recipient);
        self.shared.refuse(self.shared.endpoint.refuse(Instant::now(), Some(lane), message, reason));
    }

    fn registry(&self) -> &Arc<Registry> {
        &self.shared.endpoint.registry
    }

    fn reply_port(&self) -> Arc<dyn ReplyPort> {
        self.port.clone()
    }

    fn open_ask(&self, timeout: Duration) -> OpenAsk {
        let (ask, is_first) = self.shared.endpoint.asks.open(Instant::now(), timeout);
        if is_first {
            self.shared.deadline_moved.notify_one();
        }
        ask
    }

    fn provide_resource(&self, what: Arc<dyn Any + Send + Sync>) {
        self.shared.endpoint.provide_resource(what);
    }

    fn fail_ask(&self, ask_id: u64, error: AskError) {
        self.shared.endpoint.asks.complete(ask_id, Err(error));
    }
}

const NO_PANIC: &str = "nothing under this lock panics";

/// The control runtime and the data runtime.
fn runtimes(settings: &TransportSettings) -> Result<(Threads, Threads), BindError> {
    Ok((runtime("greylag-control", settings.control_threads)?, runtime("greylag-data", settings.data_threads)?))
}

fn runtime(name: &str, threads: usize) -> Result<Threads, BindError> {
    let built = Builder::new_multi_thread().worker_threads(threads).thread_name(name).enable_all().build();
    Ok(Threads(Some(built.map_err(BindError::Threads)?)))
}

async fn resolve(settings: &TransportSettings, host: &str, port: u16) -> Result<SocketAddr, BindError> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    let failed = |cause| BindError::Resolve { host: host.to_owned(), cause };
    let found = tokio::time::timeout(settings.bind_timeout, tokio::net::lookup_host((host, port))).await;
    let mut found = found.map_err(|_| failed(std::io::ErrorKind::TimedOut.into()))?.map_err(failed)?;
    found.next().ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))
}

/// Binds a socket that the control runtime drives.
fn listen(control: &Runtime, target: SocketAddr) -> std::io::Result<(TcpListener, SocketAddr)> {
    let _context = control.enter();
    let socket = std::net::TcpListener::bind(target)?;
    socket.set_nonblocking(true)?;
    let bound = socket.local_addr()?;
    Ok((TcpListener::from_std(socket)?, bound))
}

/// A uid from the system's randomness: never 0, never used again.
fn draw_uid() -> Uid {
    loop {
        if let Some(uid) = Uid::new(rand::random()) {
            return uid;
        }
    }
}
