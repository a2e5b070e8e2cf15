//! Properties of decoding that must hold for any bytes of a peer; for `fuzz/` and the tests.
//!
//! A function here panics only to report a broken property. Not part of the public API.

use bytes::{Bytes, BytesMut};
use greylag_crdt::{Context, GSet, KeyRange, LwwMap, OrSet, Part, PnCounterMap, ReplicatedData, context_from_bytes};

use crate::messages::wire;

/// Decodes a message between replicators; encoding and decoding it again must give the same message.
pub fn message(input: &[u8]) {
    let Ok(message) = wire::decode(Bytes::copy_from_slice(input)) else { return };
    let mut again = BytesMut::new();
    wire::encode(&message, &mut again).expect("what was read can be written");
    assert_eq!(wire::decode(again.freeze()).as_ref().ok(), Some(&message));
}

/// Decodes a fragment of a large message.
pub fn fragment(input: &[u8]) {
    let Ok(fragment) = wire::decode_fragment(Bytes::copy_from_slice(input)) else { return };
    let again = wire::decode_fragment(wire::encode_fragment(&fragment));
    assert_eq!(format!("{again:?}"), format!("{:?}", Ok::<_, ()>(&fragment)));
}

/// Joins a part of a large value. The input is a length, so many bytes of a context, and the part. A refused part must
/// leave the draft unchanged.
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
