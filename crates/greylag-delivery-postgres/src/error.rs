//! Errors of the delivery database.

use greylag_postgres::{ConfigError, ConnectError, DatabaseError, Failure};

use crate::settings::SettingsError;

/// Why the delivery database cannot be used; one variant per kind of remedy.
#[derive(thiserror::Error)]
pub enum PostgresDeliveryError {
    /// A setting is invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The connection string is invalid.
    #[error("invalid connection string: {0}")]
    Config(#[from] ConfigError),
    /// There is no connection, or tables are missing. The text names a remedy. The statement was not run.
    #[error("the delivery database at {place} cannot be used: {cause}")]
    Unavailable {
        /// Address of the database, without the password.
        place: String,
        /// The error of the server or the connection, with a remedy.
        #[source]
        cause: DatabaseError,
    },
    /// The server refused the statement, which had no effect.
    #[error("the delivery database at {place} refuses a statement: {cause}")]
    Refused {
        /// Address of the database, without the password.
        place: String,
        /// The error of the server.
        #[source]
        cause: DatabaseError,
    },
    /// The answer was lost: the statement may have been run or not.
    #[error("the delivery database at {place} did not answer: {cause}")]
    Unanswered {
        /// Address of the database, without the password.
        place: String,
        /// The error of the connection.
        #[source]
        cause: DatabaseError,
    },
}

greylag_core::debug_is_sentence!(PostgresDeliveryError);

impl PostgresDeliveryError {
    /// Converts the failure of a statement.
    pub(crate) fn of(place: String, failure: &Failure) -> Self {
        let cause = failure.error().clone();
        match failure {
            Failure::NotSent(_) | Failure::RolledBack(_) | Failure::Elsewhere(_) | Failure::StorageLow(_) => {
                Self::Unavailable { place, cause }
            }
            Failure::Unanswered(_) => Self::Unanswered { place, cause },
            Failure::Taken(_) | Failure::Refused(_) => Self::Refused { place, cause },
        }
    }

    pub(crate) fn not_connected(place: String, error: ConnectError) -> Self {
        match error {
            ConnectError::Config(error) => Self::Config(error),
            ConnectError::Failed(error) => Self::Unavailable { place, cause: DatabaseError::advised(error) },
        }
    }
}
