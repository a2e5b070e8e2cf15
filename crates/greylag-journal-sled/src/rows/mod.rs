//! The rows on the disk: their keys, and how their values are written and read (`docs/formats/journal-sled.md`).

pub(crate) mod bytes_format;
pub(crate) mod commit_record;
pub(crate) mod keys;
pub(crate) mod offset_row;
pub(crate) mod records;
pub(crate) mod state_row;
