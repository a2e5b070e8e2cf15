//! The embedded journal: the contract of `greylag-persistence` on sled, for one process at a time.
//!
//! ```
//! use greylag_core::CodecId;
//! use greylag_journal_sled::{SledJournal, SledJournalSettings};
//! use greylag_persistence::{
//!     Append, EventKind, Journal, NewEvent, PersistenceId, ReadRange, SeqNr, Under, WriterEpoch, WriterUuid,
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let directory = tempfile::tempdir()?;
//! let journal = SledJournal::open(directory.path(), SledJournalSettings::default()).await?;
//!
//! // A writer claims its id; the epoch it gets fences every earlier writer.
//! let id = PersistenceId::of("Counter", "7")?;
//! let writer_uuid = WriterUuid::from_u128(1); // random in earnest
//! let claim = journal.claim(&id, writer_uuid, Under::Seen(WriterEpoch::NONE)).await?;
//!
//! let event = NewEvent {
//!     codec_id: CodecId::JSON,
//!     manifest: "incremented".into(),
//!     schema_version: 1,
//!     kind: EventKind::Event,
//!     payload: "{}".into(),
//!     metadata: Default::default(),
//!     tags: Default::default(),
//! };
//! let append = Append { id: id.clone(), epoch: claim.epoch, writer_uuid, first: SeqNr::FIRST, events: vec![event] };
//! journal.append(append).await?; // synced to the disk, together with whatever else was waiting
//! journal.close().await?;
//!
//! let journal = SledJournal::open(directory.path(), SledJournalSettings::default()).await?;
//! assert_eq!(journal.read(&id, ReadRange::all()).await?.records.len(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! One committer thread checks every append against the head of its id and stores all appends that wait
//! in one synced batch, so they share the cost of a sync. No second process sees what one process wrote
//! while that one runs: the journal's [`Scope`](greylag_persistence::Scope) is
//! `Node`. To share it among the processes of a machine, serve it with `greylag-journal-service`.
//!
//! `docs/formats/journal-sled.md` describes what is on the disk. Source: persistence §4.3.

mod handles;
mod heads;
mod lookup;
pub mod maintenance;
mod planner;
mod queued;
mod reading;
mod reclaiming;
mod request;
mod rows;
mod settings;
mod verification;

pub use greylag_store_sled::{Disk, OpenError, StoreError, StoreSettings, StoreStats};
pub use handles::{SledChanges, SledJournal, SledOffsets, SledQueries, SledSnapshots, SledStates};
pub use settings::{Clock, SledJournalSettings};
