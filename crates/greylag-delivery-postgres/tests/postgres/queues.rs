//! The queue in PostgreSQL: the public kit, outages, and errors of a server.

use async_trait::async_trait;
use greylag_core::Encoded;
use greylag_delivery::queue::{MessageSent, QueueError};
use greylag_delivery::tck::{QueueBench, durable_queue, queue_store};
use greylag_delivery::{DurableProducerQueue, FaultyQueueStore, KvProducerQueue, QueueFault, SeqNr};
use greylag_delivery_postgres::{PostgresDeliveryError, PostgresQueueSettings, PostgresQueues};
use greylag_testkit::postgres::{End, Postgres};
use tokio::sync::Mutex;

use crate::support::*;

type Queue = KvProducerQueue<FaultyQueueStore<PostgresQueues>>;

struct Bench {
    server: Mutex<Postgres>,
    store: FaultyQueueStore<PostgresQueues>,
}

#[async_trait]
impl QueueBench for Bench {
    type Queue = Queue;

    async fn open(&self, queue: &str) -> Queue {
        KvProducerQueue::open(self.store.clone(), queue, Default::default()).unwrap()
    }

    async fn plan(&self, queue: &str, passing: u32, fault: QueueFault) -> bool {
        self.store.fail_write(queue, passing, fault);
        true
    }

    async fn writes(&self, queue: &str) -> Option<u64> {
        Some(self.store.writes(queue))
    }

    async fn restart(&self) -> bool {
        self.server.lock().await.restart_after(End::Orderly).unwrap();
        true
    }
}

/// Every case of the public kit except the one about pieces.
#[test]
fn the_queue_in_postgres_conforms() {
    with_server(async |server| {
        let store = PostgresQueues::connect(&server.config()).await.unwrap();
        let bench = Bench { server: Mutex::new(server), store: FaultyQueueStore::new(store) };
        let report = durable_queue(&bench).await;
        report.assert_conforms();
        assert_eq!(report.skipped().count(), 1, "{report}");
    });
}

/// Every case of the kit for stores of rows.
#[test]
fn the_tables_in_postgres_conform() {
    with_server(async |server| {
        queue_store(&PostgresQueues::connect(&server.config()).await.unwrap()).await.assert_conforms();
    });
}

fn order(seq_nr: u64) -> MessageSent<Encoded> {
    let message = encoded(&format!("order {seq_nr}"));
    MessageSent { seq_nr: SeqNr(seq_nr), message, ack: false, qualifier: "".into(), timestamp_ms: 1 }
}

async fn open(server: &Postgres) -> KvProducerQueue<PostgresQueues> {
    let store = PostgresQueues::lazy(&server.config(), None, PostgresQueueSettings::default()).unwrap();
    KvProducerQueue::open(store, "orders", Default::default()).unwrap()
}

