//! How the events and snapshots of a history are marked, and named to people.

/// The record formats of a kind of history, and its error texts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Format {
    /// The kind of history, for error texts.
    pub(crate) what: &'static str,
    /// Manifest of an event.
    pub(crate) event: &'static str,
    /// Manifest of a snapshot.
    pub(crate) snapshot: &'static str,
    /// Version of events and snapshots.
    pub(crate) version: u32,
    /// Advice for an operator about a history that cannot be read.
    pub(crate) advice: &'static str,
}
