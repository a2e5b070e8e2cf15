//! The tokio half: connections, sessions, tasks.

mod active_sessions;
mod calls;
pub(crate) mod client;
mod dial;
mod hello_guard;
pub(crate) mod link;
pub(crate) mod server;
mod session;
mod stop;
