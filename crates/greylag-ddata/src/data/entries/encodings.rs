//! Encodings of recently sent entries, shared by several recipients. Source: ddata R14.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use greylag_crdt::Digest;

use crate::api::key::KeyId;

/// The most encodings kept: only a new node wants every entry, and it is served each entry once.
const KEPT: usize = 4_096;
/// The most bytes of encodings kept, not counting a single one.
const KEPT_BYTES: usize = 64 * 1024 * 1024;
/// How many old encodings one input drops: a handful of microseconds, whatever was sent before.
const DROPPED_AT_ONCE: usize = 64;

/// The kept encodings. Keyed by digest, so a change of the entry invalidates its encoding.
#[derive(Debug, Default)]
pub(super) struct Encodings {
    /// The time of the present input.
    now: Option<Instant>,
    kept: BTreeMap<KeyId, Encoding>,
    /// When encodings were made, the oldest first. An encoding that was made again since is found to be younger.
    made: VecDeque<(Instant, KeyId)>,
    bytes: usize,
}

#[derive(Debug)]
struct Encoding {
    made_at: Instant,
    digest: Digest,
    bytes: Bytes,
}

impl Encodings {
    /// The encoding of an entry with this digest, if it is kept.
    pub(super) fn of(&self, key: &str, digest: Digest) -> Option<Bytes> {
        self.kept.get(key).filter(|kept| kept.digest == digest).map(|kept| kept.bytes.clone())
    }

    /// As `of`; makes the encoding if it is not kept.
    pub(super) fn get_or_make(&mut self, key: &KeyId, digest: Digest, make: impl FnOnce() -> Bytes) -> Bytes {
        self.of(key, digest).unwrap_or_else(|| {
            let bytes = make();
            if let Some(made_at) = self.now {
                self.keep(key, Encoding { made_at, digest, bytes: bytes.clone() });
            }
            bytes
        })
    }

    fn keep(&mut self, key: &KeyId, encoding: Encoding) {
        self.bytes += encoding.bytes.len();
        self.made.push_back((encoding.made_at, key.clone()));
        if let Some(former) = self.kept.insert(key.clone(), encoding) {
            self.bytes -= former.bytes.len();
        }
        while self.made.len() > 1 && (self.made.len() > KEPT || self.bytes > KEPT_BYTES) {
            self.drop_oldest();
        }
    }

    /// Sets the time, and drops some of the encodings older than `time_to_live`.
    pub(super) fn forget(&mut self, now: Instant, time_to_live: Duration) {
        self.now = Some(now);
        for _ in 0..DROPPED_AT_ONCE {
            match self.made.front() {
                Some((made_at, _)) if *made_at + time_to_live <= now => self.drop_oldest(),
                _ => return,
            }
        }
    }

    fn drop_oldest(&mut self) {
        let Some((made_at, key)) = self.made.pop_front() else { return };
        if self.kept.get(&key).is_some_and(|kept| kept.made_at == made_at)
            && let Some(gone) = self.kept.remove(&key)
        {
            self.bytes -= gone.bytes.len();
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ddata R14: the age of an encoding that was made again counts from the second time.
    #[test]
    fn a_repeated_encoding_counts_its_age_from_the_second_time() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut encodings = Encodings::default();
        for (digest, at) in [(1, now), (2, now + second / 2)] {
            encodings.forget(at, second);
            encodings.get_or_make(&"k".into(), Digest(digest), Bytes::new);
        }
        encodings.forget(now + second, second);
        assert!(encodings.of("k", Digest(2)).is_some());
        encodings.forget(now + second * 2, second);
        assert_eq!((encodings.len(), encodings.made.len()), (0, 0));
    }

    /// ddata R14, H2: however many entries were sent, few encodings are kept, and they are dropped a few at a time.
    #[test]
    fn kept_encodings_are_bounded_and_dropped_in_steps() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut encodings = Encodings::default();
        encodings.forget(now, second);
        for number in 0..2 * KEPT {
            encodings.get_or_make(&number.to_string().into(), Digest(1), || vec![0; 10].into());
        }
        assert_eq!((encodings.len(), encodings.bytes), (KEPT, KEPT * 10));
        encodings.forget(now + second, second);
        assert_eq!(encodings.len(), KEPT - DROPPED_AT_ONCE);
        for _ in 0..KEPT / DROPPED_AT_ONCE {
            encodings.forget(now + second, second);
        }
        assert_eq!((encodings.len(), encodings.bytes, encodings.made.len()), (0, 0, 0));
        let large = || Bytes::from(vec![0; KEPT_BYTES / 2 + 1]);
        ["a", "b", "b"].iter().zip(1..).for_each(|(key, digest)| {
            encodings.get_or_make(&(*key).into(), Digest(digest), large);
        });
        assert_eq!((encodings.len(), encodings.of("a", Digest(1)), encodings.of("b", Digest(2))), (1, None, None));
        assert_eq!(encodings.of("b", Digest(3)).map(|bytes| bytes.len()), Some(encodings.bytes));
    }
}
