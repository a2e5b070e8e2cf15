//! The handles of a journal and of the stores that share its directory.

mod changes;
mod inner;
mod journal;
mod offsets;
mod queries;
mod snapshots;
mod states;
mod transfer;

pub use changes::SledChanges;
pub use journal::SledJournal;
pub use offsets::SledOffsets;
pub use queries::SledQueries;
pub use snapshots::SledSnapshots;
pub use states::SledStates;
