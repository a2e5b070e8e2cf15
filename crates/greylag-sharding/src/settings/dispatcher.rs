//! The threads on which tasks run.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

/// The threads of the tasks of shards, or of regions. Written as text: empty, `dedicated:N`, or a name.
///
/// ```
/// use greylag_sharding::settings::Dispatcher;
///
/// let four: Dispatcher = "dedicated:4".parse()?;
/// assert_eq!(four.to_string(), "dedicated:4");
/// assert_eq!("".parse(), Ok(Dispatcher::Shared));
/// assert!("dedicated:0".parse::<Dispatcher>().is_err());
/// # Ok::<(), greylag_sharding::settings::InvalidDispatcher>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Dispatcher {
    /// The runtime that sharding was started on. The default.
    #[default]
    Shared,
    /// This many threads for each entity type: for handlers that block or compute for long.
    Dedicated(NonZeroUsize),
    /// A runtime of the program, added by [`Sharding::add_dispatcher`](crate::Sharding::add_dispatcher).
    Named(String),
}

/// A text that is no dispatcher.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no dispatcher: \"dedicated:N\" takes a number of threads from 1 on")]
pub struct InvalidDispatcher(String);

impl FromStr for Dispatcher {
    type Err = InvalidDispatcher;

    fn from_str(text: &str) -> Result<Self, InvalidDispatcher> {
        match text.strip_prefix("dedicated:") {
            Some(threads) => threads.parse().map(Self::Dedicated).map_err(|_| InvalidDispatcher(text.to_owned())),
            None if text.is_empty() => Ok(Self::Shared),
            None => Ok(Self::Named(text.to_owned())),
        }
    }
}

impl fmt::Display for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared => Ok(()),
            Self::Dedicated(threads) => write!(f, "dedicated:{threads}"),
            Self::Named(name) => f.write_str(name),
        }
    }
}
