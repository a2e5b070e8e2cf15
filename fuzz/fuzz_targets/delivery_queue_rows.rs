//! The rows of a producer queue in a store of keys and values.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| greylag_delivery::fuzzing::queue_rows(input));
