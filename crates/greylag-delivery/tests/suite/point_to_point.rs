//! Point-to-point producers and consumers over real tasks and an in-process network.

mod consumers;
mod durable;
mod failures;
mod lanes;
mod producers;
mod queues;
mod support;
