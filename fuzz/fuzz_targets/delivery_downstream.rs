//! Messages of producers: batches of frames, messages beside the deliveries, ends of links.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| greylag_delivery::fuzzing::downstream(input));
