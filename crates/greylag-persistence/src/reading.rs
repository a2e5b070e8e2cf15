//! Reading across histories: queries that follow events and changes of states, and projections over them.

pub(crate) mod driver;
pub(crate) mod projection;
pub(crate) mod query;
#[cfg(feature = "tck")]
pub(crate) mod tck;
