//! The tokio half: connections, sessions, tasks.

pub(crate) mod client;
pub(crate) mod link;
pub(crate) mod server;
mod session;
