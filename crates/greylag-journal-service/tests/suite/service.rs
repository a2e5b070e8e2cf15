//! Several clients, lost connections, and servers that stop and start.

use crate::common::{ServedDisk, append, id, loopback};
use greylag_core::Generation;
use greylag_journal_service::{ClientSettings, ConnectError, JournalClient, JournalServer, ServerSettings};
use greylag_persistence::{
    AppendError, ClaimError, Health, InMemoryJournal, Journal, ReadRange, Scope, SeqNr, SnapshotCriteria,
    SnapshotStore, Under, WriterUuid,
};

const UUIDS: [WriterUuid; 2] = [WriterUuid::from_u128(1), WriterUuid::from_u128(2)];

fn under(generation: u64) -> Under {
    Under::Generation(Generation::new(1, generation).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fence_holds_between_clients() {
    let directory = tempfile::tempdir().unwrap();
    let served = ServedDisk::start(directory.path(), loopback()).await;
    let [old, new] = [served.client().await.journal(), served.client().await.journal()];
    assert_eq!(old.caps().scope, Scope::Shared);
    let id = id(1);
    let old_claim = old.claim(&id, UUIDS[0], under(1)).await.unwrap();
    old.append(append(&id, &old_claim, UUIDS[0], 1, "a")).await.unwrap();
    let new_claim = new.claim(&id, UUIDS[1], under(2)).await.unwrap();
    assert_eq!((new_claim.highest, new_claim.epoch), (SeqNr::FIRST, old_claim.epoch.raised()));

    let fenced = old.append(append(&id, &old_claim, UUIDS[0], 2, "b")).await.unwrap_err();
    assert!(matches!(fenced, AppendError::Fenced { current } if current.writer_uuid == UUIDS[1]));
    let fenced = old.claim(&id, UUIDS[0], under(1)).await.unwrap_err();
    assert!(matches!(fenced, ClaimError::Fenced { .. }), "an older generation gets no epoch");
    assert!(old.delete_to(&id, old_claim.epoch, SeqNr::MAX).await.is_err());
    new.append(append(&id, &new_claim, UUIDS[1], 2, "c")).await.unwrap();
    let page = old.read(&id, ReadRange::all()).await.unwrap();
    let payloads: Vec<_> = page.records.iter().map(|record| &record.payload[..]).collect();
    assert_eq!(payloads, [b"a", b"c"], "one client reads what the other wrote");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_of_many_clients_share_group_commits() {
    const WRITERS: u32 = 200;
    let directory = tempfile::tempdir().unwrap();
    let served = ServedDisk::start(directory.path(), loopback()).await;
    let clients = futures::future::join_all((0..4).map(|_| served.client())).await;
    let write = |number: u32| {
        let journal = clients[number as usize % 4].journal();
        async move {
            let id = id(number);
            let claim = journal.claim(&id, UUIDS[0], under(1)).await.unwrap();
            for first in 1..=5 {
                journal.append(append(&id, &claim, UUIDS[0], first, "x")).await.unwrap();
            }
        }
    };
    let before = served.disk.stats();
    futures::future::join_all((0..WRITERS).map(write)).await;
    let stats = served.disk.stats();
    let (requests, groups) = (stats.requests - before.requests, stats.groups - before.groups);
    assert_eq!(requests, u64::from(WRITERS) * 6);
    assert!(groups * 4 < requests, "{requests} requests took {groups} syncs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_outlives_a_restart_of_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let served = ServedDisk::start(directory.path(), loopback()).await;
    let client = served.client().await;
    let journal = client.journal();
    let id = id(1);
    let claim = journal.claim(&id, UUIDS[0], under(1)).await.unwrap();
    journal.append(append(&id, &claim, UUIDS[0], 1, "a")).await.unwrap();
    let address = served.stop().await;
    let meanwhile = journal.append(append(&id, &claim, UUIDS[0], 2, "b")).await.unwrap_err();
    assert!(matches!(meanwhile, AppendError::NotStored(_)), "never sent, so not stored: {meanwhile:?}");
    assert!(matches!(journal.health(), Health::Down(_)));

    let served = ServedDisk::start(directory.path(), address).await;
    while let Err(error) = journal.append(append(&id, &claim, UUIDS[0], 2, "b")).await {
        // The client refuses appends until it has connected again.
        assert!(matches!(error, AppendError::NotStored(_)), "{error:?}");
        tokio::task::yield_now().await;
    }
    assert_eq!(journal.head(&id).await.unwrap().highest, SeqNr::from(2));
    assert_eq!(client.snapshots().load(&id, SnapshotCriteria::LATEST).await, Ok(None));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_client_finishes_what_it_began() {
    let directory = tempfile::tempdir().unwrap();
    let served = ServedDisk::start(directory.path(), loopback()).await;
    let journal = served.client().await.journal();
    let id = id(1);
    let claim = journal.claim(&id, UUIDS[0], under(1)).await.unwrap();
    let (appended, closed) = tokio::join!(journal.append(append(&id, &claim, UUIDS[0], 1, "a")), journal.close());
    appended.unwrap();
    closed.unwrap();
    let late = journal.append(append(&id, &claim, UUIDS[0], 2, "b")).await.unwrap_err();
    assert!(matches!(late, AppendError::NotStored(_)));
    assert_eq!(served.client().await.journal().head(&id).await.unwrap().highest, SeqNr::FIRST);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connecting_without_a_server_is_an_error_that_says_so() {
    let free = std::net::TcpListener::bind(loopback()).unwrap().local_addr().unwrap();
    let settings = ClientSettings { connect_timeout: std::time::Duration::from_millis(50), ..ClientSettings::test() };
    let refused = JournalClient::connect(&free.to_string(), settings.clone()).await.unwrap_err();
    assert!(matches!(&refused, ConnectError::Unreachable { cause, .. } if cause.contains("refused")), "{refused}");
    let nonsense = JournalClient::connect("not an address", settings).await.unwrap_err();
    assert!(matches!(nonsense, ConnectError::Refused { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_journal_can_be_served() {
    let journal = std::sync::Arc::new(InMemoryJournal::default());
    let snapshots = std::sync::Arc::new(greylag_persistence::InMemorySnapshots::default());
    let stores = greylag_persistence::Stores::new(journal, snapshots);
    let server = JournalServer::bind(loopback(), stores, ServerSettings::test()).await.unwrap();
    let address = server.local_address().to_string();
    let client = JournalClient::connect(&address, ClientSettings::test()).await.unwrap();
    let claim = client.journal().claim(&id(1), UUIDS[0], under(1)).await.unwrap();
    client.journal().append(append(&id(1), &claim, UUIDS[0], 1, "a")).await.unwrap();
    server.shutdown().await;
}
