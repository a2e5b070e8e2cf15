//! The serving process: listens, and starts a session for every client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use greylag_transport::beside::{Accepted, accept};
use greylag_transport::{Tls, TlsFiles, TlsSettings};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use super::active_sessions::ActiveSessions;
use super::hello_guard::{HelloGuard, Identified};
use super::session::{Session, check_version, unavailable};
use super::stop::stopped;
use crate::error::BindError;
use crate::generated as proto;
use crate::generated::journal_service_server::{JournalService, JournalServiceServer};
use crate::served::Served;
use crate::settings::{MAX_SNAPSHOT_MESSAGE_BYTES, ServerSettings};
use crate::wire;

/// Frames that may wait for a slow client before its session stops working.
const OUTGOING_FRAMES: usize = 4;
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
/// Interval and timeout of pings: a client that sends nothing for twice as long counts as gone.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Limit of sessions on one connection. A client has one, and a second while the server has not noticed that the first
/// is gone.
const SESSIONS_OF_A_CONNECTION: usize = 4;

/// Serves one journal, and the stores beside it, to other processes, until it is shut down or dropped.
///
/// The server does not own the stores: close the journal after the shutdown.
#[derive(Debug)]
pub struct JournalServer {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
    settings: ServerSettings,
}

impl JournalServer {
    /// Listens on `address` (port 0 picks a free one) and serves these stores.
    ///
    /// # Errors
    /// [`BindError`] if the address is taken, not of this machine, or may be reached by others although the settings do
    /// not mention encryption; if a file of the certificate cannot be used; or if a setting is invalid.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn bind(
        address: SocketAddr,
        served: impl Into<Served>,
        settings: ServerSettings,
    ) -> Result<Self, BindError> {
        settings.validate()?;
        let tls = open_tls(&settings.tls, address)?;
        let failed = |cause| BindError::Listen { address, cause };
        let listener = tokio::net::TcpListener::bind(address).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let (stop, stop_signal) = watch::channel(false);
        let (sender, clients) = mpsc::channel(1);
        let active = Arc::new(ActiveSessions::default());
        let service = Service { served: served.into(), settings: settings.clone(), active, stop: stop_signal.clone() };
        let (hello_timeout, stop_of_guards) = (settings.hello_timeout, stop_signal.clone());
        let clients = ReceiverStream::new(clients).map(move |accepted: std::io::Result<Accepted>| {
            accepted.map(|accepted| HelloGuard::new(accepted, hello_timeout, stop_of_guards.clone()))
        });
        let service = JournalServiceServer::new(service)
            .max_decoding_message_size(MAX_SNAPSHOT_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_SNAPSHOT_MESSAGE_BYTES);
        let streams = settings.max_snapshots_in_flight.saturating_add(SESSIONS_OF_A_CONNECTION);
        let server = Server::builder()
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEP_ALIVE_INTERVAL))
            .max_concurrent_streams(u32::try_from(streams).unwrap_or(u32::MAX))
            .serve_with_incoming_shutdown(service, clients, stopped(stop_signal));
        let accepting = accept("journal", listener, tls.clone(), sender);
        let serving = tokio::spawn(async move {
            let accepting = async {
                tokio::select! {
                    () = accepting => {}
                    () = reload_certificates(tls) => {}
                }
            };
            // The receiver of accepted connections ends with the stopped server, and thereby ends accepting.
            if let (Err(error), ()) = tokio::join!(server, accepting) {
                tracing::error!(%error, "the journal service stopped with an error");
            }
        });
        Ok(Self { address: bound, stop, serving, settings })
    }

    /// The address that it listens on.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Answers the calls in progress, ends every session, and stops listening.
    pub async fn shutdown(mut self) {
        self.stop.send_replace(true);
        if tokio::time::timeout(self.settings.shutdown_timeout, &mut self.serving).await.is_err() {
            tracing::warn!("a client kept its connection open over the shutdown; the connection is closed");
        }
    }
}

impl Drop for JournalServer {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        self.serving.abort();
    }
}

/// Reads the certificate files. Clients check for the host that they dial, so the certificate must name it, unless the
/// address means every host.
fn open_tls(tls: &Tls, address: SocketAddr) -> Result<Option<Arc<TlsFiles>>, BindError> {
    match tls {
        Tls::LoopbackOnly if !address.ip().is_loopback() => Err(BindError::PlainText { address }),
        Tls::None if !address.ip().is_loopback() => {
            tracing::warn!(%address, "ServerSettings::tls = Tls::None: every process that reaches this address may use the journal");
            Ok(None)
        }
        Tls::LoopbackOnly | Tls::None => Ok(None),
        Tls::Files(files) => {
            if !files.mutual {
                tracing::warn!(%address, "TlsSettings::mutual = false: every process that reaches this address may use the journal");
            }
            let verify_hostname = files.verify_hostname && !address.ip().is_unspecified();
            let files = TlsSettings { verify_hostname, ..files.clone() };
            Ok(Some(Arc::new(TlsFiles::open(files, &address.ip().to_string())?)))
        }
    }
}

