//! How a host performs what a machine asks of the stores.

use crate::driver::state_store::StateStore;
use crate::driver::stores::Stores;
use crate::entity::{StoreAnswer, StoreCall};
use crate::event::Tags;
use crate::state_entity::{StateAnswer, StateCall};

impl StoreCall {
    /// Calls the store. Needs no runtime of its own; the host awaits it wherever it likes.
    pub async fn perform(self, stores: &Stores) -> StoreAnswer {
        let Stores { journal, snapshots, hints, .. } = stores;
        match self {
            Self::ReadHead { id } => StoreAnswer::Head(journal.head(&id).await),
            Self::Claim { id, writer_uuid, under } => {
                StoreAnswer::Claimed(journal.claim(&id, writer_uuid, under).await)
            }
            Self::Advance { id, epoch, to } => StoreAnswer::Advanced(journal.advance(&id, epoch, to).await),
            Self::LoadSnapshot { id, criteria } => StoreAnswer::Snapshot(snapshots.load(&id, criteria).await),
            Self::ReadPage { id, range } => StoreAnswer::Page(journal.read(&id, range).await),
            Self::Append(append) => {
                let id = append.id.clone();
                let tags: Tags = append.events.iter().flat_map(|event| event.tags.iter().cloned()).collect();
                let appended = journal.append(append).await;
                if appended.is_ok() {
                    hints.announce(&id, &tags);
                }
                StoreAnswer::Appended(appended)
            }
            Self::DeleteEvents { id, epoch, to, by } => {
                StoreAnswer::EventsDeleted(to, by, journal.delete_to(&id, epoch, to).await)
            }
            Self::SaveSnapshot(snapshot) => StoreAnswer::SnapshotSaved(snapshot.seq_nr, snapshots.save(snapshot).await),
            Self::DeleteSnapshots { id, criteria } => {
                StoreAnswer::SnapshotsDeleted(criteria, snapshots.delete_matching(&id, criteria).await)
            }
        }
    }
}

impl StateCall {
    /// Calls the store. Needs no runtime of its own; the host awaits it wherever it likes.
    pub async fn perform(self, states: &dyn StateStore) -> StateAnswer {
        match self {
            Self::Get { id } => StateAnswer::Loaded(states.get(&id).await),
            Self::Upsert { write, value, tag } => StateAnswer::Written(states.upsert(write, value, tag).await),
            Self::Delete { write } => StateAnswer::Written(states.delete(write).await),
        }
    }
}
