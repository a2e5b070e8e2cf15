//! Canonical bytes: equal states have equal bytes on every platform.
//!
//! Integers are LEB128 in minimal form (zigzag if signed), texts and byte strings carry their
//! length, replicas stand in a sorted table and are referenced by index, everything keyed ascends.
//! The first byte of a value is the format's version. Bytes in any other form are refused, and no
//! count read from outside decides how much memory is taken.
//!
//! Source: ddata K9.

use crate::causality::replica::ReplicaId;
use crate::encoding::tag::TypeTag;

/// The version that every value begins with, except counters with births.
pub const FORMAT: u8 = 1;

/// The version of counters whose slots have births. Source: ddata Y4.
pub(crate) const FORMAT_WITH_BIRTHS: u8 = 2;

/// The version that bytes of [`crate::ReplicatedData::to_bytes`] begin with: the type's tag follows, then the value
/// with its own version. Source: ddata K9.
pub(crate) const FORMAT_WITH_TAG: u8 = 3;

/// Why bytes are not a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end too early.
    #[error("the bytes end too early")]
    Truncated,
    /// Bytes are left over.
    #[error("bytes are left over after the value")]
    Trailing,
    /// A format that this build does not read.
    #[error("format version {0} is unknown")]
    Version(u8),
    /// The bytes are not the canonical form of their value.
    #[error("not canonical: {0}")]
    NotCanonical(&'static str),
    /// The bytes begin with the tag of another type.
    #[error("the bytes are a {found}, not a {expected}")]
    OtherType {
        /// The tag of the type to read.
        expected: String,
        /// The tag that the bytes name.
        found: String,
    },
    /// The bytes are no value of the type.
    #[error("invalid: {0}")]
    Invalid(&'static str),
}

/// Appends canonical bytes.
#[derive(Debug, Default)]
pub struct Encoder {
    bytes: Vec<u8>,
    /// The table whose indices stand for replicas; without a table replicas are written as they are.
    replicas: Option<Vec<ReplicaId>>,
}

impl Encoder {
    /// An encoder that has written nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// An encoder that appends to `bytes`.
    pub(crate) fn continuing(bytes: Vec<u8>) -> Self {
        Self { bytes, replicas: None }
    }

    /// The bytes written.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }

    /// How many bytes were written.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Writes one byte.
    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// Writes an unsigned integer.
    #[inline]
    pub fn u64(&mut self, mut value: u64) {
        if value < 0x80 {
            return self.bytes.push(value as u8);
        }
        let (mut group, mut length) = ([0; 10], 0);
        while value >= 0x80 {
            group[length] = value as u8 | 0x80;
            value >>= 7;
            length += 1;
        }
        group[length] = value as u8;
        self.bytes.extend_from_slice(&group[..=length]);
    }

    /// Writes an unsigned integer.
    pub fn u128(&mut self, mut value: u128) {
        if let Ok(small) = u64::try_from(value) {
            return self.u64(small);
        }
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// Writes a signed integer.
    pub fn i128(&mut self, value: i128) {
        self.u128(((value << 1) ^ (value >> 127)) as u128);
    }

    /// Writes a signed integer.
    pub fn i64(&mut self, value: i64) {
        self.u64(((value << 1) ^ (value >> 63)) as u64);
    }

    /// Writes a byte string with its length.
    pub fn bytes(&mut self, value: &[u8]) {
        self.u64(value.len() as u64);
        self.bytes.extend_from_slice(value);
    }

    /// Writes the replica table, which must ascend. [`Encoder::replica`] writes indices into it from now on.
    pub fn begin_replicas(&mut self, replicas: Vec<ReplicaId>) {
        debug_assert!(replicas.is_sorted(), "the table is made from an ordered map");
        self.u64(replicas.len() as u64);
        for replica in &replicas {
            self.u64(replica.0);
        }
        self.replicas = Some(replicas);
    }

    /// Writes a replica: its index in the table, or its id if there is no table.
    pub fn replica(&mut self, replica: ReplicaId) {
        let Some(table) = &self.replicas else { return self.u64(replica.0) };
        let index = table.binary_search(&replica).expect("the table names every replica of a store");
        self.u64(index as u64);
    }
}

/// Reads canonical bytes.
#[derive(Debug)]
pub struct Decoder<'a> {
    rest: &'a [u8],
    replicas: Vec<ReplicaId>,
}

impl<'a> Decoder<'a> {
    /// A decoder at the beginning of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, replicas: Vec::new() }
    }

    /// Checks that nothing is left.
    ///
    /// # Errors
    /// [`DecodeError::Trailing`].
    pub fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing) }
    }

    /// Reads one byte.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        let (first, rest) = self.rest.split_first().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*first)
    }

    /// Reads the format version.
    ///
    /// # Errors
    /// [`DecodeError::Version`] for a version that this build does not read.
    pub fn format(&mut self) -> Result<(), DecodeError> {
        match self.u8()? {
            FORMAT => Ok(()),
            other => Err(DecodeError::Version(other)),
        }
    }

    /// Reads the format version of a counter.
    pub(crate) fn counter_format(&mut self) -> Result<u8, DecodeError> {
        match self.u8()? {
            format @ (FORMAT | FORMAT_WITH_BIRTHS) => Ok(format),
            other => Err(DecodeError::Version(other)),
        }
    }

    /// Reads an unsigned integer.
    ///
    /// # Errors
    /// If the integer is cut off, not minimal, or too large.
    pub fn u128(&mut self) -> Result<u128, DecodeError> {
        let mut value = 0_u128;
        for shift in (0..).step_by(7) {
            let byte = self.u8()?;
            let part = u128::from(byte & 0x7f);
            if shift >= 128 || (part << shift) >> shift != part {
                return Err(DecodeError::Invalid("an integer is too large"));
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                if part == 0 && shift > 0 {
                    return Err(DecodeError::NotCanonical("an integer is longer than it needs to be"));
                }
                break;
            }
        }
        Ok(value)
    }

    /// Reads an unsigned integer of at most 64 bits.
    ///
    /// # Errors
    /// As [`Decoder::u128`].
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        // Read small integers here, as most are; one of more than nine bytes may be too large.
        let mut value = 0;
        for (index, byte) in self.rest.iter().take(9).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                if *byte == 0 && index > 0 {
                    break;
                }
                self.rest = &self.rest[index + 1..];
                return Ok(value);
            }
        }
        u64::try_from(self.u128()?).map_err(|_| DecodeError::Invalid("an integer is too large"))
    }

    /// Reads a signed integer.
    ///
    /// # Errors
    /// As [`Decoder::u128`].
    pub fn i128(&mut self) -> Result<i128, DecodeError> {
        let raw = self.u128()?;
        Ok((raw >> 1) as i128 ^ -((raw & 1) as i128))
    }

    /// Reads a signed integer of at most 64 bits.
    ///
    /// # Errors
    /// As [`Decoder::u128`].
    pub fn i64(&mut self) -> Result<i64, DecodeError> {
        i64::try_from(self.i128()?).map_err(|_| DecodeError::Invalid("an integer is too large"))
    }

    /// Reads a count of items that take at least one byte each; it cannot exceed the bytes left.
    ///
    /// # Errors
    /// As [`Decoder::u128`], and [`DecodeError::Truncated`].
    pub fn count(&mut self) -> Result<usize, DecodeError> {
        let count = usize::try_from(self.u64()?).map_err(|_| DecodeError::Truncated)?;
        if count > self.rest.len() { Err(DecodeError::Truncated) } else { Ok(count) }
    }

    /// Reads a byte string.
    ///
    /// # Errors
    /// If the string is cut off.
    pub fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.count()?;
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        Ok(taken)
    }

    /// Reads a replica table, for [`Decoder::replica`], and returns it.
    ///
    /// # Errors
    /// If the table is cut off or does not ascend.
    pub fn begin_replicas(&mut self) -> Result<Vec<ReplicaId>, DecodeError> {
        let mut replicas: Vec<ReplicaId> = Vec::new();
        for _ in 0..self.count()? {
            let replica = ReplicaId(self.u64()?);
            if replicas.last().is_some_and(|last| *last >= replica) {
                return Err(DecodeError::NotCanonical("the replica table does not ascend"));
            }
            replicas.push(replica);
        }
        self.replicas.clone_from(&replicas);
        Ok(replicas)
    }

    /// Reads a reference into the replica table.
    ///
    /// # Errors
    /// If the reference is cut off or names nothing.
    pub fn replica(&mut self) -> Result<ReplicaId, DecodeError> {
        let index = usize::try_from(self.u64()?).map_err(|_| DecodeError::Truncated)?;
        self.replicas.get(index).copied().ok_or(DecodeError::Invalid("a replica is not in the table"))
    }
}

