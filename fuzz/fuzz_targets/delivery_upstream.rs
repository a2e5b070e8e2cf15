//! Messages of consumers: requests, confirmations, registrations.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| greylag_delivery::fuzzing::upstream(input));
