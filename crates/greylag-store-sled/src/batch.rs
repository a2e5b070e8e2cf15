//! The changes of one group commit. A checksum over key and value ends every value.

use bytes::Bytes;

use crate::error::StoreError;

/// The largest value of one record; the caller splits longer data.
///
/// Larger records, or pages of them, would leave the log for files that the engine never syncs.
/// Source: persistence §4.3.
pub const MAX_VALUE_BYTES: usize = 64 << 10;

const CRC_BYTES: usize = 4;

/// Changes that become durable together or not at all.
#[derive(Debug, Default)]
pub struct Batch {
    /// In the order of addition; of several writes of one key the last counts.
    writes: Writes,
    bytes: usize,
    /// Scratch memory in which a value and its checksum are joined.
    sealed: Vec<u8>,
    /// The buffers that values were made from, freed with the batch.
    spent: Vec<Vec<u8>>,
}

/// Writes in order: a key with its new value, or `None` for a removal.
pub(crate) type Writes = Vec<(sled::IVec, Option<sled::IVec>)>;

impl Batch {
    /// Writes `value` under `key`, in place of any former value.
    ///
    /// # Panics
    /// If the value is longer than [`MAX_VALUE_BYTES`]: the caller must split it.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        let mut sealed = std::mem::take(&mut self.sealed);
        sealed.clear();
        sealed.extend_from_slice(value);
        self.seal(key, &mut sealed);
        self.sealed = sealed;
    }

    /// As [`Batch::put`], for a value that was made on another thread. The value is freed after all requests of the
    /// group were answered.
    ///
    /// # Panics
    /// If the value is longer than [`MAX_VALUE_BYTES`].
    pub fn put_owned(&mut self, key: &[u8], mut value: Vec<u8>) {
        self.seal(key, &mut value);
        self.spent.push(value);
    }

    fn seal(&mut self, key: &[u8], value: &mut Vec<u8>) {
        assert!(value.len() <= MAX_VALUE_BYTES, "a value of {} bytes was not split", value.len());
        let crc = checksum(key, value);
        value.extend_from_slice(&crc.to_be_bytes());
        self.bytes += key.len() + value.len();
        self.writes.push((key.into(), Some((&value[..]).into())));
    }

    /// Removes the value under `key`, if there is one.
    pub fn remove(&mut self, key: &[u8]) {
        self.bytes += key.len();
        self.writes.push((key.into(), None));
    }

    /// Whether the batch changes nothing.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// The number of changes.
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// The bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn writes(&self) -> &Writes {
        &self.writes
    }
}

fn checksum(key: &[u8], value: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(key), value)
}

/// Checks and removes the checksum at the end of a stored value.
pub(crate) fn unseal(key: &[u8], sealed: &[u8]) -> Result<Bytes, StoreError> {
    let damaged = || StoreError::Checksum { key: key.to_vec() };
    let (value, crc) = sealed.split_last_chunk::<CRC_BYTES>().ok_or_else(damaged)?;
    if checksum(key, value) != u32::from_be_bytes(*crc) {
        return Err(damaged());
    }
    Ok(Bytes::copy_from_slice(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_covers_value_and_key() {
        let mut sealed = b"value".to_vec();
        sealed.extend_from_slice(&checksum(b"key", b"value").to_be_bytes());
        assert_eq!(unseal(b"key", &sealed).unwrap(), "value");
        assert!(unseal(b"kez", &sealed).unwrap_err().is_corruption(), "a record under another key is found out");
        for at in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            assert!(unseal(b"key", &damaged).is_err(), "flipped bit at {at}");
        }
        assert!(unseal(b"key", b"abc").is_err());
    }

    #[test]
    #[should_panic(expected = "not split")]
    fn values_must_be_split() {
        Batch::default().put(b"key", &vec![0; MAX_VALUE_BYTES + 1]);
    }
}
