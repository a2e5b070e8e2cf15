//! The common part of all producers: the handles by which applications send, and the task behind them.
//!
//! A message is encoded by its caller, unless it stays on its node, and is sent to the task with a number of its own,
//! the *ticket*; the task's answers refer to the ticket. The three kinds of producer differ in the target of a message
//! ([`Address`]), and in the machine and the routing of its frames ([`Engine`]).
//!
//! ```text
//! send ─▶ encode ─▶ command sender ─ Admit ─▶ task ─▶ engine: machine ─ Accepted | Refused ─▶ task ─▶ replies ─▶ answer
//! request_next ─▶ command sender ─ Reserve ─▶ … ─ Permitted ─▶ permit ─ Admit ─▶ …
//! ```
//!
//! Source: delivery §6, P11 to P13.

mod command;
mod encoding;
mod handles;
mod lanes;
mod links;
mod running;
mod shared;

use std::time::Instant;

pub(crate) use command::{Address, Granted, OutgoingMessage, PublishedState};
pub(crate) use encoding::Encoding;
pub(crate) use handles::{Permit, Sending, SinkState, WeakSending};
pub use handles::{ProducerSink, RequestNext, Sent};
pub(crate) use lanes::{Addressed, Batches, register, send_upstream, send_upstream_local, send_upstream_remote};
pub(crate) use links::{Links, PublishedLinks};
pub(crate) use running::{Base, Engine, Input, MessageStorage, Outcome, spawn};

/// The present instant of tokio's clock.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
