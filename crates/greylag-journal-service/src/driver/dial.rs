//! Dials a server, and finds out what keeps the two ends from speaking.
//!
//! An HTTP/2 server speaks first. So a caller by TLS writes nothing until it has read something:
//! whether its certificate is believed is known only then. A caller in plain text begins with the
//! opening words of HTTP/2, which every listener answers in its own way: by the first byte it is known.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use greylag_transport::{HandshakeError, TlsFiles};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tonic::codegen::http::Uri;
use tonic::codegen::{BoxFuture, Service};

/// The opening words of HTTP/2. Source: RFC 9113, 3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The first byte of a TLS alert. A server's first frame of HTTP/2 would have to be of a megabyte.
const TLS_ALERT: u8 = 0x15;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    /// Nobody listens there, or the network does not lead there, or the line broke.
    #[error("{0}")]
    Away(#[source] io::Error),
    /// Something accepts connections and says nothing.
    #[error("nothing was said within {0:?}")]
    Silent(Duration),
    #[error("it speaks TLS, and was called in plain text")]
    WantsTls,
    /// One end does not believe the other, or does not speak TLS at all.
    #[error(transparent)]
    Tls(HandshakeError),
}

impl DialError {
    /// The cause of a failed call, if it is that one end does not believe the other: nothing that
    /// waiting would change.
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
            HandshakeError::Broken(error) => Self::Away(error),
            distrust => Self::Tls(distrust),
        }
    }
}

/// Connects to whom a URI names.
#[derive(Clone)]
pub(super) struct Dialer {
    pub(super) tls: Option<Arc<TlsFiles>>,
    pub(super) timeout: Duration,
}

impl Service<Uri> for Dialer {
    type Response = TokioIo<Line>;
    type Error = DialError;
    type Future = BoxFuture<Self::Response, DialError>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Self { tls, timeout } = self.clone();
        Box::pin(async move {
            let line = tokio::time::timeout(timeout, dial(&uri, tls.as_deref())).await;
            line.unwrap_or(Err(DialError::Silent(timeout))).map(TokioIo::new)
        })
    }
}

async fn dial(uri: &Uri, tls: Option<&TlsFiles>) -> Result<Line, DialError> {
    // An IPv6 address stands in brackets.
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let port = uri.port_u16().ok_or_else(|| DialError::Away(io::Error::other("the address has no port")))?;
    let mut tcp = TcpStream::connect((host, port)).await.map_err(DialError::Away)?;
    tcp.set_nodelay(true).map_err(DialError::Away)?;
    let Some(files) = tls else {
        tcp.write_all(PREFACE).await.map_err(DialError::Away)?;
        return match tcp.read_u8().await.map_err(DialError::Away)? {
            TLS_ALERT => Err(DialError::WantsTls),
            first => Ok(Line { io: Box::pin(tcp), heard: Some(first), said: PREFACE.len() }),
        };
    };
    let mut tls = files.connect(host, tcp).await.map_err(DialError::of_handshake)?;
    let first = tls.read_u8().await.map_err(|error| DialError::of_handshake(error.into()))?;
    Ok(Line { io: Box::pin(tls), heard: Some(first), said: 0 })
}

/// What carries the bytes of a connection.
pub(super) trait Io: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Io for T {}

/// A connection on which something was said already: what was heard is handed on, what was said is
/// not said again.
pub(super) struct Line {
    io: Pin<Box<dyn Io>>,
    heard: Option<u8>,
    /// How much of what will be written first the other end has.
    said: usize,
}

impl AsyncRead for Line {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if into.remaining() > 0
            && let Some(first) = self.heard.take()
        {
            into.put_slice(&[first]);
            return Poll::Ready(Ok(()));
        }
        self.io.as_mut().poll_read(cx, into)
    }
}

impl AsyncWrite for Line {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let said = self.said.min(bytes.len());
        if said > 0 {
            self.said -= said;
            return Poll::Ready(Ok(said));
        }
        self.io.as_mut().poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_shutdown(cx)
    }
}
