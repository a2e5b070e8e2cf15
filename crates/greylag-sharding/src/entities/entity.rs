//! Plain entities: synchronous handlers whose state lives as long as their incarnation.
//!
//! A shard calls its entities one at a time and never re-enters one. Work that has to wait is started through the
//! [`Ctx`](crate::Ctx), and its result comes back as a message. Requests of a handler to its context take effect when
//! the handler returns.
//!
//! ```text
//! first message --> factory --> on_start --> receive* --> on_signal(PostStop)
//! ```
//!
//! Source: sharding §1.2, §4.

mod backoff;
mod behavior;
mod ctx;
mod failure;
mod init;
mod plain;

pub use greylag_core::TimerKey;

pub use self::backoff::Backoff;
pub(crate) use self::backoff::Failures;
pub use self::behavior::Entity;
pub use self::ctx::EntityCtx;
pub use self::failure::{Decider, Directive, Failure, FailureCause, Supervision, Verdict};
pub use self::init::EntityInit;
pub(crate) use self::plain::PlainEntity;
pub use crate::host::Signal;
