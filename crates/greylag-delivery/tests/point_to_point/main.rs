//! Producers and consumers of point to point over real tasks and an in-process network.

mod consumers;
mod durable;
mod failures;
mod lanes;
mod producers;
mod queues;
mod support;
