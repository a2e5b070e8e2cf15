//! The tasks of readers: streams, projections, readers that projections share, and hints of new events.

pub(crate) mod hints;
pub(crate) mod projection;
pub(crate) mod read_journal;
pub(crate) mod sharing;
