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
use super::stopping::until_stopped;
use crate::delivery::Delivery;
use crate::error::StartError;
use crate::settings::ManagementSettings;
use crate::shards::Shards;
use crate::shown::Shown;
use crate::v1::management_server::ManagementServer as Generated;

/// Largest request; requests have only a few addresses.
const MAX_REQUEST_BYTES: usize = 64 * 1024;
/// Connections at a time; each watcher keeps one.
const MAX_CONNECTIONS: usize = 64;
/// Concurrent calls on one connection.
const MAX_CALLS: u32 = 16;
/// Interval and timeout of pings: a caller that does not answer them counts as gone.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// How long open calls may take to end when the service is shut down.
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
    /// Listens on the address of the settings and answers for this node, whether it has joined or not. `None` if the
    /// settings leave the service off.
    ///
    /// # Errors
    /// [`StartError`]; then nothing runs.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn start(
        settings: ManagementSettings,
        cluster: Cluster,
        transport: Arc<GrpcTransport>,
    ) -> Result<Option<Self>, StartError> {
        settings.validate()?;
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
            // The receiver of accepted connections ends with the stopped server, and thereby ends accepting.
            if let (Err(error), ()) = tokio::join!(server, accepting) {
                tracing::error!(%error, "the admin service ended");
            }
        });
        Ok(Some(Self { address, tls, shards, delivery, stop, serving }))
    }

    /// Reads key, certificate and authorities from their files now, as happens every `management.tls_reload_interval`
    /// anyway; open connections keep theirs. Returns whether the files had changed; without TLS always false.
    ///
    /// # Errors
    /// [`TlsError`]; the previous certificate stays in use. Blocks on the disk.
    pub fn reload_tls(&self) -> Result<bool, TlsError> {
        self.tls.as_ref().map_or(Ok(false), |files| files.reload())
    }

    /// The slot for the node's entity types. While it is empty the service answers that there are none.
    pub fn shards(&self) -> &Shown<dyn Shards> {
        &self.shards
    }

    /// The slot for the node's reliable delivery. While it is empty the service answers that there is none.
    pub fn delivery(&self) -> &Shown<dyn Delivery> {
        &self.delivery
    }

    /// The address that it listens on.
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

/// Reads the certificate files. Callers check for the address's host, so the certificate must name it, unless the
/// address means every host.
fn open(files: TlsSettings, address: &str, target: SocketAddr) -> Result<TlsFiles, TlsError> {
    if !files.mutual {
        tracing::warn!("management.tls_mutual = false: every process that reaches the admin service may use it");
    }
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let verify_hostname = files.verify_hostname && !target.ip().is_unspecified();
    TlsFiles::open(TlsSettings { verify_hostname, ..files }, host.trim_start_matches('[').trim_end_matches(']'))
}

/// Reads the files of TLS again and again. Never returns, also without TLS.
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