/// Returns bytes that begin with the type's tag.
pub(crate) fn with_tag(tag: &TypeTag, encode: impl FnOnce(&mut Encoder)) -> Vec<u8> {
    let mut out = Encoder::new();
    out.u8(FORMAT_WITH_TAG);
    out.bytes(tag.to_string().as_bytes());
    encode(&mut out);
    out.finish()
}

/// Returns the bytes after the type's tag; all bytes, if they were written before values had a tag.
pub(crate) fn without_tag<'a>(tag: &TypeTag, bytes: &'a [u8]) -> Result<&'a [u8], DecodeError> {
    let read = |bytes: &'a [u8]| {
        let mut inp = Decoder::new(bytes);
        let text = (inp.u8().ok()? == FORMAT_WITH_TAG).then(|| inp.bytes().ok())??;
        Some((std::str::from_utf8(text).ok()?, inp.rest))
    };
    let expected = tag.to_string();
    match read(bytes) {
        Some((found, rest)) if found == expected => Ok(rest),
        // A custom type may have begun its untagged bytes with any byte, but hardly with this one and a tag.
        Some((found, _)) if found.contains('/') && found.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Err(DecodeError::OtherType { expected, found: found.to_owned() })
        }
        _ => Ok(bytes),
    }
}

/// Reads items with `item` and checks that they ascend.
pub(crate) fn ascending<T: Ord + Clone>(
    inp: &mut Decoder<'_>,
    mut item: impl FnMut(&mut Decoder<'_>) -> Result<T, DecodeError>,
) -> Result<(), DecodeError> {
    let mut last: Option<T> = None;
    for _ in 0..inp.count()? {
        let next = item(inp)?;
        if last.is_some_and(|last| last >= next) {
            return Err(DecodeError::NotCanonical("items do not ascend"));
        }
        last = Some(next);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    proptest! {
        #[test]
        fn integers_return(value: i128, small: i64, big: u128) {
            let mut out = Encoder::new();
            out.i128(value);
            out.i64(small);
            out.u128(big);
            let bytes = out.finish();
            let mut inp = Decoder::new(&bytes);
            prop_assert_eq!(inp.i128(), Ok(value));
            prop_assert_eq!(inp.i64(), Ok(small));
            prop_assert_eq!(inp.u128(), Ok(big));
            prop_assert_eq!(inp.finish(), Ok(()));
        }

        #[test]
        fn an_integer_that_is_read_is_written_the_same(bytes: Vec<u8>) {
            let mut inp = Decoder::new(&bytes);
            if let Ok(value) = inp.u128() {
                let mut out = Encoder::new();
                out.u128(value);
                let read = bytes.len() - inp.rest.len();
                prop_assert_eq!(&out.finish(), &bytes[..read]);
            }
        }
    }

    #[test]
    fn longer_forms_of_a_number_are_refused() {
        assert!(matches!(Decoder::new(&[0x80, 0x00]).u64(), Err(DecodeError::NotCanonical(_))));
    }
}
