//! What tests and proofs outside of this crate use.

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub(crate) mod omissions;
pub(crate) mod side_by_side;
#[cfg(feature = "tck")]
pub mod tck;
