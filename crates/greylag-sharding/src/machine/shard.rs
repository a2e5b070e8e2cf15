//! The entities of one shard: which of them run, wait or have the turn, and how all of them end.
//!
//! Each entity has a slot; its id leads there through an index. A message for an idle entity is
//! handled at once; for any other one it queues, and a ring of ready entities takes turns. Messages
//! are handles that the shell keeps, and handlers run in the shell: this machine only decides what
//! happens next.
//!
//! ```text
//! Deliver --> absent: Start --> Started --> Run          suspended: queue ... Resumed --> Run, Turn*
//! Failed  --> Restart --> GivenBack, Started             stop request, nothing queued: SendStop (stoppable)
//!             idle:   Run                                stop requested: kept for the next incarnation
//! Stop --> queue drained, SendStop, End, for every entity --> Stopped(leftovers)
//! ```
//!
//! Left to others: the content of messages, futures, panics (the shell); where the shard lives (the region).
//!
//! Source: sharding §4, §9.

mod incarnation;
mod lease;
mod life;
mod machine;
mod messages;
mod passivating;
mod protocol;
mod remembering;
mod stuck;
mod table;
#[cfg(test)]
mod tests;
mod timers;

pub use self::lease::{LeaseEffect, LeaseInput, ShardLease};
pub use self::machine::Shard;
pub use self::passivating::Uses;
pub use self::protocol::{Effect, Ended, Input, Notice, Outcome, Overdue, SlotId, TimerChange, Weigh};
pub use self::remembering::{InvalidTransition, Remembered, StoreUpdate};
pub(crate) use self::stuck::{SampleOutcome, StuckHandler};
pub(crate) use self::table::EntityScan;
pub use self::table::{AHEAD, Guess};
pub use self::timers::STOP_WARN_AFTER;
pub(crate) use self::timers::{Fired, RepeatSpec, Repeats};
