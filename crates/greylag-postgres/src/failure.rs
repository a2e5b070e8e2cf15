//! The meaning of a statement's error: whether the statement was done, and what may help.

use tokio_postgres::error::SqlState;

use crate::error::{advised, told};

/// Why a statement failed, split by whether it was done. Each variant holds the error text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The statement never left this process.
    NotSent(String),
    /// Certainly rolled back; the next try may pass.
    RolledBack(String),
    /// Certainly not done, nor by any other try on this connection: the server is read-only.
    Elsewhere(String),
    /// The outcome is unknown: the statement may have been done, and the connection must be dropped.
    Unanswered(String),
    /// Certainly not done: no room on the disk.
    StorageLow(String),
    /// Certainly not done: a row with the same unique key exists.
    Taken(String),
    /// Certainly not done, for another reason, which will stay.
    Refused(String),
}

impl Failure {
    /// The meaning of the error of a statement that was sent. Source: persistence §4.4.
    pub fn of(error: &tokio_postgres::Error) -> Self {
        match error.code() {
            // An error of the library itself: mostly a broken connection. Its refusals to encode count as unclear, too.
            None => Self::Unanswered(advised(error)),
            Some(state) => Self::of_state(state, told(error)),
        }
    }

    fn of_state(state: &SqlState, told: String) -> Self {
        match state.code() {
            // CockroachDB and two-phase commits: "statement completion unknown", "transaction resolution unknown".
            "40003" | "08007" => Self::Unanswered(told),
            // 40001 serialisation, 40P01 deadlock, 55P03 lock not available, 57014 cancelled by a timeout,
            // 53200 out of memory, 53300 too many connections.
            "40001" | "40P01" | "55P03" | "57014" | "53200" | "53300" => Self::RolledBack(told),
            "25006" => Self::Elsewhere(told),
            "53100" => Self::StorageLow(told),
            "23505" => Self::Taken(told),
            code if code.starts_with("57P0") || code.starts_with("08") => Self::Unanswered(told),
            _ => Self::Refused(told),
        }
    }

    /// The error text.
    pub fn words(&self) -> &str {
        match self {
            Self::NotSent(words)
            | Self::RolledBack(words)
            | Self::Elsewhere(words)
            | Self::Unanswered(words)
            | Self::StorageLow(words)
            | Self::Taken(words)
            | Self::Refused(words) => words,
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
        let of = |code| Failure::of_state(&SqlState::from_code(code), String::new());
        let none = String::new;
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
