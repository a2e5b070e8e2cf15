//! What must hold for every sequence of bytes that a peer may send; for `fuzz/` and the tests.
//!
//! No function here panics for any input but to report a broken promise. Not part of the public API.

use bytes::{Bytes, BytesMut};
use greylag_crdt::{Context, GSet, KeyRange, LwwMap, OrSet, Part, PnCounterMap, ReplicatedData, context_from_bytes};

use crate::wire;

/// Reads a message between replicators; one that is read and written again is read as the same.
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

/// A part of a large value: a length, so many bytes of a context, and the part. What is refused leaves the draft as it
/// was.
pub fn part(input: &[u8]) {
    let Some((length, rest)) = input.split_first() else { return };
    let (context, bytes) = rest.split_at(usize::from(*length).min(rest.len()));
    let Ok(context) = context_from_bytes(context) else { return };
    let part = Part { range: KeyRange::ALL, bytes: bytes.to_vec() };
    fn join<T: ReplicatedData>(context: &Context, part: &Part) {
        let mut draft = T::zero();
        let ranged = draft.ranged_mut().expect("the type knows ranges");
        match ranged.join_part(context, part) {
            Ok(()) => ranged.finish_parts(context),
            Err(_) => assert!(ranged.keys() == 0),
        }
        assert!(T::from_bytes(&draft.to_bytes()).is_ok(), "what a draft ends as is a value");
    }
    join::<OrSet<String>>(&context, &part);
    join::<LwwMap<String, u64>>(&context, &part);
    join::<PnCounterMap<u64>>(&context, &part);
    join::<GSet<String>>(&context, &part);
}
