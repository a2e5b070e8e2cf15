//! The read side: a row for each account, written by a projection and readable by any program with SQL.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use greylag_journal_postgres::PostgresHandler;
use greylag_journal_postgres::tokio_postgres::{self, Client, NoTls, Transaction};
use greylag_persistence::{BoxError, Envelope, EventSeq};

use crate::account::{Balance, Event, event_codec};

/// The schema of the journal and of the table.
pub(crate) const SCHEMA: &str = "read_side_example";

const TABLE: &str =
    "create table if not exists balance (account text primary key, cents bigint not null, events bigint not null)";

/// The time limit for the table to catch up.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Adds each event to the row of its account.
///
/// Adding would count a repeated event twice, but no event is repeated: the writes of `handle` and the progress of the
/// projection are committed in one transaction, or rolled back together.
pub(crate) struct Balances;

#[async_trait]
impl PostgresHandler for Balances {
    async fn handle(&mut self, transaction: &Transaction<'_>, envelopes: &[Envelope]) -> Result<(), BoxError> {
        let add = "insert into balance (account, cents, events) values ($1, $2, 1) on conflict (account) do update
                   set cents = balance.cents + excluded.cents, events = balance.events + 1";
        for envelope in envelopes {
            // An event that this program cannot read ends the projection and is named in the error (`OnPoison::Fail`).
            let EventSeq::One(event) = envelope.decode(&event_codec())? else { continue };
            let change = match event {
                Event::Deposited { cents } => i64::try_from(cents)?,
                Event::Withdrawn { cents } => -i64::try_from(cents)?,
            };
            transaction.execute(add, &[&envelope.id.entity_id(), &change]).await?;
        }
        Ok(())
    }
}

/// The table as a reader sees it.
pub(crate) struct Table {
    client: Client,
}

impl Table {
    /// Connects, and creates the table if it is missing. The journal has created the schema.
    pub(crate) async fn open(url: &str) -> Result<Self, BoxError> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        // The connection's task ends with the client or the server; after that, every query fails.
        tokio::spawn(connection);
        client.batch_execute(&format!("set search_path to {SCHEMA}; {TABLE}")).await?;
        Ok(Self { client })
    }

    /// The rows as balances by account.
    pub(crate) async fn balances(&self) -> Result<BTreeMap<String, Balance>, BoxError> {
        let rows = self.client.query("select account, cents, events from balance", &[]).await?;
        let balances = rows.iter().map(|row| {
            let (cents, events): (i64, i64) = (row.try_get(1)?, row.try_get(2)?);
            Ok((row.try_get(0)?, Balance { cents: cents.try_into()?, events: events.try_into()? }))
        });
        balances.collect()
    }

    /// The count of events in all rows.
    pub(crate) async fn events(&self) -> Result<u64, BoxError> {
        Ok(self.balances().await?.values().map(|balance| balance.events).sum())
    }

    /// Waits until at least `events` events are counted; returns the count.
    pub(crate) async fn wait_for(&self, events: u64) -> Result<u64, BoxError> {
        let counted = async {
            loop {
                let counted = self.events().await?;
                if counted >= events {
                    return Ok(counted);
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(TIME_LIMIT, counted)
            .await
            .map_err(|_| format!("no {events} events after {TIME_LIMIT:?}"))?
    }
}
