//! A Hello, or the answer to one.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| greylag_transport::fuzzing::hello(input));
