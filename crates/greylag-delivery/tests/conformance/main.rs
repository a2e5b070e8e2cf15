//! Every queue of this crate against the public kit, and the kit against queues that break its promises one by one.

mod defective;
mod defective_store;
mod event_sourced;
mod memory;
mod outbox;
mod pieces;
