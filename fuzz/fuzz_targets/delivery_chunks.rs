//! A message in chunks, of which one may be damaged.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| greylag_delivery::fuzzing::chunks(input));
