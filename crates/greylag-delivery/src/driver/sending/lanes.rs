//! What producers send and hear on lanes of the transport: batches of frames, and the messages of consumers.

mod batches;
mod frames;
mod upstream;

pub(crate) use batches::{Addressed, Batches};
pub(super) use frames::Outgoing;
pub(super) use upstream::{LocalRegistration, open};
pub(crate) use upstream::{register, send_upstream, send_upstream_local, send_upstream_remote};
