//! The orderly end of a node: its phases, and the tasks in them.

pub(super) mod shutdown;
pub(super) mod tasks;

pub use tasks::{RunningHere, Runs};
