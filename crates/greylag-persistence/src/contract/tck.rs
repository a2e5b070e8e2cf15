//! The cases of the stores, and what the kit is built from.

pub(crate) mod crash;
pub(crate) mod factories;
pub(crate) mod harness;
pub(crate) mod journal;
pub(crate) mod journal_fence;
pub(crate) mod journal_read;
pub(crate) mod journal_write;
pub(crate) mod offsets;
pub(crate) mod snapshots;
pub(crate) mod states;
pub(crate) mod writer;
pub(crate) mod writers;
