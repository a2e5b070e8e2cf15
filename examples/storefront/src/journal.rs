//! The journal of the parent process: on disk, and served to the nodes.

use std::path::Path;

use greylag::journal_service::{JournalServer, ServerSettings};
use greylag::journal_sled::{SledJournal, SledJournalSettings};
use greylag::persistence::{Journal, PersistenceId};

use crate::Failure;

/// The journal and its server.
pub(crate) struct ServedJournal {
    server: JournalServer,
    disk: SledJournal,
}

impl ServedJournal {
    /// Opens the journal in a directory and serves it on a free port of the loopback interface.
    pub(crate) async fn open(directory: &Path) -> Result<Self, Failure> {
        let disk = SledJournal::open(directory, SledJournalSettings::default()).await?;
        let address = "127.0.0.1:0".parse().expect("a socket address");
        let server = JournalServer::bind(address, disk.stores(), ServerSettings::default()).await?;
        Ok(Self { server, disk })
    }

    /// The address of the journal's server.
    pub(crate) fn address(&self) -> String {
        self.server.local_address().to_string()
    }

    /// The count of all events of these ids, read from the disk and so correct even after the nodes that wrote
    /// them have crashed.
    pub(crate) async fn events(&self, ids: impl IntoIterator<Item = PersistenceId>) -> Result<u64, Failure> {
        let mut events = 0;
        for id in ids {
            events += self.disk.head(&id).await?.highest.as_u64();
        }
        Ok(events)
    }

    /// Stops serving and closes the files.
    pub(crate) async fn close(self) -> Result<(), Failure> {
        self.server.shutdown().await;
        self.disk.close().await?;
        Ok(())
    }
}
