//! Handles requests of peers, and what they send unasked.

use std::time::Instant;

use greylag_core::UniqueAddress;
use greylag_crdt::{Digest, ReplicaId};

use super::ReplicatorCore;
use super::conflicts::TypeConflict;
use crate::bounds::has_impossible_numbers;
use crate::effect::Effect;
use crate::entries::{Data, Entry, MergeFindings, Merged, Rules};
use crate::envelope::{Content, Envelope};
use crate::event::ReplicatorEvent;
use crate::key::{KeyId, problem};
use crate::message::{BatchItem, DeltaItem, Message, Nacked, ReadReply, Refusal, WriteReply};
use crate::read::Lifecycle;
use crate::sabotage::Sabotage;
use crate::settings::ReplicatorSettings;
use crate::storing::Waiter;
use crate::sync::keys_of;
use crate::types::{AnyData, TypeTable};

/// A timestamp further ahead of the own wall clock is reported. Source: ddata Y6.
const CLOCK_TOLERANCE_MS: i64 = 3_600_000;

impl ReplicatorCore {
    pub(super) fn on_message(
        &mut self,
        now: Instant,
        from: UniqueAddress,
        mut message: Message,
        out: &mut Vec<Effect>,
    ) {
        // Accept messages of replicas in any status, but not of strangers or of removed replicas.
        let is_removed = self.replicas.removed.contains(&from) || self.pruning.is_removed(ReplicaId(from.uid().get()));
        if self.replicas.other(&from).is_none() || is_removed {
            self.stats.from_strangers += 1;
            return;
        }
        if matches!(self.lifecycle, Lifecycle::Stopped(_)) {
            return self.answer_refused(now, from, &message, out);
        }
        if has_impossible_numbers(&message) {
            self.stats.malformed += 1;
            return;
        }
        self.received.count(message.kind(), message.size_hint());
        if self.lifecycle == Lifecycle::Loading || !self.may_take(&from, &message) {
            return self.refuse_for_now(from, &message, out);
        }
        if let Some(ahead_ms) = self.bounds(now).apply(&mut message) {
            self.note_implausible(now, &from, ahead_ms, out);
        }
        if message.is_exchange() {
            self.note_contact(&from);
        }
        if message.carries_data() {
            self.note_data_of(&from);
        }
        match message {
            Message::Write { request, key, envelope } => {
                let (reply, changed) = self.on_write(now, &from, &key, &envelope, out);
                self.answer_write(from, request, &key, reply, changed, out);
            }
            Message::Check { request, key, digest } => {
                let reply = self.on_check(&key, digest, out);
                self.answer_write(from, request, &key, reply, false, out);
            }
            Message::DeltaWrite { request, item } => {
                let (reply, changed) = self.on_delta_write(now, &from, &item, out);
                self.answer_write(from, request, &item.key, reply, changed, out);
            }
            Message::WriteReply { request, reply } => self.on_write_reply(now, &from, request, reply, out),
            Message::Read { request, key, tag, digest } => {
                let reply = self.on_read(&key, &tag, digest, out);
                self.send(from, Message::ReadReply { request, reply }, out);
            }
            Message::ReadReply { request, reply } => self.on_read_reply(now, &from, request, reply, out),
            Message::DeltaBatch { from_seq, to_seq, items } => {
                let nacked = self.on_batch(now, &from, items, out);
                self.send(from, Message::DeltaAck { from_seq, to_seq, nacked }, out);
            }
            Message::DeltaAck { from_seq, to_seq, nacked } => {
                let range = (from_seq, to_seq);
                let (settings, types, entries) = (&self.settings, &self.types, &mut self.entries);
                let is_exchanging = self.rounds.is_exchanging(&from);
                for (to, message) in
                    self.log.on_ack(now, settings, types, entries, &from, range, &nacked, is_exchanging)
                {
                    self.stats.batches_sent += 1;
                    self.send(to, message, out);
                }
            }
            message => self.on_sync_message(now, &from, message, out),
        }
    }

    fn on_write(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        key: &KeyId,
        envelope: &Envelope,
        out: &mut Vec<Effect>,
    ) -> (WriteReply, bool) {
        match self.merge(now, from, key, envelope, out) {
            Ok(Merged::Deleted { deleted_at }) => (WriteReply::Deleted { deleted_at }, false),
            Ok(merged) => (WriteReply::Ack, merged == Merged::Done { changed: true }),
            Err(refusal) => (WriteReply::Nack(refusal), false),
        }
    }

