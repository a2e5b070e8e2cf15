//! Guards one accepted connection for the admission control: limits the time without a Hello, and reports a connection
//! that ends without one.
//!
//! ```text
//! accept --admission--> TLS handshake --> HTTP/2 --> Hello --> streams
//!        \--closed at once             \--closed after `handshake_timeout` without a Hello
//! ```
//! A connection whose streams have all ended may stay as long as one without a Hello, and counts as one.
//! Source: cluster §7.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::admission::control::Intrusion;
use crate::driver::grpc::shared::TransportInner;

/// Guards one connection from beginning to end.
pub(crate) struct ConnectionGuard {
    shared: Arc<TransportInner>,
    pub(crate) ip: IpAddr,
    /// Whether a Hello was ever accepted on the connection.
    is_greeted: AtomicBool,
    /// Whether the connection was judged: its Hello was accepted, or an intrusion was reported.
    is_judged: AtomicBool,
    state: Mutex<ConnectionState>,
}

struct ConnectionState {
    /// Accepted streams that are open.
    streams: usize,
    /// When the last stream ended, or the connection began.
    idle_since: Instant,
    /// Whether the admission control counts the connection among those that wait.
    is_waiting: bool,
}

impl ConnectionGuard {
    /// Begins a connection; `None` if the admission control refuses it.
    pub(crate) fn begin(shared: &Arc<TransportInner>, ip: IpAddr) -> Option<Arc<Self>> {
        let admitted = shared.admission.admit(Instant::now(), ip);
        if let Err(intrusion) = admitted {
            shared.admission.intruded(ip, intrusion, "connection refused before reading");
            return None;
        }
        Some(Arc::new(Self {
            shared: shared.clone(),
            ip,
            is_greeted: AtomicBool::new(false),
            is_judged: AtomicBool::new(false),
            state: Mutex::new(ConnectionState { streams: 0, idle_since: Instant::now(), is_waiting: true }),
        }))
    }

    /// Counts and logs an intrusion of this connection.
    pub(crate) fn report(&self, intrusion: Intrusion, detail: &str) {
        self.is_judged.store(true, Ordering::Release);
        self.shared.admission.intruded(self.ip, intrusion, detail);
    }

    /// Whether an intrusion was reported on this connection and no Hello was ever accepted: no Hello is expected then.
    pub(crate) fn is_rejected(&self) -> bool {
        self.is_judged.load(Ordering::Acquire) && !self.is_greeted.load(Ordering::Acquire)
    }

    /// Notes that a Hello was accepted; the connection may stay while the returned stream does.
    pub(crate) fn greeted(self: &Arc<Self>) -> OpenStream {
        self.is_judged.store(true, Ordering::Release);
        self.is_greeted.store(true, Ordering::Release);
        let mut state = self.state.lock().expect(NO_PANIC);
        state.streams += 1;
        if std::mem::take(&mut state.is_waiting) {
            self.shared.admission.release(self.ip);
        }
        drop(state);
        OpenStream(self.clone())
    }

    /// When a connection without a stream has waited too long; `None` while it has a stream.
    fn expires_at(&self, patience: Duration) -> Option<Instant> {
        let state = self.state.lock().expect(NO_PANIC);
        (state.streams == 0).then(|| state.idle_since + patience)
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        if self.state.get_mut().expect(NO_PANIC).is_waiting {
            self.shared.admission.release(self.ip);
        }
    }
}

const NO_PANIC: &str = "nothing under this lock panics";

/// Counts as an open stream of its connection until dropped.
pub(crate) struct OpenStream(Arc<ConnectionGuard>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        let (guard, now) = (&self.0, Instant::now());
        let mut state = guard.state.lock().expect(NO_PANIC);
        state.streams -= 1;
        if state.streams == 0 {
            (state.idle_since, state.is_waiting) = (now, true);
            guard.shared.admission.readmit_waiting(now, guard.ip);
        }
    }
}

/// The first bytes of every HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The byte stream of an admitted connection; fails if no Hello comes in time.
pub(crate) struct GuardedStream<S> {
    io: S,
    guard: Arc<ConnectionGuard>,
    /// The rest of the preface that is still to come.
    preface: &'static [u8],
    patience: Pin<Box<Sleep>>,
    /// The other side hung up, or the connection broke.
    ended: bool,
}

impl<S> Drop for GuardedStream<S> {
    fn drop(&mut self) {
        let guard = &self.guard;
        let has_spoken = self.preface.len() < PREFACE.len();
        let is_judged = guard.is_judged.load(Ordering::Acquire);
        if has_spoken && !is_judged && !self.ended && !guard.shared.node.shutdown.is_begun() {
            // Report: the server gave the connection up, which is always the caller's fault.
            guard.report(Intrusion::NotGrpc, "the bytes received are not HTTP/2");
        }
    }
}

impl<S> GuardedStream<S> {
    pub(crate) fn new(io: S, guard: Arc<ConnectionGuard>) -> Self {
        let patience = guard.shared.node.settings.handshake_timeout;
        Self { io, guard, preface: PREFACE, patience: Box::pin(tokio::time::sleep(patience)), ended: false }
    }

    /// Ends the connection if it has had no stream for too long.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let guard = &self.guard;
        let patience = guard.shared.node.settings.handshake_timeout;
        while self.patience.as_mut().poll(cx).is_ready() {
            let expires_at = guard.expires_at(patience);
            if expires_at.is_some_and(|at| at <= Instant::now()) {
                self.ended = true;
                if !guard.is_judged.load(Ordering::Acquire) {
                    guard.report(Intrusion::NoHello, "the connection is closed: no Hello came in time");
                }
                return Err(io::ErrorKind::TimedOut.into());
            }
            let next = expires_at.unwrap_or_else(|| Instant::now() + patience);
            self.patience.as_mut().reset(next.into());
        }
        Ok(())
    }

    /// Compares the bytes read with what is still expected of the preface.
    fn check_preface(&mut self, read: &[u8]) -> io::Result<()> {
        let len = self.preface.len().min(read.len());
        let (expected, rest) = self.preface.split_at(len);
        if read[..len] != *expected {
            self.ended = true;
            self.guard.report(Intrusion::NotGrpc, "the bytes received are not HTTP/2");
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no HTTP/2"));
        }
        self.preface = rest;
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for GuardedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.poll_patience(cx)?;
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.io).poll_read(cx, buf);
        match &polled {
            Poll::Ready(Ok(())) if buf.filled().len() == before => this.ended = true,
            Poll::Ready(Ok(())) if !this.preface.is_empty() => this.check_preface(&buf.filled()[before..])?,
            Poll::Ready(Err(_)) => this.ended = true,
            _ => {}
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for GuardedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::grpc::GrpcTransport;
    use crate::settings::TransportSettings;

    /// Cluster §7: one Hello per connection does not make room for connections without limit.
    #[tokio::test]
    async fn connections_without_a_stream_are_counted_also_after_their_hello() {
        let node = GrpcTransport::bind(TransportSettings::test(), Arc::default()).await.unwrap();
        let ip = "192.0.2.1".parse().unwrap();
        let begin = || ConnectionGuard::begin(&node.shared, ip);
        let mut idle = Vec::new();
        while let Some(guard) = begin() {
            drop(guard.greeted());
            idle.push(guard);
            assert!(idle.len() < 10_000, "there is an end to it");
        }
        let stream = idle[0].greeted();
        let one = begin().expect("a stream counts as no waiting connection");
        assert!(begin().is_none());
        drop(stream);
        drop((one, idle.pop()));
        assert!(begin().is_some());
        drop(idle);
        assert!(begin().is_some());
    }
}
