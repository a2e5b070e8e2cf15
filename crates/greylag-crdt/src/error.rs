//! Why an operation or a merge was refused. Every error leaves the value unchanged.

/// Why two values were not merged. The value is unchanged. Source: ddata A3.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// The value belongs to another entry, whose context covers numbers used in this one; joining the two would delete
    /// data. Add its content anew (`add_all`, `put`) instead. Source: ddata K12.
    #[error("the value belongs to another entry; add its content anew instead of merging it")]
    ForeignEntry,
    /// The two values cannot be joined.
    #[error("the values cannot be joined: {0}")]
    Incompatible(String),
    /// The result would break what the type promises.
    #[error("the result would be invalid: {0}")]
    Invariant(String),
}

/// A counter's slot cannot hold the sum. The counter is unchanged. Source: ddata Y4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the counter's slot of this replica is full; it is unchanged")]
pub struct CounterOverflow;

/// A register's timestamp cannot advance any further. The register is unchanged. Source: ddata Y6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the timestamp {timestamp} cannot advance; the register is unchanged")]
pub struct ClockExhausted {
    /// The timestamp held now.
    pub timestamp: i64,
}
