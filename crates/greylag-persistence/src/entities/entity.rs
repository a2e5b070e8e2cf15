//! One event-sourced entity as a pure machine: claim, snapshot, replay, then commands.
//!
//! ```text
//! AwaitingPermit -> Claiming -> LoadingSnapshot -> Replaying -> Running <-> Persisting
//!        ^                (any failure of recovery or append)                  |
//!        +--------------------------- BackingOff <----------------------------+
//! ```
//! While the entity recovers or persists, commands wait in the internal stash, so a handler only ever sees durable
//! state. Every handler that `handle` calls is guarded (`start` asks the behaviour for its settings and its tracker,
//! unguarded): a panic becomes [`Action::Failed`](crate::Action::Failed), and the host needs no `catch_unwind` of its
//! own. The machine holds no socket, clock or task; the host performs its [`Action`](crate::Action)s and gives it their
//! answers.
//!
//! Source: persistence §2, §11.

mod core;
mod deliveries;
mod fence;
mod history;
mod pending_append;
mod persisting;
mod recovery;
mod refills;
pub(crate) mod replay_filter;
mod snapshots;

pub use core::{EntityCore, EntityInit, PhaseName};
