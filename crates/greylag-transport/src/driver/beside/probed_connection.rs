//! A connection to a service, opened just far enough to know that the two ends speak the same protocol.
//!
//! An HTTP/2 server speaks first. So a caller by TLS writes nothing until it has read a byte, and a caller in plain
//! text begins with the connection preface of HTTP/2.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use super::Io;

/// The connection preface of HTTP/2. Source: RFC 9113, 3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The first byte of a TLS alert. A server's first HTTP/2 frame begins with this byte only if it has a megabyte or
/// more.
const TLS_ALERT: u8 = 0x15;

/// A connection on which the first bytes were exchanged already: the byte read is handed on to the reader, and bytes
/// already written are not written again.
pub struct ProbedConnection {
    io: Pin<Box<dyn Io>>,
    first_byte: Option<u8>,
    /// How many of the next bytes to be written the other end has already.
    already_written: usize,
}

impl ProbedConnection {
    /// Sends the HTTP/2 preface in plain text and reads the first byte of the answer, which tells the listener's
    /// protocol. `None`: the listener speaks TLS.
    ///
    /// # Errors
    /// The errors of the socket, also if the other end hangs up.
    pub async fn in_plain_text(mut tcp: TcpStream) -> io::Result<Option<Self>> {
        tcp.write_all(PREFACE).await?;
        match tcp.read_u8().await? {
            TLS_ALERT => Ok(None),
            first => Ok(Some(Self { io: Box::pin(tcp), first_byte: Some(first), already_written: PREFACE.len() })),
        }
    }

    /// Waits until the other end sends a byte by TLS: only then is it known whether the other end believes the
    /// certificate that it was shown.
    ///
    /// # Errors
    /// The errors of the connection; they name the alert that a listener sends before it hangs up.
    pub async fn by_tls(mut tls: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> io::Result<Self> {
        let first = tls.read_u8().await?;
        Ok(Self { io: Box::pin(tls), first_byte: Some(first), already_written: 0 })
    }
}

impl std::fmt::Debug for ProbedConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProbedConnection")
            .field("first_byte", &self.first_byte)
            .field("already_written", &self.already_written)
            .finish_non_exhaustive()
    }
}

impl AsyncRead for ProbedConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if into.remaining() > 0
            && let Some(first) = self.first_byte.take()
        {
            into.put_slice(&[first]);
            return Poll::Ready(Ok(()));
        }
        self.io.as_mut().poll_read(cx, into)
    }
}

impl AsyncWrite for ProbedConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let already_written = self.already_written.min(bytes.len());
        if already_written > 0 {
            self.already_written -= already_written;
            return Poll::Ready(Ok(already_written));
        }
        self.io.as_mut().poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_shutdown(cx)
    }
}
