//! Errors of starting a transport.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use greylag_core::InvalidAddress;

/// A setting that cannot work.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting} = {value}: {why}")]
pub struct ConfigError {
    /// The name, with the section.
    pub setting: &'static str,
    /// Its value.
    pub value: String,
    /// The rule that the value breaks.
    pub why: &'static str,
}

greylag_core::debug_is_sentence!(ConfigError);

/// Every setting that cannot work, together.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

greylag_core::debug_is_sentence!(ConfigErrors);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if n == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// Why the files that [`crate::TlsSettings`] names cannot be used. At start the node does not run;
/// later it goes on with the files that it read before.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot use {} for TLS: {why}", file.display())]
pub struct TlsError {
    /// The file.
    pub file: PathBuf,
    /// Why the file cannot be used.
    pub why: String,
}

greylag_core::debug_is_sentence!(TlsError);

/// Why a transport did not start. No socket is open and no thread runs.
#[derive(thiserror::Error)]
pub enum BindError {
    /// Settings that cannot work.
    #[error("invalid settings: {0}")]
    Config(#[from] ConfigErrors),
    /// The canonical host and port are no address.
    #[error(transparent)]
    Address(#[from] InvalidAddress),
    /// The host to listen on could not be found.
    #[error("cannot resolve {host} to listen on it: {cause}")]
    Resolve {
        /// The host.
        host: String,
        /// The resolver's error.
        cause: std::io::Error,
    },
    /// The address is in use, or not this host's.
    #[error("cannot listen on {address}: {cause}; choose another port or end the process that holds it")]
    Listen {
        /// The socket address.
        address: SocketAddr,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The address can be reached from other hosts, and the settings choose neither TLS nor plain text.
    #[error("{address} is not a loopback address; set transport.tls = none if plain text is meant")]
    PlainText {
        /// The socket address.
        address: SocketAddr,
    },
    /// The certificate, its key or the authorities cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The system refused threads.
    #[error("cannot start the transport's threads: {0}")]
    Threads(std::io::Error),
}

greylag_core::debug_is_sentence!(BindError);
