//! The called side: accepts connections, judges their callers, answers Hellos, and reads streams.
//!
//! ```text
//! accept --admission--> TLS --> HTTP/2 --answer--> Hello judged --reader--> workers
//! ```

mod accept;
mod admission;
mod answer;
mod caller;
mod caller_slots;
mod connection_guard;
mod connection_runtime;
mod dropping_callers;
mod opening;
mod reader;
mod violation;

pub(crate) use accept::serve;
pub(crate) use admission::ConnectionAdmission;
pub(crate) use caller_slots::CallerSlots;
pub(crate) use dropping_callers::drop_callers;
