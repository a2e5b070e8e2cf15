//! A message between watchers.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| greylag_cluster::fuzzing::watch(input));
