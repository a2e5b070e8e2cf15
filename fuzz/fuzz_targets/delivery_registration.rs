//! How a worker is entered in a directory.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| greylag_delivery::fuzzing::registration(input));
