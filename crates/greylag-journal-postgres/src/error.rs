//! Why a journal is not open, split by what is to be done about it.

use std::time::Duration;

use greylag_postgres::{ConfigError, ConnectError, advised};

use crate::settings::SettingsError;

/// Why the journal could not be opened. Nothing was written, unless a migration was.
#[derive(thiserror::Error)]
pub enum OpenError {
    /// A setting cannot be meant.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The connection string cannot be used.
    #[error("the journal database cannot be named: {0}")]
    Config(#[from] ConfigError),
    /// There is no connection, or the schema does not fit. The text says what to do about it.
    #[error("the journal database at {place} cannot be used: {cause}")]
    Unavailable {
        /// Where.
        place: String,
        /// What it said, and what helps.
        cause: String,
    },
    /// The journal was to be opened for this process alone, and other processes use it.
    #[error("schema {schema:?} at {place} is in use: {by}; stop the processes that use it")]
    InUse {
        /// Where.
        place: String,
        /// The schema.
        schema: String,
        /// The connections that use it, as far as the server tells.
        by: String,
    },
}

greylag_core::debug_is_sentence!(OpenError);

/// Why the schema cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SchemaError {
    #[error(
        "its schema has version {found}, and this program knows {known}; start the newer program, whose data it is"
    )]
    Newer { found: i32, known: i32 },
    #[error(
        "schema {schema:?} has version {found}, this program needs {known}, and is told not to migrate; apply the \
         migrations, or set migrate to apply"
    )]
    Older { schema: String, found: i32, known: i32 },
    #[error(transparent)]
    Failed(#[from] tokio_postgres::Error),
}

impl SchemaError {
    pub(crate) fn advice(&self) -> String {
        match self {
            Self::Failed(error) => advised(error),
            other => other.to_string(),
        }
    }
}

/// What went wrong when connecting, and what helps.
pub(crate) fn not_connected(error: &ConnectError) -> String {
    match error {
        ConnectError::Config(error) => error.to_string(),
        ConnectError::Failed(error) => advised(error),
    }
}

/// No connection in this time.
pub(crate) fn not_connected_within(limit: Duration) -> String {
    format!("no connection within {limit:?}; check host, port and network")
}
