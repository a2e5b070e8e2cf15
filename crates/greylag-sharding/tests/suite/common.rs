//! What several test files use.

pub(crate) mod machines;
pub(crate) mod nodes;
