//! A connection that is closed unless its client says hello in time.
//!
//! A client that reaches the port may connect and send nothing, or half a message. Each connection costs a descriptor
//! and a task, so its client has [`hello_timeout`](crate::ServerSettings::hello_timeout) from connecting on, and no
//! more time once the service stops. A client that has said hello, or asked for a snapshot, is identified from then on.
//!
//! Source: persistence 72.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use greylag_transport::beside::Accepted;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tonic::transport::server::Connected;

use super::stop::stopped;

/// Whether the client of a connection is identified. Sessions and calls set it.
#[derive(Debug, Clone, Default)]
pub(super) struct Identified(Arc<AtomicBool>);

impl Identified {
    /// Marks the client of the connection that this request came by as identified.
    pub(super) fn mark(extensions: &tonic::Extensions) {
        if let Some(Self(identified)) = extensions.get::<Self>() {
            identified.store(true, Ordering::Relaxed);
        }
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection with the time limit for its client; the module describes it.
pub(super) struct HelloGuard {
    connection: Accepted,
    identified: Identified,
    /// Resolves when the time is over, with the error; `None` once the limit no longer applies.
    expiry: Option<BoxFuture<'static, io::Error>>,
}

impl HelloGuard {
    pub(super) fn new(connection: Accepted, hello_timeout: Duration, stop: watch::Receiver<bool>) -> Self {
        let expiry = async move {
            tokio::select! {
                () = tokio::time::sleep(hello_timeout) => io::Error::new(io::ErrorKind::TimedOut, "no hello within hello_timeout"),
                () = stopped(stop) => io::Error::new(io::ErrorKind::ConnectionAborted, "the journal service is stopping"),
            }
        };
        Self { connection, identified: Identified::default(), expiry: Some(expiry.boxed()) }
    }

    fn poll_expiry(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Some(expiry) = &mut self.expiry else { return Poll::Pending };
        let error = std::task::ready!(expiry.as_mut().poll(cx));
        self.expiry = None;
        if self.identified.is_set() { Poll::Pending } else { Poll::Ready(error) }
    }
}

impl Connected for HelloGuard {
    type ConnectInfo = Identified;

    fn connect_info(&self) -> Identified {
        self.identified.clone()
    }
}

impl AsyncRead for HelloGuard {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // Checked before reading: a client that sends bytes all the time but no hello gets no more time.
        if let Poll::Ready(error) = self.poll_expiry(cx) {
            tracing::debug!(%error, "a connection without a hello is closed");
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.connection).poll_read(cx, into)
    }
}

impl AsyncWrite for HelloGuard {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}
