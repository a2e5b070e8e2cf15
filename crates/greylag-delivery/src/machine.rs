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

mod admission;
pub(crate) mod ages;
pub mod consumer_controller;
pub mod consumer_link;
pub(crate) mod contiguous;
pub mod controller;
pub(crate) mod deadlines;
pub mod point_to_point;
pub mod portable;
pub mod producer_link;
pub mod sharding_consumer;
pub mod sharding_producer;
pub mod storing;
pub mod work_pulling;
