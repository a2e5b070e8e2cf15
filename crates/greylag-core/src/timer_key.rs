//! How an entity names its timers.

/// The name of a timer within one entity. Source: sharding §4.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimerKey {
    /// A timer of which the entity has one.
    Name(&'static str),
    /// One timer of many, told apart by a number.
    Number(u64),
}

impl From<&'static str> for TimerKey {
    fn from(name: &'static str) -> Self {
        Self::Name(name)
    }
}

impl From<u64> for TimerKey {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}
