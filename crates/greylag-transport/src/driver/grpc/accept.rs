//! The listening socket, and where the work of each connection that it accepts is done.
//!
//! A connection carries one lane, but which one only its Hello says. So every connection begins on
//! the control runtime, and one whose Hello names a data lane moves to the data runtime as it is:
//! the task that parses its frames, and the socket's registration with the poller. What stays on
//! the control runtime is control lanes and Hellos, so load on the data lanes, encryption included,
//! cannot delay a heartbeat. Source: cluster T5, T6, T9, C7.

use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use tonic::body::Body;
use tonic::codegen::http;

use super::server;
use super::shared::Shared;

/// Between two attempts to accept, after one that failed: the process may lack descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where one connection's work is done: on the control runtime, until it moves.
#[derive(Debug, Default)]
pub(super) struct Home {
    moves: Notify,
    has_moved: AtomicBool,
}

impl Home {
    /// The connection carries a data lane: whatever drives it goes on on the data runtime.
    pub(super) fn move_to_data(&self) {
        self.moves.notify_one();
    }
}

/// Who is at the other end of an accepted connection.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) ip: IpAddr,
    pub(super) home: Arc<Home>,
}

/// Accepts connections until told to stop, then waits until they have ended.
pub(super) async fn serve(shared: Arc<Shared>, listener: TcpListener, mut stop: oneshot::Receiver<()>) {
    let (closing, watcher) = watch::channel(());
    loop {
        let accepted = tokio::select! {
            _ = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, address)) => {
                socket.set_nodelay(true).ok();
                let caller = Caller { ip: address.ip(), home: Arc::default() };
                tokio::spawn(begin(shared.clone(), socket, caller, watcher.clone()));
            }
            // The socket is kept: nothing else could be bound in its place (cluster T33).
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    closing.send_replace(());
    drop(watcher);
    closing.closed().await;
    drop(listener);
}

/// Drives a connection here until its lane is known, and from then on where that belongs.
async fn begin(shared: Arc<Shared>, socket: TcpStream, caller: Caller, closing: watch::Receiver<()>) {
    let (home, data) = (caller.home.clone(), shared.data.clone());
    let socket = Socket { stream: Some(socket), home: home.clone(), is_moved: false };
    drive(Box::pin(converse(shared, socket, caller, closing)), home, &data).await;
}

/// Polls a connection here, and from its move on, as the same future, on the data runtime.
async fn drive(mut connection: Pin<Box<impl Future<Output = ()> + Send + 'static>>, home: Arc<Home>, data: &Handle) {
    tokio::select! {
        () = &mut connection => {}
        () = home.moves.notified() => drop(data.spawn(async move {
            home.has_moved.store(true, Ordering::Relaxed);
            connection.await;
        })),
    }
}

/// Speaks HTTP/2 on one connection until it ends.
async fn converse<S>(shared: Arc<Shared>, stream: S, caller: Caller, mut closing: watch::Receiver<()>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let settings = &shared.settings;
    let window = window(settings.largest_message_size());
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(window)
        .initial_connection_window_size(window)
        .adaptive_window(false)
        .max_frame_size(256 * 1024)
        .keep_alive_interval(settings.http2_keepalive_interval)
        .keep_alive_timeout(settings.http2_keepalive_timeout);
    let ip = caller.ip;
    let service = service_fn(move |request: http::Request<Incoming>| {
        let (shared, caller) = (shared.clone(), caller.clone());
        async move { Ok::<_, std::convert::Infallible>(server::answer(shared, caller, request.map(Body::new)).await) }
    });
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    loop {
        tokio::select! {
            end = &mut connection => {
                if let Err(error) = end {
                    tracing::debug!(%ip, %error, "a connection ended");
                }
                return;
            }
            _ = closing.changed() => connection.as_mut().graceful_shutdown(),
        }
    }
}

/// Room in flight: twice the largest frame, so that one can be on its way while another is read.
pub(super) fn window(largest: usize) -> u32 {
    let window = 2 * (largest + super::link::FRAME_OVERHEAD);
    u32::try_from(window).unwrap_or(u32::MAX).min(u32::MAX >> 1)
}

/// An accepted socket. Once its connection has moved, the poller of the new runtime watches it.
struct Socket {
    /// Always there but while it changes pollers.
    stream: Option<TcpStream>,
    home: Arc<Home>,
    is_moved: bool,
}

impl Socket {
    fn stream(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        if !self.is_moved && self.home.has_moved.load(Ordering::Relaxed) {
            self.is_moved = true;
            self.change_poller()?;
        }
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        Ok(Pin::new(stream))
    }

    /// Registers the socket where it is polled now; whoever polls it next leaves its waker there.
    fn change_poller(&mut self) -> io::Result<()> {
        if let Some(stream) = self.stream.take() {
            self.stream = Some(TcpStream::from_std(stream.into_std()?)?);
        }
        Ok(())
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.stream() {
            Ok(stream) => stream.poll_read(cx, into),
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.stream() {
            Ok(stream) => stream.poll_write(cx, bytes),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.stream() {
            Ok(stream) => stream.poll_write_vectored(cx, pieces),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.stream() {
            Ok(stream) => stream.poll_flush(cx),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.stream() {
            Ok(stream) => stream.poll_shutdown(cx),
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TransportSettings;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn runtime(name: &str) -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build().unwrap()
    }

    fn thread() -> String {
        std::thread::current().name().unwrap_or_default().to_owned()
    }

    /// Cluster C7: from the move on the connection is polled by the data runtime alone, and its socket
    /// wakes it there: the control runtime has ended by then.
    #[test]
    fn a_connection_moves_with_its_socket() {
        let (control, data) = (runtime("control"), runtime("data"));
        let (said, heard) = std::sync::mpsc::channel();
        let mut peer = control.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap().into_std().unwrap();
            let (accepted, _) = listener.accept().await.unwrap();
            let home = Arc::new(Home::default());
            let mut socket = Socket { stream: Some(accepted), home: home.clone(), is_moved: false };
            let (lane, data) = (home.clone(), data.handle().clone());
            let connection = Box::pin(async move {
                for _ in 0..2 {
                    let byte = socket.read_u8().await.unwrap();
                    said.send((byte, thread())).unwrap();
                    lane.move_to_data();
                    tokio::task::yield_now().await;
                }
                socket.write_u8(3).await.unwrap();
            });
            control.spawn(async move { drive(connection, home, &data).await });
            peer
        });
        use std::io::{Read, Write};
        peer.set_nonblocking(false).unwrap();
        peer.write_all(&[1]).unwrap();
        assert_eq!(heard.recv().unwrap(), (1, "control".to_owned()));
        // Polled on the data runtime once, it has nothing to do with the control runtime.
        data.block_on(data.spawn(async {})).unwrap();
        drop(control);
        peer.write_all(&[2]).unwrap();
        assert_eq!(heard.recv().unwrap(), (2, "data".to_owned()));
        let mut answer = [0];
        peer.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [3]);
    }

    /// Cluster T9: twice what a lane's frame may have, for every lane.
    #[test]
    fn windows_hold_two_frames() {
        let settings = TransportSettings::test();
        for kind in [crate::LaneKind::Control, crate::LaneKind::Ordinary, crate::LaneKind::Large] {
            let largest = settings.maximum_message_size(kind);
            assert!(window(largest) as usize >= 2 * (largest + super::super::link::FRAME_OVERHEAD));
        }
        assert_eq!(window(usize::MAX / 4), u32::MAX >> 1);
    }
}
