//! An error of the database in words for the operator, which keeps the client library's error.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::error::{advised, told};

/// An error of the database in words, perhaps with advice. Its `source()` is the client library's error, where there is
/// one.
///
/// Two errors are equal if they show the same. Cheap to clone, because every request that waits gets the same error.
#[derive(Clone)]
pub struct DatabaseError {
    text: Arc<str>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl DatabaseError {
    /// The error with all its causes and the server's code.
    pub fn told(error: tokio_postgres::Error) -> Self {
        let text = told(&error);
        Self::new(text, error)
    }

    /// As [`DatabaseError::told`], with advice.
    pub fn advised(error: tokio_postgres::Error) -> Self {
        let text = advised(&error);
        Self::new(text, error)
    }

    /// The error `source`, shown as `text`.
    pub fn new(text: impl Into<Arc<str>>, source: impl Error + Send + Sync + 'static) -> Self {
        Self { text: text.into(), source: Some(Arc::new(source)) }
    }

    /// The same error, shown as `text`.
    #[must_use]
    pub fn with_text(&self, text: impl Into<Arc<str>>) -> Self {
        Self { text: text.into(), source: self.source.clone() }
    }

    /// The text that is shown.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl From<String> for DatabaseError {
    fn from(text: String) -> Self {
        Self { text: text.into(), source: None }
    }
}

impl From<&str> for DatabaseError {
    fn from(text: &str) -> Self {
        Self { text: text.into(), source: None }
    }
}

impl fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.text, f)
    }
}

impl Error for DatabaseError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

impl PartialEq for DatabaseError {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for DatabaseError {}
