//! Numbers the commits of a store and sums up its records, so that a loss is noticed.
//!
//! sled takes damage in the younger part of its log for a torn write, and opens without what follows, up to the end of
//! the log or of a segment in its middle. So each commit writes one record with its number and the sum over all records
//! that exist after it. A lost end shows in the number, which the tail guard keeps outside of the log. A hole shows in
//! the sum: the records that lay in the hole are missing, or have their former values. Source: ddata U2.

use std::collections::HashMap;

use bytes::{Buf, BufMut, Bytes};
use twox_hash::XxHash3_64;

use crate::{Batch, Reader, StoreError};

/// The key of the record of the last commit.
const COMMIT_KEY: &[u8] = &[0x03];
/// The end of the keys that are summed up; only the engine's probe lies behind.
const END: &[u8] = &[0xff];
const CRC_BYTES: usize = 4;

/// The sum over the records of a store, independent of their order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sum(u64);

/// The result of reading all records.
struct Found {
    sum: Sum,
    /// Whether a record does not match its checksum; its part of the sum may then be wrong.
    has_bad: bool,
}

/// The last commit of a store whose planner guards against unnoticed loss; it owns the record under key `03`.
///
/// A planner reads it in [`Planner::recover`](crate::Planner::recover), compares it in
/// [`Planner::verify`](crate::Planner::verify), returns its number from [`Planner::tail`](crate::Planner::tail), and
/// seals every batch that it plans. No other record may begin with `ff`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Commits {
    number: u64,
    /// The sum that the last commit left; `None` in a store whose commits were not numbered so far.
    sum: Option<Sum>,
}

impl Sum {
    /// The part of one record in the sum. The checksum at the end of a value stands for the value.
    fn part(key: &[u8], sealed: &[u8]) -> u64 {
        let crc = sealed.len().saturating_sub(CRC_BYTES);
        XxHash3_64::oneshot(&[key, &sealed[crc..]].concat())
    }

    fn add(&mut self, key: &[u8], sealed: &[u8]) {
        self.0 = self.0.wrapping_add(Self::part(key, sealed));
    }

    fn take(&mut self, key: &[u8], sealed: &[u8]) {
        self.0 = self.0.wrapping_sub(Self::part(key, sealed));
    }
}

impl Found {
    fn look(reader: &Reader) -> Result<Self, StoreError> {
        let mut found = Self { sum: Sum::default(), has_bad: false };
        for record in reader.raw_range(&[], END) {
            let (key, sealed) = record?;
            if key != COMMIT_KEY {
                found.sum.add(&key, &sealed);
                found.has_bad |= crate::batch::unseal(&key, &sealed).is_err();
            }
        }
        Ok(found)
    }
}

impl Commits {
    /// Reads the record of the last commit.
    ///
    /// # Errors
    /// [`StoreError`] if it cannot be read.
    pub fn recover(reader: &Reader) -> Result<Self, StoreError> {
        let Some(record) = reader.get(COMMIT_KEY)? else { return Ok(Self::default()) };
        Self::decode(record).ok_or_else(|| StoreError::corrupt("unreadable commit record"))
    }

    /// The number of the last commit; 0 before the first one.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Compares the sum of the last commit with the records.
    ///
    /// # Errors
    /// [`StoreError`] if records are missing, or cannot be read.
    pub fn verify(&mut self, reader: &Reader) -> Result<(), StoreError> {
        let found = match Found::look(reader) {
            Ok(found) => found,
            // Loading meets the same page and reports it; other pages are written as before.
            Err(error) if error.is_corruption() && self.sum.is_some() => {
                tracing::warn!(%error, "cannot tell whether a part of the log is lost: a page is damaged");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let number = self.number;
        match self.sum {
            Some(sum) if sum == found.sum => {}
            // The entry of the bad record is reported as damaged when it is loaded.
            Some(_) if found.has_bad => {
                tracing::warn!(number, "cannot tell whether a part of the log is lost: a record is damaged");
            }
            Some(_) => {
                let what = format!("the records are not those that commit {number} left: a part of the log is lost");
                return Err(StoreError::corrupt(what));
            }
            None => {}
        }
        self.sum = Some(found.sum);
        Ok(())
    }

    /// Makes a batch a commit: draws its number and adds the record. An empty batch stays empty.
    ///
    /// # Errors
    /// [`StoreError`] if the present values under its keys cannot be read.
    pub fn seal(&mut self, reader: &Reader, batch: &mut Batch) -> Result<(), StoreError> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut sum = self.sum.unwrap_or_default();
        // Of several writes of one key the last counts.
        let writes: HashMap<&[u8], Option<&[u8]>> =
            batch.writes().iter().map(|(key, value)| (&key[..], value.as_deref())).collect();
        for (key, sealed) in writes {
            reader.raw(key)?.iter().for_each(|before| sum.take(key, before));
            sealed.iter().for_each(|sealed| sum.add(key, sealed));
        }
        *self = Self { number: self.number + 1, sum: Some(sum) };
        batch.put(COMMIT_KEY, &self.encode());
        Ok(())
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16);
        out.put_u64(self.number);
        out.put_u64(self.sum.unwrap_or_default().0);
        out
    }

