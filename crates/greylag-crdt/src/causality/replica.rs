//! Replicas, and the names of the leaves that they write.
//!
//! A [`ReplicaId`] names one process incarnation; a [`Dot`] names one leaf that a replica wrote. All numbers of a
//! process come from one [`DotSource`], shared by every entry, so a number is never used twice, even after its entry
//! was dropped.

mod random;

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering as Memory};

/// The uid of one process incarnation. Never used by two incarnations. Source: ddata K1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub u64);

impl fmt::Debug for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// One slot of a counter: the replica that counts in it, and the life of the entry at that replica.
///
/// A slot only grows, and of two amounts the greater counts. A replica that created an entry again does not know how
/// far its former slot is elsewhere, so it counts in a new slot. Source: ddata Y4.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId {
    /// The replica that counts in the slot.
    pub replica: ReplicaId,
    /// The highest number that the replica's process had drawn when the entry came into being there
    /// ([`crate::Home::born`]); 0 outside of a replicator, and in bytes written before slots had births.
    pub birth: u64,
}

impl SlotId {
    /// The slot of a replica in the life of the entry with this birth.
    #[inline]
    pub const fn new(replica: ReplicaId, birth: u64) -> Self {
        Self { replica, birth }
    }
}

impl fmt::Debug for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.replica, self.birth)
    }
}

/// Opaque bytes whose order is the order of writers that users see: a tie between two writes goes
/// to the smaller key. A replicator gives the bytes of its node's address. Source: ddata K1, Y6.
#[derive(Clone, PartialEq, Eq)]
pub struct WriterKey(KeyBytes);

/// The bytes of a key. Every write of a register carries a key, so a key of usual length is stored inline, and copied
/// and compared as words: the bytes above its length are 0.
#[derive(Clone, PartialEq, Eq)]
enum KeyBytes {
    Short { len: u8, bytes: [u8; SHORT] },
    Long(Arc<[u8]>),
}

/// The greatest length stored inline: an IPv4 address or short host name, a port and a uid. With length and kind such a
/// key fills four words.
const SHORT: usize = 30;

impl WriterKey {
    /// A key of these bytes.
    pub fn new(bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        let mut short = [0; SHORT];
        let Some(kept) = short.get_mut(..bytes.len()) else { return Self(KeyBytes::Long(bytes.into())) };
        kept.copy_from_slice(bytes);
        Self(KeyBytes::Short { len: bytes.len() as u8, bytes: short })
    }

    /// The bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            KeyBytes::Short { len, bytes } => &bytes[..usize::from(*len)],
            KeyBytes::Long(bytes) => bytes,
        }
    }
}

impl PartialOrd for WriterKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for WriterKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for WriterKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Debug for WriterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriterKey({})", String::from_utf8_lossy(self.as_bytes()).escape_debug())
    }
}

/// The name of one leaf of one entry: the replica that wrote the leaf, and the number that it drew (from 1). Source:
/// ddata K2, K3.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dot {
    /// The replica that wrote.
    pub replica: ReplicaId,
    /// The number that the replica drew.
    pub number: u64,
}

impl Dot {
    /// The dot of leaves that are in no entry yet; putting them into an entry gives them fresh dots.
    pub(crate) const UNPLACED: Self = Self { replica: ReplicaId(0), number: 1 };

    /// The write `number` of `replica`.
    pub fn new(replica: ReplicaId, number: u64) -> Self {
        Self { replica, number }
    }
}

impl fmt::Debug for Dot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.replica, self.number)
    }
}

/// The highest number of a dot that is accepted. No process draws so many, wherever it began; data with a higher number
/// cannot be decoded, because a process that took it over would have no numbers left to draw. Source: ddata §9, K2.
pub const MAX_NUMBER: u64 = i64::MAX as u64;

/// The highest number that reserving leads to; the other half of all numbers is left for drawing one by one.
const MAX_RESERVED: u64 = 1 << 62;

/// The source of numbers: one strictly rising counter per process incarnation.
///
/// Clones share the counter. Every replicator and every entry of the process must share it, and it must never restart
/// while the [`ReplicaId`] lives: a container that began at 1 again would reuse dots that stale peers already know, and
/// its new elements would vanish. Source: ddata K2.
#[derive(Debug, Clone, Default)]
pub struct DotSource(Arc<AtomicU64>);

impl DotSource {
    /// A source whose first number is 1.
    pub fn new() -> Self {
        Self::default()
    }

    /// A source whose first number is above `floor`, for callers with stable replica ids.
    pub fn above(floor: u64) -> Self {
        Self(Arc::new(AtomicU64::new(floor)))
    }

    /// The next number, never given before.
    #[inline]
    pub fn draw(&self) -> u64 {
        self.0.fetch_add(1, Memory::Relaxed) + 1
    }

    /// Skips `count` numbers, which will never be drawn, and returns the number just below the first of them. `None`,
    /// and nothing is skipped, if that would use more than half of all numbers. Source: ddata Z6, K2.
    pub fn reserve(&self, count: u64) -> Option<u64> {
        let jump = |last: u64| last.checked_add(count).filter(|next| *next <= MAX_RESERVED);
        self.0.fetch_update(Memory::Relaxed, Memory::Relaxed, jump).ok()
    }

    /// The highest number given so far; 0 if none.
    #[inline]
    pub fn last(&self) -> u64 {
        self.0.load(Memory::Relaxed)
    }
}
