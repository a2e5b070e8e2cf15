//! The vocabulary of a replicator: what its callers and its driver tell it, what it answers, and how it is set.

pub(crate) mod effect;
pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod input;
pub(crate) mod key;
pub(crate) mod level;
pub(crate) mod metrics;
pub(crate) mod outcome;
pub(crate) mod read;
pub(crate) mod settings;
pub(crate) mod stash;
pub(crate) mod stats;
