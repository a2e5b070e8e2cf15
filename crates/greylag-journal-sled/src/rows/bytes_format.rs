//! Writing and reading the fields of records; reading never panics and never allocates on a
//! length it has not checked against the bytes at hand.

use bytes::{Buf, Bytes};

/// Appends fields to a value.
#[derive(Debug, Default)]
pub(crate) struct FieldWriter(pub(crate) Vec<u8>);

impl FieldWriter {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity))
    }

    pub(crate) fn u8(&mut self, number: u8) {
        self.0.push(number);
    }

    pub(crate) fn u16(&mut self, number: u16) {
        self.0.extend_from_slice(&number.to_be_bytes());
    }

    pub(crate) fn u32(&mut self, number: u32) {
        self.0.extend_from_slice(&number.to_be_bytes());
    }

    pub(crate) fn u64(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_be_bytes());
    }

    pub(crate) fn u128(&mut self, number: u128) {
        self.0.extend_from_slice(&number.to_be_bytes());
    }

    /// LEB128: seven bits a byte, least significant first.
    pub(crate) fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push((number & 0x7f) as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }
}

/// Takes fields off the front of a value; `None` means the bytes have no meaning.
#[derive(Debug)]
pub(crate) struct FieldReader(pub(crate) Bytes);

impl FieldReader {
    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.0.try_get_u8().ok()
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.0.try_get_u16().ok()
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.0.try_get_u32().ok()
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.0.try_get_u64().ok()
    }

    pub(crate) fn u128(&mut self) -> Option<u128> {
        self.0.try_get_u128().ok()
    }

    pub(crate) fn varint(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            let shifted = bits << shift;
            if shifted >> shift != bits {
                return None;
            }
            number |= shifted;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    /// A count of things of at least `least_bytes` each; `None` if the bytes at hand are too few for so many.
    pub(crate) fn count(&mut self, least_bytes: usize) -> Option<usize> {
        let count = usize::try_from(self.varint()?).ok()?;
        (count.checked_mul(least_bytes)? <= self.0.len()).then_some(count)
    }

    pub(crate) fn bytes(&mut self) -> Option<Bytes> {
        let len = self.count(1)?;
        Some(self.0.split_to(len))
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_return_what_was_written_and_refuse_what_does_not_fit() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut writer = FieldWriter::default();
            writer.varint(number);
            assert_eq!(FieldReader(writer.0.into()).varint(), Some(number));
        }
        assert_eq!(FieldReader(Bytes::from_static(&[0xff; 10])).varint(), None);
        assert_eq!(FieldReader(Bytes::from_static(&[0x80])).varint(), None);
    }

    #[test]
    fn announced_lengths_are_checked() {
        let mut writer = FieldWriter::default();
        writer.varint(1 << 40);
        assert_eq!(FieldReader(writer.0.into()).bytes(), None);
    }
}
