//! The tokio half: connections, sessions, tasks.

mod caller;
mod calls;
pub(crate) mod client;
mod dial;
pub(crate) mod link;
mod seats;
pub(crate) mod server;
mod session;
