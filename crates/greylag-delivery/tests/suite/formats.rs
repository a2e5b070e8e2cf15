//! The bytes match docs/formats/delivery-marks.md.

use greylag_persistence::{Mark, Marks, StreamId, Timestamp};

const PAGE: &str = include_str!("../../../../docs/formats/delivery-marks.md");

fn assert_in_page(bytes: &[u8]) {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(PAGE.contains(&format!("`{hex}`")), "{hex} is not in the page");
}

#[test]
fn the_bytes_of_marks_are_those_of_the_page() {
    let mark = Mark { producer_id: "till 7".to_owned(), stream_id: StreamId::from_u128(7), total_seq_nr: 258 };
    assert_in_page(&mark.encode());
    assert_eq!(Mark::decode(mark.encode()).unwrap(), mark);
    let mut marks = Marks::default();
    marks.advance(StreamId::from_u128(7), 258, Timestamp::from_micros(1));
    marks.advance(StreamId::from_u128(u128::MAX), 1, Timestamp::from_micros(2));
    assert_in_page(&marks.encode());
    assert_eq!(Marks::decode(marks.encode()).unwrap(), marks);
    marks.advance_by(&mark, Timestamp::from_micros(1));
    assert_in_page(&marks.encode());
    assert_eq!(Marks::decode(marks.encode()).unwrap(), marks);
}
