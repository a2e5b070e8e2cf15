//! A node's end of every message: its receivers and listeners, and the messages that reach none.

pub(crate) mod chatter;
pub(crate) mod dead_letters;
pub(crate) mod endpoint;
