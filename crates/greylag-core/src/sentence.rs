//! How an error is printed where a program returns it from `main`.
//!
//! `main` prints the `Debug` of the error it returns, and so does `unwrap`. For the errors that a newcomer meets first
//! (of settings, and of everything that is started), `Debug` is therefore the sentence of `Display` with its causes.

use std::error::Error;
use std::fmt;

/// Writes the [`Display`](fmt::Display) text of an error, and of each source that the text does not contain already.
/// Use it as the body of `Debug` where [`debug_is_sentence!`](crate::debug_is_sentence) does not fit.
///
/// # Errors
/// The errors of the formatter.
pub fn fmt_sentence(error: &dyn Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        source = cause.source();
    }
    f.write_str(&text)
}

/// Implements `Debug` for errors as their sentence, by [`fmt_sentence`]: a `main` that returns one then prints what
/// went wrong, and no row of braces.
///
/// ```
/// /// Why nothing was started.
/// #[derive(thiserror::Error)]
/// #[error("nothing was started")]
/// struct NotStarted(#[source] std::num::ParseIntError);
/// greylag_core::debug_is_sentence!(NotStarted);
///
/// let error = NotStarted("many".parse::<u32>().unwrap_err());
/// assert_eq!(format!("{error:?}"), "nothing was started: invalid digit found in string");
/// ```
#[macro_export]
macro_rules! debug_is_sentence {
    ($($error:ty),+ $(,)?) => {$(
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                $crate::fmt_sentence(self, f)
            }
        }
    )+};
}
