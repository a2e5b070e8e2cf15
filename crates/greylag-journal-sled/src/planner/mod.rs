//! The committer's half of a journal: plans group commits.

mod appends;
mod commit_writer;
mod heads;
mod imports;
mod journal_planner;
mod offsets;
mod recovery;
mod snapshots;
mod states;
mod storage;

pub(crate) use journal_planner::{JournalPlanner, REPAIR};
pub(crate) use recovery::check_format;
