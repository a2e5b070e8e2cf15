//! Watermarks recorded in the transactions that write the effects.

use std::time::Duration;

use greylag_delivery::{DedupeStore, RecordError, SeqNr, StreamId};
use greylag_delivery_postgres::PostgresDedupe;
use greylag_testkit::postgres::Postgres;
use tokio_postgres::Transaction;

use crate::support::*;

const ENTITY: &str = "Account/ada";
const STREAM: StreamId = StreamId(7);

async fn dedupe(server: &Postgres) -> PostgresDedupe {
    server.psql("create table account (id text primary key, cents bigint not null)").unwrap();
    server.psql("insert into account values ('ada', 0)").unwrap();
    PostgresDedupe::connect(&server.config()).await.unwrap()
}

fn cents(server: &Postgres) -> String {
    server.psql("select cents from account").unwrap().trim().to_owned()
}

/// Records a delivery and applies its effect.
async fn apply(dedupe: &PostgresDedupe, transaction: &Transaction<'_>, total: u64) -> Result<(), Option<SeqNr>> {
    match dedupe.record(transaction, ENTITY, STREAM, SeqNr(total)).await {
        Ok(()) => {}
        Err(RecordError::AlreadyApplied { up_to }) => return Err(Some(up_to)),
        Err(RecordError::Store(error)) => panic!("{error}"),
    }
    transaction.execute("update account set cents = cents + 10 where id = 'ada'", &[]).await.unwrap();
    Ok(())
}

/// Scenario delivery 78: a stale owner and the new one run delivery 7 in two transactions at a time. The later record
/// waits for the earlier transaction and is refused, so its effect is rolled back: the effect is applied once.
#[test]
fn scenario_78_the_later_of_two_owners_applies_nothing() {
    with_server(async |server| {
        let dedupe = dedupe(&server).await;
        let (mut stale, mut owner) = (client(&server).await, client(&server).await);
        for total in [7, 8] {
            // The first transaction has locked the row, and is not committed.
            let first = owner.transaction().await.unwrap();
            assert_eq!(apply(&dedupe, &first, total).await, Ok(()));
            let second = stale.transaction().await.unwrap();
            let (later, committed) = tokio::join!(apply(&dedupe, &second, total), async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                first.commit().await
            });
            committed.unwrap();
            assert_eq!(later, Err(Some(SeqNr(total))));
            second.rollback().await.unwrap();
        }
        assert_eq!(cents(&server), "20", "each effect is there once");
        let marks: Vec<_> = dedupe.load(ENTITY).await.unwrap().iter().collect();
        assert_eq!(marks, [(STREAM, SeqNr(8))]);
    });
}

/// If the earlier transaction is rolled back, the later one applies the message.
#[test]
fn a_rolled_back_owner_leaves_the_message_to_the_other() {
    with_server(async |server| {
        let dedupe = dedupe(&server).await;
        let (mut stale, mut owner) = (client(&server).await, client(&server).await);
        let first = stale.transaction().await.unwrap();
        assert_eq!(apply(&dedupe, &first, 7).await, Ok(()));
        let second = owner.transaction().await.unwrap();
        let (later, rolled_back) = tokio::join!(apply(&dedupe, &second, 7), async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            first.rollback().await
        });
        rolled_back.unwrap();
        assert_eq!(later, Ok(()));
        second.commit().await.unwrap();
        assert_eq!(cents(&server), "10");
    });
}

/// A record belongs to one entity and one stream, only rises, and can be forgotten when it is old.
#[test]
fn notes_rise_and_are_forgotten() {
    with_server(async |server| {
        let dedupe = dedupe(&server).await;
        let mut application = client(&server).await;
        let mut record = async |entity: &str, stream: u128, total: u64| {
            let transaction = application.transaction().await.unwrap();
            let recorded = dedupe.record(&transaction, entity, StreamId(stream), SeqNr(total)).await;
            transaction.commit().await.unwrap();
            match recorded {
                Ok(()) => None,
                Err(RecordError::AlreadyApplied { up_to }) => Some(up_to.get()),
                Err(RecordError::Store(error)) => panic!("{error}"),
            }
        };
        assert_eq!(record("a", 1, 5).await, None);
        assert_eq!(record("a", 1, 5).await, Some(5));
        assert_eq!(record("a", 1, 3).await, Some(5));
        assert_eq!(record("a", 1, 0).await, Some(0), "0 is no message");
        assert_eq!(record("a", u128::MAX, 3).await, None);
        assert_eq!(record("b", 1, 1).await, None);
        assert_eq!(record("a", 1, 9).await, None);
        let marks: Vec<_> = dedupe.load("a").await.unwrap().iter().collect();
        assert_eq!(marks, [(StreamId(1), SeqNr(9)), (StreamId(u128::MAX), SeqNr(3))]);
        assert_eq!(dedupe.load("nobody").await.unwrap().iter().count(), 0);

        assert_eq!(dedupe.forget(Duration::MAX).await.unwrap(), 0);
        assert_eq!(dedupe.forget(Duration::from_secs(3600)).await.unwrap(), 0);
        server
            .psql("update greylag_delivery_dedupe set recorded_at = now() - interval '8 days' where entity = 'a'")
            .unwrap();
        assert_eq!(dedupe.forget(Duration::from_secs(7 * 24 * 3600)).await.unwrap(), 2);
        assert_eq!(dedupe.load("a").await.unwrap().iter().count(), 0);
    });
}
