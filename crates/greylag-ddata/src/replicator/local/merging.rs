//! Joins data of peers and of the store into the entries, and notes what the data reveal: a refusal, a clock that is far
//! ahead, a replica id that is used twice. Source: ddata C8, Y6, Z9, §9.

use std::sync::Arc;
use std::time::Instant;

use greylag_core::UniqueAddress;
use greylag_crdt::ReplicaId;

use super::LocalReplica;
use crate::api::effect::Effect;
use crate::api::error::StopReason;
use crate::api::event::{ReplicatorEvent, TypeConflict};
use crate::api::key::{KeyId, problem};
use crate::api::settings::durable::OnBadRecord;
use crate::data::entries::{Entry, LoadProblem, MergeFindings, Merged, Rules};
use crate::data::envelope::{Content, Envelope};
use crate::data::types::AnyData;
use crate::messages::message::{DeltaItem, Refusal};
use crate::storage::store::LoadedRecord;

/// A timestamp further ahead of the own wall clock is reported. Source: ddata Y6.
const CLOCK_TOLERANCE_MS: i64 = 3_600_000;

impl LocalReplica {
    /// Joins deltas of the sender.
    pub(in crate::replicator) fn merge_delta(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        item: &DeltaItem,
        out: &mut Vec<Effect>,
    ) -> Result<Merged, Refusal> {
        let origin = ReplicaId(from.uid().get());
        let merged = if problem(&item.key).is_some() {
            // A key with such a problem could never be read or deleted.
            Err(Refusal::Undecodable)
        } else {
            let rules = Rules::new(&self.types, &self.settings, self.forgets_before(now));
            self.entries.merge_delta(&rules, origin, item)
        };
        if let Ok(Merged::Gap { .. }) = merged {
            self.observed.stats.gaps += 1;
        }
        self.note_suspicion(now, from, &item.key, out);
        self.note_refusal(now, from, &item.key, &item.tag, merged, out)
    }

    /// Joins a full state.
    pub(in crate::replicator) fn merge(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        key: &KeyId,
        envelope: &Envelope,
        out: &mut Vec<Effect>,
    ) -> Result<Merged, Refusal> {
        let rules = Rules::new(&self.types, &self.settings, self.forgets_before(now));
        let is_believed = match envelope.content {
            Content::Tombstone { deleted_at } => self.bounds(now).allow(deleted_at),
            Content::Value { .. } | Content::Unreadable => true,
        };
        let merged = match problem(key) {
            // A key with such a problem could never be read or deleted; a tombstone from the future, never forgotten.
            Some(_) => Err(Refusal::Undecodable),
            None if !is_believed => Err(Refusal::Undecodable),
            None => self.entries.merge_envelope(&rules, key, envelope),
        };
        let tag = match &envelope.content {
            Content::Value { tag, .. } => tag.clone(),
            Content::Unreadable => "".into(),
            Content::Tombstone { .. } => {
                if merged.is_ok() && merged != Ok(Merged::Expired) {
                    self.log.clear_deltas(key);
                }
                "".into()
            }
        };
        self.note_suspicion(now, from, key, out);
        self.note_refusal(now, from, key, &tag, merged, out)
    }

    /// Raises the horizon if a marker was not kept. Reports, once per entry, a clock that is far ahead and a replica id
    /// that is used twice; the data were accepted nevertheless. Source: ddata Y6, Z9, §9.
    fn note_suspicion(&mut self, now: Instant, from: &UniqueAddress, key: &KeyId, out: &mut Vec<Effect>) {
        let MergeFindings { done_without, timestamp, own_version } = std::mem::take(&mut self.entries.findings);
        // The data bear the owner's name already, and no marker here records that: the same as if the marker were
        // forgotten.
        if let Some(performed_at) = done_without {
            self.raise_horizon(performed_at);
        }
        let timestamp = timestamp.filter(|_| self.settings.has_wall_clock(key));
        let ahead = timestamp.map(|timestamp| timestamp.saturating_sub(self.wall.ms(now)));
        if let Some(ahead_ms) = ahead.filter(|ahead| *ahead > CLOCK_TOLERANCE_MS) {
            self.observed.on_clock_ahead(now, key, from, ahead_ms, out);
        }
        if own_version.is_some_and(|version| version > self.writer.last()) {
            self.observed.on_reused_id(now, self.writer.replica(), key, from, out);
        }
    }

