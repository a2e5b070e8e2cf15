//! A message between nodes that look for a cluster to begin with.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| greylag_cluster::fuzzing::bootstrap(input));
