//! The way of an arrived message to its receiver: sorted by worker, queued at the worker, handed over by it.

mod sorting;
mod work;
mod workers;

pub(crate) use sorting::Sorting;
pub(crate) use work::{drop_arrived, start_workers};
pub(crate) use workers::{Delivery, Workers};
