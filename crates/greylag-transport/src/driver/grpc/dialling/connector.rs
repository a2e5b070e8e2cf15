//! The calling side of a connection: a socket, and TLS on it.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tonic::codegen::http::Uri;
use tonic::codegen::{BoxFuture, Service};

use super::failure::{self, FirstRead};
use crate::dials::failure::DialFailure;
use crate::driver::grpc::shared::TransportInner;
use crate::driver::grpc::tls::{ALPN, HandshakeError};
use crate::lanes::lane::Lane;
use crate::settings::TransportSettings;

/// Dials one socket address, which the host name resolved to.
#[derive(Clone)]
pub(crate) struct Connector {
    pub(crate) shared: Arc<TransportInner>,
    pub(crate) target: SocketAddr,
    pub(crate) host: String,
    pub(crate) lane: Lane,
    /// Records the listener's first bytes, or how the connection broke.
    pub(crate) first_read: FirstRead,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Io>;
    type Error = DialFailure;
    type Future = BoxFuture<Self::Response, DialFailure>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialFailure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { shared, target, host, lane, first_read } = self.clone();
        Box::pin(async move {
            let tcp = TcpStream::connect(target).await.map_err(|error| failure::of_socket(&error))?;
            prepare(&tcp, lane, &shared.node.settings).map_err(|error| failure::of_socket(&error))?;
            let Some(files) = &shared.tls else { return Ok(TokioIo::new(Io::new(Carrier::Plain(tcp), first_read))) };
            let name = files.server_name(&host).map_err(|error| DialFailure::Tls(error.to_string()))?;
            let shaken = files.current().connector.connect(name, tcp).await;
            let tls = shaken.map_err(|error| failure::of_handshake(error.into()))?;
            let session = tls.get_ref().1;
            if session.alpn_protocol() != Some(ALPN) {
                return Err(failure::of_handshake(HandshakeError::NotHttp2));
            }
            let judged = files.judge(session.peer_certificates());
            judged.map_err(|error| DialFailure::Tls(error.to_string()))?;
            Ok(TokioIo::new(Io::new(Carrier::Tls(Box::new(tls)), first_read)))
        })
    }
}

/// Sets the socket's options. On the control lane a connection is given up if the peer's kernel does not acknowledge
/// its bytes in time: a silent control lane makes its peer look dead, and after a cut of some seconds a kernel may take
/// as many again before it retransmits, whereas a fresh dial finds the peer as soon as the network is whole. Data lanes
/// wait, because that loses fewer messages.
fn prepare(tcp: &TcpStream, lane: Lane, settings: &TransportSettings) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    #[cfg(target_os = "linux")]
    if lane == Lane::CONTROL {
        socket2::SockRef::from(tcp).set_tcp_user_timeout(Some(settings.http2_keepalive_timeout))?;
    }
    Ok(())
}

/// The byte stream of a connection.
enum Carrier {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection that was made.
pub(crate) struct Io {
    carrier: Carrier,
    /// `Some` until the listener has sent something.
    first_read: Option<FirstRead>,
}

impl Io {
    fn new(carrier: Carrier, first_read: FirstRead) -> Self {
        Self { carrier, first_read: Some(first_read) }
    }
}

/// Calls the same method of either carrier.
macro_rules! each {
    ($io:expr, $inner:ident => $call:expr) => {
        match &mut $io.carrier {
            Carrier::Plain($inner) => $call,
            Carrier::Tls($inner) => $call,
        }
    };
}

impl AsyncRead for Io {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let polled = each!(this, io => Pin::new(io).poll_read(cx, buf));
        if let (Some(first_read), Poll::Ready(read)) = (&this.first_read, &polled) {
            first_read.note(read.as_ref().map(|()| &buf.filled()[before..]));
            this.first_read = None;
        }
        polled
    }
}

impl AsyncWrite for Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        each!(self, io => Pin::new(io).poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, io => Pin::new(io).poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, io => Pin::new(io).poll_shutdown(cx))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, io => Pin::new(io).poll_write_vectored(cx, bytes))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.carrier {
            Carrier::Plain(io) => io.is_write_vectored(),
            Carrier::Tls(io) => io.is_write_vectored(),
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Cluster T9, C7: a control lane's connection is given up unless its bytes are acknowledged in time.
    #[tokio::test]
    async fn control_lanes_have_no_patience_with_silence() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let settings = TransportSettings::default();
        for (lane, patience) in
            [(Lane::CONTROL, Some(settings.http2_keepalive_timeout)), (Lane::LARGE, None), (Lane::ordinary(0), None)]
        {
            let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            prepare(&tcp, lane, &settings).unwrap();
            assert_eq!(socket2::SockRef::from(&tcp).tcp_user_timeout().unwrap(), patience, "{lane}");
            assert!(tcp.nodelay().unwrap());
        }
    }
}
