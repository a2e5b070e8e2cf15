//! Converts between protobuf and domain types. Messages from outside are checked here, once; an invalid value is
//! [`Malformed`], never a panic.

mod failure;
mod journal;
mod offsets;
mod queries;
mod snapshots;
mod states;
mod values;

pub(crate) use failure::*;
pub(crate) use journal::*;
pub(crate) use offsets::*;
pub(crate) use queries::*;
pub(crate) use snapshots::*;
pub(crate) use states::*;
pub(crate) use values::*;

#[cfg(test)]
mod tests;
