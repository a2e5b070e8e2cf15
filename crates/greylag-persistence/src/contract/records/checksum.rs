//! A running CRC-32C over length-prefixed fields.

use std::collections::BTreeMap;

use bytes::Bytes;

/// Size of the gathering buffer: large enough for most records without their payload.
const GATHERED_BYTES: usize = 128;

/// Gathers short fields and sums them together: for a few bytes, summing takes longer than copying.
pub(crate) struct Checksum {
    sum: u32,
    gathered: [u8; GATHERED_BYTES],
    len: usize,
}

impl Checksum {
    pub(crate) fn new() -> Self {
        Self { sum: 0, gathered: [0; GATHERED_BYTES], len: 0 }
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        if bytes.len() > GATHERED_BYTES - self.len {
            self.sum_up();
            if bytes.len() > GATHERED_BYTES {
                self.sum = crc32c::crc32c_append(self.sum, bytes);
                return;
            }
        }
        let end = self.len + bytes.len();
        self.gathered[self.len..end].copy_from_slice(bytes);
        self.len = end;
    }

    fn sum_up(&mut self) {
        self.sum = crc32c::crc32c_append(self.sum, &self.gathered[..self.len]);
        self.len = 0;
    }

    pub(crate) fn u32(&mut self, number: u32) {
        self.raw(&number.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, number: u64) {
        self.raw(&number.to_le_bytes());
    }

    pub(crate) fn u128(&mut self, number: u128) {
        self.raw(&number.to_le_bytes());
    }

    pub(crate) fn len(&mut self, len: usize) {
        self.u32(u32::try_from(len).expect("a stored field is below 4 GiB"));
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.len(bytes.len());
        self.raw(bytes);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub(crate) fn metadata(&mut self, metadata: &BTreeMap<String, Bytes>) {
        self.len(metadata.len());
        for (name, value) in metadata {
            self.text(name);
            self.bytes(value);
        }
    }

    pub(crate) fn finish(mut self) -> u32 {
        self.sum_up();
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_of_the_bytes_however_they_came() {
        let bytes: Vec<u8> = (0..1000_u32).map(|number| (number * 7 % 251) as u8).collect();
        for piece in [1, 3, 4, 16, 100, GATHERED_BYTES - 1, GATHERED_BYTES, GATHERED_BYTES + 1, 500] {
            let mut checksum = Checksum::new();
            // Pieces of two alternating lengths, so that pieces end at every place of the buffer.
            let mut rest = &bytes[..];
            for turn in 0.. {
                let (some, others) = rest.split_at(rest.len().min(if turn % 2 == 0 { piece } else { 5 }));
                checksum.raw(some);
                rest = others;
                if rest.is_empty() {
                    break;
                }
            }
            assert_eq!(checksum.finish(), crc32c::crc32c(&bytes), "in pieces of {piece}");
        }
        assert_eq!(Checksum::new().finish(), crc32c::crc32c(&[]));
    }
}
