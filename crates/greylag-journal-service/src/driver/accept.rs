//! Accepts clients, by TLS where it is on.

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

use super::dial::Io;

/// How long a client has for its part of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Handshakes under way; further clients wait in the system's backlog.
const MAX_HANDSHAKES: usize = 64;
/// After an accept that failed: the process may lack descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection with a client that may speak.
pub(super) struct Client {
    io: Pin<Box<dyn Io>>,
    info: TcpConnectInfo,
}

/// Hands accepted clients over, until nobody takes them any more.
pub(super) async fn accept(
    listener: TcpListener,
    tls: Option<Arc<TlsFiles>>,
    clients: mpsc::Sender<io::Result<Client>>,
) {
    let mut handshakes = JoinSet::new();
    loop {
        while handshakes.try_join_next().is_some() {}
        if handshakes.len() >= MAX_HANDSHAKES {
            handshakes.join_next().await;
        }
        let accepted = tokio::select! {
            () = clients.closed() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, address)) => {
                handshakes.spawn(welcome(socket, address, tls.clone(), clients.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "the journal service could not accept a connection; it goes on");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn welcome(
    socket: TcpStream,
    address: SocketAddr,
    tls: Option<Arc<TlsFiles>>,
    clients: mpsc::Sender<io::Result<Client>>,
) {
    socket.set_nodelay(true).ok();
    let info = socket.connect_info();
    let io: Pin<Box<dyn Io>> = match tls {
        None => Box::pin(socket),
        Some(files) => match tokio::time::timeout(HANDSHAKE_TIMEOUT, files.accept(socket)).await {
            Ok(Ok(tls)) => Box::pin(tls),
            // It just hung up, as whoever looks whether somebody listens does.
            Ok(Err(HandshakeError::Broken(error))) => return tracing::debug!(%address, %error, "a client hung up"),
            Ok(Err(error)) => return tracing::warn!(%address, %error, "the journal service refuses a client"),
            Err(_) => return tracing::warn!(%address, "the journal service refuses a client: no TLS handshake in time"),
        },
    };
    // Nobody takes it if the service ends.
    let _ended = clients.send(Ok(Client { io, info })).await;
}

impl Connected for Client {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.info.clone()
    }
}

impl AsyncRead for Client {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_read(cx, into)
    }
}

impl AsyncWrite for Client {
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
