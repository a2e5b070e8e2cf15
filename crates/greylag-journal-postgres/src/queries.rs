//! Reads of many events and states: one history, events across histories, and changes of durable states.

mod changes;
mod events;
pub(crate) mod history;
mod pages;

pub use changes::PostgresChanges;
pub use events::PostgresQueries;
