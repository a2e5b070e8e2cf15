//! Levels: how many replicas have to take part in a request.
//!
//! Source: ddata R8.

use std::time::Duration;

/// How many replicas must hold an update, or a delete, before it succeeds.
///
/// At any level the change is made here first, and spreads to all replicas in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteLevel {
    /// This replica only.
    Local,
    /// `n` of all voters, including this replica if it is a voter; at least 2.
    To {
        /// The number of replicas.
        n: usize,
        /// How long to wait.
        timeout: Duration,
    },
    /// More than half of the voters.
    Majority {
        /// At least so many replicas, if there are as many; `None` for the setting `majority_min_cap`.
        min_cap: Option<usize>,
        /// How long to wait.
        timeout: Duration,
    },
    /// More than half of the voters that are neither exiting nor down, and some more.
    MajorityPlus {
        /// How many replicas more.
        additional: usize,
        /// At least so many replicas, if there are as many; `None` for the setting `majority_min_cap`.
        min_cap: Option<usize>,
        /// How long to wait.
        timeout: Duration,
    },
    /// All voters that are neither exiting nor down.
    All {
        /// How long to wait.
        timeout: Duration,
    },
}

/// How many replicas must answer a read. Their states are joined into the entry here before the read is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadLevel {
    /// This replica only.
    Local,
    /// `n` of all voters, including this replica if it is a voter; at least 2.
    From {
        /// The number of replicas.
        n: usize,
        /// How long to wait.
        timeout: Duration,
    },
    /// More than half of the voters.
    Majority {
        /// At least so many replicas, if there are as many; `None` for the setting `majority_min_cap`.
        min_cap: Option<usize>,
        /// How long to wait.
        timeout: Duration,
    },
    /// More than half of the voters that are neither exiting nor down, and some more.
    MajorityPlus {
        /// How many replicas more.
        additional: usize,
        /// At least so many replicas, if there are as many; `None` for the setting `majority_min_cap`.
        min_cap: Option<usize>,
        /// How long to wait.
        timeout: Duration,
    },
    /// All voters that are neither exiting nor down.
    All {
        /// How long to wait.
        timeout: Duration,
    },
}

/// A level of either kind, for counting replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Local,
    Count { n: usize, timeout: Duration },
    Majority { min_cap: Option<usize>, timeout: Duration },
    MajorityPlus { additional: usize, min_cap: Option<usize>, timeout: Duration },
    All { timeout: Duration },
}

macro_rules! level {
    ($level:ident, $count:ident) => {
        impl $level {
            /// More than half of the voters.
            pub const fn majority(timeout: Duration) -> Self {
                Self::Majority { min_cap: None, timeout }
            }

            /// All voters that are neither exiting nor down.
            pub const fn all(timeout: Duration) -> Self {
                Self::All { timeout }
            }
        }

        impl From<$level> for Level {
            fn from(level: $level) -> Self {
                match level {
                    $level::Local => Self::Local,
                    $level::$count { n, timeout } => Self::Count { n, timeout },
                    $level::Majority { min_cap, timeout } => Self::Majority { min_cap, timeout },
                    $level::MajorityPlus { additional, min_cap, timeout } => {
                        Self::MajorityPlus { additional, min_cap, timeout }
                    }
                    $level::All { timeout } => Self::All { timeout },
                }
            }
        }
    };
}
level!(WriteLevel, To);
level!(ReadLevel, From);

impl Level {
    /// How many of `candidates` replicas are needed.
    pub(crate) fn needed(self, candidates: usize, majority_min_cap: usize) -> usize {
        let majority = |additional: usize, min_cap: Option<usize>| {
            let wanted = (candidates / 2 + 1).saturating_add(additional).max(min_cap.unwrap_or(majority_min_cap));
            wanted.min(candidates)
        };
        match self {
            Self::Local => 1,
            Self::Count { n, .. } => n,
            Self::Majority { min_cap, .. } => majority(0, min_cap),
            Self::MajorityPlus { additional, min_cap, .. } => majority(additional, min_cap),
            Self::All { .. } => candidates,
        }
    }

    /// How long to wait; zero for the local level.
    pub(crate) fn timeout(self) -> Duration {
        match self {
            Self::Local => Duration::ZERO,
            Self::Count { timeout, .. }
            | Self::Majority { timeout, .. }
            | Self::MajorityPlus { timeout, .. }
            | Self::All { timeout } => timeout,
        }
    }

    /// Whether exiting and down voters are left out.
    pub(crate) fn only_staying(self) -> bool {
        matches!(self, Self::MajorityPlus { .. } | Self::All { .. })
    }

    pub(crate) fn is_valid(self) -> bool {
        match self {
            Self::Local => true,
            Self::Count { n, timeout } => n >= 2 && !timeout.is_zero(),
            _ => !self.timeout().is_zero(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(1);

    #[test]
    fn needed_counts() {
        let majority = |n, cap| Level::Majority { min_cap: Some(cap), timeout: T }.needed(n, 0);
        let capped: Vec<usize> = (3..=12).map(|n| majority(n, 5)).collect();
        assert_eq!(capped, [3, 4, 5, 5, 5, 5, 5, 6, 6, 7]);
        let plus = |n, additional, cap| Level::MajorityPlus { additional, min_cap: Some(cap), timeout: T }.needed(n, 0);
        assert_eq!([plus(5, 1, 0), plus(8, 2, 0), plus(11, 3, 0)], [4, 7, 9]);
        assert_eq!([plus(9, 1, 7), plus(9, 1, 10)], [7, 9]);
        assert_eq!(Level::from(ReadLevel::majority(T)).needed(9, 7), 7, "the setting is the default cap");
    }

    #[test]
    fn one_replica_is_the_local_level() {
        assert!(!Level::from(WriteLevel::To { n: 1, timeout: T }).is_valid());
        assert!(!Level::from(ReadLevel::all(Duration::ZERO)).is_valid());
    }
}
