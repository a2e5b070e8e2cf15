//! What several test files use.

pub(crate) mod cell;
pub(crate) mod counted;
pub(crate) mod counter;
pub(crate) mod log;
pub(crate) mod memory;
pub(crate) mod outbox;
pub(crate) mod panics;
pub(crate) mod record;
pub(crate) mod timed;
