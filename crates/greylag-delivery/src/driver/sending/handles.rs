//! The handles of producers: what applications send by, and what they hold of a message or of reserved room.

mod command_sender;
mod handle;
mod permit;
mod request_next;
mod sent;
mod sink;

pub(super) use command_sender::Room;
pub(super) use handle::Inbox;
pub(crate) use handle::{Sending, WeakSending};
pub(crate) use permit::Permit;
pub use request_next::RequestNext;
pub use sent::Sent;
pub use sink::ProducerSink;
pub(crate) use sink::SinkState;
