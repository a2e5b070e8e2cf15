//! The error of programs: any error of any layer, printed as a sentence.

use std::fmt;

/// The result of a `main` that uses `?` on the errors of all layers: `async fn main() -> greylag::Result`.
pub type Result<T = ()> = std::result::Result<T, Error>;

/// Any error, of any layer or of the program's own. `Debug` prints its sentence with the causes, because a `main` that
/// returns an error prints it by `Debug`. It converts from every error, so it cannot implement `std::error::Error`;
/// [`Error::as_error`] gives the error inside.
pub struct Error(Box<dyn std::error::Error + Send + Sync>);

impl Error {
    /// An error with this text.
    pub fn new(words: impl Into<String>) -> Self {
        Self(words.into().into())
    }

    /// The error inside.
    pub fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        &*self.0
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Error {
    fn from(error: E) -> Self {
        Self(Box::new(error))
    }
}

impl From<Error> for Box<dyn std::error::Error + Send + Sync> {
    fn from(error: Error) -> Self {
        error.0
    }
}

impl From<Error> for Box<dyn std::error::Error> {
    fn from(error: Error) -> Self {
        error.0
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        greylag_core::fmt_sentence(&*self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_any_layer_is_printed_as_its_sentence() {
        let read = || -> Result<u16> { Ok("many".parse::<u16>()?) };
        let error = read().unwrap_err();
        assert_eq!(format!("{error:?}"), "invalid digit found in string");
        assert!(error.as_error().is::<std::num::ParseIntError>());
        assert_eq!(format!("{:?}", Error::new("no geese")), "no geese");
    }
}
