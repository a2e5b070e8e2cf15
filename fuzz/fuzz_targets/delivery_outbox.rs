//! The outbox of an entity, and its events.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| greylag_delivery::fuzzing::outbox(input));
