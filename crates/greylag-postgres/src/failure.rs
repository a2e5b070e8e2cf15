//! The meaning of a statement's error: whether the statement was done, and what may help.

use tokio_postgres::error::SqlState;

use crate::database_error::DatabaseError;

/// Why a statement failed, split by whether it was done. Each variant holds the error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The statement never left this process.
    NotSent(DatabaseError),
    /// Certainly rolled back; the next try may pass.
    RolledBack(DatabaseError),
    /// Certainly not done, nor by any other try on this connection: the server is read-only.
    Elsewhere(DatabaseError),
    /// The outcome is unknown: the statement may have been done, and the connection must be dropped.
    Unanswered(DatabaseError),
    /// Certainly not done: no room on the disk.
    StorageLow(DatabaseError),
    /// Certainly not done: a row with the same unique key exists.
    Taken(DatabaseError),
    /// Certainly not done, for another reason, which will stay.
    Refused(DatabaseError),
}

impl Failure {
    /// The meaning of the error of a statement that was sent. Source: persistence §4.4.
    pub fn of(error: tokio_postgres::Error) -> Self {
        match error.code() {
            // An error of the library itself: mostly a broken connection. Its refusals to encode count as unclear, too.
            None => Self::Unanswered(DatabaseError::advised(error)),
            Some(state) => Self::of_state(state)(DatabaseError::told(error)),
        }
    }

    /// The meaning of an error with this code.
    fn of_state(state: &SqlState) -> fn(DatabaseError) -> Self {
        match state.code() {
            // CockroachDB and two-phase commits: "statement completion unknown", "transaction resolution unknown".
            "40003" | "08007" => Self::Unanswered,
            // 40001 serialisation, 40P01 deadlock, 55P03 lock not available, 57014 cancelled by a timeout,
            // 53200 out of memory, 53300 too many connections.
            "40001" | "40P01" | "55P03" | "57014" | "53200" | "53300" => Self::RolledBack,
            "25006" => Self::Elsewhere,
            "53100" => Self::StorageLow,
            "23505" => Self::Taken,
            code if code.starts_with("57P0") || code.starts_with("08") => Self::Unanswered,
            _ => Self::Refused,
        }
    }

    /// Whether a try after an error with this code may succeed: see [`Failure::may_pass`].
    pub fn may_pass_after(state: &SqlState) -> bool {
        Self::of_state(state)(DatabaseError::from("")).may_pass()
    }

    /// The error.
    pub fn error(&self) -> &DatabaseError {
        match self {
            Self::NotSent(error)
            | Self::RolledBack(error)
            | Self::Elsewhere(error)
            | Self::Unanswered(error)
            | Self::StorageLow(error)
            | Self::Taken(error)
            | Self::Refused(error) => error,
        }
    }

    /// Whether the connection must be dropped.
    pub fn ends_connection(&self) -> bool {
        matches!(self, Self::NotSent(_) | Self::Elsewhere(_) | Self::Unanswered(_))
    }

    /// Whether the next try may succeed, so that a call that may be repeated should be.
    pub fn may_pass(&self) -> bool {
        self.ends_connection() || matches!(self, Self::RolledBack(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The codes in the table of persistence §4.4.
    #[test]
    fn codes_mean_what_the_specification_says() {
        let none = || DatabaseError::from("");
        let of = |code| Failure::of_state(&SqlState::from_code(code))(none());
        for code in ["40001", "40P01", "57014", "55P03", "53200", "53300"] {
            assert_eq!(of(code), Failure::RolledBack(none()), "{code}");
        }
        for code in ["57P01", "57P02", "57P03", "08006", "08007", "40003"] {
            assert_eq!(of(code), Failure::Unanswered(none()), "{code}");
        }
        assert_eq!(of("53100"), Failure::StorageLow(none()));
        assert_eq!(of("23505"), Failure::Taken(none()));
        assert_eq!(of("25006"), Failure::Elsewhere(none()));
        for code in ["42501", "42P01", "22021", "XX000"] {
            assert_eq!(of(code), Failure::Refused(none()), "{code}");
        }
    }
}
