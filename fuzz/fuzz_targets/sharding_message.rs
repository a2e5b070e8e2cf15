//! A message of regions and coordinators, or what replicas keep for them; the first byte chooses.
#![no_main]

use bytes::Bytes;
use greylag_sharding::horizon::Horizon;
use greylag_sharding::wire;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else { return };
    let horizon = Horizon::after(1_800_000_000);
    let read = |manifest| drop(wire::decode(manifest, Bytes::copy_from_slice(bytes), horizon));
    match kind % 7 {
        0 => read(wire::REGION_MANIFEST),
        1 => read(wire::COORDINATOR_MANIFEST),
        2 => read(wire::PEER_MANIFEST),
        3 => drop(wire::decode_home(bytes, horizon)),
        4 => drop(wire::decode_meta(bytes, horizon)),
        5 => drop(wire::decode_daemon_record(bytes, 1_000)),
        _ => drop(wire::decode_daemon_answer("answer", bytes)),
    }
});
