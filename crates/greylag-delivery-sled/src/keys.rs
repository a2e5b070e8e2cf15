//! Keys of the store: the first byte is the space, integers are big-endian.
//!
//! ```text
//! 00                          format
//! 03                          the last commit (the engine's)
//! 10 name                     head row
//! 11 length name qualifier    confirmed row
//! 12 length name number piece a message, in pieces
//! ```

use greylag_delivery::SeqNr;

pub(crate) const FORMAT: &[u8] = &[0x00];
pub(crate) const HEADS: u8 = 0x10;
const CONFIRMED: u8 = 0x11;
const MESSAGES: u8 = 0x12;

/// Maximum length of a queue's name and of a qualifier, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 1024;

pub(crate) fn head(queue: &str) -> Vec<u8> {
    [&[HEADS], queue.as_bytes()].concat()
}

/// The queue's name from the key of its head row.
pub(crate) fn name_of_head(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.strip_prefix(&[HEADS])?).ok()
}

fn of(space: u8, queue: &str) -> Vec<u8> {
    // Names were checked before, so the length fits.
    let length = u16::try_from(queue.len()).unwrap_or(u16::MAX).to_be_bytes();
    [&[space], &length[..], queue.as_bytes()].concat()
}

pub(crate) fn confirmed(queue: &str, qualifier: &str) -> Vec<u8> {
    let mut key = of(CONFIRMED, queue);
    key.extend_from_slice(qualifier.as_bytes());
    key
}

/// Key range of the confirmed rows of a queue: first key, and first key after the range.
pub(crate) fn all_confirmed(queue: &str) -> (Vec<u8>, Vec<u8>) {
    around(of(CONFIRMED, queue))
}

pub(crate) fn piece(queue: &str, seq_nr: SeqNr, piece: u32) -> Vec<u8> {
    let mut key = of(MESSAGES, queue);
    key.extend_from_slice(&seq_nr.get().to_be_bytes());
    key.extend_from_slice(&piece.to_be_bytes());
    key
}

/// Key range of the pieces of a message: first key, and first key after the range.
pub(crate) fn pieces(queue: &str, seq_nr: SeqNr) -> (Vec<u8>, Vec<u8>) {
    let mut first = of(MESSAGES, queue);
    first.extend_from_slice(&seq_nr.get().to_be_bytes());
    around(first)
}

/// Key range of all messages of a queue: first key, and first key after the range.
pub(crate) fn all_messages(queue: &str) -> (Vec<u8>, Vec<u8>) {
    around(of(MESSAGES, queue))
}

/// The message number and the piece number from a message's key.
pub(crate) fn number_and_piece(key: &[u8]) -> Option<(SeqNr, u32)> {
    let (rest, piece) = key.split_last_chunk::<4>()?;
    let (_, number) = rest.split_last_chunk::<8>()?;
    Some((SeqNr(u64::from_be_bytes(*number)), u32::from_be_bytes(*piece)))
}

/// A prefix, and the first key after all keys that begin with it.
fn around(prefix: Vec<u8>) -> (Vec<u8>, Vec<u8>) {
    let mut after = prefix.clone();
    while let Some(last) = after.pop() {
        if let Some(next) = last.checked_add(1) {
            after.push(next);
            break;
        }
    }
    (prefix, after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_what_begins_with_their_prefix() {
        let (first, after) = pieces("orders", SeqNr(7));
        assert!((first.clone()..after.clone()).contains(&piece("orders", SeqNr(7), u32::MAX)));
        assert!(!(first..after).contains(&piece("orders", SeqNr(8), 0)));
        let (first, after) = pieces("orders", SeqNr(u64::MAX));
        assert!((first..after).contains(&piece("orders", SeqNr(u64::MAX), u32::MAX)));
        let (first, after) = all_messages("orders");
        assert!((first.clone()..after.clone()).contains(&piece("orders", SeqNr(u64::MAX), u32::MAX)));
        assert!(!(first..after).contains(&piece("orders/2", SeqNr(1), 0)), "another queue, whose name goes on");
        assert_eq!(number_and_piece(&piece("orders", SeqNr(7), 3)), Some((SeqNr(7), 3)));
        assert_eq!(name_of_head(&head("orders")), Some("orders"));
    }
}
