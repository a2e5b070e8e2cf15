//! The machine of a replicator: takes inputs, and decides what follows for its parts.
//!
//! The parts answer to this machine and not to each other. What concerns several of them at once is decided here: what
//! follows when the gate opens, closes or refuses, when an entry is gone, when a round is complete, and when the
//! replicator stops.

mod callers;
mod peers;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use greylag_core::UniqueAddress;
use greylag_crdt::{Digest, DotSource, Markers, ReplicatedData};

use super::expiry::{ExpiryTimer, STEP};
use super::local::LocalReplica;
use super::requests::Requests;
use super::rounds::Rounds;
use super::shutdown::{Shutdown, StopProgress};
use super::storage::{LoadFailure, Storage};
use crate::api::effect::Effect;
use crate::api::error::StopReason;
use crate::api::event::{ReplicatorEvent, TypeConflict};
use crate::api::input::Input;
use crate::api::key::{Key, KeyId};
use crate::api::metrics::Metrics;
use crate::api::read::Lifecycle;
use crate::api::settings::ReplicatorSettings;
use crate::api::settings::omissions::Clause;
use crate::api::stats::Stats;
use crate::data::entries::{Data, Entry, RemovedEntry};
use crate::data::subscriptions::Subscriptions;
use crate::data::tree::{Prefix, Sum};
use crate::data::types::{AnyData, TypeTable};
use crate::gate::GateEffect;
use crate::membership::replicas::Replicas;
use crate::messages::message::{Message, Refusal, WriteReply};
use crate::pruning::{self, PruningNews, TimeChange, millis};
use crate::storage::store::{LoadedRecord, StoreError, StoreMeta};
use crate::storage::storing::Waiter;

/// The state machine of a replicator.
#[derive(Debug)]
pub struct ReplicatorCore {
    local: LocalReplica,
    requests: Requests,
    rounds: Rounds,
    subscriptions: Subscriptions,
    storage: Storage,
    expiry: ExpiryTimer,
    shutdown: Shutdown,
    propagate_at: Option<Instant>,
    notify_at: Option<Instant>,
}

impl ReplicatorCore {
    /// A replicator that holds nothing and knows no other replica.
    ///
    /// `numbers` is the process's one source (ddata K2); `seed` decides every random choice.
    pub fn new(
        settings: ReplicatorSettings,
        types: TypeTable,
        own: UniqueAddress,
        numbers: DotSource,
        seed: u64,
        now: Instant,
    ) -> Self {
        let storage = Storage::new(&settings, now);
        let mut local = LocalReplica::new(settings, types, own, numbers, seed, now);
        // Spread the first gossip, so that nodes which start together are out of step.
        let gossip_at = now + local.jittered(local.settings.gossip_interval);
        Self {
            local,
            requests: Requests::default(),
            rounds: Rounds::new(gossip_at),
            subscriptions: Subscriptions::default(),
            storage,
            expiry: ExpiryTimer::new(now),
            shutdown: Shutdown::default(),
            propagate_at: None,
            notify_at: None,
        }
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Effect>) {
        self.local.entries.forget_encodings(now, self.local.settings.encode_cache_time_to_live);
        if let Input::Wall(wall_ms) | Input::Delete { wall_ms, .. } = input {
            self.set_wall(now, wall_ms, out);
        }
        self.tell_time(now, out);
        match input {
            Input::Received { from, message } => self.on_message(now, from, message, out),
            Input::Dropped { from, why } => self.local.observed.on_dropped(&from, why, out),
            Input::SendFailed { to, request } => self.on_send_failed(&to, request, out),
            Input::Replicas(replicas) => self.on_replicas(now, replicas, out),
            Input::Wall(_) => {}
            Input::Tick => self.step_on(now, out),
            Input::Get { id, key, tag, level } => self.on_get(now, id, key, tag, level.into(), out),
            Input::Delete { id, key, level, wall_ms } => {
                self.on_delete(now, id, key, level.into(), wall_ms, out);
            }
            Input::Subscribe { subscriber, pattern, tag } => self.subscriptions.add(subscriber, pattern, Some(tag)),
            Input::SubscribeAny { subscriber, pattern } => self.subscriptions.add(subscriber, pattern, None),
            Input::Unsubscribe { subscriber } => self.subscriptions.remove(subscriber),
            Input::Flush if *self.local.lifecycle() == Lifecycle::Loading => {}
            Input::Flush => self.subscriptions.flush(&mut self.local.entries, out),
            Input::Stop(reason) => self.on_stop(now, reason, out),
            Input::Stored { ticket, result } => self.on_stored(now, ticket, result, out),
            Input::Loaded(records) => self.on_loaded(now, records, out),
            Input::LoadDone(meta) => self.on_load_done(now, meta, out),
            Input::LoadFailed(error) => self.on_load_failed(now, error, out),
        }
        self.finish_input(now, out);
    }

