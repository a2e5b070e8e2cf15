//! What is measured on one node: counters, gauges, run times, and handlers that do not return.

pub(super) mod handlers;
pub(super) mod histogram;
pub(super) mod measures;
pub(super) mod region;
pub(super) mod watchdog;
