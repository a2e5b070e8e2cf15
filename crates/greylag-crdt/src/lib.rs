//! Conflict-free replicated data types over one causal kernel, with deltas that are joins.
