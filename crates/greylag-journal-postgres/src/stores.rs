//! The stores of persistence: journal, snapshots, durable states and offsets, over one [`Backend`](crate::backend).

mod journal;
mod offsets;
mod snapshots;
mod states;
mod transactional;
mod transfer;

pub use journal::PostgresJournal;
pub use offsets::PostgresOffsets;
pub use snapshots::PostgresSnapshots;
pub use states::PostgresStates;
pub use transactional::{PostgresHandler, Transactional};
