//! Lets a test read stores in memory, and make them fail.
//!
//! For entities that run as tasks or in shards; [`EntityTestKit`](crate::EntityTestKit) has this built in.
//! Source: persistence §4.6.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;

use super::stores::Stores;
use crate::contract::driver::faulty::{FaultyJournal, JournalOp, StoreFault};
use crate::contract::driver::journal_store::Journal;
use crate::contract::driver::memory::{InMemoryJournal, InMemorySnapshots};
use crate::contract::records::codec::StoredCodec;
use crate::contract::records::event::{SeqNr, StoredEvent};
use crate::contract::records::persistence_id::PersistenceId;
use crate::entities::testkit::decode;
use crate::entities::testkit::steps::append_value;

/// Longest wait of [`StoreProbe::expect_next`].
const PATIENCE: Duration = Duration::from_secs(10);

/// Time between two reads.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Stores in memory that a test can read, for entities whose events are `E`.
pub struct StoreProbe<E> {
    journal: InMemoryJournal,
    faulty: Arc<FaultyJournal>,
    snapshots: InMemorySnapshots,
    codec: StoredCodec<E>,
    /// The last number of each id that the test has expected.
    seen: BTreeMap<PersistenceId, SeqNr>,
}

impl<E: 'static> StoreProbe<E> {
    /// Empty stores of events that `codec` reads.
    pub fn new(codec: StoredCodec<E>) -> Self {
        let journal = InMemoryJournal::default();
        let faulty = Arc::new(FaultyJournal::new(Arc::new(journal.clone())));
        Self { journal, faulty, snapshots: InMemorySnapshots::default(), codec, seen: BTreeMap::new() }
    }

    /// The stores to give to the entities.
    pub fn stores(&self) -> Stores {
        Stores::new(self.faulty.clone(), Arc::new(self.snapshots.clone()))
    }

    /// The journal, for checks that the probe has no method for.
    pub fn journal(&self) -> &InMemoryJournal {
        &self.journal
    }

    /// Waits for the event of `id` that follows the last one seen.
    ///
    /// # Panics
    /// If another event follows, or none comes within ten seconds.
    pub async fn expect_next(&mut self, id: &PersistenceId, event: &E)
    where
        E: PartialEq + fmt::Debug,
    {
        let look = async {
            loop {
                if let Some(record) = self.unseen(id) {
                    return record;
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        let record = tokio::time::timeout(PATIENCE, look).await;
        let record = record.unwrap_or_else(|_| panic!("{id} must persist {event:?}, but persisted nothing"));
        self.seen.insert(id.clone(), record.seq_nr);
        let stored = decode(&self.codec, record);
        assert_eq!(stored.iter().collect::<Vec<_>>(), [event], "the next event of {id}");
    }

    /// Waits for `wait` and checks that `id` has no unseen event then.
    ///
    /// # Panics
    /// If there is one.
    pub async fn expect_nothing(&mut self, id: &PersistenceId, wait: Duration) {
        tokio::time::sleep(wait).await;
        let unseen = self.unseen(id).map(|record| record.seq_nr);
        assert_eq!(unseen, None, "{id} must persist nothing");
    }

    /// All events of `id`, seen or not.
    ///
    /// # Panics
    /// If one cannot be decoded.
    pub fn persisted(&self, id: &PersistenceId) -> Vec<E> {
        self.journal.events(id).into_iter().flat_map(|record| decode(&self.codec, record)).collect()
    }

    /// Stores a history for an entity to recover from; its events count as seen.
    ///
    /// # Panics
    /// If an event cannot be stored.
    pub fn persist_for_recovery(&mut self, id: &PersistenceId, events: &[E]) {
        for event in events {
            let value = self.codec.encode(event).unwrap_or_else(|error| panic!("an event cannot be encoded: {error}"));
            append_value(&self.journal, id, value);
        }
        let last = self.journal.events(id).last().map(|record| record.seq_nr);
        self.seen.insert(id.clone(), last.unwrap_or_default());
    }

    /// Makes the next `count` appends of `id`, or of any id, meet `fault`.
    pub fn fail_next(&self, id: Option<&PersistenceId>, count: u32, fault: StoreFault) {
        (0..count).for_each(|_| self.faulty.plan(id.cloned(), JournalOp::Append, 0, fault));
    }

    /// Makes the next `count` appends of `id`, or of any id, be rejected.
    pub fn reject_next(&self, id: Option<&PersistenceId>, count: u32) {
        self.fail_next(id, count, StoreFault::Rejected);
    }

    /// Removes all events and snapshots. With `keep_numbers` histories go on from their last number, as if
    /// their events had been deleted; else the store is as if it had never been written to.
    ///
    /// # Panics
    /// If the journal was closed.
    pub fn clear(&mut self, keep_numbers: bool) {
        self.snapshots.clear();
        if !keep_numbers {
            self.seen.clear();
            return self.journal.clear();
        }
        for id in self.journal.persistence_ids() {
            let head = self.journal.head(&id).now_or_never().expect("memory never waits").unwrap_or_default();
            let deleted = self.journal.delete_to(&id, head.epoch, SeqNr::MAX).now_or_never();
            deleted.expect("memory never waits").unwrap_or_else(|error| panic!("{id} is not cleared: {error}"));
            self.seen.insert(id, head.highest);
        }
    }

    /// The first event of `id` that the test has not seen.
    fn unseen(&self, id: &PersistenceId) -> Option<StoredEvent> {
        let seen = self.seen.get(id).copied().unwrap_or_default();
        self.journal.events(id).into_iter().find(|record| record.seq_nr > seen)
    }
}

impl<E> fmt::Debug for StoreProbe<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreProbe({:?}, {:?})", self.journal, self.faulty)
    }
}
