//! Which deliveries an entity has applied, as its history says.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| greylag_persistence::fuzzing::marks(input));
