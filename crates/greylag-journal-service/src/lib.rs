//! One journal, served over gRPC by one process to others. **It is one machine and one disk: not highly available.**
//! While the serving process is down no client can write; if its disk is lost, so is everything written. With the
//! service several processes of *one* machine share a journal; across machines, use a distributed journal.
//!
//! ```
//! use greylag_journal_service::{ClientSettings, JournalClient, JournalServer, ServerSettings};
//! use greylag_journal_sled::{SledJournal, SledJournalSettings};
//! use greylag_persistence::{Journal, PersistenceId, Scope, Under, WriterEpoch, WriterUuid};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The process that has the disk:
//! let directory = tempfile::tempdir()?;
//! let disk = SledJournal::open(directory.path(), SledJournalSettings::default()).await?;
//! let server = JournalServer::bind("127.0.0.1:0".parse()?, disk.stores(), ServerSettings::default()).await?;
//!
//! // Every other one:
//! let address = server.local_address().to_string();
//! let client = JournalClient::connect(&address, ClientSettings::default()).await?;
//! let journal = client.journal();
//! assert_eq!(journal.caps().scope, Scope::Shared);
//! let id = PersistenceId::of("Counter", "7")?;
//! let claim = journal.claim(&id, WriterUuid::from_u128(1), Under::Seen(WriterEpoch::NONE)).await?;
//! assert_eq!(claim.epoch, WriterEpoch::from_u64(1));
//!
//! server.shutdown().await;
//! disk.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! ```text
//! client A ─ appends ─▶ frame ─┐                       ┌─▶ one group commit, one sync
//! client B ─ appends ─▶ frame ─┼─▶ session ─▶ journal ─┤
//! client C ─ appends ─▶ frame ─┘                       └─▶ answers, many to a frame
//! ```
//! - The client implements the traits call for call; heads, claims, comparison and group commit are the server's, over
//!   the appends of all clients. So the fence holds between clients.
//! - A call is encoded once and shares a frame with all other calls that wait.
//! - After a lost connection everything unanswered is sent again (J10), in order, until `append_timeout`; only then is
//!   a write `Unknown`. `NotStored` is said only of calls that were never sent, or whose only try the server refused.
//!   The server ends a client's old session before it begins the new one, so no call of the old session is carried out
//!   later.
//! - A [`Served`] names further stores besides journal and snapshots: durable states, offsets of projections, queries
//!   of events and of changes of states. Pages are pulled one by one, and are cut to the size of a frame.
//! - The transport's TLS settings hold here too ([`ServerSettings::tls`], [`ClientSettings::tls`]): both
//!   ends show a certificate. Without them the server listens on loopback addresses only.
//!
//! Source: persistence §4.4a.

mod driver;
mod error;
mod outbox;
mod served;
mod settings;
mod wire;

#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic)]
mod generated;

pub use driver::client::{
    JournalClient, ServiceJournal, ServiceOffsets, ServiceQueries, ServiceSnapshots, ServiceStates,
};
pub use driver::server::JournalServer;
pub use greylag_transport::{Tls, TlsSettings};

pub use error::{BindError, ConnectError, SettingsError};
pub use served::Served;
pub use settings::{ClientSettings, ServerSettings};

/// The version of the protocol that this crate implements.
pub const VERSION: u32 = 1;
