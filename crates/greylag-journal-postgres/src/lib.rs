//! The shared journal: the contract of `greylag-persistence` on PostgreSQL, for every node that reaches
//! the database.
//!
//! ```no_run
//! use greylag_core::CodecId;
//! use greylag_journal_postgres::{PostgresJournal, PostgresJournalSettings};
//! use greylag_persistence::{
//!     Append, EventKind, Journal, NewEvent, PersistenceId, ReadRange, Under, WriterUuid,
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let database = "host=db.example dbname=shop user=app password=secret sslmode=verify-full sslrootcert=/etc/ca.pem";
//! let journal = PostgresJournal::open(database, PostgresJournalSettings::default()).await?;
//! let _for_entities = journal.stores(); // with its snapshots, as sharding and `driver::spawn` take them
//!
//! // What an entity does underneath: claim the id, and append under the epoch of the claim.
//! let id = PersistenceId::of("Counter", "7")?;
//! let writer_uuid = WriterUuid::from_u128(1); // random in earnest
//! let seen = journal.head(&id).await?.epoch;
//! let claim = journal.claim(&id, writer_uuid, Under::Seen(seen)).await?;
//! let event = NewEvent {
//!     codec_id: CodecId::JSON,
//!     manifest: "incremented".into(),
//!     schema_version: 1,
//!     kind: EventKind::Event,
//!     payload: "{}".into(),
//!     metadata: Default::default(),
//!     tags: Default::default(),
//! };
//! let first = claim.highest.next().ok_or("this history is full")?;
//! journal.append(Append { id: id.clone(), epoch: claim.epoch, writer_uuid, first, events: vec![event] }).await?;
//! assert!(!journal.read(&id, ReadRange::all()).await?.records.is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//! - The whole contract of [`Journal`](greylag_persistence::Journal), for any number of processes: heads are
//!   rows, and one statement compares an append with its head and stores it. A second writer of an id is fenced
//!   wherever it runs.
//! - An append is said not to be stored only if that is certain. An append whose answer is lost is tried again on
//!   another connection until `append_timeout`, and recognised if it was stored; if it never is, the answer is
//!   [`Unknown`](greylag_persistence::AppendError::Unknown).
//! - A server that restarts is waited for: the journal connects again without end, with waits that grow to
//!   `max_backoff`, and its health is down meanwhile. An append that was not sent within its time is
//!   [`NotStored`](greylag_persistence::AppendError::NotStored).
//!
//! The journal relies on a server that keeps its commits. `synchronous_commit` is switched on for every connection; a
//! failover to an asynchronous replica may lose acknowledged events (an entity then meets `SnapshotAheadOfJournal`, if
//! it has a snapshot), and so may a crash with `fsync = off`.
//!
//! `examples/read-side` is a program with a table that counts each event exactly once ([`Transactional`]).
//!
//! # How appends travel
//! Each of `write_lanes` connections takes the ids of its slices. It sends all appends that wait as one statement,
//! `pipeline` statements at a time, so appends share the price of a commit, and no timer delays any. Claims, deletions
//! and snapshots have connections of their own, and so do replays; the connection of a page is given back before the
//! page is handed out. [`PostgresJournal::stats`] tells how many appends share a commit, how long a commit takes, and
//! how appends ended.
//!
//! The statement of a lane is planned once, and always finds heads by their index (`enable_seqscan = off`,
//! `plan_cache_mode = force_generic_plan`, on the lanes' connections only).
//!
//! # The tables
//! The tables are made on demand in the schema of the settings, if the user may create them. Otherwise apply
//! [`MIGRATIONS`] by hand, set [`Migrate::Refuse`], and grant the user `select, insert, update, delete`. A schema that
//! is newer than the program is refused.
//! ```sql
#![doc = include_str!("migrations/0001_journal.sql")]
#![doc = include_str!("migrations/0002_clock.sql")]
//! ```
//! `metadata` is the count of its entries, then name and content of each, every length before it as
//! four bytes, big-endian; `codec_id`, `schema_version` are unsigned numbers by their bits.
//!
//! # PostgreSQL-compatible distributed databases
//! Every call is one statement and one transaction of its own; nothing is asked that CockroachDB and
//! YugabyteDB lack, except as follows. The conformance kit has been run on PostgreSQL only: run it
//! (`greylag_persistence::tck`) against yours before you rely on it.
//!
//! | where | what differs | what to do |
//! |---|---|---|
//! | both | transactions are serialisable, or may be: 40001 is common | nothing: it is retried, after three times one id to a statement; expect a smaller throughput on hot ids |
//! | both | a commit may end in "unknown" (40003, 08007) | nothing: it counts as an unanswered try, and is asked about |
//! | both | clocks of nodes differ: a timestamp may be older than one already read | set `behind_current_time` of queries to at least the cluster's clock uncertainty (CockroachDB `--max-offset`, YugabyteDB `max_clock_skew_usec`) |
//! | both | an index that begins with a time is written at one place: a hot range | make `event_time_idx` begin with `slice`, or hash-sharded |
//! | both | advisory locks do nothing (CockroachDB), or not in older versions (YugabyteDB) | apply [`MIGRATIONS`] by hand, and set [`Migrate::Refuse`]; make sure yourself that no other process uses the schema while it is copied |
//! | YugabyteDB | tables and indexes are not made in one transaction with others | the same |
//! | both | `fillfactor` and HOT updates mean nothing | nothing |
//! | CockroachDB | `synchronous_commit` is accepted and means nothing: commits are always replicated | nothing |
//! | both | may not know how the lanes want to be planned | nothing: what is refused is left out; see that appends find `entity` by its key |
//! | CockroachDB | a statement carries at most 16 MiB by default (`sql.conn.max_read_buffer_message_size`) | raise it, or lower `max_append_bytes` and the size of snapshots |
//!
//! Source: persistence §4.4.

mod backend;
mod clock;
mod driver;
mod error;
mod lane;
mod queries;
mod schema;
mod settings;
mod sql;
mod stats;
mod stores;

pub use error::OpenError;
pub use greylag_postgres::ConfigError;
pub use queries::{PostgresChanges, PostgresQueries};
pub use schema::{MIGRATIONS, Migration, SCHEMA_TABLE};
pub use settings::{Migrate, PostgresJournalSettings, SettingsError};
pub use stats::PostgresStats;
pub use stores::{PostgresHandler, PostgresJournal, PostgresOffsets, PostgresSnapshots, PostgresStates, Transactional};
/// For transactions of the caller's own with [`PostgresOffsets::save_within`].
pub use tokio_postgres;
