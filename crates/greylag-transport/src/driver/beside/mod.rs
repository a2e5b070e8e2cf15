//! Connections of the gRPC services that a node has beside the transport (the admin service, the journal service):
//! accepted and opened like the transport's own, with the same certificates.

mod accept;
mod handshakes;
mod probed_connection;

use tokio::io::{AsyncRead, AsyncWrite};

pub use accept::{Accepted, accept, accept_at_most};
pub use probed_connection::ProbedConnection;

/// A byte stream: TCP, or TLS on it.
trait Io: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Io for T {}
