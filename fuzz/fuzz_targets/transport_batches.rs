//! Two batches of one stream: envelopes, and the names they share.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| greylag_transport::fuzzing::batches(input));
