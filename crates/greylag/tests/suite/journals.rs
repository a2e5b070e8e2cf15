//! Nodes that open the journal named by their config file.

use std::sync::{Arc, Mutex};

use greylag::codec::json;
use greylag::core::ReplyTo;
use greylag::journal_service::{JournalServer, Served, ServerSettings};
use greylag::persistence::{
    Append, AppendError, Ctx, Effect, EventKind, EventSourced, EventSourcedSettings, Health, InMemoryOffsets,
    InMemoryStates, Journal as _, NewEvent, Offset, PersistenceId, ReadJournal, ReadRange, Revision, Scope, SeqNr,
    StateWrite, StoredCodec, Stores, Timestamp, Under, WriterEpoch, WriterUuid,
};
use greylag::{Config, Node, StartError};

fn file(persistence: &str) -> Config {
    let text = format!(
        "[transport]\ncluster_name = \"bank\"\ncanonical_host = \"127.0.0.1\"\ncanonical_port = 0\nbind_port = 0\n\
         [persistence]\n{persistence}"
    );
    Config::new().text("node.toml", text)
}

async fn refused(persistence: &str) -> String {
    match Node::from_config(file(persistence)).start().await {
        Err(error @ StartError::Journal(_)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

fn deposited() -> NewEvent {
    NewEvent {
        codec_id: greylag::core::CodecId::JSON,
        manifest: "deposited".into(),
        schema_version: 1,
        kind: EventKind::Event,
        payload: "{}".into(),
        metadata: Default::default(),
        tags: Default::default(),
    }
}

/// persistence §9: the store named by a file has the entities' writes, and is closed with its node, so that the next
/// node can open it.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_opens_the_directory_that_its_file_names_and_closes_it() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("journal");
    let config =
        file(&format!("journal = \"sled\"\nsled.dir = {dir:?}\nsled.lock_retry = \"100ms\"\nsled.min_free_bytes = 0"));
    let id = PersistenceId::of("Account", "1").unwrap();
    for run in 1..=2 {
        let node = Node::from_config(config.clone()).start().await.unwrap();
        let journal = node.journal().expect("the file names one").clone();
        assert!(journal.queries.is_some() && journal.offsets.is_some() && journal.stores.states.is_some());
        let seen = journal.stores.journal.head(&id).await.unwrap().epoch;
        let writer_uuid = WriterUuid::from_u128(run);
        let claim = journal.stores.journal.claim(&id, writer_uuid, Under::Seen(seen)).await.unwrap();
        let first = claim.highest.next().unwrap();
        let append = Append { id: id.clone(), epoch: claim.epoch, writer_uuid, first, events: vec![deposited()] };
        journal.stores.journal.append(append).await.unwrap();
        assert_eq!(first, SeqNr::saturating(u64::try_from(run).unwrap()));
        let page = journal.stores.journal.read(&id, ReadRange::all()).await.unwrap();
        assert_eq!(page.records.len() as u128, run);
        // A node that starts while the journal is open gets an error that names the setting.
        let why = refused(&format!("journal = \"sled\"\nsled.dir = {dir:?}\nsled.lock_retry = \"10ms\"")).await;
        assert!(why.contains("persistence.sled.dir") && why.contains("journal"), "{why}");
        node.shutdown().await.expect("it leaves in order");
        assert!(matches!(journal.stores.journal.health(), Health::Down(_)), "it is closed with its node");
    }
}

/// A node starts although its database cannot be reached, and waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_starts_while_its_database_is_unreachable() {
    let closed = greylag_testkit::port::unused().port();
    let config = file(&format!(
        "journal = \"postgres\"\npg.url = \"postgres://app:secret@127.0.0.1:{closed}/shop\"\npg.call_timeout = \"100ms\""
    ));
    let node = Node::from_config(config).start().await.unwrap();
    let journal = node.journal().expect("the file names one").clone();
    let error = journal.stores.journal.head(&PersistenceId::of("Account", "1").unwrap()).await.unwrap_err().to_string();
    assert!(error.contains(&format!("127.0.0.1:{closed}")) && !error.contains("secret"), "{error}");
    // A transactional projection works on the same connections.
    let itself = journal.postgres.expect("it is one on PostgreSQL");
    let error = itself.head(&PersistenceId::of("Account", "1").unwrap()).await.unwrap_err().to_string();
    assert!(error.contains(&format!("127.0.0.1:{closed}")), "{error}");
    assert!(journal.changes.is_some());
    node.shutdown().await.expect("it leaves in order");
    let why = refused("journal = \"postgres\"\npg.url = \"postgres://app@db.example/shop?sslmod=off\"").await;
    assert!(why.contains("persistence.pg.url"), "{why}");
    let why =
        refused("journal = \"postgres\"\npg.url = \"host=db.example\"\npg.password_file = \"/nowhere/password\"").await;
    assert!(why.contains("persistence.pg.password_file") && why.contains("/nowhere/password"), "{why}");
}

/// persistence §5, "queries over durable states": projections can follow the states of a node's journal.
#[tokio::test(flavor = "multi_thread")]
async fn changes_of_states_can_be_followed_on_the_journal_of_a_node() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("journal");
    let config = file(&format!("journal = \"sled\"\nsled.dir = {dir:?}\nsled.min_free_bytes = 0"));
    let node = Node::from_config(config).start().await.unwrap();
    let journal = node.journal().expect("the file names one").clone();
    assert!(journal.postgres.is_none());
    let id = PersistenceId::of("Profile", "1").unwrap();
    let writer_uuid = WriterUuid::from_u128(1);
    let write = StateWrite { id: id.clone(), revision: Revision::FIRST, generation: None, writer_uuid };
    let states = journal.stores.states.as_ref().expect("sled keeps states");
    states.upsert(write, StoredCodec::new(json("profile")).encode(&7_u64).unwrap(), None).await.unwrap();
    let read = ReadJournal::new(journal.changes.expect("and shows their changes"), node.settings().query.clone());
    let mut changes = read.current_events_by_slices("Profile", 0..=1023, Offset::None);
    let change = std::future::poll_fn(|cx| changes.as_mut().poll_next(cx)).await.expect("there is one").unwrap();
    assert_eq!((change.id.clone(), change.seq_nr), (id, SeqNr::saturating(1)));
    node.shutdown().await.expect("it leaves in order");
}

