//! How changes reach other replicas: the log of own changes, and rounds of anti-entropy, which repair every loss.

pub(crate) mod delta_log;
pub(crate) mod repair;
pub(crate) mod sync;