    fn decode(mut record: Bytes) -> Option<Self> {
        let (number, sum) = (record.try_get_u64().ok()?, record.try_get_u64().ok()?);
        record.is_empty().then_some(Self { number, sum: Some(Sum(sum)) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::StoreSettings;
    use crate::engine::Engine;

    fn engine(path: &std::path::Path) -> (Arc<Engine>, Reader) {
        let engine = Arc::new(Engine::open(path, &StoreSettings::test(), "repair it").unwrap());
        (engine.clone(), Reader::new(engine))
    }

    fn batch(writes: &[(&[u8], Option<&[u8]>)]) -> Batch {
        let mut batch = Batch::default();
        for (key, value) in writes {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.remove(key),
            }
        }
        batch
    }

    /// The bytes of docs/formats/ddata-store.md.
    #[test]
    fn the_bytes_of_a_commit_are_fixed() {
        let mut sum = Sum::default();
        sum.add(b"\x10key", b"value\x01\x02\x03\x04");
        let commits = Commits { number: 258, sum: Some(sum) };
        let bytes: String = commits.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(bytes, "00000000000001029e07c4d4d2ac96d4");
        assert_eq!(Commits::decode(commits.encode().into()), Some(commits.clone()));
        for at in 0..16 {
            assert_eq!(Commits::decode(Bytes::from(commits.encode()).slice(..at)), None);
        }
    }

    #[test]
    fn lost_records_show_in_the_sum() {
        let directory = tempfile::tempdir().unwrap();
        let (engine, reader) = engine(directory.path());
        let mut commits = Commits::default();
        commits.verify(&reader).unwrap();
        let groups: [&[(&[u8], Option<&[u8]>)]; 4] = [
            &[(b"a", Some(b"1")), (b"b", Some(b"1")), (b"a", Some(b"2"))],
            &[(b"a", Some(b"3")), (b"c", Some(b"1")), (b"c", None), (b"never", None)],
            &[(b"b", None), (b"d", Some(b"1"))],
            &[(b"e", Some(b"1"))],
        ];
        for (number, writes) in (1..).zip(groups) {
            let mut batch = batch(writes);
            commits.seal(&reader, &mut batch).unwrap();
            engine.commit(batch).unwrap();
            let mut read = Commits::recover(&reader).unwrap();
            assert_eq!((read.number(), &read), (number, &commits));
            read.verify(&reader).unwrap();
        }
        let losses: [&[(&[u8], Option<&[u8]>)]; 3] = [&[(b"a", Some(b"2"))], &[(b"d", None)], &[(b"b", Some(b"1"))]];
        for writes in losses {
            let before: Vec<_> = writes.iter().map(|(key, _)| (*key, reader.get(key).unwrap())).collect();
            engine.commit(batch(writes)).unwrap();
            let lost = Commits::recover(&reader).unwrap().verify(&reader).unwrap_err();
            assert!(lost.is_corruption() && lost.to_string().contains("commit 4"), "{lost}");
            for (key, value) in before {
                engine.commit(batch(&[(key, value.as_deref())])).unwrap();
            }
            Commits::recover(&reader).unwrap().verify(&reader).unwrap();
        }
    }
}
