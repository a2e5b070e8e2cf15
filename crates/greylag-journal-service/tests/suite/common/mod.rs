//! Served stores, on disk and in memory, for the tests of this crate.

pub(crate) mod cable;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use greylag_core::CodecId;
use greylag_journal_service::{ClientSettings, JournalClient, JournalServer, Served, ServerSettings};
use greylag_journal_sled::{SledJournal, SledJournalSettings};
use greylag_persistence::{
    Append, Claim, EventKind, InMemoryJournal, InMemoryOffsets, InMemorySnapshots, InMemoryStates, Journal, NewEvent,
    OffsetKind, PersistenceId, Scope, SnapshotCaps, Stores, Timestamp, WriterUuid,
};

/// Address of a free port of the loopback interface.
pub(crate) fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// All stores of a sled journal.
pub(crate) fn of_disk(disk: &SledJournal) -> Served {
    let stores = disk.stores().with_states(Arc::new(disk.states()));
    let served = Served::new(stores).with_offsets(Arc::new(disk.offsets())).with_queries(Arc::new(disk.queries()));
    served.with_changes(Arc::new(disk.states().queries()))
}

/// A served sled journal.
pub(crate) struct ServedDisk {
    pub(crate) disk: SledJournal,
    pub(crate) server: JournalServer,
    pub(crate) address: SocketAddr,
}

impl ServedDisk {
    pub(crate) async fn start(path: &Path, address: SocketAddr) -> Self {
        let disk = SledJournal::open(path, SledJournalSettings::test()).await.unwrap();
        let server = JournalServer::bind(address, of_disk(&disk), ServerSettings::test()).await.unwrap();
        Self { address: server.local_address(), disk, server }
    }

    pub(crate) async fn client(&self) -> JournalClient {
        client(self.address).await
    }

    pub(crate) async fn stop(self) -> SocketAddr {
        self.server.shutdown().await;
        self.disk.close().await.unwrap();
        self.address
    }
}

/// Stores in memory, and the server that serves them.
pub(crate) struct ServedMemory {
    pub(crate) journal: InMemoryJournal,
    pub(crate) snapshots: InMemorySnapshots,
    pub(crate) states: InMemoryStates,
    pub(crate) offsets: InMemoryOffsets,
    /// The next timestamp.
    pub(crate) clock: Arc<AtomicU64>,
    pub(crate) server: JournalServer,
}

impl ServedMemory {
    pub(crate) async fn start(kind: OffsetKind) -> Self {
        let clock = Arc::new(AtomicU64::new(1 << 50));
        let ticking = |clock: &Arc<AtomicU64>| {
            let clock = clock.clone();
            move || Timestamp::from_micros(clock.fetch_add(1, Ordering::Relaxed))
        };
        let journal = InMemoryJournal::new(Scope::Process, ticking(&clock));
        let snapshots = InMemorySnapshots::new(SnapshotCaps::full(Scope::Process), ticking(&clock));
        let states = InMemoryStates::new(Scope::Process, ticking(&clock));
        let offsets = InMemoryOffsets::new(Scope::Process, kind);
        let stores = Stores::new(Arc::new(journal.clone()), Arc::new(snapshots.clone()));
        let served = Served::new(stores.with_states(Arc::new(states.clone())))
            .with_offsets(Arc::new(offsets.clone()))
            .with_queries(Arc::new(journal.queries()))
            .with_changes(Arc::new(states.queries()));
        let server = JournalServer::bind(loopback(), served, ServerSettings::test()).await.unwrap();
        Self { journal, snapshots, states, offsets, clock, server }
    }

    pub(crate) async fn client(&self) -> JournalClient {
        client(self.server.local_address()).await
    }
}

pub(crate) async fn client(address: SocketAddr) -> JournalClient {
    JournalClient::connect(&address.to_string(), ClientSettings::test()).await.unwrap()
}

pub(crate) fn id(number: u32) -> PersistenceId {
    PersistenceId::of("Counter", &number.to_string()).unwrap()
}

pub(crate) fn event(payload: impl Into<bytes::Bytes>) -> NewEvent {
    NewEvent {
        codec_id: CodecId::JSON,
        manifest: "counted".into(),
        schema_version: 1,
        kind: EventKind::Event,
        payload: payload.into(),
        metadata: Default::default(),
        tags: ["counted".to_owned()].into(),
    }
}

pub(crate) fn append(id: &PersistenceId, claim: &Claim, uuid: WriterUuid, first: u32, payload: &str) -> Append {
    let events = vec![event(payload.to_owned())];
    Append { id: id.clone(), epoch: claim.epoch, writer_uuid: uuid, first: first.into(), events }
}
