//! The caller's side.

use std::time::Duration;

use tonic::transport::{Channel, Endpoint};

use crate::v1::management_client::ManagementClient;

/// Calls the admin service of one node.
pub type Client = ManagementClient<Channel>;

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A watched node that does not answer pings for so long is gone.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Why an address cannot be called.
#[derive(Debug, thiserror::Error)]
#[error("{address:?} is no address of an admin service: {cause}; write it as host:port")]
pub struct ConnectError {
    address: String,
    cause: tonic::transport::Error,
}

/// A client of the admin service at `host:port`. It connects with the first call.
///
/// # Errors
/// [`ConnectError`] if the address cannot be one.
///
/// # Panics
/// Outside a tokio runtime.
pub fn connect(address: &str) -> Result<Client, ConnectError> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|cause| ConnectError { address: address.to_owned(), cause })?;
    let channel = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .keep_alive_while_idle(true)
        .connect_lazy();
    Ok(ManagementClient::new(channel))
}
