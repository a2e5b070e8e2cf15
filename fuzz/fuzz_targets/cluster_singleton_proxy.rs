//! A message between a singleton's proxy and a node that may run the instance.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| greylag_cluster::fuzzing::singleton_proxy(input));
