//! The caller's side.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use greylag_transport::{TlsDialer, TlsError};
use tonic::transport::{Channel, Endpoint};

use crate::dial::{Dialer, Secure};
use crate::v1::management_client::ManagementClient;

/// Calls the admin service of one node.
pub type Client = ManagementClient<Channel>;

/// Interval and timeout of pings while a call is open: a node that does not answer them counts as gone.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// A page of entities holds 10,000 ids of at most 1 KiB.
const MAX_REPLY_BYTES: usize = 16 * 1024 * 1024;

/// Certificates of a caller: which it trusts, and which it presents. All files are PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientTls {
    /// The authorities that are trusted; no others are, not even the system's.
    pub ca: PathBuf,
    /// The private key and its certificate, for a service that asks for one, as it does unless `management.tls_mutual`
    /// is false.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name expected in the service's certificate, if it is not the dialled host: for a forwarded port.
    pub host: Option<String>,
}

impl ClientTls {
    /// Trusts these authorities, and presents no certificate.
    pub fn new(ca: impl Into<PathBuf>) -> Self {
        Self { ca: ca.into(), identity: None, host: None }
    }

    /// The same, with a certificate to present.
    #[must_use]
    pub fn with_identity(self, key: impl Into<PathBuf>, cert: impl Into<PathBuf>) -> Self {
        Self { identity: Some((key.into(), cert.into())), ..self }
    }
}

/// Why an address cannot be called.
#[derive(thiserror::Error)]
pub enum ConnectError {
    /// The address is invalid.
    #[error("{address:?} is no address of an admin service: {why}; write it as host:port")]
    Address {
        /// The address as given.
        address: String,
        /// Description of the error.
        why: String,
    },
    /// The certificate, its key or the authorities cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

greylag_core::debug_is_sentence!(ConnectError);

/// A client of the admin service at `host:port`. It connects with the first call; if that fails, the status of the call
/// has a [`DialError`](crate::DialError) among its sources.
///
/// # Errors
/// [`ConnectError`] if the address is invalid.
///
/// # Panics
/// Outside a tokio runtime.
pub fn connect(address: &str) -> Result<Client, ConnectError> {
    dial(address, None)
}

/// The same for a service whose node has `management.tls = "on"`. The files are read now.
///
/// # Errors
/// [`ConnectError`] if the address is invalid, or a file cannot be used.
///
/// # Panics
/// Outside a tokio runtime.
pub fn connect_tls(address: &str, tls: &ClientTls) -> Result<Client, ConnectError> {
    let identity = tls.identity.as_ref().map(|(key, cert)| (key.as_path(), cert.as_path()));
    let dialer = TlsDialer::open(&tls.ca, identity)?;
    let shows = tls.identity.is_some();
    dial(address, Some(Arc::new(Secure { dialer, host: tls.host.clone(), shows })))
}

fn dial(address: &str, secure: Option<Arc<Secure>>) -> Result<Client, ConnectError> {
    let refused = |why: String| ConnectError::Address { address: address.to_owned(), why };
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| refused(error.to_string()))?;
    if endpoint.uri().host().is_none_or(str::is_empty) || endpoint.uri().port_u16().is_none() {
        return Err(refused("a host or a port is missing".to_owned()));
    }
    let channel = endpoint
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .keep_alive_while_idle(true)
        .connect_with_connector_lazy(Dialer { secure });
    Ok(ManagementClient::new(channel).max_decoding_message_size(MAX_REPLY_BYTES))
}