/// persistence §5: a node has those parts of a served journal that are served, and no others.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_gets_only_the_served_stores_of_a_journal() {
    let states = InMemoryStates::new(Scope::Shared, || Timestamp::from_micros(1));
    let bare = Served::new(Stores::in_memory());
    let full = bare.clone().with_changes(Arc::new(states.queries())).with_offsets(Arc::new(InMemoryOffsets::default()));
    for (served, has_changes) in [(bare, false), (full, true)] {
        let anywhere = "127.0.0.1:0".parse().unwrap();
        let server = JournalServer::bind(anywhere, served, ServerSettings::test()).await.unwrap();
        let config = file(&format!("journal = \"service\"\nservice.address = \"{}\"", server.local_address()));
        let node = Node::from_config(config).start().await.unwrap();
        let journal = node.journal().expect("the file names one");
        assert_eq!((journal.changes.is_some(), journal.offsets.is_some()), (has_changes, has_changes));
        assert!(journal.queries.is_none() && journal.postgres.is_none());
        node.shutdown().await.expect("it leaves in order");
        server.shutdown().await;
    }
}

/// persistence §4.1, J10: an append that was never sent is certainly not stored, however short the breakers wait.
#[tokio::test(flavor = "multi_thread")]
async fn an_append_never_sent_to_the_database_is_not_stored() {
    let closed = greylag_testkit::port::unused().port();
    let config = file(&format!(
        "journal = \"postgres\"\npg.url = \"postgres://app@127.0.0.1:{closed}/shop\"\npg.append_timeout = \"300ms\"\n\
         breaker.call_timeout = \"100ms\""
    ));
    let node = Node::from_config(config).start().await.unwrap();
    let journal = &node.journal().expect("the file names one").stores.journal;
    let id = PersistenceId::of("Account", "1").unwrap();
    let (epoch, writer_uuid, first) = (WriterEpoch::from_u64(1), WriterUuid::from_u128(1), SeqNr::saturating(1));
    let append = Append { id, epoch, writer_uuid, first, events: vec![deposited()] };
    let outcome = journal.append(append).await;
    assert!(matches!(outcome, Err(AppendError::NotStored(_))), "{outcome:?}");
    node.shutdown().await.expect("it leaves in order");
}

/// A service that does not answer is an error that names the setting.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_service_is_named() {
    let closed = greylag_testkit::port::unused().port();
    let why = refused(&format!(
        "journal = \"service\"\nservice.address = \"127.0.0.1:{closed}\"\nservice.connect_timeout = \"200ms\""
    ))
    .await;
    assert!(why.contains("persistence.service.address") && why.contains(&closed.to_string()), "{why}");
}

/// Stores given by the program win over the file.
#[tokio::test(flavor = "multi_thread")]
async fn the_stores_of_the_program_win_over_the_file() {
    let config = file("journal = \"sled\"\nsled.dir = \"/nowhere/journal\"");
    let stores = Stores::in_memory();
    let node = Node::from_config(config).stores(stores).start().await.unwrap();
    assert!(node.journal().is_none());
    node.shutdown().await.expect("it leaves in order");
}

/// An account that notes the settings of its node.
struct Account {
    told: Arc<Mutex<Option<EventSourcedSettings>>>,
}

impl EventSourced for Account {
    type Command = ReplyTo<u64>;
    type Event = u64;
    type State = u64;

    fn settings(&self, node: &EventSourcedSettings) -> EventSourcedSettings {
        *self.told.lock().unwrap() = Some(node.clone());
        node.clone()
    }

    fn on_command(&mut self, _: &mut Ctx<'_, ReplyTo<u64>>, _: &u64, to: ReplyTo<u64>) -> Effect<Self> {
        Effect::<Self>::persist(1).then_reply(to, |sum| *sum)
    }

    fn apply(state: &mut u64, event: &u64) {
        *state += event;
    }
}

/// persistence §9: entities spawned on a node's journal without sharding start from the node's file, too.
#[tokio::test(flavor = "multi_thread")]
async fn entities_without_shards_start_from_the_file_of_their_node() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("journal");
    let config = file(&format!(
        "journal = \"sled\"\nsled.dir = {dir:?}\nsled.min_free_bytes = 0\nstash_capacity = 11\nrecovery_timeout = \"7s\""
    ));
    let node = Node::from_config(config).start().await.unwrap();
    let stores = node.journal().expect("the file names one").stores.clone();
    let told = Arc::default();
    let account = Account { told: Arc::clone(&told) };
    let id = PersistenceId::of("Account", "1").unwrap();
    let (account, _ended) = stores.events(json("deposited")).spawn(id, account).unwrap();
    assert_eq!(account.ask(|to| to).await.unwrap(), 1);
    let of_account = told.lock().unwrap().clone().expect("it was asked");
    assert_eq!(of_account.stash_capacity.get(), 11);
    assert_eq!(&of_account, &node.settings().persistence);
    assert_eq!(stores.durable_state_settings(), &node.settings().durable_state);
    node.shutdown().await.expect("it leaves in order");
}
