//! Performs the store calls of machines.

use tokio::time::Instant;

use super::stores::{StatesInUse, Stores};
use crate::contract::driver::state_store::StateStore;
use crate::contract::records::event::Tags;
use crate::entities::lifecycle::input::{StoreAnswer, StoreCall};
use crate::entities::state_entity::{StateAnswer, StateCall};

impl StoreCall {
    /// Calls the store. Needs no runtime of its own; the host may await the call anywhere.
    pub async fn perform(self, stores: &Stores) -> StoreAnswer {
        let Stores { journal, snapshots, hints, counters, .. } = stores;
        match self {
            Self::ReadHead { id } => StoreAnswer::Head(journal.head(&id).await),
            Self::Claim { id, writer_uuid, under } => {
                StoreAnswer::Claimed(journal.claim(&id, writer_uuid, under).await)
            }
            Self::Advance { id, epoch, to } => StoreAnswer::Advanced(journal.advance(&id, epoch, to).await),
            Self::LoadSnapshot { id, criteria } => StoreAnswer::Snapshot(snapshots.load(&id, criteria).await),
            Self::ReadPage { id, range } => StoreAnswer::Page(journal.read(&id, range).await),
            Self::Append(append) => {
                let (id, first) = (append.id.clone(), append.first);
                let tags: Tags = append.events.iter().flat_map(|event| event.tags.iter().cloned()).collect();
                let count = append.events.len();
                let appended = journal.append(append).await;
                counters.appended(count, &appended);
                if appended.is_ok() {
                    hints.announce(&id, first, &tags);
                }
                StoreAnswer::Appended(appended)
            }
            Self::DeleteEvents { id, epoch, to, by } => {
                StoreAnswer::EventsDeleted(to, by, journal.delete_to(&id, epoch, to).await)
            }
            Self::SaveSnapshot(snapshot) => {
                let (seq_nr, bytes, began) = (snapshot.seq_nr, snapshot.payload.len(), Instant::now());
                let saved = snapshots.save(snapshot).await;
                counters.snapshot_saved(bytes, began.elapsed(), &saved);
                StoreAnswer::SnapshotSaved(seq_nr, saved)
            }
            Self::DeleteSnapshots { id, criteria } => {
                StoreAnswer::SnapshotsDeleted(criteria, snapshots.delete_matching(&id, criteria).await)
            }
        }
    }
}

impl StatesInUse {
    /// Calls the store, and counts the outcome. Needs no runtime of its own.
    pub async fn perform(&self, call: StateCall) -> StateAnswer {
        let answer = call.perform(&*self.states).await;
        if let StateAnswer::Written(outcome) = &answer {
            self.counters.written(outcome);
        }
        answer
    }
}

impl StateCall {
    /// Calls the store. Needs no runtime of its own; the host may await the call anywhere.
    pub async fn perform(self, states: &dyn StateStore) -> StateAnswer {
        match self {
            Self::Get { id } => StateAnswer::Loaded(states.get(&id).await),
            Self::Upsert { write, value, tag } => StateAnswer::Written(states.upsert(write, value, tag).await),
            Self::Delete { write } => StateAnswer::Written(states.delete(write).await),
        }
    }
}
