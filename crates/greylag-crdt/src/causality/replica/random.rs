//! Draws an id for a process that replicates by itself: the only randomness of this crate.

use std::hash::{BuildHasher as _, RandomState};

use super::ReplicaId;

impl ReplicaId {
    /// An id that no other process has: 64 bits that the operating system drew. Draw one at each start of a program that
    /// replicates by itself, and keep it no longer than the process lives. (A replicator takes the uid of its node.)
    ///
    /// Two processes that share an id share a slot of every counter, and of two amounts in one slot the greater counts,
    /// as if one of them were an older copy of the other. So what one of them counted is lost:
    ///
    /// ```
    /// use greylag_crdt::{DotSource, GCounter, ReplicaId, ReplicatedData as _, UpdateCx, WriterKey};
    ///
    /// /// A process that counts its visitors.
    /// fn visits(process: ReplicaId, visitors: u64) -> GCounter {
    ///     let (numbers, writer) = (DotSource::new(), WriterKey::new(*b"host"));
    ///     let mut visits = GCounter::new();
    ///     visits.increment(&mut UpdateCx::new(&numbers, process, &writer, 0), visitors).expect("small amounts");
    ///     visits
    /// }
    ///
    /// let mut shared = visits(ReplicaId(1), 5);
    /// shared.merge(&visits(ReplicaId(1), 3))?;
    /// assert_eq!(shared.value(), 5, "one id for two processes: three visitors are lost");
    ///
    /// let mut right = visits(ReplicaId::random(), 5);
    /// right.merge(&visits(ReplicaId::random(), 3))?;
    /// assert_eq!(right.value(), 8);
    /// # Ok::<(), greylag_crdt::MergeError>(())
    /// ```
    ///
    /// Sets, maps and registers lose writes in the same way: their dots are numbered per id. The same holds for a process
    /// that starts again under its former id with an older copy of its values, or with none. Source: ddata K1, K2, Y4.
    pub fn random() -> Self {
        // The standard library asks the operating system for the keys of its hash maps.
        Self(RandomState::new().hash_one(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ddata K1: ids that were drawn differ.
    #[test]
    fn random_ids_differ() {
        let ids: std::collections::BTreeSet<ReplicaId> = (0..1_000).map(|_| ReplicaId::random()).collect();
        assert_eq!(ids.len(), 1_000);
    }
}
