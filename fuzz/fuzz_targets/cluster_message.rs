//! A message of the membership protocol; the first byte chooses which.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| greylag_cluster::fuzzing::message(input));
