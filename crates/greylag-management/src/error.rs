//! Errors of starting the admin service.

use std::net::SocketAddr;

use greylag_transport::{ConfigErrors, TlsError};

/// Why the admin service did not start. No part of it runs.
#[derive(thiserror::Error)]
pub enum StartError {
    /// The address is not `host:port`, or its host cannot be found.
    #[error("cannot resolve management.address = {address:?}: {cause}; write it as host:port")]
    Resolve {
        /// The address as given.
        address: String,
        /// Error of the resolver.
        cause: std::io::Error,
    },
    /// The address is taken, or not of this machine.
    #[error("the admin service cannot listen on {address}: {cause}; choose another management.address")]
    Listen {
        /// The socket address.
        address: SocketAddr,
        /// Error of the system.
        cause: std::io::Error,
    },
    /// Others can reach the address, and the settings name neither TLS nor plain text.
    #[error(
        "{address} is not a loopback address; set management.tls = \"on\" with the files of a certificate, or \"none\" \
         if plain text is meant"
    )]
    PlainText {
        /// The socket address.
        address: SocketAddr,
    },
    /// A setting is invalid.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The certificate, its key or the authorities cannot be used.
    #[error("the admin service: {0}")]
    Tls(#[from] TlsError),
}

greylag_core::debug_is_sentence!(StartError);
