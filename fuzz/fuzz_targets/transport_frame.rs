//! A frame of a peer, on the lane that the first byte chooses, content and compression included.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| greylag_transport::fuzzing::frame(input));
