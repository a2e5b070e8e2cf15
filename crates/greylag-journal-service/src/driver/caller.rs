//! A connection that is closed unless its client says hello in time.
//!
//! A client that reaches the port may connect and send nothing, or half a message. Each connection costs a descriptor
//! and a task, so its client has [`hello_timeout`](crate::ServerSettings::hello_timeout) from connecting on, and no
//! more time once the service stops. A client that has said hello, or asked for a snapshot, is known from then on.
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

use super::session::stopped;

/// Whether the client of a connection is known. Sessions and calls set it.
#[derive(Debug, Clone, Default)]
pub(super) struct Known(Arc<AtomicBool>);

impl Known {
    /// Marks the client of the connection that this request came by as known.
    pub(super) fn note(extensions: &tonic::Extensions) {
        if let Some(Self(known)) = extensions.get::<Self>() {
            known.store(true, Ordering::Relaxed);
        }
    }

    fn is_known(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection with the time limit for its client; the module describes it.
pub(super) struct Caller {
    connection: Accepted,
    known: Known,
    /// Resolves when the time is over, with the error; `None` once the limit no longer applies.
    cut_off: Option<BoxFuture<'static, io::Error>>,
}

impl Caller {
    pub(super) fn new(connection: Accepted, patience: Duration, stop: watch::Receiver<bool>) -> Self {
        let cut_off = async move {
            tokio::select! {
                () = tokio::time::sleep(patience) => io::Error::new(io::ErrorKind::TimedOut, "no hello in time"),
                () = stopped(stop) => io::Error::new(io::ErrorKind::ConnectionAborted, "the journal service is stopping"),
            }
        };
        Self { connection, known: Known::default(), cut_off: Some(cut_off.boxed()) }
    }

    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Some(cut_off) = &mut self.cut_off else { return Poll::Pending };
        let error = std::task::ready!(cut_off.as_mut().poll(cx));
        self.cut_off = None;
        if self.known.is_known() { Poll::Pending } else { Poll::Ready(error) }
    }
}

impl Connected for Caller {
    type ConnectInfo = Known;

    fn connect_info(&self) -> Known {
        self.known.clone()
    }
}

impl AsyncRead for Caller {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // Checked before reading: a client that sends bytes all the time but no hello gets no more time.
        if let Poll::Ready(error) = self.poll_patience(cx) {
            tracing::debug!(%error, "a caller of the journal service is cut off");
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.connection).poll_read(cx, into)
    }
}

impl AsyncWrite for Caller {
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
