//! Properties that must hold for any bytes in a store; for `fuzz/` and the tests.
//!
//! A function here panics only if a property does not hold. Not part of the public API.

use bytes::Bytes;

use crate::contract::records::event::Timestamp;
use crate::entities::marks::{Mark, Marks, StreamId};

/// Decodes the mark of an event, and the marks of a snapshot. Decoding, encoding and decoding again gives the same
/// value.
pub fn marks(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    if let Ok(mark) = Mark::decode(bytes.clone()) {
        assert_eq!(Mark::decode(mark.encode()), Ok(mark));
    }
    if let Ok(marks) = Marks::decode(bytes) {
        assert!(marks.iter().all(|(stream, applied)| marks.covers(stream, applied.total_seq_nr)));
        assert_eq!(Marks::decode(marks.encode()), Ok(marks));
    }
}

/// Valid inputs for each target, by name, as the start of fuzzing.
pub fn seeds() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let mark = |stream: u128, producer_id: &str| Mark {
        producer_id: producer_id.to_owned(),
        stream_id: StreamId::from_u128(stream),
        total_seq_nr: 7,
    };
    let (mut nameless, mut named) = (Marks::default(), Marks::default());
    for stream in 1..=3 {
        nameless.advance(StreamId::from_u128(stream), 7, Timestamp::from_micros(5));
        named.advance_by(&mark(stream, "shop"), Timestamp::from_micros(5));
    }
    named.advance(StreamId::from_u128(9), 7, Timestamp::from_micros(5));
    let inputs = [mark(1, "shop").encode(), nameless.encode(), named.encode()];
    vec![("delivery_marks", inputs.map(Vec::from).into())]
}

#[cfg(test)]
mod tests {
    /// Damages the seeds as `fuzz/` does with millions of inputs.
    #[test]
    fn damaged_marks_are_refused_or_are_other_marks() {
        for (_, inputs) in super::seeds() {
            greylag_testkit::mutations::damaged(&inputs, 20_000, 1, super::marks);
        }
    }
}
