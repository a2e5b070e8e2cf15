//! Accepts callers of a service, by TLS where it is on.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::Io;
use crate::driver::grpc::{HandshakeError, TlsFiles};

/// How long a caller has for its part of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Handshakes under way; one more takes the place of the oldest, so that callers that say nothing keep nobody out.
const MAX_HANDSHAKES: usize = 256;
/// After an accept that failed: the process may lack descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Between two log lines about callers for whom there was no place.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// A connection with a caller that may speak.
pub struct Accepted {
    io: Pin<Box<dyn Io>>,
    info: TcpConnectInfo,
    /// Another caller's once the connection has ended.
    _place: OwnedSemaphorePermit,
}

/// Hands the callers of a service over, until nobody takes them any more. `service` is what the log calls it. A caller that
/// is refused is told by its handshake, and logged; without certificates everybody is accepted.
pub async fn accept(
    service: &'static str,
    listener: TcpListener,
    tls: Option<Arc<TlsFiles>>,
    callers: mpsc::Sender<io::Result<Accepted>>,
) {
    accept_at_most(service, listener, tls, callers, Semaphore::MAX_PERMITS).await;
}

/// The same with `most` connections at a time. One more is closed unread, before its handshake costs anything, and
/// the log says so once a minute.
pub async fn accept_at_most(
    service: &'static str,
    listener: TcpListener,
    tls: Option<Arc<TlsFiles>>,
    callers: mpsc::Sender<io::Result<Accepted>>,
    most: usize,
) {
    let places = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
    let mut said_at: Option<Instant> = None;
    let mut handshakes = JoinSet::new();
    let mut oldest = VecDeque::new();
    loop {
        while handshakes.try_join_next().is_some() {}
        oldest.retain(|handshake: &AbortHandle| !handshake.is_finished());
        if oldest.len() >= MAX_HANDSHAKES
            && let Some(handshake) = oldest.pop_front()
        {
            tracing::debug!(service, "the oldest of too many handshakes gives way");
            handshake.abort();
        }
        let accepted = tokio::select! {
            () = callers.closed() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, address)) => {
                let Ok(place) = places.clone().try_acquire_owned() else {
                    if said_at.is_none_or(|at| at.elapsed() >= SAY_AGAIN) {
                        said_at = Some(Instant::now());
                        tracing::warn!(service, %address, most, "a caller is refused: so many connections are open");
                    }
                    continue;
                };
                let welcomed = welcome(service, socket, address, tls.clone(), callers.clone(), place);
                oldest.push_back(handshakes.spawn(welcomed));
            }
            Err(error) => {
                tracing::warn!(service, %error, "a connection could not be accepted; the service goes on");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn welcome(
    service: &'static str,
    socket: TcpStream,
    address: SocketAddr,
    tls: Option<Arc<TlsFiles>>,
    callers: mpsc::Sender<io::Result<Accepted>>,
    place: OwnedSemaphorePermit,
) {
    socket.set_nodelay(true).ok();
    let info = socket.connect_info();
    let io: Pin<Box<dyn Io>> = match tls {
        None => Box::pin(socket),
        Some(files) => match tokio::time::timeout(HANDSHAKE_TIMEOUT, files.accept(socket)).await {
            Ok(Ok(tls)) => Box::pin(tls),
            // It just hung up, as whoever looks whether somebody listens does.
            Ok(Err(HandshakeError::Broken(error))) => {
                return tracing::debug!(service, %address, %error, "a caller hung up");
            }
            Ok(Err(error)) => return tracing::warn!(service, %address, %error, "a caller is refused"),
            Err(_) => return tracing::warn!(service, %address, "a caller is refused: no TLS handshake in time"),
        },
    };
    // Nobody takes it if the service ends.
    let _ended = callers.send(Ok(Accepted { io, info, _place: place })).await;
}

impl std::fmt::Debug for Accepted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Accepted").field(&self.info).finish()
    }
}

impl Connected for Accepted {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.info.clone()
    }
}

impl AsyncRead for Accepted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_read(cx, into)
    }
}

impl AsyncWrite for Accepted {
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
