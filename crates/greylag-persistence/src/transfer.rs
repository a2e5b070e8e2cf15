//! Moving stores to other backends.

pub(crate) mod driver;
#[cfg(feature = "tck")]
pub(crate) mod tck;
