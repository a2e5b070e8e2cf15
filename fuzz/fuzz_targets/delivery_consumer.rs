//! A consumer that is told anything by its producers.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| greylag_delivery::fuzzing::consumer(std::time::Instant::now(), input));
