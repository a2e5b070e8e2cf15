//! The tokio half: the listener, and the calls.

mod other_port;
pub(crate) mod server;
mod service;
mod stopping;
