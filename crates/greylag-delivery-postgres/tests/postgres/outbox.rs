//! The outbox in PostgreSQL: transactions of applications, and the numbers assigned afterwards.

use std::time::Duration;

use greylag_codec::json;
use greylag_delivery::queue::{Confirmation, QueueError};
use greylag_delivery::{DurableProducerQueue, OutboxProducerQueue, SeqNr};
use greylag_delivery_postgres::{INSERT_INTO_OUTBOX, PostgresOutboxes, insert_encoded_into_outbox, insert_into_outbox};
use greylag_testkit::postgres::Postgres;

use crate::support::*;

async fn open(server: &Postgres) -> OutboxProducerQueue<PostgresOutboxes> {
    let outboxes = PostgresOutboxes::connect(&server.config()).await.unwrap();
    OutboxProducerQueue::open(outboxes, "mails", Default::default()).unwrap()
}

/// Scenario delivery 72: A inserts before B, and B commits first: B's row gets number 1 and A's row number 2; both are
/// returned by polls.
#[test]
fn scenario_72_rows_are_numbered_as_they_become_visible() {
    with_server(async |server| {
        let mut outbox = open(&server).await;
        outbox.load(&controller(1)).await.unwrap();
        let (mut a, mut b) = (client(&server).await, client(&server).await);
        let (a, b) = (a.transaction().await.unwrap(), b.transaction().await.unwrap());
        insert_encoded_into_outbox(&a, "mails", "ada", &encoded("a")).await.unwrap();
        insert_encoded_into_outbox(&b, "mails", "bob", &encoded("b")).await.unwrap();
        assert!(outbox.poll_new(10).await.unwrap().is_empty(), "neither is committed");
        b.commit().await.unwrap();
        let new = outbox.poll_new(10).await.unwrap();
        assert_eq!((numbered(&new), &*new[0].qualifier), (pairs(&[(1, "b")]), "bob"));
        a.commit().await.unwrap();
        assert_eq!(numbered(&outbox.poll_new(10).await.unwrap()), pairs(&[(2, "a")]));

        let mut next = open(&server).await;
        let state = next.load(&controller(2)).await.unwrap();
        assert_eq!((numbered(&state.unconfirmed), state.current_seq_nr), (pairs(&[(1, "b"), (2, "a")]), SeqNr(3)));
        let confirmed = |qualifier: &str, seq_nr| Confirmation::UpTo {
            qualifier: qualifier.into(),
            seq_nr: SeqNr(seq_nr),
            timestamp_ms: 4_000_000_000_000,
        };
        next.store_message_confirmed(vec![confirmed("bob", 1), confirmed("ada", 2)]).await.unwrap();
        assert_eq!(server.psql("select count(*) from greylag_outbox_message").unwrap().trim(), "0");
        let fenced = outbox.poll_new(10).await;
        assert_eq!(fenced, Err(QueueError::Fenced { by: Some(controller(2)) }), "the older instance gives no numbers");
        let state = open(&server).await.load(&controller(3)).await.unwrap();
        assert_eq!((state.unconfirmed.len(), state.current_seq_nr), (0, SeqNr(3)), "numbers go on");
    });
}

/// A message inserted in a transaction that was rolled back is never sent; values are encoded by their codec.
#[test]
fn a_message_is_there_with_its_transaction_or_not_at_all() {
    with_server(async |server| {
        let mut outbox = open(&server).await.typed(json::<String>("mail"));
        outbox.load(&controller(1)).await.unwrap();
        let mut application = client(&server).await;
        application.batch_execute("create table orders (id bigint primary key)").await.unwrap();
        for (id, commits) in [(1_i64, true), (2, false), (3, true)] {
            let transaction = application.transaction().await.unwrap();
            transaction.execute("insert into orders values ($1)", &[&id]).await.unwrap();
            let text = format!("thank you for {id}");
            insert_into_outbox(&transaction, "mails", "ada", &json::<String>("mail"), &text).await.unwrap();
            if commits { transaction.commit().await.unwrap() } else { transaction.rollback().await.unwrap() }
        }
        let new = outbox.poll_new(10).await.unwrap();
        let texts: Vec<_> = new.iter().map(|sent| (sent.seq_nr.get(), sent.message.as_str())).collect();
        assert_eq!(texts, [(1, "thank you for 1"), (2, "thank you for 3")]);
        assert!(new.iter().all(|sent| sent.timestamp_ms > 1_600_000_000_000), "the time of the insert");
        assert_eq!(outbox.poll_interval(), Some(Duration::from_millis(200)));
    });
}

/// Rows inserted with the statement by other clients are treated alike; many rows are returned a few at a time, each
/// once.
#[test]
fn many_rows_are_numbered_a_few_at_a_time() {
    with_server(async |server| {
        let mut outbox = open(&server).await;
        outbox.load(&controller(1)).await.unwrap();
        let application = client(&server).await;
        let (codec, manifest) = (4_i64, "mail");
        for nth in 0..25 {
            let payload = format!("{nth}").into_bytes();
            application.execute(INSERT_INTO_OUTBOX, &[&"mails", &"", &codec, &manifest, &payload]).await.unwrap();
        }
        let mut all = Vec::new();
        loop {
            let new = outbox.poll_new(10).await.unwrap();
            if new.is_empty() {
                break;
            }
            assert!(new.len() <= 10);
            all.extend(numbered(&new));
        }
        let expected: Vec<_> = (0..25).map(|nth: u64| (nth + 1, nth.to_string())).collect();
        assert_eq!(all, expected);
    });
}

/// Polling an outbox without new messages writes nothing.
#[test]
fn polling_an_empty_outbox_writes_nothing() {
    with_server(async |server| {
        let mut outbox = open(&server).await;
        outbox.load(&controller(1)).await.unwrap();
        let version = || server.psql("select xmin from greylag_outbox_head").unwrap();
        let before = version();
        for _ in 0..3 {
            assert!(outbox.poll_new(10).await.unwrap().is_empty());
        }
        assert_eq!(version(), before);
    });
}
