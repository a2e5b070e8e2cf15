//! The listener of the admin service.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use greylag_cluster::Cluster;
use greylag_transport::beside::accept_at_most;
use greylag_transport::{GrpcTransport, Remoting as _, Tls, TlsError, TlsFiles, TlsSettings};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;

use super::other_port::OtherPort;
use super::service::Service;
use crate::delivery::Delivery;
use crate::error::StartError;
use crate::settings::ManagementSettings;
use crate::shards::Shards;
use crate::shown::Shown;
use crate::v1::management_server::ManagementServer as Generated;

/// Requests are a few addresses; nothing larger is read.
const MAX_REQUEST_BYTES: usize = 64 * 1024;
/// Connections at a time; watchers keep theirs.
const MAX_CONNECTIONS: usize = 64;
/// Calls under way on one connection.
const MAX_CALLS: u32 = 16;
/// A caller that does not answer pings for so long is gone.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// How long open calls may take to end with the service.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// A running admin service. It ends when it is shut down or dropped.
#[derive(Debug)]
pub struct ManagementServer {
    address: SocketAddr,
    tls: Option<Arc<TlsFiles>>,
    shards: Shown<dyn Shards>,
    delivery: Shown<dyn Delivery>,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl ManagementServer {
    /// Listens where the settings say and answers for this node, whether it has joined or not.
    /// `None` if the settings leave the service off.
    ///
    /// # Errors
    /// [`StartError`]; nothing runs then.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn start(
        settings: ManagementSettings,
        cluster: Cluster,
        transport: Arc<GrpcTransport>,
    ) -> Result<Option<Self>, StartError> {
        settings.check()?;
        let Some(address) = settings.address else { return Ok(None) };
        let target = resolve(&address).await?;
        let tls = match settings.tls {
            Tls::LoopbackOnly if !target.ip().is_loopback() => {
                return Err(StartError::PlainText { address: target });
            }
            Tls::None if !target.ip().is_loopback() => {
                tracing::warn!(
                    address = %target,
                    "management.tls = none: every process that reaches this address may use it"
                );
                None
            }
            Tls::LoopbackOnly | Tls::None => None,
            Tls::Files(files) => Some(Arc::new(open(files, &address, target)?)),
        };
        let failed = |cause| StartError::Listen { address: target, cause };
        let listener = TcpListener::bind(target).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        tracing::info!(%address, tls = tls.is_some(), allow_writes = settings.allow_writes, "the admin service listens");
        let (stop, stopped) = watch::channel(false);
        let (shards, delivery) = (Shown::default(), Shown::default());
        let (sender, callers) = mpsc::channel(1);
        let node = transport.self_address().address().clone();
        let service =
            Service::new(settings.allow_writes, cluster, transport, stopped.clone(), shards.clone(), delivery.clone());
        let service = Generated::new(service).max_decoding_message_size(MAX_REQUEST_BYTES);
        let service = OtherPort::new(service, node);
        let server = Server::builder()
            .max_concurrent_streams(MAX_CALLS)
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE))
            .serve_with_incoming_shutdown(service, ReceiverStream::new(callers), until_stopped(stopped));
        let accepting = accept_at_most("admin", listener, tls.clone(), sender, MAX_CONNECTIONS);
        let reading = keep_reading(tls.clone());
        let serving = tokio::spawn(async move {
            let accepting = async {
                tokio::select! {
                    () = accepting => {}
                    () = reading => {}
                }
            };
            // Once it is stopped, the server takes no callers, which ends accepting them.
            if let (Err(error), ()) = tokio::join!(server, accepting) {
                tracing::error!(%error, "the admin service ended");
            }
        });
        Ok(Some(Self { address, tls, shards, delivery, stop, serving }))
    }

    /// Reads key, certificate and authorities from their files at once, as happens every
    /// `management.tls_reload_interval`; connections that are open stay as they are. Returns whether
    /// the files held something new; without TLS, never.
    ///
    /// # Errors
    /// [`TlsError`]; what was read before stays in use. Blocks on the disk.
    pub fn reload_tls(&self) -> Result<bool, TlsError> {
        self.tls.as_ref().map_or(Ok(false), |files| files.reload())
    }

    /// Where the node's entity types are put, so that the service shows them. Until then it says that there are none.
    pub fn shards(&self) -> &Shown<dyn Shards> {
        &self.shards
    }

    /// Where the node's delivery is put, so that the service shows it. Until then it says that there is none.
    pub fn delivery(&self) -> &Shown<dyn Delivery> {
        &self.delivery
    }

    /// Where it listens.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Ends the streams of watchers, answers the calls in progress, and stops listening.
    pub async fn shutdown(mut self) {
        self.stop.send_replace(true);
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, &mut self.serving).await.is_err() {
            tracing::debug!("a caller of the admin service kept its connection; it is cut off");
        }
    }
}

impl Drop for ManagementServer {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        self.serving.abort();
    }
}

/// Completes when the service ends.
pub(super) async fn until_stopped(mut stop: watch::Receiver<bool>) {
    // A sender that is gone means that the server was dropped.
    let _dropped = stop.wait_for(|stop| *stop).await;
}

/// Reads the files. Callers look for the host that the address names, unless it is every host.
fn open(files: TlsSettings, address: &str, target: SocketAddr) -> Result<TlsFiles, TlsError> {
    if !files.mutual {
        tracing::warn!("management.tls_mutual = false: every process that reaches the admin service may use it");
    }
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let verify_hostname = files.verify_hostname && !target.ip().is_unspecified();
    TlsFiles::open(TlsSettings { verify_hostname, ..files }, host.trim_start_matches('[').trim_end_matches(']'))
}

/// Reads the files of TLS again and again, for ever; without TLS there is nothing to read.
async fn keep_reading(tls: Option<Arc<TlsFiles>>) {
    match tls {
        Some(files) => files.keep_reading().await,
        None => std::future::pending().await,
    }
}

async fn resolve(address: &str) -> Result<SocketAddr, StartError> {
    let failed = |cause| StartError::Resolve { address: address.to_owned(), cause };
    let mut found = tokio::net::lookup_host(address).await.map_err(failed)?;
    found.next().ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))
}
