//! A client: one link to the server, and the handles of all served stores.

mod connection;
mod journal;
mod offsets;
mod queries;
mod snapshots;
mod states;

use std::sync::Arc;
use std::time::Duration;

use greylag_persistence::Stores;
use greylag_transport::{Tls, TlsFiles};
use tonic::transport::Endpoint;

pub use self::journal::ServiceJournal;
pub use self::offsets::ServiceOffsets;
pub use self::queries::ServiceQueries;
pub use self::snapshots::ServiceSnapshots;
pub use self::states::ServiceStates;

use self::connection::Connection;
use super::dial::Dialer;
use crate::error::ConnectError;
use crate::settings::ClientSettings;

const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;

/// A connection to a journal service. Clones share it.
#[derive(Debug, Clone)]
pub struct JournalClient {
    connection: Arc<Connection>,
}

impl JournalClient {
    /// Connects to the service at `address` (`host:port`). Waits for a server that is still starting.
    ///
    /// # Errors
    /// [`ConnectError::Unreachable`] if no server answers in time, [`ConnectError::Refused`] if the two have no
    /// protocol version in common, [`ConnectError::Untrusted`] if one end does not trust the other's certificate; and
    /// for invalid settings or files.
    pub async fn connect(address: &str, settings: ClientSettings) -> Result<Self, ConnectError> {
        settings.validate()?;
        let tls = match &settings.tls {
            Tls::Files(files) => Some(Arc::new(TlsFiles::of_caller(files.clone())?)),
            Tls::LoopbackOnly | Tls::None => None,
        };
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| ConnectError::Refused {
            address: address.to_owned(),
            cause: format!("not an address: {error}"),
        })?;
        let channel = endpoint
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_INTERVAL)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .connect_with_connector_lazy(Dialer { tls: tls.clone(), timeout: settings.connect_timeout });
        let connection = Connection::open(address, channel, tls, settings).await?;
        Ok(Self { connection: Arc::new(connection) })
    }

    /// The journal.
    pub fn journal(&self) -> ServiceJournal {
        ServiceJournal { connection: self.connection.clone() }
    }

    /// The snapshot store.
    pub fn snapshots(&self) -> ServiceSnapshots {
        ServiceSnapshots { connection: self.connection.clone() }
    }

    /// The durable states, if they are served.
    pub fn states(&self) -> Option<ServiceStates> {
        self.connection.state_caps.map(|caps| ServiceStates { connection: self.connection.clone(), caps })
    }

    /// The offset store of projections, if it is served.
    pub fn offsets(&self) -> Option<ServiceOffsets> {
        self.connection.offset_caps.map(|caps| ServiceOffsets { connection: self.connection.clone(), caps })
    }

    /// The query side of the journal, if it is served.
    pub fn queries(&self) -> Option<ServiceQueries> {
        self.connection.query_caps.map(|caps| ServiceQueries {
            connection: self.connection.clone(),
            caps,
            of_changes: false,
        })
    }

    /// The query side of the durable states, if it is served.
    pub fn changes(&self) -> Option<ServiceQueries> {
        self.connection.change_caps.map(|caps| ServiceQueries {
            connection: self.connection.clone(),
            caps,
            of_changes: true,
        })
    }

    /// Journal, snapshots, and durable states if they are served, as entities take them.
    pub fn stores(&self) -> Stores {
        let stores = Stores::new(Arc::new(self.journal()), Arc::new(self.snapshots()));
        match self.states() {
            Some(states) => stores.with_states(Arc::new(states)),
            None => stores,
        }
    }
}
