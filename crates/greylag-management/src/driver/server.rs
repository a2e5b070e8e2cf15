//! The listener of the admin service.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use greylag_cluster::Cluster;
use greylag_transport::GrpcTransport;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use super::service::Service;
use crate::error::StartError;
use crate::settings::{ManagementSettings, ManagementTls};
use crate::v1::management_server::ManagementServer as Generated;

/// Requests are a few addresses; nothing larger is read.
const MAX_REQUEST_BYTES: usize = 64 * 1024;
/// Calls under way on one connection.
const MAX_CALLS: u32 = 64;
/// A caller that does not answer pings for so long is gone.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// How long open calls may take to end with the service.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// A running admin service. It ends when it is shut down or dropped.
#[derive(Debug)]
pub struct ManagementServer {
    address: SocketAddr,
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
        let Some(address) = settings.address else { return Ok(None) };
        let target = resolve(&address).await?;
        if settings.tls == ManagementTls::LoopbackOnly && !target.ip().is_loopback() {
            return Err(StartError::PlainText { address: target });
        }
        let failed = |cause| StartError::Listen { address: target, cause };
        let listener = TcpListener::bind(target).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        tracing::info!(%address, allow_writes = settings.allow_writes, "the admin service listens");
        let (stop, stopped) = watch::channel(false);
        let service = Service::new(settings.allow_writes, cluster, transport, stopped.clone());
        let service = Generated::new(service).max_decoding_message_size(MAX_REQUEST_BYTES);
        let server = Server::builder()
            .max_concurrent_streams(MAX_CALLS)
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE))
            .serve_with_incoming_shutdown(
                service,
                TcpIncoming::from(listener).with_nodelay(Some(true)),
                until_stopped(stopped),
            );
        let serving = tokio::spawn(async move {
            if let Err(error) = server.await {
                tracing::error!(%error, "the admin service ended");
            }
        });
        Ok(Some(Self { address, stop, serving }))
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
    // The other half gone means that the server was dropped.
    let _dropped = stop.wait_for(|stop| *stop).await;
}

async fn resolve(address: &str) -> Result<SocketAddr, StartError> {
    let failed = |cause| StartError::Resolve { address: address.to_owned(), cause };
    let mut found = tokio::net::lookup_host(address).await.map_err(failed)?;
    found.next().ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))
}
