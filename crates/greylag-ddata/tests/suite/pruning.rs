//! Pruning of removed replicas, as directed traces through whole machines: random schedules hardly reach these
//! histories. Source: ddata §5, §12.

mod alone;
mod births;
mod copies;
mod durable;
mod owners;
mod senders;
mod slots;
mod stores;
mod subscribers;
mod world;
