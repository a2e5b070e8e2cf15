//! What can go wrong when the two ends find each other.

use std::net::SocketAddr;

/// The server could not begin to serve.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {cause}; choose another address, or port 0 for a free one")]
pub struct BindError {
    /// Where it was to listen.
    pub address: SocketAddr,
    /// What the system said.
    pub cause: String,
}

/// The client found no server that it can work with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Nobody answered within `connect_timeout`; start the server, or check the address.
    #[error("no journal service at {address}: {cause}")]
    Unreachable {
        /// Where it was looked for.
        address: String,
        /// The last failure.
        cause: String,
    },
    /// The server answered, but will never work with this client.
    #[error("journal service at {address} refused: {cause}")]
    Refused {
        /// Where it is.
        address: String,
        /// What it said.
        cause: String,
    },
}
