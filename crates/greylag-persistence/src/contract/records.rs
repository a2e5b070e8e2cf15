//! What stores keep: events, snapshots and durable states of ids, encoded, with checksums.

pub(crate) mod checksum;
pub(crate) mod codec;
pub(crate) mod event;
pub(crate) mod persistence_id;
pub(crate) mod revision;
pub(crate) mod snapshot;
pub(crate) mod state;
