//! Sharding on one node: its entity types, and the handle of its users.

pub(super) mod handle;
pub(super) mod init_error;
pub(super) mod members;
pub(super) mod readiness;
pub(super) mod removal;
#[cfg(test)]
mod tests;
pub(super) mod types;
