//! The history of a producer queue in a journal.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| greylag_delivery::fuzzing::queue_event(input));
