//! What the closure of an update may return.

use std::convert::Infallible;

/// What the closure of an [`update`](crate::Replicated::update) returns: nothing, a `bool` that the type's operation gave, or
/// a `Result`, whose error refuses the update.
pub trait Outcome {
    /// What the update yields.
    type Value: Send + 'static;
    /// Why the closure refuses.
    type Error: Send + 'static;

    /// The same as a result.
    ///
    /// # Errors
    /// The closure's own.
    fn into_result(self) -> Result<Self::Value, Self::Error>;
}

impl<O: Send + 'static, E: Send + 'static> Outcome for Result<O, E> {
    type Value = O;
    type Error = E;

    fn into_result(self) -> Result<O, E> {
        self
    }
}

/// Outcomes that refuse nothing.
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
