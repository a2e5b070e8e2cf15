//! Control messages that must not be lost: numbered, acknowledged, sent again.
//!
//! One [`ReliableSender`] and one [`ReliableReceiver`] per peer address. Numbers begin at 1 with
//! every incarnation of the peer and survive streams: unacknowledged messages are written again on
//! the next stream, and every resend interval. The receiver takes only the number it expects, so
//! each message is delivered once and in order, even if streams lose, double or reorder frames.
//!
//! ```text
//! sender                         receiver
//!   Reliable{1} ----------------->  1 is expected: deliver   <-- Ack{1}
//!   Reliable{2} ------ lost
//!   Reliable{3} ----------------->  2 is expected: drop      <-- Nack{1}
//!   Reliable{2}, Reliable{3} ---->  deliver, deliver         <-- Ack{2}, Ack{3}
//! ```
//!
//! Both halves remember how far the numbers of a replaced incarnation had come: an incarnation that was replaced in
//! error continues there, and messages dropped meanwhile count as given up.
//!
//! The number of a message that a sender gives up is not used again: the receiver is told to skip the number, so that
//! later messages are delivered all the same.
//!
//! Source: cluster T15, T28, T29.

/// Incarnations of an address whose numbers are remembered, in case one was replaced in error.
const MAX_FORMER: usize = 64;

mod receiver;
mod sender;

pub use receiver::{ReceiverEffect, ReceiverInput, ReliableReceiver};
pub use sender::{ReliableSender, SenderEffect, SenderInput};
