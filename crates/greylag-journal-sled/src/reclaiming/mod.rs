//! Takes back the space of deleted events and of commits that name nothing else, a little with every group commit.

mod merger;
mod sweeper;

pub(crate) use merger::Merger;
pub(crate) use sweeper::Sweeper;
