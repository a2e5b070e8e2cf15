//! A node's stores: the node closes them when it ends, and is not ready while one of them is down.

use greylag::cluster::Readiness;
use greylag::journal_sled::{SledJournal, SledJournalSettings};
use greylag::management::{connect, v1};
use greylag::persistence::{Health, Journal, Stores};
use greylag::{Node, NodeBuilder};

fn builder(stores: &Stores) -> NodeBuilder {
    Node::builder("shop").bind("127.0.0.1", 0).stores(stores.clone())
}

async fn open(place: &tempfile::TempDir, settings: SledJournalSettings) -> SledJournal {
    SledJournal::open(place.path(), settings).await.expect("no other process has it open")
}

/// persistence §10.15: a node closes its stores when it ends, also plugins, and although the program still holds a
/// handle; it does not close stores marked as kept open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_node_has_closed_its_stores() {
    let (main, extra, kept) = (tempfile::tempdir(), tempfile::tempdir(), tempfile::tempdir());
    let [main, extra, kept] = [main, extra, kept].map(|place| place.expect("a directory"));
    let journals = [
        open(&main, SledJournalSettings::default()).await,
        open(&extra, SledJournalSettings::default()).await,
        open(&kept, SledJournalSettings::default()).await,
    ];
    let stores = journals[0]
        .stores()
        .with_plugin("extra", journals[1].stores())
        .with_plugin("kept", journals[2].stores().kept_open());
    let node = builder(&stores).start().await.expect("a cluster of one");
    assert!(stores.health().values().all(|health| *health == Health::Up), "{:?}", stores.health());
    node.shutdown().await.expect("it leaves in order");
    for place in [&main, &extra] {
        open(place, SledJournalSettings { ..SledJournalSettings::default() }).await;
    }
    assert!(matches!(journals[0].health(), Health::Down(_)));
    assert_eq!(journals[2].health(), Health::Up, "the program goes on using it");
}

/// persistence §10.15: a node that does not start closes its stores as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_cannot_join_closes_its_stores() {
    let place = tempfile::tempdir().expect("a directory");
    let journal = open(&place, SledJournalSettings::default()).await;
    let occupied = builder(&Stores::in_memory()).start().await.expect("a cluster of one");
    let other = Node::builder("other").bind("127.0.0.1", 0).stores(journal.stores());
    let other = other.configure(|settings| {
        settings.cluster.shutdown_after_unsuccessful_join_seed_nodes = Some(std::time::Duration::from_millis(100));
    });
    // The seed node is of another cluster and never answers.
    other.seed_nodes([occupied.address().to_string()]).start().await.expect_err("no node of its cluster is there");
    assert!(matches!(journal.health(), Health::Down(_)));
    occupied.shutdown().await.expect("it leaves in order");
}

/// persistence §4.1 (Health): a store that is down makes its node not ready; one that is low is reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_ready_while_it_is_up_and_no_store_is_down() {
    let place = tempfile::tempdir().expect("a directory");
    let low = open(&place, SledJournalSettings { min_free_bytes: u64::MAX, ..SledJournalSettings::default() }).await;
    let scratch = Stores::in_memory();
    let stores = low.stores().with_plugin("scratch", scratch.clone());
    let node = builder(&stores).configure(|settings| settings.management.address = Some("127.0.0.1:0".to_owned()));
    let node = node.join_later().start().await.expect("it is started");
    assert_eq!(node.readiness().not_ready, ["this node is no member of a cluster"]);
    node.cluster().join_self().await.expect("joins");
    node.cluster().wait_up().await.expect("is Up");
    let ready = node.readiness();
    assert!(
        ready.is_ready() && ready.degraded.iter().any(|why| why.starts_with("journal: storage is low")),
        "{ready:?}"
    );
    let admin = node.management_address().expect("it is on").to_string();
    let mut admin = connect(&admin).expect("an address");
    let told = admin.health(v1::HealthRequest {}).await.expect("it answers").into_inner();
    // The free space changes between the two questions, and with it the text.
    assert!(told.ready && told.healthy && told.degraded.len() == ready.degraded.len(), "{told:?}");

    scratch.snapshots.close().await.expect("it is closed");
    let Readiness { not_ready, .. } = node.readiness();
    assert_eq!(not_ready, ["scratch.snapshots is down: closed"]);
    let told = admin.health(v1::HealthRequest {}).await.expect("it answers").into_inner();
    assert!(!told.ready && !told.healthy && told.not_ready == not_ready, "{told:?}");
    assert_eq!(told.problems, not_ready);
    node.shutdown().await.expect("it leaves in order");
    assert!(!node.readiness().is_ready());
}
