//! What the rest speaks of: names, ids, extractors, fingerprints, and the values that inspections and health checks yield.

pub mod error;
pub mod extractor;
pub mod fingerprint;
pub mod healthcheck;
pub mod horizon;
pub mod ids;
pub mod inspection;
pub(crate) mod key;
