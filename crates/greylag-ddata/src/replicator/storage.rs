//! Durable entries: loaded before anything is served, and stored before anything is acknowledged. The gate decides
//! whether loaded entries are exchanged with others ([`crate::gate`]).
//!
//! ```text
//! Loading   --Load-->  Loaded*  LoadDone(meta)        then Syncing, and the gate is closed
//! ```
//!
//! Source: ddata §6, Z9.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::ReplicatorCore;
use super::held_messages::HeldMessages;
use super::peers::rules;
use crate::durable::{OnBadRecord, StaleStore};
use crate::effect::Effect;
use crate::entries::LoadProblem;
use crate::error::StopReason;
use crate::event::ReplicatorEvent;
use crate::key::KeyId;
use crate::message::{Message, Refusal, WriteReply};
use crate::read::Lifecycle;
use crate::settings::ReplicatorSettings;
use crate::store::{LoadedRecord, StoreError, StoreMeta};
use crate::storing::Waiter;

/// How often the replicator's own record is written if pruning is off.
const META_INTERVAL: Duration = Duration::from_secs(120);

/// The state of the store, beside the entries.
#[derive(Debug)]
pub(super) struct Storage {
    /// When to try to load next; `None` while loading, and afterwards.
    load_at: Option<Instant>,
    retries: u32,
    /// The loaded entries, as long as they may have to be dropped again.
    pub(super) loaded: BTreeSet<KeyId>,
    /// When to write the replicator's own record next.
    meta_at: Option<Instant>,
    /// Whether a round was completed since the store was loaded.
    pub(super) has_completed_a_round: bool,
    /// Messages held back until the store says that this replicator has met others.
    pub(super) held_messages: HeldMessages,
}

impl Storage {
    pub(super) fn new(settings: &ReplicatorSettings, now: Instant) -> Self {
        Self {
            load_at: settings.durable.is_used().then_some(now),
            retries: 0,
            loaded: BTreeSet::new(),
            meta_at: None,
            has_completed_a_round: false,
            held_messages: HeldMessages::default(),
        }
    }

    pub(super) fn load_deadline(&self) -> Option<Instant> {
        self.load_at
    }

    pub(super) fn meta_deadline(&self) -> Option<Instant> {
        self.meta_at
    }
}

impl ReplicatorCore {
    pub(super) fn tick_loading(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.storage.load_at.take_if(|at| *at <= now).is_some() {
            out.push(Effect::Load);
        }
    }

    pub(super) fn on_loaded(&mut self, now: Instant, records: Vec<LoadedRecord>, out: &mut Vec<Effect>) {
        let bounds = self.bounds(now);
        for mut record in records {
            if self.lifecycle != Lifecycle::Loading {
                return;
            }
            // Bound the times: a process whose clock was ahead may have stored them.
            bounds.apply_stored(&mut record);
            self.load(record, out);
        }
    }

    /// Joins a stored record. Order and repetition do not matter.
    fn load(&mut self, record: LoadedRecord, out: &mut Vec<Effect>) {
        let key = record.key().clone();
        let rules = rules(&self.types, &self.settings, None);
        let problem = match self.entries.load(&rules, &record) {
            Ok(()) => return,
            Err(problem) => problem,
        };
        let (why, tag) = match problem {
            LoadProblem::Unreadable(why) => (why, None),
            LoadProblem::UnknownType(tag) => (format!("no type is registered for the tag {tag}"), Some(tag)),
        };
        match (self.settings.durable.on_bad_record, tag) {
            (OnBadRecord::Stop, _) => self.stop_at_once(StopReason::BadRecord { key, why }, out),
            (OnBadRecord::Quarantine, Some(tag)) => {
                self.entries.storing.held_back.insert(key.clone(), record);
                out.push(Effect::Event(ReplicatorEvent::RecordOfUnknownType { key, tag }));
            }
            (OnBadRecord::Quarantine, None) => {
                self.entries.storing.set_aside(key.clone());
                out.push(Effect::Event(ReplicatorEvent::RecordQuarantined { key, why }));
            }
        }
    }

    /// Joins stored entries whose type was unknown until now.
    pub(super) fn load_held_back(&mut self, tag: &str) {
        let is_of = |record: &LoadedRecord| matches!(record, LoadedRecord::Value { tag: found, .. } if **found == *tag);
        let known: Vec<LoadedRecord> = self
            .entries
            .storing
            .held_back
            .extract_if(.., |_, record| is_of(record))
            .map(|(_, record)| record)
            .collect();
        for record in known {
            let rules = rules(&self.types, &self.settings, None);
            if let Err(LoadProblem::Unreadable(why)) = self.entries.load(&rules, &record) {
                tracing::error!(key = %record.key(), %why, "a stored record could not be read; it was moved aside");
                self.entries.storing.set_aside(record.key().clone());
            }
        }
    }

    pub(super) fn on_load_failed(&mut self, now: Instant, error: StoreError, out: &mut Vec<Effect>) {
        if self.lifecycle != Lifecycle::Loading {
            return;
        }
        if let StoreError::TailLost { place, expected, found } = &error
            && self.settings.durable.stale_store != StaleStore::Discard
        {
            // Do not retry: nothing brings the lost commits back.
            let (place, expected, found) = (place.clone(), *expected, *found);
            return self.stop_at_once(StopReason::StoreTailLost { place, expected, found }, out);
        }
        if self.storage.retries >= self.settings.durable.load_retries {
            return self.stop_at_once(StopReason::StoreLoadFailed(error), out);
        }
        self.storage.retries += 1;
        if matches!(error, StoreError::TailLost { .. }) {
            out.push(Effect::Event(ReplicatorEvent::StoreError { error, unstored: 0 }));
            return out.push(Effect::LoadAnew);
        }
        self.storage.load_at = Some(now + self.settings.durable.load_backoff(self.storage.retries));
        out.push(Effect::Event(ReplicatorEvent::StoreError { error, unstored: 0 }));
    }

