//! The tokio half: the listener, and the calls.

mod accept;
pub(crate) mod server;
mod service;