    /// When the next `Tick` has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        match self.local.lifecycle() {
            Lifecycle::Stopped(_) => return None,
            Lifecycle::Loading => return self.storage.load_deadline(),
            Lifecycle::Syncing | Lifecycle::Running => {}
        }
        let of_parts = [
            self.requests.next_deadline(),
            self.rounds.next_deadline(&self.local),
            self.local.gate.next_deadline(),
            self.local.pruning_deadline(),
            self.local.entries.storing.next_deadline(),
            self.storage.meta_deadline(),
            self.expiry.next_deadline(),
            self.shutdown.next_deadline(),
        ];
        of_parts.into_iter().chain([self.propagate_at, self.notify_at]).flatten().min()
    }

    /// Does everything that is due after any input.
    fn finish_input(&mut self, now: Instant, out: &mut Vec<Effect>) {
        match self.local.lifecycle() {
            Lifecycle::Stopped(_) => return,
            Lifecycle::Loading => return out.extend(self.storage.begin_load(now).then_some(Effect::Load)),
            Lifecycle::Syncing | Lifecycle::Running => {}
        }
        self.requests.on_tick(&mut self.local, now, out);
        self.report_silent_peers(now, out);
        self.tick_gate(now, out);
        self.rounds.on_tick(&mut self.local, now, out);
        if self.propagate_at.take_if(|at| *at <= now).is_some() {
            self.local.propagate(now, out);
        }
        if self.notify_at.take_if(|at| *at <= now).is_some() {
            self.subscriptions.flush(&mut self.local.entries, out);
        }
        self.local.tick_pruning(now, out);
        self.store_changes(now, out);
        self.finish_stop(now, out);
        let local = &mut self.local;
        let wall_ms = local.wall.ms(now);
        self.expiry.plan(now, wall_ms, local.entries.next_deadline_ms(), local.settings.gossip_interval);
        if local.log.is_trimming() {
            self.rounds.plan_step(now);
        }
        // Plan no timer while there is nothing to send and no subscriber to notify.
        if self.propagate_at.is_none() && local.log.len() > 0 && local.log.has_work(&local.reachable_peers()) {
            self.propagate_at = Some(now + local.settings.delta_propagation_interval);
        }
        if self.subscriptions.has_work(&mut local.entries) && self.notify_at.is_none() {
            self.notify_at = Some(now + local.settings.notify_subscribers_interval);
        }
        self.check_invariants();
    }

    /// Sets the wall clock. If it went back by more than clocks may differ, times noted by it count as now.
    fn set_wall(&mut self, now: Instant, wall_ms: i64, out: &mut Vec<Effect>) {
        let by_ms = self.local.wall.set(now, wall_ms);
        let mut effects = Vec::new();
        self.local.gate.on_wall(wall_ms, &mut effects);
        let settings = &self.local.settings;
        if by_ms > millis(settings.max_clock_skew) && !settings.omits(Clause::Horizon) {
            self.local.set_times(now, TimeChange::Bound);
            if effects.is_empty() {
                effects.push(GateEffect::ClockWentBack { by_ms });
            }
        }
        self.perform_gate_effects(now, effects, out);
    }

    /// Gives the entries the time, and removes some of the expired ones.
    fn tell_time(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.local.entries.set_now(self.local.wall.ms(now));
        let removed = self.local.entries.expire(STEP);
        self.note_removed(now, &removed, out);
    }

    /// Removes this entry if it has expired and was not removed yet.
    fn free(&mut self, now: Instant, key: &KeyId, out: &mut Vec<Effect>) {
        if let Some(removed) = self.local.entries.forget_overdue(key) {
            self.note_removed(now, &[removed], out);
        }
    }

    /// Removes an entry as if it had expired: for simulations, whose histories are shorter than lifetimes. Source:
    /// ddata E1, scenario 86.
    #[doc(hidden)]
    pub fn expire_now(&mut self, now: Instant, key: &KeyId, out: &mut Vec<Effect>) {
        self.tell_time(now, out);
        if self.local.entries.get(key).is_some() {
            self.local.entries.forget(key);
            self.note_removed(now, &[RemovedEntry { key: key.clone(), aged: None }], out);
        }
        self.finish_input(now, out);
    }

    fn note_removed(&mut self, now: Instant, all: &[RemovedEntry], out: &mut Vec<Effect>) {
        for removed in all {
            self.local.log.forget(&removed.key);
            self.rounds.abort_draft(&mut self.local, now, &removed.key, out);
            self.local.observed.stats.expired += 1;
            if let Some(deleted_at) = removed.aged {
                // Raise the horizon: a replica that was away since before the deletion would bring the entry back.
                self.local.raise_horizon(deleted_at);
            }
        }
        self.requests.give_up_writes(&all.iter().map(|removed| removed.key.clone()).collect::<BTreeSet<_>>(), out);
    }

    fn on_replicas(&mut self, now: Instant, replicas: Arc<Replicas>, out: &mut Vec<Effect>) {
        let before = std::mem::replace(&mut self.local.replicas, replicas);
        let replicas = self.local.replicas.clone();
        let mut effects = Vec::new();
        let moment = self.local.moment(now);
        self.local.gate.on_replicas(moment, &replicas, &mut effects);
        let unrefused = self.local.unrefused();
        self.local.pruning.on_replicas(now, &unrefused);
        for peer in replicas.others.iter().filter(|replica| replica.reachable).map(|replica| &replica.address) {
            match before.other(peer) {
                None => _ = self.local.scheduled.insert(peer.clone()),
                Some(was) if !was.reachable => self.local.log.resend_now(peer, now),
                Some(_) => {}
            }
        }
        let known: BTreeSet<&UniqueAddress> = replicas.others.iter().map(|replica| &replica.address).collect();
        for peer in before.others.iter().map(|replica| &replica.address).filter(|peer| !known.contains(peer)) {
            self.rounds.forget(peer);
            self.local.scheduled.remove(peer);
            self.requests.on_removed(&mut self.local, peer, out);
        }
        let suspects = replicas.others.iter().filter(|replica| !replica.reachable).map(|replica| &replica.address);
        for peer in suspects.filter(|peer| before.other(peer).is_some_and(|was| was.reachable)) {
            self.requests.on_unreachable(&mut self.local, peer, out);
        }
        self.local.set_log_peers();
        self.perform_gate_effects(now, effects, out);
        self.rounds.begin_syncing(&mut self.local, now, out);
        if replicas.is_anything_known() {
            self.requests.evaluate_early(&mut self.local, now, out);
        }
        if before.own_status.is_some() && replicas.removed.contains(self.local.writer.own()) {
            self.on_stop(now, StopReason::Removed, out);
        }
    }

    /// Sends everything unsent, and waits until one voter holds all of it. Source: ddata G15.
    fn on_stop(&mut self, now: Instant, reason: StopReason, out: &mut Vec<Effect>) {
        if self.local.gate.is_refused() {
            self.shutdown.answer_no_more();
        }
        if self.shutdown.reason().is_some() || matches!(self.local.lifecycle(), Lifecycle::Stopped(_)) {
            return;
        }
        if *self.local.lifecycle() == Lifecycle::Loading {
            self.local.become_lifecycle(Lifecycle::Stopped(reason), out);
            return;
        }
        self.local.entries.storing.begin_last();
        // Propagate once per peer: one slice would leave out peers of a large cluster, and each call serves the next
        // ones.
        for _ in 0..self.local.reachable_peers().len() {
            self.local.propagate(now, out);
        }
        self.shutdown.begin(reason, now + self.local.settings.shutdown_flush_timeout);
    }

    fn finish_stop(&mut self, now: Instant, out: &mut Vec<Effect>) {
        match self.shutdown.progress(now, &self.local) {
            None | Some(StopProgress::Waits) => {}
            Some(StopProgress::Compare(voter)) => self.rounds.open_round_soon(&mut self.local, now, &voter, out),
            Some(StopProgress::Done(reason)) => {
                self.shutdown.end();
                self.requests.fail_all(&reason, out);
                self.local.become_lifecycle(Lifecycle::Stopped(reason), out);
            }
        }
    }

    /// Stops without a message to any peer, and stores nothing more.
    fn stop_at_once(&mut self, reason: StopReason, out: &mut Vec<Effect>) {
        self.local.entries.storing.end();
        self.shutdown.end();
        self.requests.fail_all(&reason, out);
        self.local.become_lifecycle(Lifecycle::Stopped(reason), out);
    }

    fn on_loaded(&mut self, now: Instant, records: Vec<LoadedRecord>, out: &mut Vec<Effect>) {
        let bounds = self.local.bounds(now);
        for mut record in records {
            if *self.local.lifecycle() != Lifecycle::Loading {
                return;
            }
            // Bound the times: a process whose clock was ahead may have stored them.
            bounds.apply_stored(&mut record);
            if let Some(reason) = self.local.load(record, out) {
                self.stop_at_once(reason, out);
            }
        }
    }

    fn on_load_failed(&mut self, now: Instant, error: StoreError, out: &mut Vec<Effect>) {
        if *self.local.lifecycle() != Lifecycle::Loading {
            return;
        }
        match self.storage.on_load_failed(now, &self.local.settings.durable, error) {
            LoadFailure::Stop(reason) => self.stop_at_once(reason, out),
            LoadFailure::LoadAnew(error) => {
                out.push(Effect::Event(ReplicatorEvent::StoreError { error, unstored: 0 }));
                out.push(Effect::LoadAnew);
            }
            LoadFailure::Retry(error) => {
                out.push(Effect::Event(ReplicatorEvent::StoreError { error, unstored: 0 }));
            }
        }
    }

    /// Ends loading: requests are served, changes are stored, and members are asked for their standing.
    fn on_load_done(&mut self, now: Instant, meta: Option<StoreMeta>, out: &mut Vec<Effect>) {
        let local = &mut self.local;
        if *local.lifecycle() != Lifecycle::Loading {
            return;
        }
        let loaded: BTreeSet<KeyId> = local.entries.iter().map(|(key, _)| key.clone()).collect();
        let durable = &local.settings.durable;
        let not_durable: Vec<KeyId> = loaded.iter().filter(|key| !durable.covers(key)).cloned().collect();
        local.entries.storing.begin(meta.as_ref());
        if let Some(meta) = &meta {
            local.take_over(now, meta);
        }
        let mut effects = Vec::new();
        let moment = local.moment(now);
        local.gate.on_loaded(moment, meta.as_ref(), !loaded.is_empty(), &mut effects);
        self.storage.on_loaded(now, if local.gate.is_closed() { loaded } else { BTreeSet::new() });
        // Remove entries that are no longer durable from the store, so that they do not come back from the disk one
        // day.
        for key in not_durable {
            local.entries.storing.gather(&key, None);
        }
        local.become_lifecycle(Lifecycle::Syncing, out);
        self.subscriptions.flush(&mut local.entries, out);
        self.perform_gate_effects(now, effects, out);
        self.rounds.begin_syncing(&mut self.local, now, out);
    }

    /// Hands the gathered changes to the store, if no store request is under way.
    fn store_changes(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let local = &mut self.local;
        if !local.settings.durable.is_used() {
            return;
        }
        if self.storage.is_meta_due(now) {
            local.entries.storing.meta_is_due = true;
        }
        let meta = local.meta(now);
        // Messages held back for the store do not wait for the write-behind interval.
        let at_once = self.shutdown.reason().is_some() || local.holds_messages();
        if let Some((ticket, ops)) = local.entries.next_store(now, &local.types, || meta, at_once) {
            local.observed.stats.stores += 1;
            out.push(Effect::Store { ticket, ops });
        }
    }

    fn on_stored(&mut self, now: Instant, ticket: u64, result: Result<(), StoreError>, out: &mut Vec<Effect>) {
        let is_stored = result.is_ok();
        let Some(outcome) = self.local.entries.storing.on_stored(now, ticket, is_stored) else { return };
        for (to, message) in self.local.release_held(is_stored) {
            self.requests.send(&mut self.local, &to, message, out);
        }
        if let Err(error) = result {
            self.local.observed.stats.store_errors += 1;
            let unstored = self.local.entries.storing.unstored();
            out.push(Effect::Event(ReplicatorEvent::StoreError { error, unstored }));
        }
        for waiter in outcome.safe {
            self.tell(waiter, true, out);
        }
        for waiter in outcome.failed {
            self.tell(waiter, false, out);
        }
    }

    /// Tells a request that waited for the store how that ended.
    fn tell(&mut self, waiter: Waiter, is_stored: bool, out: &mut Vec<Effect>) {
        match waiter {
            Waiter::Write(request) => self.requests.on_own_store(&mut self.local, request, is_stored, out),
            Waiter::Read(request) => self.requests.answer_read(&mut self.local, request, out),
            Waiter::Peer { to, request } => {
                let reply = if is_stored { WriteReply::Ack } else { WriteReply::Nack(Refusal::Store) };
                self.local.send(to, Message::WriteReply { request, reply }, out);
            }
        }
    }

    /// Reports peers that fell silent, except unreachable ones, whose silence is expected.
    fn report_silent_peers(&mut self, now: Instant, out: &mut Vec<Effect>) {
        for peer in self.requests.newly_silent(now) {
            if self.local.replicas.other(&peer).is_some_and(|replica| replica.reachable) {
                out.push(Effect::Event(ReplicatorEvent::PeerSilent { peer }));
            }
        }
    }

    /// Panics if an invariant is violated: checks what must hold after every input. Compiled in debug builds and, by
    /// the feature `invariants`, in the simulation's. Expensive invariants are checked in some states only. Source:
    /// ddata O5.
    fn check_invariants(&self) {
        if !cfg!(any(debug_assertions, feature = "invariants")) {
            return;
        }
        let local = &self.local;
        local.log.check_invariants();
        local.entries.check_invariants(&local.types, local.observed.stats.reused_ids == 0);
        self.subscriptions.check_invariants();
        self.requests.check_invariants(local.writer.own(), local.settings.max_in_flight);
        let is_stopped = matches!(local.lifecycle(), Lifecycle::Stopped(_));
        assert!(!is_stopped || self.requests.len() == 0, "who has stopped has answered all");
    }

    /// Adds a type that peers may send from now on.
    pub fn add_type<T: ReplicatedData>(&mut self) {
        self.local.add_type::<T>();
    }

    /// Adds types, as if each had been used here.
    pub fn add_types(&mut self, types: &TypeTable) {
        self.local.add_types(types);
    }

    /// Whether there is nothing more to do. A replicator whose store is too old has stopped for its users, but answers
    /// others that it is refused until it is stopped. Source: ddata Z11.
    pub fn is_over(&self) -> bool {
        matches!(self.local.lifecycle(), Lifecycle::Stopped(_))
            && !(self.local.gate.is_refused() && self.shutdown.still_answers())
    }

    /// Whether the store was refused, and others are still answered so.
    pub fn is_refused(&self) -> bool {
        self.local.gate.is_refused()
            && matches!(self.local.lifecycle(), Lifecycle::Stopped(_))
            && self.shutdown.still_answers()
    }

    /// The lifecycle.
    pub fn lifecycle(&self) -> &Lifecycle {
        self.local.lifecycle()
    }

    /// Whether this replicator is current, and so judges the stores of others. Source: ddata Z11.
    pub fn is_current(&self) -> bool {
        self.local.gate.is_current()
    }

    /// Whether the gate is closed: the loaded entries are exchanged with no member so far.
    pub fn is_gate_closed(&self) -> bool {
        self.local.gate.is_closed()
    }

    /// Live ids that begin with `prefix` and come after `after`, ascending, at most `limit`.
    pub fn keys(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<KeyId> {
        let start = after.map_or(prefix, |after| after.max(prefix));
        let found = self.local.entries.from(start).filter(|(key, _)| after.is_none_or(|after| &***key > after));
        let found = found.take_while(|(key, _)| key.starts_with(prefix));
        let live = found.filter(|(_, entry)| matches!(entry.data, Data::Value(_)));
        live.map(|(key, _)| key.clone()).take(limit).collect()
    }

    /// The value of an entry as held here; `None` if the entry is absent, deleted, or of another type.
    pub fn value<T: ReplicatedData>(&self, key: &Key<T>) -> Option<&T> {
        match &self.local.entries.get(key.id())?.data {
            Data::Value(value) => value.as_any().downcast_ref(),
            Data::Tombstone { .. } => None,
        }
    }

    /// All entries with their digests, for comparing replicas in tests.
    pub fn digests(&self) -> BTreeMap<KeyId, Digest> {
        self.local.entries.iter().map(|(key, entry)| (key.clone(), entry.digest())).collect()
    }

    /// The sum over everything held here: equal sums mean equal data.
    pub fn root_sum(&self) -> Sum {
        self.local.entries.tree.sum(Prefix::ROOT)
    }

    /// The markers of an entry.
    pub fn markers(&self, key: &str) -> Markers {
        self.local.entries.markers(key)
    }

    /// The known pruning rounds, with the own standing.
    pub fn pruning_news(&self) -> PruningNews {
        self.local.pruning_news()
    }

    /// Whether this replica is performing: going through entries to put them under its own name.
    pub fn is_performing(&self) -> bool {
        !self.local.pruning.work.is_empty()
    }

    /// How many durable entries have changes that are not on disk.
    pub fn unstored(&self) -> usize {
        self.local.entries.storing.unstored()
    }

    /// How many records wait in the delta log.
    pub fn log_len(&self) -> usize {
        self.local.log.len()
    }

    /// Counters of what was dropped or refused so far.
    pub fn stats(&self) -> Stats {
        self.local.observed.stats
    }

    /// The metrics; those that only a driver can measure are zero.
    pub fn metrics(&mut self) -> Metrics {
        let conflicts = self.conflicts().len();
        let local = &self.local;
        let totals = local.entries.totals;
        let blocked = local.pruning.has_something_to_do(&local.entries.index);
        let (sent, received) = local.observed.traffic();
        Metrics {
            keys: totals.values,
            tombstones: totals.tombstones,
            bytes: totals.bytes,
            log_records: local.log.len(),
            log_lag: local.log.lag(),
            stats: local.observed.stats,
            sent: sent.clone(),
            received: received.clone(),
            in_flight: self.requests.len(),
            subscribers: self.subscriptions.len(),
            conflicts,
            pruning_blocked_by: blocked.then(|| pruning::unreachable(&local.replicas).cloned()).flatten(),
            ..Metrics::default()
        }
    }

    /// Entries that peers hold under another type, with the peer heard last. At most 1,024 are remembered. Source:
    /// ddata R6, A5.
    pub fn conflicts(&mut self) -> Vec<TypeConflict> {
        let LocalReplica { entries, observed, .. } = &mut self.local;
        observed.conflicts(|key| entries.get(key).and_then(Entry::value).map(AnyData::tag))
    }
}
