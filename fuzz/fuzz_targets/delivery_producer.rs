//! A producer that is told anything by consumers.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| greylag_delivery::fuzzing::producer(std::time::Instant::now(), input));
