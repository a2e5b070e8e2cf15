//! The tokio half: the listener, and the calls.

pub(crate) mod server;
mod service;