    /// Ends loading: requests are served, changes are stored, and members are asked for their standing.
    pub(super) fn on_load_done(&mut self, now: Instant, meta: Option<StoreMeta>, out: &mut Vec<Effect>) {
        if self.lifecycle != Lifecycle::Loading {
            return;
        }
        let loaded: BTreeSet<KeyId> = self.entries.iter().map(|(key, _)| key.clone()).collect();
        let not_durable: Vec<KeyId> = loaded.iter().filter(|key| !self.settings.durable.covers(key)).cloned().collect();
        self.entries.storing.begin(meta.as_ref());
        if let Some(meta) = &meta {
            self.take_over(now, meta);
        }
        let mut effects = Vec::new();
        self.gate.on_loaded(self.moment(now), meta.as_ref(), !loaded.is_empty(), &mut effects);
        if self.gate.is_closed() {
            self.storage.loaded = loaded;
        }
        // Remove entries that are no longer durable from the store, so that they do not come back from the disk one
        // day.
        for key in not_durable {
            self.entries.storing.gather(&key, None);
        }
        self.storage.meta_at = Some(now + self.meta_interval());
        self.become_lifecycle(Lifecycle::Syncing, out);
        self.subscriptions.flush(&mut self.entries, out);
        self.perform_gate_effects(now, effects, out);
        self.begin_syncing(now, out);
    }

    /// Takes over the store's own record. Only time in touch with others counts for markers: an owner that ran on alone
    /// has told no member what it put where, however old its marker is, and others may have pruned the same replica
    /// again. A store that is loaded twice before its replicator meets a member counts the time alone twice, which only
    /// keeps markers for longer. Source: ddata Z9.
    fn take_over(&mut self, now: Instant, meta: &StoreMeta) {
        self.pruning.restore(now, &meta.removed, &self.replicas);
        let in_touch = meta.synced_at.map_or(meta.written_at, |synced_at| synced_at.min(meta.written_at));
        let alone = self.wall_ms(now).saturating_sub(in_touch);
        if alone > 0 {
            self.entries.prolong_markers(alone);
        }
    }

    fn meta_interval(&self) -> Duration {
        self.settings.pruning_interval.unwrap_or(META_INTERVAL)
    }

    fn meta(&self, now: Instant) -> StoreMeta {
        let wall_ms = self.wall_ms(now);
        let removed = self.pruning.removed().collect();
        let mut meta = StoreMeta { written_at: wall_ms, removed, ..StoreMeta::default() };
        self.gate.remember(wall_ms, &mut meta);
        meta
    }

    /// Hands the gathered changes to the store, if no store request is under way.
    pub(super) fn store_changes(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if !self.settings.durable.is_used() {
            return;
        }
        if let Some(at) = self.storage.meta_at.filter(|at| *at <= now) {
            self.storage.meta_at = Some(at.max(now) + self.meta_interval());
            self.entries.storing.meta_is_due = true;
        }
        let meta = self.meta(now);
        // Messages held back for the store do not wait for the write-behind interval.
        let at_once = self.stopping.is_some() || !self.storage.held_messages.is_empty();
        if let Some((ticket, ops)) = self.entries.next_store(now, &self.types, || meta, at_once) {
            self.stats.stores += 1;
            out.push(Effect::Store { ticket, ops });
        }
    }

    pub(super) fn on_stored(
        &mut self,
        now: Instant,
        ticket: u64,
        result: Result<(), StoreError>,
        out: &mut Vec<Effect>,
    ) {
        let is_stored = result.is_ok();
        let Some(outcome) = self.entries.storing.on_stored(now, ticket, is_stored) else { return };
        self.release_sent(is_stored, out);
        if let Err(error) = result {
            self.stats.store_errors += 1;
            let unstored = self.entries.storing.unstored();
            out.push(Effect::Event(ReplicatorEvent::StoreError { error, unstored }));
        }
        for waiter in outcome.safe {
            self.tell(waiter, true, out);
        }
        for waiter in outcome.failed {
            self.tell(waiter, false, out);
        }
    }

    fn tell(&mut self, waiter: Waiter, is_stored: bool, out: &mut Vec<Effect>) {
        match waiter {
            Waiter::Write(request) => self.on_own_store(request, is_stored, out),
            Waiter::Read(request) => self.answer_read(request, out),
            Waiter::Peer { to, request } => {
                let reply = if is_stored { WriteReply::Ack } else { WriteReply::Nack(Refusal::Store) };
                self.send(to, Message::WriteReply { request, reply }, out);
            }
        }
    }

    /// Stops without a message to any peer, and stores nothing more.
    pub(super) fn stop_at_once(&mut self, reason: StopReason, out: &mut Vec<Effect>) {
        self.entries.storing.end();
        self.stopping = None;
        self.fail_all(&reason, out);
        self.become_lifecycle(Lifecycle::Stopped(reason), out);
    }

    /// Whether everything that will ever be stored is on disk.
    pub(super) fn has_settled(&self) -> bool {
        self.entries.storing.is_idle()
    }

    /// Begins the last store request: changes written behind, failed ones, and the replicator's own record.
    pub(super) fn begin_last_store(&mut self) {
        self.entries.storing.retry_now();
        self.entries.storing.meta_is_due = true;
    }

    /// How many durable entries have changes that are not on disk.
    pub fn unstored(&self) -> usize {
        self.entries.storing.unstored()
    }
}
