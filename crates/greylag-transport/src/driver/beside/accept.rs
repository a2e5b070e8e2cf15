//! Accepts callers of a service, by TLS where it is on.

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
use super::handshakes::Handshakes;
use crate::driver::grpc::{HandshakeError, TlsFiles};

/// How long a caller has for its part of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Handshakes under way; one more takes the place of the oldest, so that silent callers keep no other caller out.
const MAX_HANDSHAKES: usize = 256;
/// Pause after a failed accept: the process may lack descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Least time between two log lines about callers that were closed for lack of a place.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// A connection with a caller that may speak.
pub struct Accepted {
    io: Pin<Box<dyn Io>>,
    info: TcpConnectInfo,
    /// Frees the caller's place when the connection is dropped.
    _place: OwnedSemaphorePermit,
}

/// Sends the callers of a service to the receiver, until the service drops it. `service` is the name in the log. A
/// refused caller learns the reason by its handshake, and is logged; without certificates every caller is accepted.
pub async fn accept(
    service: &'static str,
    listener: TcpListener,
    tls: Option<Arc<TlsFiles>>,
    callers: mpsc::Sender<io::Result<Accepted>>,
) {
    Listening { service, tls, callers, limits: Limits::default() }.accept(listener).await;
}

/// Accepts at most `most` connections at a time. One more is closed unread, before its handshake costs anything; the
/// log says so once a minute.
pub async fn accept_at_most(
    service: &'static str,
    listener: TcpListener,
    tls: Option<Arc<TlsFiles>>,
    callers: mpsc::Sender<io::Result<Accepted>>,
    most: usize,
) {
    Listening { service, tls, callers, limits: Limits { connections: most, ..Limits::default() } }
        .accept(listener)
        .await;
}

/// Bounds on callers whose handshake is not complete, and on connections.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Connections at a time.
    connections: usize,
    /// Handshakes under way at a time; one more takes the place of the oldest.
    handshakes: usize,
    /// How long a caller has for its part of a handshake.
    handshake_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let connections = Semaphore::MAX_PERMITS;
        Self { connections, handshakes: MAX_HANDSHAKES, handshake_timeout: HANDSHAKE_TIMEOUT }
    }
}

/// The state that all callers of one service share.
#[derive(Clone)]
struct Listening {
    service: &'static str,
    tls: Option<Arc<TlsFiles>>,
    callers: mpsc::Sender<io::Result<Accepted>>,
    limits: Limits,
}

impl Listening {
    async fn accept(self, listener: TcpListener) {
        let Self { service, limits, .. } = self;
        let places = Arc::new(Semaphore::new(limits.connections.min(Semaphore::MAX_PERMITS)));
        let mut said_at: Option<Instant> = None;
        let mut tasks = JoinSet::new();
        let mut handshakes = Handshakes::new(limits.handshakes);
        loop {
            let accepted = tokio::select! {
                () = self.callers.closed() => return,
                accepted = listener.accept() => accepted,
            };
            while tasks.try_join_next().is_some() {}
            handshakes.forget(AbortHandle::is_finished);
            match accepted {
                Ok((socket, address)) => {
                    let Ok(place) = places.clone().try_acquire_owned() else {
                        if said_at.is_none_or(|at| at.elapsed() >= SAY_AGAIN) {
                            said_at = Some(Instant::now());
                            let most = limits.connections;
                            tracing::warn!(service, %address, most, "caller refused: connection limit reached");
                        }
                        continue;
                    };
                    if let Some(oldest) = handshakes.begin(tasks.spawn(self.clone().handshake(socket, address, place)))
                    {
                        tracing::debug!(service, "the oldest of too many handshakes gives way");
                        oldest.abort();
                    }
                }
                Err(error) => {
                    tracing::warn!(service, %error, "a connection could not be accepted; the service goes on");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn handshake(self, socket: TcpStream, address: SocketAddr, place: OwnedSemaphorePermit) {
        let Self { service, tls, callers, limits } = self;
        socket.set_nodelay(true).ok();
        let info = socket.connect_info();
        let io: Pin<Box<dyn Io>> = match tls {
            None => Box::pin(socket),
            Some(files) => match tokio::time::timeout(limits.handshake_timeout, files.accept(socket)).await {
                Ok(Ok(tls)) => Box::pin(tls),
                // Log at debug level: the caller hung up, as a port check does.
                Ok(Err(HandshakeError::Broken(error))) => {
                    return tracing::debug!(service, %address, %error, "a caller hung up");
                }
                Ok(Err(error)) => return tracing::warn!(service, %address, %error, "a caller is refused"),
                Err(_) => return tracing::warn!(service, %address, "a caller is refused: no TLS handshake in time"),
            },
        };
        // The send fails only if the service has ended, and then the connection is not wanted.
        let _ended = callers.send(Ok(Accepted { io, info, _place: place })).await;
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::TlsSettings;
    use greylag_testkit::certificates::Authority;
    use std::io::ErrorKind;

    fn listening(limits: Limits) -> (Listening, Arc<TlsFiles>, mpsc::Receiver<io::Result<Accepted>>, Authority) {
        let authority = Authority::new();
        let files = authority.sign("node", &["127.0.0.1"]);
        let settings = TlsSettings::new(files.key, files.cert, files.ca);
        let tls = Arc::new(TlsFiles::open(settings, "127.0.0.1").unwrap());
        let (callers, heard) = mpsc::channel(1);
        (Listening { service: "test", tls: Some(tls.clone()), callers, limits }, tls, heard, authority)
    }

    /// Which of these connections the listener has closed.
    fn closed(crowd: &[TcpStream]) -> Vec<usize> {
        let is_closed = |caller: &TcpStream| match caller.try_read(&mut [0]) {
            Ok(read) => read == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        };
        (0..crowd.len()).filter(|number| is_closed(&crowd[*number])).collect()
    }

    /// Cluster §7, over sockets: 256 callers stay silent and have an hour for it. None of them is closed before another
    /// caller comes; an honest caller is accepted at the cost of the longest-silent one, and each further caller costs
    /// one more.
    #[tokio::test]
    async fn the_oldest_silent_caller_gives_way_to_one_more() {
        let hour = Duration::from_secs(3600);
        let (listening, tls, mut heard, _files) = listening(Limits { handshake_timeout: hour, ..Limits::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = tokio::spawn(listening.accept(listener));
        let mut crowd = Vec::new();
        for _ in 0..MAX_HANDSHAKES {
            crowd.push(TcpStream::connect(address).await.unwrap());
        }
        for honest in 1..=3 {
            let call = async { tls.connect("127.0.0.1", TcpStream::connect(address).await.unwrap()).await.unwrap() };
            let (caller, accepted) = tokio::join!(call, heard.recv());
            // Callers are accepted in the order in which they came, so all earlier ones were accepted too.
            let _both = (caller, accepted.unwrap().unwrap());
            while closed(&crowd).len() < honest {
                crowd[honest - 1].readable().await.unwrap();
            }
            assert_eq!(closed(&crowd), (0..honest).collect::<Vec<_>>());
            crowd.push(TcpStream::connect(address).await.unwrap());
        }
        accepting.abort();
    }
}
