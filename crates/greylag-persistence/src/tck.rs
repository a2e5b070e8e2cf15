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

pub use crate::contract::tck::crash::{CrashFactory, CrashStores, crash};
pub use crate::contract::tck::factories::{
    ChangeFactory, JournalFactory, OffsetFactory, QueryFactory, SnapshotFactory, StateFactory,
};
pub use crate::contract::tck::harness::{Flags, Outcome, Report};
pub use crate::contract::tck::journal::journal;
pub use crate::contract::tck::offsets::offsets;
pub use crate::contract::tck::snapshots::snapshots;
pub use crate::contract::tck::states::states;
pub use crate::contract::tck::writers::writers;
pub use crate::reading::tck::changes::changes;
pub use crate::reading::tck::queries::queries;
pub use crate::transfer::tck::{TransferFactory, transfer};
