//! Why a journal cannot be opened, split by what to do about it.

use std::fmt;
use std::time::Duration;

use greylag_postgres::{ConfigError, ConnectError, DatabaseError};

use crate::settings::SettingsError;

/// Why the journal could not be opened. Nothing was written, except by a migration.
#[derive(thiserror::Error)]
pub enum OpenError {
    /// A setting is invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The connection string is invalid.
    #[error("the journal database cannot be named: {0}")]
    Config(#[from] ConfigError),
    /// There is no connection, or the schema does not fit. The text says what to do about it.
    #[error("the journal database at {place} cannot be used: {cause}")]
    Unavailable {
        /// Address of the database, without the password.
        place: String,
        /// Error of the server, and advice.
        #[source]
        cause: DatabaseError,
    },
    /// The journal was to be opened for this process alone, and other processes use it.
    #[error("schema {schema:?} at {place} is in use: {by}; stop the processes that use it")]
    InUse {
        /// Address of the database, without the password.
        place: String,
        /// Name of the schema.
        schema: String,
        /// The connections that use the schema, as far as the server tells.
        by: String,
    },
}

impl fmt::Debug for OpenError {
    /// The sentence of the error. That of `Unavailable` has the texts of all its sources already.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable { .. } => fmt::Display::fmt(self, f),
            _ => greylag_core::fmt_sentence(self, f),
        }
    }
}

/// Why the schema cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SchemaError {
    #[error(
        "its schema has version {found}, and this program knows versions up to {known}; start the newer version of the program"
    )]
    Newer { found: i32, known: i32 },
    #[error(
        "schema {schema:?} has version {found}, this program needs {known}, and migrate is refuse; apply the \
         migrations, or set migrate to apply"
    )]
    Older { schema: String, found: i32, known: i32 },
    #[error(transparent)]
    Failed(#[from] tokio_postgres::Error),
}

impl SchemaError {
    /// The error in words, with advice.
    pub(crate) fn advised(self) -> DatabaseError {
        match self {
            Self::Failed(error) => DatabaseError::advised(error),
            other => DatabaseError::new(other.to_string(), other),
        }
    }
}

/// A failure to connect, with advice.
pub(crate) fn not_connected(error: ConnectError) -> DatabaseError {
    match error {
        ConnectError::Config(error) => DatabaseError::new(error.to_string(), error),
        ConnectError::Failed(error) => DatabaseError::advised(error),
    }
}

/// A failure to connect within `limit`.
pub(crate) fn not_connected_within(limit: Duration) -> DatabaseError {
    format!("no connection within {limit:?}; check host, port and network").into()
}