    /// Counts a refusal, and reports entries that will never converge.
    pub(in crate::replicator) fn note_refusal(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        key: &KeyId,
        tag: &Arc<str>,
        merged: Result<Merged, Refusal>,
        out: &mut Vec<Effect>,
    ) -> Result<Merged, Refusal> {
        match merged {
            Err(refusal) => {
                let entries = &self.entries;
                let conflict = || TypeConflict {
                    key: key.clone(),
                    own: entries.get(key).and_then(Entry::value).map(AnyData::tag).unwrap_or_default(),
                    peer: from.clone(),
                    found: tag.clone(),
                };
                let interval = self.settings.type_conflict_log_interval;
                self.observed.on_refused(now, refusal, key, conflict, interval, out);
            }
            Ok(Merged::Expired) => self.observed.stats.arrived_expired += 1,
            Ok(Merged::Done { changed: true }) => self.note_size(key, out),
            Ok(_) => {}
        }
        merged
    }

    /// Reports an entry that is large, or has grown since it was reported.
    pub(in crate::replicator) fn note_size(&mut self, key: &KeyId, out: &mut Vec<Effect>) {
        let Some(limit) = self.settings.log_data_size_exceeding else { return };
        if let Some(bytes) = self.entries.size_to_report(key, limit) {
            let in_pieces = bytes > self.settings.max_message_bytes / 4 * 3;
            out.push(Effect::Event(ReplicatorEvent::EntryLarge { key: key.clone(), bytes, in_pieces }));
        }
    }

    /// Joins a stored record; order and repetition do not matter. Returns why the replicator stops, if the record
    /// cannot be joined and the settings say so.
    pub(in crate::replicator) fn load(&mut self, record: LoadedRecord, out: &mut Vec<Effect>) -> Option<StopReason> {
        let key = record.key().clone();
        let rules = Rules::new(&self.types, &self.settings, None);
        let problem = self.entries.load(&rules, &record).err()?;
        let (why, tag) = match problem {
            LoadProblem::Unreadable(why) => (why, None),
            LoadProblem::UnknownType(tag) => (format!("no type is registered for the tag {tag}"), Some(tag)),
        };
        match (self.settings.durable.on_bad_record, tag) {
            (OnBadRecord::Stop, _) => return Some(StopReason::BadRecord { key, why }),
            (OnBadRecord::Quarantine, Some(tag)) => {
                self.entries.storing.held_back.insert(key.clone(), record);
                out.push(Effect::Event(ReplicatorEvent::RecordOfUnknownType { key, tag }));
            }
            (OnBadRecord::Quarantine, None) => {
                self.entries.storing.set_aside(key.clone());
                out.push(Effect::Event(ReplicatorEvent::RecordQuarantined { key, why }));
            }
        }
        None
    }

    /// Joins stored entries whose type was unknown until now.
    pub(in crate::replicator) fn load_held_back(&mut self, tag: &str) {
        let is_of = |record: &LoadedRecord| matches!(record, LoadedRecord::Value { tag: found, .. } if **found == *tag);
        let known: Vec<LoadedRecord> = self
            .entries
            .storing
            .held_back
            .extract_if(.., |_, record| is_of(record))
            .map(|(_, record)| record)
            .collect();
        for record in known {
            let rules = Rules::new(&self.types, &self.settings, None);
            if let Err(LoadProblem::Unreadable(why)) = self.entries.load(&rules, &record) {
                tracing::error!(key = %record.key(), %why, "a stored record could not be read; it was moved aside");
                self.entries.storing.set_aside(record.key().clone());
            }
        }
    }
}
