//! The group commit: requests wait in a queue, one thread plans groups of them, another makes the groups durable and
//! answers, and a watchdog finds what hangs.

mod committer;
mod finisher;
mod group_sizing;
mod queue;
mod shared;
mod watchdog;

pub(crate) use committer::start;
pub(crate) use shared::StoreInner;
