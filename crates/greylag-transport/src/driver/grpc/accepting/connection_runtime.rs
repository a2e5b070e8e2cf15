//! Moves an accepted connection, with its socket, to the data runtime.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// The runtime that drives one connection: the control runtime, until the connection moves.
#[derive(Debug, Default)]
pub(crate) struct ConnectionRuntime {
    moves: Notify,
    has_moved: AtomicBool,
}

impl ConnectionRuntime {
    /// Moves the connection, which carries a data lane, to the data runtime.
    pub(crate) fn move_to_data(&self) {
        self.moves.notify_one();
    }

    /// Polls a connection here; after its move the same future is polled on the data runtime. Returns whether the
    /// connection moved.
    pub(super) async fn drive(
        self: Arc<Self>,
        mut connection: Pin<Box<impl Future<Output = ()> + Send + 'static>>,
        data: Handle,
    ) -> bool {
        tokio::select! {
            () = &mut connection => return false,
            () = self.moves.notified() => {}
        }
        data.spawn(async move {
            self.has_moved.store(true, Ordering::Relaxed);
            connection.await;
        });
        true
    }
}

/// An accepted socket. After the connection's move, the poller of the new runtime watches the socket.
pub(super) struct Socket {
    /// `None` only while the socket changes pollers.
    stream: Option<TcpStream>,
    runtime: Arc<ConnectionRuntime>,
    is_moved: bool,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, runtime: Arc<ConnectionRuntime>) -> Self {
        Self { stream: Some(stream), runtime, is_moved: false }
    }

    fn stream(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        if !self.is_moved && self.runtime.has_moved.load(Ordering::Relaxed) {
            self.is_moved = true;
            self.change_poller()?;
        }
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        Ok(Pin::new(stream))
    }

    /// Registers the socket with the current runtime's poller; the next poll leaves its waker there.
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    fn start_runtime(name: &str) -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build().unwrap()
    }

    fn thread() -> String {
        std::thread::current().name().unwrap_or_default().to_owned()
    }

    /// Cluster C7: after the move only the data runtime polls the connection, and the socket wakes it there: the
    /// control runtime has ended by then.
    #[test]
    fn a_connection_moves_with_its_socket() {
        let (control, data) = (start_runtime("control"), start_runtime("data"));
        let (said, heard) = std::sync::mpsc::channel();
        let mut peer = control.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap().into_std().unwrap();
            let (accepted, _) = listener.accept().await.unwrap();
            let runtime = Arc::new(ConnectionRuntime::default());
            let mut socket = Socket::new(accepted, runtime.clone());
            let (moving, data) = (runtime.clone(), data.handle().clone());
            let connection = Box::pin(async move {
                for _ in 0..2 {
                    let byte = socket.read_u8().await.unwrap();
                    said.send((byte, thread())).unwrap();
                    moving.move_to_data();
                    tokio::task::yield_now().await;
                }
                socket.write_u8(3).await.unwrap();
            });
            control.spawn(runtime.drive(connection, data));
            peer
        });
        use std::io::{Read, Write};
        peer.set_nonblocking(false).unwrap();
        peer.write_all(&[1]).unwrap();
        assert_eq!(heard.recv().unwrap(), (1, "control".to_owned()));
        // Once polled on the data runtime, the connection must not need the control runtime.
        data.block_on(data.spawn(async {})).unwrap();
        drop(control);
        peer.write_all(&[2]).unwrap();
        assert_eq!(heard.recv().unwrap(), (2, "data".to_owned()));
        let mut answer = [0];
        peer.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [3]);
    }
}
