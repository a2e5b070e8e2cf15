//! One entity with a durable state as a pure machine: read the state, then commands.
//!
//! ```text
//! AwaitingPermit -> Loading -> Running <-> Persisting
//!        ^    (a failure of either)            |
//!        +---------- BackingOff <--------------+
//! ```
//! There is no claim: the revision is the fence. A write names the revision that it makes, so if another
//! writer wrote since this entity read, this entity's write is a mismatch and the entity ends as fenced.
//! Handlers see a new state only after it is stored, so a refused write leaves nothing to repair.
//!
//! Stash, failures and side effects are those of [`EntityCore`](crate::EntityCore), in the same parts.
//! Source: persistence §3.

mod core;
mod fence;

pub use core::{StateAnswer, StateCall, StateEntityCore, StateEntityInit, StatePhase};
