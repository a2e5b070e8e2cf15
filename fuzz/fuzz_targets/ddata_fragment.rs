//! A piece of a large message between replicators.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| greylag_ddata::fuzzing::fragment(input));
