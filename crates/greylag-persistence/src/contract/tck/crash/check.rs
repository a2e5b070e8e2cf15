//! The check of the stored data against the answers that a writer got.

use std::collections::BTreeSet;

use super::content::{Content, fill};
use super::round::CrashStores;
use super::work::Worker;
use crate::contract::driver::offset_store::OffsetStore;
use crate::contract::journal::ReadRange;
use crate::contract::offset::{Offset, OffsetKind, Position};
use crate::contract::records::event::{SeqNr, StoredEvent};
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::snapshot::SnapshotCriteria;
use crate::contract::records::state::ChangesOf;
use crate::contract::tck::harness::{Checked, ensure, equal, must};
use crate::contract::tck::writer::read_all;

impl Worker {
    /// Compares all stored data of this worker with the answers that it got.
    pub(super) async fn check(&mut self, stores: &CrashStores) -> Checked {
        self.check_events(stores).await?;
        self.check_snapshots(stores).await?;
        self.check_states(stores).await?;
        match &stores.offsets {
            Some(offsets) => self.check_offsets(&**offsets).await,
            None => Ok(()),
        }
    }

    async fn check_events(&mut self, stores: &CrashStores) -> Checked {
        let (id, answers) = (&self.id, &mut self.answers);
        let head = must("head", stores.journal.head(id).await)?;
        ensure(head.epoch >= answers.epoch, || format!("{id} lost epoch {}: {head:?}", answers.epoch))?;
        ensure(head.highest >= answers.highest, || format!("{id} lost {}: {head:?}", answers.highest))?;
        ensure((answers.deleted_to..=answers.deleting).contains(&head.deleted_to), || {
            format!("{id}: {} deleted, {} to be deleted: {head:?}", answers.deleted_to, answers.deleting)
        })?;
        let events = read_all(&stores.journal, id, ReadRange { max_events: 7, ..ReadRange::all() }).await?;
        let live = head.deleted_to.as_u64() + 1..=head.highest.as_u64();
        let numbers: Vec<u64> = events.iter().map(|event| event.seq_nr.as_u64()).collect();
        equal(&format!("numbers of {id}"), numbers, live.collect())?;
        answers.deleted(head.deleted_to);
        let mut seen = BTreeSet::new();
        for event in &events {
            let (number, content) = (event.seq_nr.as_u64(), text(event));
            let told = answers.stored.entry(number).or_insert_with(|| content.clone());
            equal(&format!("event {number} of {id}"), &content, told)?;
            ensure(event.is_intact(), || format!("event {number} of {id} is damaged"))?;
            ensure(!answers.refused.contains(&content), || format!("{content:?} was said not to be stored"))?;
            ensure(seen.insert(content.clone()), || format!("{content:?} is stored twice"))?;
        }
        (answers.highest, answers.epoch) = (head.highest, head.epoch);
        whole(id, &events)
    }

    async fn check_snapshots(&mut self, stores: &CrashStores) -> Checked {
        let (id, told) = (&self.id, self.answers.snapshot);
        let newest = must("snapshot", stores.snapshots.load(id, SnapshotCriteria::LATEST).await)?;
        let found = newest.as_ref().map_or(SeqNr::ZERO, |snapshot| snapshot.seq_nr);
        ensure(found >= told, || format!("{id} lost its snapshot {told}, there is {found}"))?;
        if let Some(snapshot) = &newest {
            let whole = snapshot.payload.iter().all(|byte| *byte == fill(snapshot.seq_nr));
            ensure(whole && snapshot.is_intact(), || format!("snapshot {found} of {id} is of two saves"))?;
        }
        self.answers.snapshot = found;
        let gone = self.answers.snapshots_deleted_to;
        if !gone.is_zero() {
            let old = must("snapshot", stores.snapshots.load(id, SnapshotCriteria::up_to(gone)).await)?;
            ensure(old.is_none(), || format!("{id}: a deleted snapshot is back: {:?}", old.map(|old| old.seq_nr)))?;
        }
        Ok(())
    }

    async fn check_states(&mut self, stores: &CrashStores) -> Checked {
        let Some(states) = &stores.states else { return Ok(()) };
        let row = must("state", states.get(&self.id).await)?;
        self.answers.check_state(&row)?;
        if states.caps().changes != Some(OffsetKind::Ordinal) || row.revision.is_none() {
            return Ok(());
        }
        let of = ChangesOf::Tag(self.projection());
        let changes = must("changes", states.changes(&of, &Offset::None, 1000).await)?;
        let last = changes.last().map(|change| &change.state);
        equal(&format!("latest change of {}", self.id), last, Some(&row))?;
        let rising = changes.windows(2).all(|pair| pair[0].state.revision < pair[1].state.revision);
        ensure(rising, || format!("a change of {} comes twice", self.id))
    }

    async fn check_offsets(&mut self, offsets: &dyn OffsetStore) -> Checked {
        let mut found = Vec::new();
        for slice in [self.id.slice(), self.second_id.slice()] {
            let loaded = must("offsets", offsets.load(&self.projection(), slice..=slice).await)?;
            found.push(loaded.last().map_or(0, |processed| match processed.position {
                Position::Ordinal(number) => number,
                Position::Timestamp(timestamp) => timestamp.as_micros(),
            }));
        }
        let (told, tried) = (self.answers.saved, self.answers.saving);
        ensure(found[0] == found[1] && (told..=tried).contains(&found[0]), || {
            format!("{}: {told} was saved, {tried} tried, {found:?} are stored", self.projection())
        })?;
        self.answers.saved = found[0];
        Ok(())
    }
}

fn text(event: &StoredEvent) -> String {
    String::from_utf8_lossy(&event.payload).into_owned()
}

/// Checks that every append is there whole, apart from the deleted part of the first.
fn whole(id: &PersistenceId, events: &[StoredEvent]) -> Checked {
    let mut before: Option<Content> = None;
    for event in events {
        let content = Content::read(&text(event));
        let Some(content) = content else { return ensure(false, || format!("{} of {id} is foreign", event.seq_nr)) };
        let follows = match &before {
            Some(before) if before.place + 1 < before.count => {
                content.attempt == before.attempt && content.place == before.place + 1
            }
            Some(_) => content.place == 0,
            // Events before the first one are deleted.
            None => content.place == 0 || event.seq_nr > SeqNr::FIRST,
        };
        ensure(follows, || format!("an append of {id} is torn at {}", event.seq_nr))?;
        before = Some(content);
    }
    let ended = before.is_none_or(|last| last.place + 1 == last.count);
    ensure(ended, || format!("the last append of {id} is torn"))
}
