//! A part of a large value between replicators.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| greylag_ddata::fuzzing::part(input));
