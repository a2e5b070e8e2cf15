//! Cuts messages into pieces of bounded size, and joins them.

use bytes::{Bytes, BytesMut};

/// Bytes of one piece; leaves room for the engine's overhead.
const PIECE_BYTES: usize = 60 << 10;

/// Cuts a row into pieces. The first piece begins with the number of pieces; there is at least one.
pub(crate) fn cut(row: &[u8]) -> Vec<Vec<u8>> {
    let mut pieces: Vec<Vec<u8>> = row.chunks(PIECE_BYTES).map(<[u8]>::to_vec).collect();
    if pieces.is_empty() {
        pieces.push(Vec::new());
    }
    let count = u32::try_from(pieces.len()).unwrap_or(u32::MAX).to_be_bytes();
    pieces[0].splice(..0, count);
    pieces
}

/// Joins the pieces of one message; `None` if a piece is missing or out of order.
pub(crate) fn joined(pieces: &[(u32, Bytes)]) -> Option<Bytes> {
    let in_place = (0_u32..).zip(pieces).all(|(place, (piece, _))| place == *piece);
    let (_, first) = pieces.first().filter(|_| in_place)?;
    let (count, first) = first.split_first_chunk::<4>()?;
    if u32::from_be_bytes(*count) as usize != pieces.len() {
        return None;
    }
    let mut row = BytesMut::from(first);
    pieces[1..].iter().for_each(|(_, piece)| row.extend_from_slice(piece));
    Some(row.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_joined_or_refused() {
        for bytes in [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES] {
            let row: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
            let pieces: Vec<(u32, Bytes)> = (0..).zip(cut(&row).into_iter().map(Bytes::from)).collect();
            assert!(pieces.iter().all(|(_, piece)| piece.len() <= PIECE_BYTES + 4));
            assert_eq!(joined(&pieces), Some(row.into()));
            for gone in 0..pieces.len() {
                let mut rest = pieces.clone();
                rest.remove(gone);
                assert_eq!(joined(&rest), None, "without piece {gone} of {}", pieces.len());
            }
        }
        assert_eq!(joined(&[(0, Bytes::from_static(&[0, 0]))]), None);
    }
}
