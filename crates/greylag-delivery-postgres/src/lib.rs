//! Reliable delivery's data in PostgreSQL: queues of producers, outboxes, and watermarks of entities.
//!
//! ```no_run
//! use greylag_codec::json;
//! use greylag_delivery::KvProducerQueue;
//! use greylag_delivery_postgres::PostgresQueues;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let queues = PostgresQueues::connect("host=db.example user=shop password=secret dbname=shop").await?;
//! let queue = KvProducerQueue::open(queues, "orders-node-7", Default::default())?.typed(json::<String>("order"));
//! # let _ = queue;
//! # Ok(())
//! # }
//! ```
//!
//! # An outbox
//! The application inserts a message in the transaction that writes the change to which the message belongs; both are
//! committed, or neither is. A producer then sends the message, and removes it once it is confirmed.
//!
//! ```no_run
//! use greylag_codec::json;
//! use greylag_delivery::OutboxProducerQueue;
//! use greylag_delivery_postgres::{PostgresOutboxes, insert_into_outbox};
//! use tokio_postgres::Client;
//!
//! # async fn example(mut client: Client) -> Result<(), Box<dyn std::error::Error>> {
//! let transaction = client.transaction().await?;
//! transaction.execute("insert into orders (id, cents) values ($1, $2)", &[&4711_i64, &990_i64]).await?;
//! insert_into_outbox(&transaction, "mails", "ada", &json::<String>("mail"), &"thank you".to_owned()).await?;
//! transaction.commit().await?;
//!
//! let outboxes = PostgresOutboxes::connect("host=db.example user=shop password=secret dbname=shop").await?;
//! let outbox = OutboxProducerQueue::open(outboxes, "mails", Default::default())?;
//! # let _ = outbox;
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//! - Every claim and every change is one statement, made as a whole or not at all, if the head row has the epoch under
//!   which its writer loaded. `synchronous_commit` is switched on.
//! - Messages of an outbox are numbered in the order in which they are first seen, not in the order of their inserts: a
//!   row becomes visible when its transaction commits.
//! - A call whose answer is lost has an unknown outcome, and its statement runs no longer than
//!   [`PostgresQueueSettings::call_timeout`] on the server.
//! - A store has one connection, which it opens again after any failure.
//!
//! # The tables
//! The tables are created on demand, in the first schema of the search path, if the database user may create them.
//! Otherwise let another user create them, and grant `select, insert, update, delete` on them:
//! ```sql
#![doc = include_str!("schema.sql")]
//! ```
//!
//! Source: delivery §4.4, §7.

mod dedupe;
mod error;
mod link;
mod outbox;
mod queues;
mod rows;
mod settings;

pub use dedupe::PostgresDedupe;
pub use error::PostgresDeliveryError;
pub use outbox::{INSERT_INTO_OUTBOX, InsertError, PostgresOutboxes, insert_encoded_into_outbox, insert_into_outbox};
pub use queues::PostgresQueues;
pub use settings::{PostgresQueueSettings, SettingsError};
pub use tokio_postgres;
