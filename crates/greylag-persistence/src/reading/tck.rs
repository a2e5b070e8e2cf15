//! The cases of the query side, over events and over changes of states.

pub(crate) mod changes;
pub(crate) mod projecting;
pub(crate) mod queries;
pub(crate) mod streams;
