//! Dials a server, and finds out why the two ends cannot talk.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use greylag_transport::beside::ProbedConnection;
use greylag_transport::{HandshakeError, TlsFiles};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::codegen::http::Uri;
use tonic::codegen::{BoxFuture, Service};

/// Why a connection could not be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    /// No process listens at the address, or the network does not lead there, or the connection broke.
    #[error("{0}")]
    Unreachable(#[source] io::Error),
    /// The listener accepts connections but sends nothing.
    #[error("no answer within {0:?}")]
    NoAnswer(Duration),
    #[error("the server speaks TLS, and this client plain text; set tls of the client")]
    WantsTls,
    /// One end does not trust the other, or the listener does not speak TLS.
    #[error(transparent)]
    Tls(HandshakeError),
}

impl DialError {
    /// The cause of a failed call, if one end does not trust the other or only one speaks TLS: waiting would not help.
    pub(super) fn distrust(status: &tonic::Status) -> Option<String> {
        let mut source = std::error::Error::source(status);
        while let Some(error) = source {
            match error.downcast_ref::<Self>() {
                Some(distrust @ (Self::WantsTls | Self::Tls(_))) => return Some(distrust.to_string()),
                _ => source = error.source(),
            }
        }
        None
    }

    fn of_handshake(error: HandshakeError) -> Self {
        match error {
            HandshakeError::Broken(error) => Self::Unreachable(error),
            distrust => Self::Tls(distrust),
        }
    }
}

/// Connects to the server that a URI names.
#[derive(Clone)]
pub(super) struct Dialer {
    pub(super) tls: Option<Arc<TlsFiles>>,
    pub(super) timeout: Duration,
}

impl Service<Uri> for Dialer {
    type Response = TokioIo<ProbedConnection>;
    type Error = DialError;
    type Future = BoxFuture<Self::Response, DialError>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Self { tls, timeout } = self.clone();
        Box::pin(async move {
            let connection = tokio::time::timeout(timeout, dial(&uri, tls.as_deref())).await;
            connection.unwrap_or(Err(DialError::NoAnswer(timeout))).map(TokioIo::new)
        })
    }
}

async fn dial(uri: &Uri, tls: Option<&TlsFiles>) -> Result<ProbedConnection, DialError> {
    // An IPv6 address stands in brackets.
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let port = uri.port_u16().ok_or_else(|| DialError::Unreachable(io::Error::other("the address has no port")))?;
    let tcp = TcpStream::connect((host, port)).await.map_err(DialError::Unreachable)?;
    tcp.set_nodelay(true).map_err(DialError::Unreachable)?;
    let Some(files) = tls else {
        return ProbedConnection::in_plain_text(tcp).await.map_err(DialError::Unreachable)?.ok_or(DialError::WantsTls);
    };
    let tls = files.connect(host, tcp).await.map_err(DialError::of_handshake)?;
    ProbedConnection::by_tls(tls).await.map_err(|error| DialError::of_handshake(error.into()))
}
