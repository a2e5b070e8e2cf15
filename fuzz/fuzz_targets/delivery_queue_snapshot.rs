//! The snapshot of a producer queue.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| greylag_delivery::fuzzing::queue_snapshot(input));
