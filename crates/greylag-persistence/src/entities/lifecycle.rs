//! The lifecycle that both kinds of entities share: waiting commands, phases, stop, failure and restart.
//!
//! ```text
//! AwaitingPermit -> Recovering -> Running <-> Writing
//!        ^    (a failure of either)             |
//!        +---------- BackingOff <---------------+
//! ```
//! [`turns::Lifecycle`] is the common course. An entity machine gives it its [`phases::Phases`], its
//! [`mailbox::Mailbox`] and its proof of ownership, and says how it recovers, handles a command and tells its behaviour
//! of the end.
//!
//! Source: persistence §2.4, §2.6, §11.

pub(crate) mod end_answers;
pub(crate) mod input;
pub(crate) mod machine;
pub(crate) mod mailbox;
pub(crate) mod ownership_proof;
pub(crate) mod phases;
mod restarts;
mod stash;
pub(crate) mod turns;
pub(crate) mod writers;
