//! The heads that requests are planned on: from the cache, else from the store.

use greylag_persistence::PersistenceId;
use greylag_store_sled::{Batch, Reader};

use super::commit_writer::CommitWriter;
use crate::heads::{ChangedHead, ChangedHeads, HeadCache};
use crate::lookup::{self, LookupError};
use crate::rows::keys::{self, PidNo};
use crate::rows::records::StoredHead;

/// The heads of a journal as the group in hand leaves them so far.
pub(super) struct PlannedHeads {
    cache: HeadCache,
    /// Heads that the group in hand changes.
    changed: ChangedHeads,
}

impl PlannedHeads {
    /// Heads of which about `cached` are kept in memory.
    pub(super) fn new(cached: usize) -> Self {
        Self { cache: HeadCache::new(cached), changed: ChangedHeads::default() }
    }

    /// Forgets everything: the store was opened anew.
    pub(super) fn clear(&mut self) {
        self.cache.clear();
        self.changed.clear();
    }

    /// Drops the heads that the cache holds beyond its size. Called before each group.
    pub(super) fn trim(&mut self) {
        self.cache.trim();
    }

    pub(super) fn find(&mut self, id: &PersistenceId, reader: &Reader) -> Result<Option<StoredHead>, LookupError> {
        if let Some(head) = self.cache.get(id) {
            return Ok(Some(head));
        }
        let found = lookup::head(reader, id)?;
        if let Some(head) = found {
            self.cache.put(id, head);
        }
        Ok(found)
    }

    /// Changes the head of `id`, which [`PlannedHeads::find`] just found as `before`.
    pub(super) fn set(
        &mut self,
        id: PersistenceId,
        before: Option<StoredHead>,
        now: StoredHead,
        commits: &mut CommitWriter,
    ) {
        let known = before.map(|before| before.head).unwrap_or_default();
        let rises = now.head.epoch >= known.epoch && now.head.highest >= known.highest;
        debug_assert!(rises && now.head.deleted_to >= known.deleted_to, "{id}: a head only rises");
        debug_assert!(now.head.deleted_to <= now.head.highest, "{id}: only numbers that were used are deleted");
        debug_assert!(before.is_none_or(|before| before.pid == now.pid), "{id}: an id keeps its number");
        commits.on_change();
        // The cached head is not durable yet, but a request planned on it fails together with it.
        self.cache.put(&id, now);
        self.changed.change(id, before, now);
    }

    /// Writes the changed heads; answers each head as it was before.
    pub(super) fn write(&mut self, commits: &mut CommitWriter, batch: &mut Batch) -> Vec<(PidNo, Option<StoredHead>)> {
        let changed = self.changed.take();
        for ChangedHead { id, now, .. } in &changed {
            let head = now.encode(id.entity_type());
            commits.note_head(now.pid, &head, batch);
            batch.put(&keys::head(id), &head);
        }
        changed.into_iter().map(|changed| (changed.now.pid, changed.before)).collect()
    }
}
