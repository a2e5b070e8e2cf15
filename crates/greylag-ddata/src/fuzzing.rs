//! What must hold for every sequence of bytes that a peer may send; for `fuzz/` and the tests.
//!
//! No function here panics for any input but to report a broken promise. Not part of the public API.

use bytes::{Bytes, BytesMut};

use crate::wire;

/// A message between replicators. What is read and written again is read as the same.
pub fn message(input: &[u8]) {
    let Ok(message) = wire::decode(Bytes::copy_from_slice(input)) else { return };
    let mut again = BytesMut::new();
    wire::encode(&message, &mut again).expect("what was read can be written");
    assert_eq!(wire::decode(again.freeze()).as_ref().ok(), Some(&message));
}

/// A piece of a message that was too large for one.
pub fn fragment(input: &[u8]) {
    let Ok(fragment) = wire::decode_fragment(Bytes::copy_from_slice(input)) else { return };
    let again = wire::decode_fragment(wire::encode_fragment(&fragment));
    assert_eq!(format!("{again:?}"), format!("{:?}", Ok::<_, ()>(&fragment)));
}
