//! The serving process is killed under load and started again: clients notice nothing but time.
//!
//! The child is this very test binary, started anew with directory and address in environment
//! variables. It serves a sled journal; the parent appends through a client, kills it, starts it
//! again, and compares.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::join_all;
use greylag_core::CodecId;
use greylag_journal_service::{ClientSettings, JournalClient, JournalServer, ServerSettings};
use greylag_journal_sled::{SledJournal, SledJournalSettings};
use greylag_persistence::{
    Append, AppendError, EventKind, Journal, NewEvent, PersistenceId, ReadRange, SeqNr, Under, WriterEpoch, WriterUuid,
};
use tokio::sync::watch;

const DIRECTORY: &str = "GREYLAG_CRASH_DIRECTORY";
const ADDRESS: &str = "GREYLAG_CRASH_ADDRESS";
const WRITERS: u128 = 40;
const KILLS: u64 = 5;
const APPENDS_BETWEEN_KILLS: u64 = 400;

/// Not a test of its own: the server that the test below starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_is_killed() {
    let (Some(directory), Ok(address)) = (std::env::var_os(DIRECTORY), std::env::var(ADDRESS)) else { return };
    let disk = SledJournal::open(directory, SledJournalSettings::test()).await.unwrap();
    let address = address.parse().unwrap();
    let _server = JournalServer::bind(address, disk.stores(), ServerSettings::test()).await.unwrap();
    std::future::pending::<()>().await;
}

fn start(directory: &Path, address: SocketAddr) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "server_that_is_killed", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, directory)
        .env(ADDRESS, address.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn event(number: u64) -> NewEvent {
    NewEvent {
        codec_id: CodecId::JSON,
        manifest: "counted".into(),
        schema_version: 1,
        kind: EventKind::Event,
        payload: number.to_string().into(),
        metadata: Default::default(),
        tags: Default::default(),
    }
}

/// Appends until told to stop; answers the id and its last number.
async fn write(
    journal: impl Journal,
    uuid: u128,
    done: watch::Sender<u64>,
    stop: Arc<AtomicBool>,
) -> (PersistenceId, u64) {
    let id = PersistenceId::of("Counter", &uuid.to_string()).unwrap();
    let writer_uuid = WriterUuid::from_u128(uuid);
    let claim = journal.claim(&id, writer_uuid, Under::Seen(WriterEpoch::NONE)).await.unwrap();
    let mut highest = 0;
    while !stop.load(Ordering::Relaxed) {
        let first = SeqNr::saturating(highest + 1);
        let append =
            Append { id: id.clone(), epoch: claim.epoch, writer_uuid, first, events: vec![event(highest + 1)] };
        match journal.append(append).await {
            Ok(_) => {
                highest += 1;
                done.send_modify(|done| *done += 1);
            }
            // Certainly not stored, so this very number is still free.
            Err(AppendError::NotStored(_)) => tokio::task::yield_now().await,
            Err(other) => panic!("the server is back well before the timeout, but: {other}"),
        }
    }
    (id, highest)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_loses_no_acknowledged_append_and_repeats_none() {
    let directory = tempfile::tempdir().unwrap();
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut server = start(directory.path(), address);
    let settings = ClientSettings { append_timeout: std::time::Duration::from_secs(60), ..ClientSettings::default() };
    let client = JournalClient::connect(&address.to_string(), settings).await.unwrap();
    let (done, stop) = (watch::Sender::new(0), Arc::new(AtomicBool::new(false)));
    let mut progress = done.subscribe();
    let writers: Vec<_> =
        (1..=WRITERS).map(|uuid| tokio::spawn(write(client.journal(), uuid, done.clone(), stop.clone()))).collect();
    for kill in 1..=KILLS {
        progress.wait_for(|done| *done >= kill * APPENDS_BETWEEN_KILLS).await.unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
        server = start(directory.path(), address);
    }
    stop.store(true, Ordering::Relaxed);
    let written = join_all(writers).await;
    for writer in written {
        let (id, highest) = writer.unwrap();
        let page = client.journal().read(&id, ReadRange::all()).await.unwrap();
        let stored: Vec<_> = page.records.iter().map(|record| record.payload.clone()).collect();
        let expected: Vec<bytes::Bytes> = (1..=highest).map(|number| number.to_string().into()).collect();
        assert_eq!(stored, expected, "{id}");
    }
    assert!(*progress.borrow() >= KILLS * APPENDS_BETWEEN_KILLS);
    server.kill().unwrap();
    server.wait().unwrap();
}
