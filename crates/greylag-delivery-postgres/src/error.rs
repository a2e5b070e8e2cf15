//! Why the database did not do what it was asked.

use greylag_postgres::{ConfigError, ConnectError, Failure, advised};

use crate::settings::SettingsError;

/// Why the database of delivery cannot be used, split by what is to be done about it.
#[derive(thiserror::Error)]
pub enum PostgresDeliveryError {
    /// A setting cannot be meant.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The connection string cannot be used.
    #[error("the delivery database cannot be named: {0}")]
    Config(#[from] ConfigError),
    /// There is no connection, or the tables are not there. The text says what helps. Nothing was done.
    #[error("the delivery database at {place} cannot be used: {cause}")]
    Unavailable {
        /// Where.
        place: String,
        /// What was said.
        cause: String,
    },
    /// The server refused the statement, which was not done.
    #[error("the delivery database at {place} refuses a statement: {cause}")]
    Refused {
        /// Where.
        place: String,
        /// What was said.
        cause: String,
    },
    /// The answer was lost: the statement may be done or not.
    #[error("the delivery database at {place} did not answer: {cause}")]
    Unanswered {
        /// Where.
        place: String,
        /// What was said.
        cause: String,
    },
}

greylag_core::debug_is_sentence!(PostgresDeliveryError);

impl PostgresDeliveryError {
    /// What it means that a statement gave nothing.
    pub(crate) fn of(place: String, failure: &Failure) -> Self {
        let cause = failure.words().to_owned();
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
            ConnectError::Failed(error) => Self::Unavailable { place, cause: advised(&error) },
        }
    }
}
