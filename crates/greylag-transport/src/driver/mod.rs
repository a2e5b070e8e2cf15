//! What carries envelopes: threads and queues within one process, or tonic streams between many.

pub mod memory;
