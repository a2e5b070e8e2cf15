//! The transport of one node: begins, runs and ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use greylag_core::{DeadLetterReason, NodeAddress, Registry, UniqueAddress};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::accepting::{drop_callers, serve};
use super::binding::{draw_uid, listen, resolve};
use super::listeners::{announce_all, log_suppressed};
use super::local::{Announcer, LocalNode, OwnFacts, Runtimes, Threads};
use super::peers::{Fault, drop_idle_peers};
use super::receiving::{Workers, start_workers};
use super::sending::SharedPort;
use super::shared::TransportInner;
use super::stats::TransportStats;
use super::tls::TlsFiles;
use super::{dialling, host};
use crate::association::Input;
use crate::endpoints::endpoint::Endpoint;
use crate::error::{BindError, TlsError};
use crate::lanes::queue::Item;
use crate::reliable::SenderInput;
use crate::remoting::Remoting;
use crate::settings::TransportSettings;
use crate::tls::Tls;

/// The transport of one node over gRPC.
pub struct GrpcTransport {
    pub(super) shared: Arc<TransportInner>,
    pub(super) port: Arc<SharedPort>,
    pub(super) running: Mutex<Option<Running>>,
}

/// The parts that end with the transport, in this order.
pub(super) struct Running {
    /// Is told to end before `control`, and not waited for: a connection of a data lane began on the control runtime,
    /// and the connection's timers of that runtime panic on a data thread that still polls the connection once the
    /// control runtime is gone.
    data: Threads,
    control: Threads,
    /// Opens the transport for connections; `None` once used.
    open: Option<oneshot::Sender<()>>,
    stop_listening: oneshot::Sender<()>,
    server: tokio::task::JoinHandle<()>,
    /// The listening socket, which stays bound as long as a clone is left.
    pub(super) port: Arc<TcpListener>,
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
        settings.validate()?;
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
        let (control, data) = Threads::start_both(&settings)?;
        let (listener, bound) =
            listen(&control, target).map_err(|cause| BindError::Listen { address: target, cause })?;
        let port = if settings.canonical_port == 0 { bound.port() } else { settings.canonical_port };
        let address = NodeAddress::new(canonical.host(), port).expect("a host that was read, and a port that is bound");
        let address = UniqueAddress::new(address, draw_uid());
        Ok(Self::start(settings, registry, address, tls, listener, control, data))
    }

    pub(super) fn start(
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
        let (announcer, announcements) = Announcer::new();
        let facts = OwnFacts::new(host::host_id());
        let node = LocalNode::new(settings, endpoint, facts, Runtimes::new(&control, &data), announcer);
        let shared = Arc::new(TransportInner::new(node, tls, workers, dialling::start));
        start_workers(receivers, &shared);
        control.spawn(announce_all(shared.clone(), announcements));
        let asking = shared.clone();
        control.spawn(async move { asking.asks.run(&asking.node.endpoint.asks).await });
        if let Some(files) = shared.tls.clone() {
            control.spawn(files.keep_reading());
        }
        control.spawn(log_suppressed(shared.clone()));
        control.spawn(drop_idle_peers(shared.clone()));
        control.spawn(drop_callers(shared.clone()));
        let ((open, opened), (stop_listening, stop)) = (oneshot::channel(), oneshot::channel());
        let port = Arc::new(listener);
        let server = control.spawn(serve(shared.clone(), port.clone(), opened, stop));
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
        self.shared.node.runtimes.control().clone()
    }

    /// The cluster's name, the same on all its nodes.
    pub fn cluster_name(&self) -> &str {
        &self.shared.node.settings.cluster_name
    }

    /// The counters since the start.
    pub fn stats(&self) -> TransportStats {
        let shared = &self.shared;
        let tls = |counter: fn(&TlsFiles) -> &AtomicU64| {
            shared.tls.as_ref().map_or(0, |files| counter(files).load(Ordering::Relaxed))
        };
        TransportStats {
            inbound_streams: shared.node.streams.count(),
            intrusions: shared.admission.intrusions(),
            tls_reloads: tls(|files| &files.reloads),
            tls_reload_failures: tls(|files| &files.failures),
            certificate_days_left: shared.tls.as_ref().map(|files| files.days_left()),
            dead_letters: shared.node.endpoint.dead_letters.counts(),
            ..shared.counters.read()
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
            peer.lanes().for_each(|lane| self.shared.input(&peer, Input::Duplicate { lane }));
        }
    }

    fn may_fault(&self) -> bool {
        let may = self.shared.node.settings.fault_injection;
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
        shared.node.shutdown.begin();
        self.send_terminating();
        let all_read = shared.node.shutdown.all_terminating_done();
        let flushed = tokio::time::timeout(shared.node.settings.shutdown_flush_timeout, all_read).await;
        if flushed.is_err() {
            tracing::warn!("shutdown timed out before all peers had read their queued messages");
        }
        let now = Instant::now();
        for peer in shared.peers.all() {
            shared.input(&peer, Input::Shutdown);
            shared.numbered_input(&peer, SenderInput::Shutdown);
            peer.close();
            for lane in peer.lanes() {
                peer.queue(lane).close();
                for item in peer.queue(lane).extract(|_| true) {
                    peer.drop_item(&shared.node, now, lane, &item, DeadLetterReason::ShuttingDown);
                }
            }
        }
        shared.node.endpoint.asks.close();
        shared.node.streams.end_all();
        let Running { control, data, open: _, stop_listening, server, port } = running;
        stop_listening.send(()).ok();
        if tokio::time::timeout(shared.node.settings.shutdown_streams_timeout, server).await.is_err() {
            tracing::warn!("some streams did not close in time");
        }
        drop((data, control));
        // Close the socket last of all: a port that refuses proves the process dead (cluster S20).
        drop(port);
    }

    /// Queues the last word behind the items of every lane that is in use. A peer that is itself ending gets the last
    /// word on its open lanes, and accepts no stream for the others.
    fn send_terminating(&self) {
        for peer in self.shared.peers.all() {
            for lane in peer.lanes() {
                let queue = peer.queue(lane);
                if queue.is_open() || !(queue.is_empty() || peer.is_terminating()) {
                    self.shared.node.shutdown.terminating_sent(&peer.address, lane);
                    self.shared.push_to(&peer, lane, Item::Terminating, true).ok();
                    // The stream, or the peer, may have ended before the last word was counted as said.
                    if peer.is_terminating() && !queue.is_open() {
                        self.shared.node.shutdown.terminating_done(&peer.address, lane);
                    }
                }
            }
        }
    }
}

impl Drop for GrpcTransport {
    fn drop(&mut self) {
        if let Some(running) = self.running.get_mut().expect(NO_PANIC).take() {
            self.shared.node.endpoint.asks.close();
            drop(running);
        }
    }
}

pub(super) const NO_PANIC: &str = "nothing under this lock panics";