/// Reads the files of TLS again and again. Never returns, also without TLS.
pub(super) async fn reload_certificates(tls: Option<Arc<TlsFiles>>) {
    match tls {
        Some(files) => files.keep_reading().await,
        None => std::future::pending().await,
    }
}

struct Service {
    served: Served,
    settings: ServerSettings,
    active: Arc<ActiveSessions>,
    stop: watch::Receiver<bool>,
}

#[tonic::async_trait]
impl JournalService for Service {
    type SessionStream = ReceiverStream<Result<proto::ServerFrame, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<proto::ClientFrame>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (frames, outgoing) = mpsc::channel(OUTGOING_FRAMES);
        let (served, settings) = (self.served.clone(), self.settings.clone());
        let (active, stop) = (self.active.clone(), self.stop.clone());
        let (_, extensions, incoming) = request.into_parts();
        tokio::spawn(Session { served, settings, active, frames, stop, extensions }.run(incoming));
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }

    async fn save_snapshot(
        &self,
        request: Request<proto::SaveSnapshotRequest>,
    ) -> Result<Response<proto::SaveSnapshotResponse>, Status> {
        use proto::save_snapshot_response::Outcome;
        let (_, extensions, request) = request.into_parts();
        check_version(request.version, request.version)?;
        Identified::mark(&extensions);
        let saved = match request.snapshot.map(wire::new_snapshot) {
            Some(Ok(snapshot)) => self.served.stores.snapshots.save(snapshot).await,
            Some(Err(malformed)) => Err(unavailable(malformed)),
            None => Err(unavailable("a request without a snapshot")),
        };
        let outcome = match saved {
            Ok(timestamp) => Outcome::Timestamp(timestamp.as_micros()),
            Err(error) => Outcome::Failure(wire::from_snapshot_error(error)),
        };
        Ok(Response::new(proto::SaveSnapshotResponse { outcome: Some(outcome) }))
    }

    async fn load_snapshot(
        &self,
        request: Request<proto::LoadSnapshotRequest>,
    ) -> Result<Response<proto::LoadSnapshotResponse>, Status> {
        use proto::load_snapshot_response::Outcome;
        let (_, extensions, request) = request.into_parts();
        check_version(request.version, request.version)?;
        Identified::mark(&extensions);
        let criteria = request.criteria.ok_or(wire::Malformed("request without criteria")).and_then(wire::criteria);
        let wanted = wire::id(&request.persistence_id).and_then(|id| Ok((id, criteria?)));
        let loaded = match wanted {
            Ok((id, criteria)) => self.served.stores.snapshots.load(&id, criteria).await,
            Err(malformed) => Err(unavailable(malformed)),
        };
        let outcome = match loaded {
            Ok(snapshot) => snapshot.map(|snapshot| Outcome::Snapshot(wire::from_snapshot(snapshot))),
            Err(error) => Some(Outcome::Failure(wire::from_snapshot_error(error))),
        };
        Ok(Response::new(proto::LoadSnapshotResponse { outcome }))
    }

    async fn delete_snapshots(
        &self,
        request: Request<proto::DeleteSnapshotsRequest>,
    ) -> Result<Response<proto::DeleteSnapshotsResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        check_version(request.version, request.version)?;
        Identified::mark(&extensions);
        let deleted = match self.delete(request).await {
            Ok(deleted) => deleted,
            Err(malformed) => Err(unavailable(malformed)),
        };
        let failure = deleted.err().map(wire::from_snapshot_error);
        Ok(Response::new(proto::DeleteSnapshotsResponse { failure }))
    }
}

impl Service {
    async fn delete(
        &self,
        request: proto::DeleteSnapshotsRequest,
    ) -> wire::Decoded<Result<(), greylag_persistence::SnapshotError>> {
        use proto::delete_snapshots_request::Which;
        let id = wire::id(&request.persistence_id)?;
        let snapshots = &self.served.stores.snapshots;
        Ok(match request.which {
            Some(Which::SeqNr(number)) => snapshots.delete(&id, wire::seq_nr(number)?).await,
            Some(Which::Criteria(criteria)) => snapshots.delete_matching(&id, wire::criteria(criteria)?).await,
            None => return Err(wire::Malformed("request that names no snapshots")),
        })
    }
}
