//! A record of the store of durable replicated entries, as a damaged disk may give it back.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| greylag_store_sled::fuzz_ddata_record(input));
