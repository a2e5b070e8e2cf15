//! Dials an admin service, and finds out why it does not answer.
//!
//! An HTTP/2 server sends first. So a caller by TLS writes nothing until it has read something: only then is it known
//! whether the caller's certificate is trusted, and a listener that does not trust it can send an alert before it
//! closes the connection. A caller in plain text begins with the preface of HTTP/2, which every kind of listener
//! answers in its own way: the first byte tells the kind.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use greylag_transport::beside::ProbedConnection;
use greylag_transport::{HandshakeError, TlsDialer};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::codegen::http::Uri;
use tonic::codegen::{BoxFuture, Service};

/// How long connecting may take, the handshake included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why no admin service answers, as far as the caller can tell.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// No process listens at the address, or the network does not lead there.
    #[error("{0}")]
    Unreachable(#[source] io::Error),
    /// The listener accepts connections but sends nothing.
    #[error("nothing was said within {0:?}")]
    Silent(Duration),
    /// The listener needs TLS, and was called in plain text.
    #[error("it speaks TLS, and was called in plain text")]
    WantsTls,
    /// The listener speaks plain text, and was called by TLS.
    #[error("it speaks plain text, and was called by TLS")]
    WantsPlainText,
    /// The listener needs a certificate, and the caller has none.
    #[error("it asks for a certificate, and none was shown")]
    WantsCertificate,
    /// The listener does not trust the caller's certificate; or it closed the connection, perhaps for the same reason.
    #[error("it does not believe the certificate that was shown ({0}); the log of the node says why")]
    Disbelieves(String),
    /// The caller does not trust the listener's certificate.
    #[error("its certificate is not believed: {0}")]
    NotBelieved(#[source] HandshakeError),
    /// The listener is no admin service.
    #[error("it is no admin service: {0}")]
    Foreign(String),
}

impl DialError {
    /// Whether a process listens there, and one end does not trust the other or only one speaks TLS.
    pub fn is_about_trust(&self) -> bool {
        matches!(
            self,
            Self::WantsTls
                | Self::WantsPlainText
                | Self::WantsCertificate
                | Self::Disbelieves(_)
                | Self::NotBelieved(_)
        )
    }

    fn of_handshake(error: HandshakeError, shows: bool) -> Self {
        match error {
            HandshakeError::NotTls => Self::WantsPlainText,
            HandshakeError::NotHttp2 => Self::Foreign("it does not speak HTTP/2".to_owned()),
            HandshakeError::NoCertificate => Self::WantsCertificate,
            HandshakeError::Refused(alert) if shows => Self::Disbelieves(alert),
            HandshakeError::Refused(alert) => Self::Foreign(format!("it ends the handshake: {alert}")),
            HandshakeError::Broken(cause) if shows => Self::Disbelieves(format!("it hung up: {cause}")),
            HandshakeError::Broken(cause) => Self::Foreign(format!("it hung up: {cause}")),
            believed_not => Self::NotBelieved(believed_not),
        }
    }
}

/// TLS of a caller.
pub(crate) struct Secure {
    pub(crate) dialer: TlsDialer,
    /// Host expected in the certificate; the dialled host if `None`.
    pub(crate) host: Option<String>,
    /// Whether the caller has a certificate to present.
    pub(crate) shows: bool,
}

/// Connects to the host that a URI names.
#[derive(Clone)]
pub(crate) struct Dialer {
    pub(crate) secure: Option<Arc<Secure>>,
}

impl Service<Uri> for Dialer {
    type Response = TokioIo<ProbedConnection>;
    type Error = DialError;
    type Future = BoxFuture<Self::Response, DialError>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let secure = self.secure.clone();
        Box::pin(async move {
            let line = tokio::time::timeout(CONNECT_TIMEOUT, dial(&uri, secure.as_deref())).await;
            line.unwrap_or(Err(DialError::Silent(CONNECT_TIMEOUT))).map(TokioIo::new)
        })
    }
}

async fn dial(uri: &Uri, secure: Option<&Secure>) -> Result<ProbedConnection, DialError> {
    // An IPv6 address stands in brackets.
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let port = uri.port_u16().ok_or_else(|| DialError::Unreachable(io::Error::other("the address has no port")))?;
    let tcp = TcpStream::connect((host, port)).await.map_err(DialError::Unreachable)?;
    tcp.set_nodelay(true).map_err(DialError::Unreachable)?;
    match secure {
        None => plainly(tcp).await,
        Some(secure) => {
            let name = secure.host.as_deref().unwrap_or(host);
            let failed = |error| DialError::of_handshake(error, secure.shows);
            let tls = secure.dialer.connect(name, tcp).await.map_err(failed)?;
            ProbedConnection::by_tls(tls).await.map_err(|error| failed(error.into()))
        }
    }
}

async fn plainly(tcp: TcpStream) -> Result<ProbedConnection, DialError> {
    let hung_up = |error: io::Error| DialError::Foreign(format!("it hung up: {error}"));
    ProbedConnection::in_plain_text(tcp).await.map_err(hung_up)?.ok_or(DialError::WantsTls)
}
