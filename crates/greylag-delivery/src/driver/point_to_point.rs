//! Point-to-point delivery, from one producer to one consumer at a time: both controllers and their handles.
//!
//! Source: delivery §1, §6.

mod consumer;
mod consumer_task;
mod deliveries;
mod downstream;
mod producer;

pub(crate) use consumer::ConsumerShutdown;
pub use consumer::{ConsumerBuilder, ConsumerController};
pub use deliveries::Deliveries;
pub use producer::{Producer, ProducerBuilder, ProducerController};

#[cfg(test)]
mod tests;
