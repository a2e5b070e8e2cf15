//! What must hold for every sequence of bytes that a peer may send; for `fuzz/` and the tests.
//!
//! No function here panics for any input but to report a broken promise. Not part of the public API.

use bytes::Bytes;

use crate::wire;

/// Whatever producers and consumers say to each other; the first byte chooses.
pub fn message(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else { return };
    let bytes = Bytes::copy_from_slice(bytes);
    match kind % 4 {
        0 => drop(wire::read_batch(bytes)),
        1 => drop(wire::read_bypass(bytes)),
        2 => drop(wire::read_stopped(bytes)),
        _ => {
            let Ok(message) = wire::read_upstream(bytes) else { return };
            let again = wire::read_upstream(wire::write_upstream(&message));
            assert_eq!(format!("{again:?}"), format!("{:?}", Ok::<_, ()>(&message)));
        }
    }
}
