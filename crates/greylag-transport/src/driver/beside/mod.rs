//! Connections of the gRPC services that stand beside the transport (the admin service, the journal service): accepted and
//! opened as its own are, by the same certificates.

mod accept;
mod handshakes;
mod line;

use tokio::io::{AsyncRead, AsyncWrite};

pub use accept::{Accepted, accept, accept_at_most};
pub use line::Line;

/// What carries the bytes of a connection.
trait Io: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Io for T {}
