//! The protocols of delivery as pure machines: inputs in, effects out, no clock, no tasks, no I/O.
//!
//! ```text
//! sharding_producer ─┬─▶ producer_link ═══ frames ═══▶ consumer_link ◀─┬─ sharding_consumer
//!   one per type     │       ◀═══ requests, acks ═══                   │    one per entity
//!   and node         └─▶ … one link per entity          one per stream └─▶ …
//! ```
//!
//! Every producer controller also has a [`storing`] machine, which returns messages once they are stored.
//!
//! Each machine has `handle(now, input, &mut out)` and `next_deadline()`; drivers carry the effects out in order.
//! Source: delivery §10.

mod consumer;
pub(crate) mod omissions;
mod producer;
pub(crate) mod tracking;

pub(crate) use consumer::dedupe;
pub use consumer::{consumer_controller, consumer_link, sharding_consumer};
pub use producer::{controller, point_to_point, portable, producer_link, sharding_producer, storing, work_pulling};