    /// Answers a write. A durable entry is confirmed when nothing of it is missing on disk, whichever replica changed
    /// it. Source: ddata R12, U3.
    fn answer_write(
        &mut self,
        to: UniqueAddress,
        request: u64,
        key: &KeyId,
        reply: WriteReply,
        changed: bool,
        out: &mut Vec<Effect>,
    ) {
        let waiter = || Waiter::Peer { to: to.clone(), request };
        if reply != WriteReply::Ack || !self.entries.storing.wait(key, waiter(), changed) {
            self.send(to, Message::WriteReply { request, reply }, out);
        }
    }

    /// Refuses a message for now: durable entries are being loaded, or it is unknown whether they are too old. Source:
    /// ddata U4, Z9.
    fn refuse_for_now(&mut self, from: UniqueAddress, message: &Message, out: &mut Vec<Effect>) {
        self.stats.not_ready += 1;
        if self.lifecycle != Lifecycle::Loading && !self.gate.is_closed() {
            // Drop the message: soon both have shown which history they belong to, and the peer asks again.
            return;
        }
        let answer = match message {
            Message::Write { request, .. } | Message::Check { request, .. } => {
                Message::WriteReply { request: *request, reply: WriteReply::Nack(Refusal::NotReady) }
            }
            Message::DeltaWrite { request, .. } => {
                Message::WriteReply { request: *request, reply: WriteReply::Nack(Refusal::NotReady) }
            }
            Message::Read { request, .. } => Message::ReadReply { request: *request, reply: ReadReply::NotReady },
            _ => return,
        };
        out.push(Effect::Send { to: from, bulk: false, message: answer });
    }

    fn on_check(&mut self, key: &KeyId, digest: Option<Digest>, out: &mut Vec<Effect>) -> WriteReply {
        match self.entries.get(key) {
            // Any entry includes the absent one.
            _ if digest.is_none() => WriteReply::Ack,
            Some(entry) if Some(entry.digest()) == digest => {
                self.touch(key, out);
                WriteReply::Ack
            }
            Some(Entry { data: Data::Tombstone { deleted_at }, .. }) => WriteReply::Deleted { deleted_at: *deleted_at },
            _ => WriteReply::DeltaNack { have: 0, full: true },
        }
    }

    fn on_delta_write(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        item: &DeltaItem,
        out: &mut Vec<Effect>,
    ) -> (WriteReply, bool) {
        match self.merge_delta(now, from, item, out) {
            Ok(Merged::Done { changed }) => (WriteReply::Ack, changed),
            Ok(Merged::Expired) => (WriteReply::Ack, false),
            Ok(Merged::Deleted { deleted_at }) => (WriteReply::Deleted { deleted_at }, false),
            Ok(Merged::Gap { have, full }) => (WriteReply::DeltaNack { have, full }, false),
            Err(refusal) => (WriteReply::Nack(refusal), false),
        }
    }

    fn on_read(&mut self, key: &KeyId, tag: &str, digest: Option<Digest>, out: &mut Vec<Effect>) -> ReadReply {
        // Refuse: a replica that came back empty must not answer for what it held before. Source: ddata G13.
        if self.lifecycle != Lifecycle::Running {
            return ReadReply::NotReady;
        }
        let reply = match self.entries.get(key) {
            None => ReadReply::Absent,
            Some(entry) if Some(entry.digest()) == digest => ReadReply::Same,
            Some(Entry { data: Data::Value(value), .. }) if *value.tag() != *tag => {
                return ReadReply::Nack(Refusal::TypeMismatch);
            }
            Some(_) => self.entries.envelope(key).map_or(ReadReply::Absent, ReadReply::Value),
        };
        self.touch(key, out);
        reply
    }

    fn on_batch(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        items: Vec<BatchItem>,
        out: &mut Vec<Effect>,
    ) -> Vec<Nacked> {
        let (mut nacked, mut wanted) = (Vec::new(), Vec::new());
        for item in items {
            match item {
                BatchItem::Delta(item) => {
                    // A final refusal is counted but not listed: sending the delta again would change nothing.
                    if let Ok(Merged::Gap { have, full }) = self.merge_delta(now, from, &item, out) {
                        nacked.push(Nacked { key: item.key, have, full });
                    } else if let Some(used_ms) = item.used_ms {
                        self.entries.note_told(&item.key, used_ms);
                    }
                }
                BatchItem::Full { key, envelope } => {
                    // As above: a refusal is counted but not listed.
                    let _: Result<Merged, Refusal> = self.merge(now, from, &key, &envelope, out);
                    if let Some(used_ms) = envelope.used_ms {
                        self.entries.note_told(&key, used_ms);
                    }
                }
                BatchItem::Hint { hash } => wanted.push(hash),
                BatchItem::Touch { hash, used_ms } => {
                    for key in keys_of(&self.entries, hash) {
                        self.entries.note_told(&key, used_ms);
                    }
                }
            }
        }
        if !wanted.is_empty() {
            self.send(from.clone(), Message::SyncWant { round: None, number: 0, hashes: wanted }, out);
        }
        nacked
    }

