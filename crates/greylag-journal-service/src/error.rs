//! What can go wrong when the two ends find each other.

use std::net::SocketAddr;
use std::time::Duration;

use greylag_transport::TlsError;

/// The server could not begin to serve.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// The address is taken, or not of this machine.
    #[error("cannot listen on {address}: {cause}; choose another address, or port 0 for a free one")]
    Listen {
        /// Where it was to listen.
        address: SocketAddr,
        /// What the system said.
        cause: String,
    },
    /// An address that others can reach, and neither TLS nor the word that none is wanted.
    #[error("{address} is not a loopback address; set ServerSettings::tls = Tls::None if plain text is meant")]
    PlainText {
        /// The address.
        address: SocketAddr,
    },
    /// The certificate, its key or the authorities cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Settings that cannot work.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

greylag_core::debug_is_sentence!(BindError);

/// The client found no server that it can work with.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// No server answered within `connect_timeout`; start the server, or check the address.
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
    /// One end does not believe the other's certificate, or only one of them speaks TLS.
    #[error("no trust between this client and the journal service at {address}: {cause}")]
    Untrusted {
        /// Where it is.
        address: String,
        /// Which end does not believe the other.
        cause: String,
    },
    /// The certificate, its key or the authorities cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Settings that cannot work.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

greylag_core::debug_is_sentence!(ConnectError);

/// Settings that cannot be meant: a client's by the names of their keys, a server's, which has none, by its fields.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A setting of 0 would let nothing ever happen.
    #[error("{key} must not be 0")]
    Zero {
        /// Which one.
        key: &'static str,
    },
    /// The longest wait is shorter than the first.
    #[error("service.max_backoff ({max:?}) must not be below service.min_backoff ({min:?})")]
    Backoff {
        /// `service.min_backoff`.
        min: Duration,
        /// `service.max_backoff`.
        max: Duration,
    },
}

greylag_core::debug_is_sentence!(SettingsError);
