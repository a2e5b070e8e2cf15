//! The served journal keeps the contract, call for call.

use std::sync::Arc;

use greylag_journal_service::{ClientSettings, JournalClient, JournalServer, ServerSettings};
use greylag_journal_sled::{SledJournal, SledJournalSettings};
use greylag_persistence::tck::{self, Flags};
use greylag_persistence::{Journal, SnapshotStore};
use tokio::sync::Mutex;

/// Servers must outlive the journals that the kit opened on them.
type Servers = Mutex<Vec<(JournalServer, tempfile::TempDir)>>;

async fn client(servers: &Servers) -> JournalClient {
    let directory = tempfile::tempdir().unwrap();
    let disk = SledJournal::open(directory.path(), SledJournalSettings::test()).await.unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    let server = JournalServer::bind(address, disk.stores(), ServerSettings::test()).await.unwrap();
    let client = JournalClient::connect(&server.local_address().to_string(), ClientSettings::test()).await.unwrap();
    servers.lock().await.push((server, directory));
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_served_journal_conforms() {
    let servers = Servers::default();
    let open = || async { Arc::new(client(&servers).await.journal()) as Arc<dyn Journal> };
    let report = tck::journal(&open, Flags { concurrent_ids: 200, ..Flags::default() }).await;
    report.assert_conforms();
    assert_eq!(report.cases.len(), 46, "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_served_snapshots_conform() {
    let servers = Servers::default();
    let open = || async { Arc::new(client(&servers).await.snapshots()) as Arc<dyn SnapshotStore> };
    tck::snapshots(&open, Flags::default()).await.assert_conforms();
}
