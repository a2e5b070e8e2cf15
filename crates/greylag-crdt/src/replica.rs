//! Who writes, and what a write is called.
//!
//! A [`ReplicaId`] names one process incarnation; a [`Dot`] names one leaf that it wrote. Numbers of
//! dots come from one [`DotSource`] per process, shared by every entry, so a number is never used
//! twice, whatever becomes of the entry that it was drawn for.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One process incarnation: its uid. Never used by two of them. Source: ddata K1.
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

/// Opaque bytes whose order is the order of writers that users see: a tie between two writes goes
/// to the smaller key. A replicator gives the bytes of its node's address. Source: ddata K1, Y6.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterKey(Arc<[u8]>);

impl WriterKey {
    /// A key of these bytes.
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for WriterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriterKey({})", String::from_utf8_lossy(&self.0).escape_debug())
    }
}

/// The name of one leaf of one entry: who wrote it, and which of its writes it was (from 1).
/// Source: ddata K2, K3.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dot {
    /// Who wrote.
    pub replica: ReplicaId,
    /// The number that it drew.
    pub number: u64,
}

impl Dot {
    /// The dot of leaves that stand in no entry yet; putting them into one gives them dots of their own.
    pub(crate) const NOWHERE: Self = Self { replica: ReplicaId(0), number: 1 };

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

/// Where numbers come from: one strictly rising counter per process incarnation.
///
/// Clones share the counter. It must be shared by every replicator and every entry in the process
/// and never restarted while the [`ReplicaId`] lives: a container that began at 1 again would reuse
/// dots that stale peers already know, and its new elements would vanish. Source: ddata K2.
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
    pub fn draw(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Jumps past `count` numbers, which will never be drawn, and returns the number just below the first of them.
    /// `None`, and no jump, if so many are not left. Source: ddata Z6.
    pub fn reserve(&self, count: u64) -> Option<u64> {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| last.checked_add(count)).ok()
    }

    /// The highest number given so far; 0 if none.
    pub fn last(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
