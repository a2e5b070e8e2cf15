//! Every queue of this crate against the public kit, and the kit against queues that violate one guarantee each.

mod defective;
mod defective_store;
mod event_sourced;
mod memory;
mod outbox;
mod pieces;
