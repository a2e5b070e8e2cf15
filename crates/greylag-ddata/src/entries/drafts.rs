//! Drafts: large values that are being received in parts. Source: ddata G12.

use bytes::Bytes;
use greylag_crdt::Digest;

use super::{Data, Entries, Entry, EntryContent, Merged, Rules};
use crate::envelope::Content;
use crate::key::{KeyId, problem};
use crate::message::Refusal;
use crate::repair::{Deferred, Draft, Malformed};
use crate::types::AnyData;
use greylag_core::UniqueAddress;

impl Entries {
    /// Whether a value is compared and sent range by range, because it has more than `keys` top-level keys.
    pub(crate) fn is_large(&self, key: &str, keys: usize) -> bool {
        let ranged = self.get(key).and_then(Entry::value).and_then(AnyData::ranged);
        ranged.is_some_and(|ranged| ranged.keys() > keys)
    }

    /// Begins a draft that joins an offered value with the value held here.
    pub(crate) fn begin_draft(
        &mut self,
        rules: &Rules<'_>,
        key: &KeyId,
        from: UniqueAddress,
        offered: Deferred,
    ) -> Result<(), Refusal> {
        let Content::Value { tag, .. } = &offered.offer.head.content else { return Err(Refusal::Undecodable) };
        if problem(key).is_some() {
            return Err(Refusal::Undecodable);
        }
        self.check_tag(key, tag)?;
        let found = rules.types.find(tag).ok_or(Refusal::UnknownType)?;
        let mut zero = found.zero();
        zero.bind(self.home(key));
        let own = self.get(key);
        let draft = Draft::new(from, offered, own, zero).map_err(|Malformed| Refusal::Undecodable)?;
        self.drafts.insert(key.clone(), draft);
        Ok(())
    }

    /// Adds a delta to the draft of its entry: the delta was joined into the entry, which had the digest `before`.
    pub(crate) fn note_delta(&mut self, key: &KeyId, delta: &Bytes, before: Option<Digest>) {
        if self.drafts.is_empty() {
            return;
        }
        let after = self.digest(key);
        if let Some(draft) = self.drafts.get_mut(key) {
            draft.note(delta, before, after);
        }
    }

    /// Replaces the entry by a finished draft that includes it, or joins the draft.
    pub(crate) fn merge_draft(&mut self, rules: &Rules<'_>, key: &KeyId, draft: Draft) -> Result<Merged, Refusal> {
        if let Some(Entry { data: Data::Tombstone { deleted_at }, .. }) = self.get(key) {
            return Ok(Merged::Deleted { deleted_at: *deleted_at });
        }
        if self.is_too_late(key, draft.offer.head.used_ms) {
            return Ok(Merged::Expired);
        }
        let Content::Value { tag, .. } = &draft.offer.head.content else { return Err(Refusal::Undecodable) };
        self.check_tag(key, tag)?;
        let found = rules.types.find(tag).ok_or(Refusal::UnknownType)?;
        let (now, bytes) = (self.digest(key), draft.bytes);
        let (value, head, includes_all) = draft.finish(found, now);
        let Some(own) = self.get(key).filter(|own| includes_all && *own.markers() == head.markers) else {
            return self.merge_state(rules, key, &**found, value, &head, bytes);
        };
        let mut versions = own.versions.to_map();
        for (origin, version) in &head.versions {
            let own = versions.entry(*origin).or_default();
            *own = (*own).max(*version);
        }
        let (markers, size_bound, born) = (own.markers().clone(), own.size_bound + bytes, own.born());
        let (data, used_ms) = (Data::Value(value), head.used_ms);
        self.set(key, EntryContent { data, versions, markers, size_bound, born, used_ms });
        Ok(Merged::Done { changed: self.digest(key) != now })
    }
}