/// Loads until the server runs again.
async fn reload(queue: &mut KvProducerQueue<PostgresQueues>) -> Vec<u64> {
    loop {
        match queue.load(&controller(1)).await {
            Ok(state) => return state.unconfirmed.iter().map(|sent| sent.seq_nr.get()).collect(),
            Err(QueueError::NotStored(_) | QueueError::OutcomeUnknown) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

/// Of delivery D7: a server that dies at any time, and is restarted, has every acknowledged message; the same queue
/// goes on, over a connection that it opens again.
#[test]
fn a_queue_outlives_its_server() {
    with_server(async |mut server| {
        let mut queue = open(&server).await;
        queue.load(&controller(1)).await.unwrap();
        let mut stored = 0;
        for end in [End::Killed, End::Orderly, End::Crash] {
            for _ in 0..5 {
                queue.store_message_sent(vec![order(stored + 1)]).await.unwrap();
                stored += 1;
            }
            server.restart_after(end).unwrap();
            let answer = queue.store_message_sent(vec![order(stored + 1)]).await;
            if answer.is_err() {
                assert!(matches!(answer, Err(QueueError::NotStored(_) | QueueError::OutcomeUnknown)), "{answer:?}");
                let found = reload(&mut queue).await;
                assert!(found.len() as u64 >= stored, "{end:?}: {found:?}, {stored} were acknowledged");
                assert_eq!(queue.store_message_sent(vec![order(stored + 1)]).await, Ok(SeqNr(stored + 1)));
            }
            stored += 1;
            assert_eq!(reload(&mut queue).await, (1..=stored).collect::<Vec<_>>(), "{end:?}: each is there once");
        }
    });
}

/// While the server is down, every call answers `NotStored`: nothing was written.
#[test]
fn a_server_that_is_away_stores_nothing() {
    with_server(async |mut server| {
        let mut queue = open(&server).await;
        queue.load(&controller(1)).await.unwrap();
        server.stop();
        let mut other = open(&server).await;
        for _ in 0..3 {
            let answer = other.load(&controller(2)).await;
            assert!(matches!(answer, Err(QueueError::NotStored(_))), "{answer:?}");
        }
    });
}

/// Several processes that start with an empty database find or create the tables.
#[test]
fn tables_are_made_once() {
    with_server(async |server| {
        let config = server.config();
        let connecting = (0..8).map(|_| {
            let config = config.clone();
            tokio::spawn(async move { PostgresQueues::connect(&config).await.map(drop) })
        });
        for connected in connecting.collect::<Vec<_>>() {
            connected.await.unwrap().unwrap();
        }
    });
}

/// A user who may not create tables gets an error with a remedy; once the tables were created for the user, they can be
/// used.
#[test]
fn error_for_a_user_without_permission_names_the_remedy() {
    with_server(async |server| {
        server.psql("create role app login password 'app-word'").unwrap();
        let config = server.config().replace("user=postgres", "user=app").replace("throw-away", "app-word");
        let refused = PostgresQueues::connect(&config).await.unwrap_err();
        assert!(matches!(refused, PostgresDeliveryError::Unavailable { .. }), "{refused:?}");
        let message = refused.to_string();
        assert!(message.contains("permission") && message.contains("create tables"), "{message}");
        assert!(!message.contains("app-word"), "{message}");

        PostgresQueues::connect(&server.config()).await.unwrap();
        server.psql("grant select, insert, update, delete on all tables in schema public to app").unwrap();
        let store = PostgresQueues::connect(&config).await.unwrap();
        let mut queue = KvProducerQueue::open(store, "orders", Default::default()).unwrap();
        queue.load(&controller(1)).await.unwrap();
        assert_eq!(queue.store_message_sent(vec![order(1)]).await, Ok(SeqNr(1)));
    });
}

/// Values that PostgreSQL cannot store are refused by name, and the queue goes on.
#[test]
fn values_that_postgres_cannot_store_are_refused() {
    with_server(async |server| {
        let mut queue = open(&server).await;
        queue.load(&controller(1)).await.unwrap();
        let zero = MessageSent { qualifier: "a\0b".into(), ..order(1) };
        let refused = queue.store_message_sent(vec![zero]).await;
        assert!(matches!(refused, Err(QueueError::Rejected(_))), "{refused:?}");
        assert!(reload(&mut queue).await.is_empty());
        assert_eq!(queue.store_message_sent(vec![order(1)]).await, Ok(SeqNr(1)));
    });
}

/// Damaged rows cause an error; missing data is not guessed.
#[test]
fn damaged_rows_are_reported() {
    with_server(async |server| {
        let mut queue = open(&server).await;
        queue.load(&controller(1)).await.unwrap();
        queue.store_message_sent(vec![order(1)]).await.unwrap();
        for (damage, repair) in [
            ("update greylag_queue_message set codec = -1", "update greylag_queue_message set codec = 4"),
            ("update greylag_queue_head set node = 'x'", "update greylag_queue_head set node = 'localhost:17355#1'"),
            ("update greylag_queue_head set epoch = -epoch", "update greylag_queue_head set epoch = -epoch"),
        ] {
            server.psql(damage).unwrap();
            let loaded = queue.load(&controller(1)).await;
            assert!(matches!(loaded, Err(QueueError::Closed(_))), "{damage}: {loaded:?}");
            server.psql(repair).unwrap();
            assert_eq!(reload(&mut queue).await, [1], "{damage}");
        }
    });
}
