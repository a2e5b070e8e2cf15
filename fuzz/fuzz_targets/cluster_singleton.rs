//! A message between singleton managers.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| greylag_cluster::fuzzing::singleton(input));
