//! Accepts callers of the admin service, by TLS where it is on.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use greylag_transport::{HandshakeError, TlsFiles};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::transport::server::{Connected, TcpConnectInfo};

use crate::dial::Io;

/// How long a caller has for its part of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Handshakes under way; further callers wait in the system's backlog.
const MAX_HANDSHAKES: usize = 64;
/// After an accept that failed: the process may lack descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection with a caller that may speak.
pub(super) struct Caller {
    io: Pin<Box<dyn Io>>,
    info: TcpConnectInfo,
}

/// Hands accepted callers over, until nobody takes them any more.
pub(super) async fn accept(
    listener: TcpListener,
    tls: Option<Arc<TlsFiles>>,
    callers: mpsc::Sender<io::Result<Caller>>,
) {
    let mut handshakes = JoinSet::new();
    loop {
        while handshakes.try_join_next().is_some() {}
        if handshakes.len() >= MAX_HANDSHAKES {
            handshakes.join_next().await;
        }
        let accepted = tokio::select! {
            () = callers.closed() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, address)) => {
                handshakes.spawn(welcome(socket, address, tls.clone(), callers.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "the admin service could not accept a connection; it goes on");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn welcome(
    socket: TcpStream,
    address: SocketAddr,
    tls: Option<Arc<TlsFiles>>,
    callers: mpsc::Sender<io::Result<Caller>>,
) {
    socket.set_nodelay(true).ok();
    let info = socket.connect_info();
    let io: Pin<Box<dyn Io>> = match tls {
        None => Box::pin(socket),
        Some(files) => match tokio::time::timeout(HANDSHAKE_TIMEOUT, files.accept(socket)).await {
            Ok(Ok(tls)) => Box::pin(tls),
            // It just hung up, as whoever looks whether somebody listens does.
            Ok(Err(HandshakeError::Broken(error))) => return tracing::debug!(%address, %error, "a caller hung up"),
            Ok(Err(error)) => return tracing::warn!(%address, %error, "the admin service refuses a caller"),
            Err(_) => return tracing::warn!(%address, "the admin service refuses a caller: no TLS handshake in time"),
        },
    };
    // Nobody takes it if the service ends.
    let _ended = callers.send(Ok(Caller { io, info })).await;
}

impl Connected for Caller {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.info.clone()
    }
}

impl AsyncRead for Caller {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_read(cx, into)
    }
}

impl AsyncWrite for Caller {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.io.as_mut().poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_shutdown(cx)
    }
}
