//! The view of readers: only what is durable, and what is not deleted.

mod reads;
mod scan;
mod states;

pub(crate) use reads::Reads;
