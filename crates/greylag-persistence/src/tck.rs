//! The public conformance kit: one call checks a backend.
//!
//! Every rule of [`Journal`](crate::Journal), [`SnapshotStore`](crate::SnapshotStore),
//! [`StateStore`](crate::StateStore), [`OffsetStore`](crate::OffsetStore) and [`EventQueries`](crate::EventQueries),
//! over events and over changes of states, is a case with its number in the specification and a name. A backend gives a
//! factory; hooks for operations that only the backend itself has (break a stored byte, turn its clock back, lose an
//! answer) are optional, and a case that lacks its hook is reported as skipped, never as passed.
//!
//! ```
//! use std::sync::Arc;
//! use greylag_persistence::{InMemoryJournal, Journal, tck};
//!
//! # futures::FutureExt::now_or_never(async {
//! let open = || async { Arc::new(InMemoryJournal::default()) as Arc<dyn Journal> };
//! tck::journal(&open, tck::Flags::default()).await.assert_conforms();
//! # }).expect("memory never waits");
//! ```
//!
//! [`writers`] goes beyond single rules: it plays two writers of one id in every interleaving.
//!
//! The kit needs no runtime of its own: run it in the runtime that the backend needs. Source: persistence §4.5.

mod changes;
mod crash;
mod factories;
mod harness;
mod journal;
mod journal_fence;
mod journal_read;
mod journal_write;
mod offsets;
mod projecting;
mod queries;
mod snapshots;
mod states;
mod streams;
mod transfer;
mod writer;
mod writers;

pub use changes::changes;
pub use crash::{CrashFactory, CrashStores, crash};
pub use factories::{
    ChangeFactory, JournalFactory, OffsetFactory, QueryFactory, SnapshotFactory, StateFactory, TransferFactory,
};
pub use harness::{Flags, Outcome, Report};
pub use journal::journal;
pub use offsets::offsets;
pub use queries::queries;
pub use snapshots::snapshots;
pub use states::states;
pub use transfer::transfer;
pub use writers::writers;
