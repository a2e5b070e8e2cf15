//! The way of a message from its sender into a queue, and what senders wait for: room, a flush, an answer.

mod ask_timer;
mod flushes;
mod largest;
mod path;
mod reply_port;

pub(crate) use ask_timer::AskTimer;
pub(crate) use flushes::{Flushes, Mark};
pub(crate) use largest::LargestMessages;
pub(crate) use reply_port::SharedPort;
