//! Requests made before any replica was known. Source: ddata R9.

use crate::api::level::Level;
use crate::messages::message::Message;

/// Kept for a request made before any replica was known: the replicas to ask are chosen when the first set arrives.
/// Source: ddata R9.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) level: Level,
    /// The first message to send; `None` for the full state.
    pub(super) message: Option<Message>,
}