    /// Joins deltas of the sender.
    fn merge_delta(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        item: &DeltaItem,
        out: &mut Vec<Effect>,
    ) -> Result<Merged, Refusal> {
        let origin = ReplicaId(from.uid().get());
        self.free(now, &item.key, out);
        let merged = if problem(&item.key).is_some() {
            // A key with such a problem could never be read or deleted.
            Err(Refusal::Undecodable)
        } else {
            let rules = rules(&self.types, &self.settings, self.forgets_before(now));
            self.entries.merge_delta(&rules, origin, item)
        };
        if let Ok(Merged::Gap { .. }) = merged {
            self.stats.gaps += 1;
        }
        self.note_suspicion(now, from, &item.key, out);
        self.note_refusal(now, from, &item.key, &item.tag, merged, out)
    }

    /// Joins a full state.
    pub(super) fn merge(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        key: &KeyId,
        envelope: &Envelope,
        out: &mut Vec<Effect>,
    ) -> Result<Merged, Refusal> {
        self.free(now, key, out);
        let rules = rules(&self.types, &self.settings, self.forgets_before(now));
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
        let ahead = timestamp.map(|timestamp| timestamp.saturating_sub(self.wall_ms(now)));
        if let Some(ahead_ms) = ahead.filter(|ahead| *ahead > CLOCK_TOLERANCE_MS) {
            self.stats.clocks_ahead += 1;
            if self.conflicts.clocks.is_first(now, key) {
                let (key, peer) = (key.clone(), from.clone());
                out.push(Effect::Event(ReplicatorEvent::ClockAhead { key, peer, ahead_ms }));
            }
        }
        if own_version.is_some_and(|version| version > self.numbers.last()) {
            self.stats.reused_ids += 1;
            if self.conflicts.ids.is_first(now, key) {
                let (key, peer, replica) = (key.clone(), from.clone(), self.replica);
                out.push(Effect::Event(ReplicatorEvent::ReplicaIdReused { replica, key, peer }));
            }
        }
    }

    /// Counts a refusal, and reports entries that will never converge.
    pub(super) fn note_refusal(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        key: &KeyId,
        tag: &std::sync::Arc<str>,
        merged: Result<Merged, Refusal>,
        out: &mut Vec<Effect>,
    ) -> Result<Merged, Refusal> {
        let (key_of, peer, found) = (key.clone(), from.clone(), tag.clone());
        let event = match merged {
            Err(Refusal::TypeMismatch) => {
                self.stats.type_mismatches += 1;
                let own = self.entries.get(key).and_then(Entry::value).map(AnyData::tag).unwrap_or_default();
                let conflict = TypeConflict { key: key_of, own, peer, found };
                self.conflicts.met(conflict.clone());
                Some(ReplicatorEvent::TypeConflict(conflict))
            }
            Err(Refusal::UnknownType) => {
                self.stats.unknown_types += 1;
                Some(ReplicatorEvent::UnknownType { key: key_of, peer, found })
            }
            Err(Refusal::TooLarge) => {
                self.stats.too_large += 1;
                None
            }
            Err(_) => {
                self.stats.undecodable += 1;
                None
            }
            Ok(Merged::Expired) => {
                self.stats.arrived_expired += 1;
                None
            }
            Ok(Merged::Done { changed: true }) => {
                self.note_size(key, out);
                None
            }
            Ok(_) => None,
        };
        let interval = self.settings.type_conflict_log_interval;
        out.extend(event.filter(|_| self.conflicts.types.is_news(now, key, interval)).map(Effect::Event));
        merged
    }
}

/// The rules for merging, by the settings.
pub(super) fn rules<'a>(types: &'a TypeTable, settings: &ReplicatorSettings, forgets_before: Option<i64>) -> Rules<'a> {
    let checks_gaps = !settings.omits(Sabotage::Gap);
    let max_bytes = settings.max_entry_bytes.saturating_mul(4);
    Rules { types, max_bytes, forgets_before, checks_gaps, keeps_versions: settings.delta_enabled }
}
