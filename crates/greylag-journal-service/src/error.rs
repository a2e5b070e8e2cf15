//! Errors of starting the server and of connecting a client.

use std::net::SocketAddr;
use std::time::Duration;

use greylag_transport::TlsError;

/// The server could not begin to serve.
#[derive(thiserror::Error)]
pub enum BindError {
    /// The address is taken, or not of this machine.
    #[error("cannot listen on {address}: {cause}; choose another address, or port 0 for a free one")]
    Listen {
        /// The address to listen on.
        address: SocketAddr,
        /// Error of the system.
        #[source]
        cause: std::io::Error,
    },
    /// Others can reach the address, and the settings name neither TLS nor plain text.
    #[error("{address} is not a loopback address; set ServerSettings::tls = Tls::None if plain text is meant")]
    PlainText {
        /// The address.
        address: SocketAddr,
    },
    /// The certificate, its key or the authorities cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A setting is invalid.
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
        /// Address that was dialled.
        address: String,
        /// Error of the last try.
        cause: String,
    },
    /// The server answered, but will never work with this client.
    #[error("journal service at {address} refused: {cause}")]
    Refused {
        /// Address of the server.
        address: String,
        /// The server's reason.
        cause: String,
    },
    /// One end does not trust the other's certificate, or only one end speaks TLS.
    #[error("no trust between this client and the journal service at {address}: {cause}")]
    Untrusted {
        /// Address of the server.
        address: String,
        /// Which end does not trust the other, and why.
        cause: String,
    },
    /// The certificate, its key or the authorities cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A setting is invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

greylag_core::debug_is_sentence!(ConnectError);

/// Invalid settings. A client's are named by their configuration keys, a server's, which have none, by their fields.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A setting is 0, with which nothing could ever happen.
    #[error("{key} must not be 0")]
    Zero {
        /// Key or field of the setting.
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
