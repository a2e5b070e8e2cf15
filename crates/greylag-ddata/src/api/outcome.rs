//! The return types of update closures.

use std::convert::Infallible;

/// A return value of the closure of an [`update`](crate::Replicated::update): nothing, a `bool` returned by the type's
/// operation, or a `Result`, whose error refuses the update.
pub trait Outcome {
    /// The value of a successful update.
    type Value: Send + 'static;
    /// The error by which the closure refuses.
    type Error: Send + 'static;

    /// The outcome as a `Result`.
    ///
    /// # Errors
    /// The closure's own error.
    fn into_result(self) -> Result<Self::Value, Self::Error>;
}

impl<O: Send + 'static, E: Send + 'static> Outcome for Result<O, E> {
    type Value = O;
    type Error = E;

    fn into_result(self) -> Result<O, E> {
        self
    }
}

/// Outcomes that never refuse.
macro_rules! infallible {
    ($($outcome:ty),+) => {$(
        impl Outcome for $outcome {
            type Value = Self;
            type Error = Infallible;

            fn into_result(self) -> Result<Self, Infallible> {
                Ok(self)
            }
        }
    )+};
}
infallible!((), bool);
