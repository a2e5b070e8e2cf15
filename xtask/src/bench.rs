//! Runs every benchmark, one after the other.

use crate::run::{Failure, run};

/// Runs all benchmarks of the workspace; each prints its own results.
pub(crate) fn bench() -> Result<(), Failure> {
    run("cargo", &["bench", "--workspace"])
}
