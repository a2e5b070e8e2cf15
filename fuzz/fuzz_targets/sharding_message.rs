//! A message of regions and coordinators, or what replicas keep for them; the first byte chooses.
#![no_main]

use bytes::Bytes;
use greylag_sharding::wire;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else { return };
    let read = |manifest| drop(wire::decode(manifest, Bytes::copy_from_slice(bytes)));
    match kind % 5 {
        0 => read(wire::REGION_MANIFEST),
        1 => read(wire::COORDINATOR_MANIFEST),
        2 => read(wire::PEER_MANIFEST),
        3 => drop(wire::decode_home(bytes)),
        _ => drop(wire::decode_meta(bytes)),
    }
});
