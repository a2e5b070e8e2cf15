//! The replicator: one machine that holds the entries, serves requests, and keeps replicas equal.
//!
//! An update changes the entry here first, is logged for the peers, and is then confirmed by as many replicas as its
//! level says. Rounds of anti-entropy repair every loss. The machine reads no clock and draws from one seed: the same
//! inputs give the same effects.
//!
//! Children: [`crate::delta_log`], [`crate::sync`], [`crate::quorum`], [`crate::subscriptions`].
//! Source: ddata §3, §4, §10.

mod conflicts;
mod deadlines;
mod expiry;
mod gate;
mod held_messages;
mod invariants;
mod observed;
mod peers;
mod pruning;
mod repairs;
mod requests;
mod rounds;
mod storage;
mod suppressed;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use greylag_crdt::{
    Change, DotSource, Lineage, Markers, OmittedClauses, ReplicaId, ReplicatedData, UpdateCx, WriterKey,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::delta_log::{DeltaLog, Record, RecordContent};
use crate::effect::{Effect, Reply, Snapshot};
use crate::entries::{Data, Entries, Entry, EntryContent};
use crate::error::{DeleteError, GetError, RequestError, StopReason, UpdateError};
use crate::event::ReplicatorEvent;
use crate::gate::Gate;
use crate::input::Input;
use crate::key::{InvalidKey, Key, KeyId, problem};
use crate::level::{Level, WriteLevel};
use crate::message::{DeltaItem, Message};
use crate::metrics::Traffic;
use crate::pruning::Pruning;
use crate::read::{Lifecycle, Read};
use crate::replicas::{Replica, Replicas};
use crate::sabotage::Sabotage;
use crate::settings::ReplicatorSettings;
use crate::store::LoadedRecord;
use crate::subscriptions::Subscriptions;
use crate::types::TypeTable;
use crate::unanswered::UnansweredRequests;
use conflicts::Conflicts;
pub use conflicts::TypeConflict;
use deadlines::Deadlines;
use requests::{ReadRequest, WriteRequest};
use rounds::Rounds;
use storage::Storage;

/// Counters of what was dropped or refused, by reason. Source: ddata C8.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages of processes that are not, or no longer, replicas.
    pub from_strangers: u64,
    /// Entries whose type differs from the one here.
    pub type_mismatches: u64,
    /// Entries of a type that is unknown here.
    pub unknown_types: u64,
    /// Messages that could not be decoded.
    pub malformed: u64,
    /// Entries that could not be read or joined.
    pub undecodable: u64,
    /// Entries larger than any that updates could have produced.
    pub too_large: u64,
    /// Writes whose timestamp was far ahead of the own wall clock. They were accepted.
    pub clocks_ahead: u64,
    /// Copies that named numbers of this replica which it never drew. They were accepted.
    pub reused_ids: u64,
    /// Deltas refused for a gap before them.
    pub gaps: u64,
    /// Answers to requests that are over.
    pub late_replies: u64,
    /// Messages that the transport refused, and messages of a first exchange whose store failed.
    pub unsent: u64,
    /// Messages lost because too many waited here; counted by the driver only.
    pub overrun: u64,
    /// Batches of deltas sent.
    pub batches_sent: u64,
    /// Rounds of anti-entropy that began here.
    pub rounds_opened: u64,
    /// Rounds that found a difference and exchanged all of it.
    pub rounds_completed: u64,
    /// Full states sent, for any reason.
    pub full_states_sent: u64,
    /// Entries put under the name of this replica.
    pub performed: u64,
    /// Entries performed again because more data of the removed replica had turned up.
    pub performed_again: u64,
    /// Markers forgotten.
    pub markers_forgotten: u64,
    /// Large values that differed from a peer's and got the missing ranges.
    pub repaired_in_parts: u64,
    /// Transfers in fragments or parts that were given up: what came was malformed, or nothing more came.
    pub transfers_aborted: u64,
    /// Requests to the store.
    pub stores: u64,
    /// Failed requests to the store.
    pub store_errors: u64,
    /// Messages that could not be accepted yet: durable entries were being loaded, or a current member had not yet
    /// judged them.
    pub not_ready: u64,
    /// Messages with times of pruning or use further ahead than clocks may differ. The times were replaced, or the
    /// items refused.
    pub implausible_times: u64,
    /// Entries and tombstones removed because they had expired.
    pub expired: u64,
    /// Entries and tombstones ignored because they had expired when they arrived.
    pub arrived_expired: u64,
}

/// The state machine of a replicator.
#[derive(Debug)]
pub struct ReplicatorCore {
    settings: ReplicatorSettings,
    types: TypeTable,
    own: UniqueAddress,
    replica: ReplicaId,
    writer: WriterKey,
    numbers: DotSource,
    /// The last number drawn by earlier replicators of this process; this replicator claims nothing up to it.
    start_floor: u64,
    rng: ChaCha8Rng,
    replicas: Arc<Replicas>,
    entries: Entries,
    log: DeltaLog,
    writes: BTreeMap<u64, WriteRequest>,
    reads: BTreeMap<u64, ReadRequest>,
    deadlines: Deadlines,
    rounds: Rounds,
    gate: Gate,
    pruning: Pruning,
    conflicts: Conflicts,
    /// The last wall clock given, with the time of that input.
    wall: (Instant, i64),
    subscriptions: Subscriptions,
    lifecycle: Lifecycle,
    /// Since when membership has known this node while it synchronizes.
    syncing_since: Option<Instant>,
    synced_with: BTreeSet<UniqueAddress>,
    propagate_at: Option<Instant>,
    gossip_at: Instant,
    notify_at: Option<Instant>,
    /// When expired entries are looked for next, and the earliest time for the look after that.
    expire_at: Option<Instant>,
    expire_after: Instant,
    stopping: Option<(StopReason, Instant)>,
    /// Whether a refused replicator no longer answers others.
    is_over: bool,
    unanswered: UnansweredRequests,
    sent: Traffic,
    received: Traffic,
    storage: Storage,
    stats: Stats,
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
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // Spread the first gossip, so that nodes which start together are out of step.
        let gossip_at = now + rounds::jittered(&mut rng, settings.gossip_interval);
        let replica = ReplicaId(own.uid().get());
        let entries = Entries::new(replica, numbers.clone(), &settings);
        let lifecycle = if settings.durable.is_used() { Lifecycle::Loading } else { Lifecycle::Syncing };
        Self {
            types,
            replica,
            writer: WriterKey::new(own.order_bytes()),
            start_floor: numbers.last(),
            numbers,
            rng,
            own,
            replicas: Arc::new(Replicas::default()),
            entries,
            log: DeltaLog::default(),
            writes: BTreeMap::new(),
            reads: BTreeMap::new(),
            deadlines: Deadlines::default(),
            rounds: Rounds::default(),
            conflicts: Conflicts::default(),
            gate: Gate::new(replica, &settings, now),
            pruning: Pruning::new(replica, &settings, now),
            wall: (now, 0),
            subscriptions: Subscriptions::default(),
            lifecycle,
            syncing_since: None,
            synced_with: BTreeSet::new(),
            propagate_at: None,
            gossip_at,
            notify_at: None,
            expire_at: None,
            expire_after: now,
            stopping: None,
            is_over: false,
            unanswered: UnansweredRequests::default(),
            sent: Traffic::default(),
            received: Traffic::default(),
            storage: Storage::new(&settings, now),
            stats: Stats::default(),
            settings,
        }
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Effect>) {
        self.entries.forget_encodings(now, self.settings.encode_cache_time_to_live);
        if let Input::Wall(wall_ms) | Input::Delete { wall_ms, .. } = input {
            self.set_wall(now, wall_ms, out);
        }
        self.tell_time(now, out);
        match input {
            Input::Received { from, message } => self.on_message(now, from, message, out),
            Input::Dropped { from, why } => self.on_dropped(&from, why, out),
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
            Input::Flush if self.lifecycle == Lifecycle::Loading => {}
            Input::Flush => self.subscriptions.flush(&mut self.entries, out),
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
        match self.lifecycle {
            Lifecycle::Stopped(_) => return None,
            Lifecycle::Loading => return self.storage.load_deadline(),
            Lifecycle::Syncing | Lifecycle::Running => {}
        }
        let storing = [self.storage.meta_deadline(), self.entries.storing.next_deadline()];
        let requests = self.deadlines.next();
        let may_time_out = !self.gate.excludes_members();
        let syncing = self.syncing_since.filter(|_| may_time_out).map(|since| since + self.settings.sync_timeout);
        let gossip = (!self.replicas.others.is_empty()).then_some(self.gossip_at);
        let stopping = self.stopping.as_ref().map(|(_, deadline)| *deadline);
        let initial = self.initial_retry_at();
        let pruning = self.pruning_deadline();
        let unanswered = self.unanswered.next_deadline();
        let step = self.rounds.step_at;
        let expiry = self.expire_at;
        let timers =
            [step, syncing, initial, gossip, self.propagate_at, self.notify_at, expiry, stopping, pruning, unanswered];
        timers.into_iter().chain(storing).chain([requests, self.gate.next_deadline()]).flatten().min()
    }

    /// Changes an entry. The closure runs at once. On `Ok`, a later [`Reply::Update`] with this `id` says how the
    /// replication ended; on `Err` nothing changed, and no reply follows. Source: ddata R2.
    ///
    /// # Errors
    /// [`UpdateError`], except `Timeout` and `StoreFailed`.
    #[expect(clippy::too_many_arguments, reason = "an input, spelled out because a closure is no data")]
    pub fn update<T: ReplicatedData, O, E>(
        &mut self,
        now: Instant,
        wall_ms: i64,
        id: u64,
        key: &Key<T>,
        level: WriteLevel,
        init: impl FnOnce() -> T,
        modify: impl FnOnce(&mut T, &mut UpdateCx<'_>) -> Result<O, E>,
        out: &mut Vec<Effect>,
    ) -> Result<O, UpdateError<E>> {
        let level = Level::from(level);
        self.set_wall(now, wall_ms, out);
        self.tell_time(now, out);
        self.check_request(key.id(), level)?;
        self.free(now, key.id(), out);
        self.add_type::<T>();
        let existing = self.existing(key)?;
        let home = self.entries.home(key.id());
        let lineage = Lineage(self.numbers.draw());
        let mut base = existing.clone().unwrap_or_else(T::zero);
        base.bind(home);
        let mut cx = UpdateCx::new(&self.numbers, self.replica, &self.writer, wall_ms);
        let reserved = if self.settings.omits(Sabotage::Reserved) { &[] } else { self.pruning.ranges.reserved() };
        cx = cx.for_entry(home, self.start_floor, reserved);
        cx = cx.omit_clauses(OmittedClauses {
            removal_context: self.settings.omits(Sabotage::RemovalContext),
            start_floor: self.settings.omits(Sabotage::StartFloor),
            claim_start: self.settings.omits(Sabotage::ClaimStart),
            birth: self.settings.omits(Sabotage::Birth),
        });
        let run = AssertUnwindSafe(|| -> Result<(T, bool, O), UpdateError<E>> {
            let mut value = base.clone();
            // Merge a first value that is not empty: no delta explains it.
            let merged = match existing {
                Some(_) => Ok(()),
                None => Some(init())
                    .filter(|first| *first != T::zero())
                    .map_or(Ok(()), |first| value.merge(&first).map(drop)),
            };
            merged.map_err(UpdateError::Merge)?;
            let seeded = existing.is_none() && value != base;
            value.begin_change(lineage);
            let output = modify(&mut value, &mut cx).map_err(UpdateError::Modify)?;
            Ok((value, seeded, output))
        });
        let (mut value, seeded, output) = catch_unwind(run).map_err(|_| UpdateError::ModifyPanicked)??;
        let mut change = value.take_change(lineage);
        if seeded || change == Change::FullOnly {
            // The closure may have replaced the value, so join the former one: nothing is lost. Clean first: data of a
            // removed replica must not come back that way.
            let markers = self.entries.markers(key.id());
            if let Some(pruning) = value.pruning_mut().filter(|_| !markers.is_empty()) {
                markers.clean(pruning);
            }
            let mut joined = base.clone();
            joined.merge(&value).map_err(UpdateError::Merge)?;
            value = joined;
            change = if value == base { Change::None } else { Change::FullOnly };
        }
        self.commit(now, id, key, level, existing.is_some(), home.born, value, change, out)?;
        self.finish_input(now, out);
        Ok(output)
    }

    fn existing<T: ReplicatedData, E>(&self, key: &Key<T>) -> Result<Option<T>, UpdateError<E>> {
        if let Some(LoadedRecord::Value { tag, .. }) = self.entries.storing.held_back.get(key.id()) {
            let (expected, found) = (T::TAG.to_string(), tag.to_string());
            return Err(UpdateError::TypeMismatch { key: key.id().clone(), expected, found });
        }
        match self.entries.get(key.id()).map(|entry| &entry.data) {
            None => Ok(None),
            Some(Data::Tombstone { .. }) => Err(UpdateError::Deleted { key: key.id().clone() }),
            Some(Data::Value(value)) => match value.as_any().downcast_ref::<T>() {
                Some(value) => Ok(Some(value.clone())),
                None => Err(UpdateError::TypeMismatch {
                    key: key.id().clone(),
                    expected: T::TAG.to_string(),
                    found: value.tag().to_string(),
                }),
            },
        }
    }

    /// Commits a change: sets the entry, logs the change, and has it confirmed.
    #[expect(clippy::too_many_arguments, reason = "the second half of `update`")]
    fn commit<T: ReplicatedData, E>(
        &mut self,
        now: Instant,
        id: u64,
        key: &Key<T>,
        level: Level,
        existed: bool,
        born: u64,
        value: T,
        change: Change<T::Delta>,
        out: &mut Vec<Effect>,
    ) -> Result<(), UpdateError<E>> {
        let delta = match change {
            Change::None => {
                self.touch(key.id(), out);
                self.begin_write(now, id, key.id(), level, None, false, out);
                return Ok(());
            }
            Change::Delta(delta) if self.settings.delta_enabled => Some(T::delta_to_bytes(&delta)),
            Change::Delta(_) | Change::FullOnly => None,
        };
        // Look the entry up once: with a million entries the lookup is most of the cost of an update.
        let (mut versions, former, markers, before) = match self.entries.get(key.id()) {
            Some(own) => (own.versions.to_map(), own.size_bound, own.markers().clone(), Some(own.digest())),
            None => (BTreeMap::new(), 0, Markers::new(), None),
        };
        let added = delta.as_ref().map_or_else(|| value.to_untagged_bytes().len(), Vec::len);
        let size_bound = self.check_size(key.id(), existed, &value, former + added)?;
        let prev = versions.get(&self.replica).copied().unwrap_or(0);
        let version = self.numbers.draw();
        if T::CAUSAL && self.settings.delta_enabled {
            versions.insert(self.replica, version);
        }
        let tag = self.entries.tag_of(&value);
        let (data, used_ms) = (Data::Value(Box::new(value)), Some(self.wall_ms(now)));
        let content = EntryContent { data, versions, markers: markers.clone(), size_bound, born, used_ms };
        let delta: Option<bytes::Bytes> = delta.map(Into::into);
        self.entries.set_by(key.id(), content, delta.as_ref());
        let used_ms = self.entries.note_update(key.id());
        if let Some(delta) = &delta {
            self.entries.note_delta(key.id(), delta, before);
        }
        // At the local level no replica is asked, so no delta is sent.
        let asked = delta.as_ref().filter(|_| level != Level::Local);
        let item = asked.map(|delta| DeltaItem {
            key: key.id().clone(),
            tag: tag.clone(),
            prev,
            version,
            delta: delta.clone(),
            markers,
            used_ms,
        });
        let content = delta.map_or(RecordContent::Full, RecordContent::Delta);
        self.append(Record { key: key.id().clone(), tag, prev, version, content }, out);
        if self.settings.log_data_size_exceeding.is_some_and(|limit| size_bound >= limit) {
            self.note_size(key.id(), out);
        }
        self.begin_write(now, id, key.id(), level, item, true, out);
        Ok(())
    }

    /// Above the limit only updates that grow the value are refused. A value is encoded to measure it only when the
    /// bound says that it may be above the limit. Source: ddata E4.
    fn check_size<T: ReplicatedData, E>(
        &mut self,
        key: &KeyId,
        existed: bool,
        value: &T,
        bound: usize,
    ) -> Result<usize, UpdateError<E>> {
        let max = self.settings.max_entry_bytes;
        if bound <= max {
            return Ok(bound);
        }
        let size = value.to_untagged_bytes().len();
        if size <= max {
            return Ok(size);
        }
        let before = if existed { self.entries.encoded_size(key).unwrap_or(0) } else { 0 };
        if size > before {
            return Err(UpdateError::EntryTooLarge { key: key.clone(), size, max });
        }
        Ok(size)
    }

    /// Reports an entry that is large, or has grown since it was reported.
    fn note_size(&mut self, key: &KeyId, out: &mut Vec<Effect>) {
        let Some(limit) = self.settings.log_data_size_exceeding else { return };
        if let Some(bytes) = self.entries.size_to_report(key, limit) {
            let in_pieces = bytes > self.settings.max_message_bytes / 4 * 3;
            out.push(Effect::Event(ReplicatorEvent::EntryLarge { key: key.clone(), bytes, in_pieces }));
        }
    }

    fn append(&mut self, record: Record, out: &mut Vec<Effect>) {
        let seq = self.numbers.draw();
        self.log.append(&self.types, seq, record);
        for (peer, records) in self.log.enforce_limits(&self.settings) {
            out.push(Effect::Event(ReplicatorEvent::PeerLagging { peer, records }));
        }
    }

    fn on_delete(&mut self, now: Instant, id: u64, key: KeyId, level: Level, wall_ms: i64, out: &mut Vec<Effect>) {
        let refused = match self.check_request(&key, level) {
            Err(error) => Some(DeleteError::Request(error)),
            Ok(()) => matches!(self.entries.get(&key), Some(Entry { data: Data::Tombstone { .. }, .. }))
                .then(|| DeleteError::AlreadyDeleted { key: key.clone() }),
        };
        if let Some(error) = refused {
            out.push(Effect::Reply { id, reply: Reply::Delete(Err(error)) });
            return;
        }
        self.free(now, &key, out);
        self.entries.merge_tombstone(&key, wall_ms);
        self.log.clear_deltas(&key);
        let version = self.numbers.draw();
        self.append(Record { key: key.clone(), tag: "".into(), prev: 0, version, content: RecordContent::Full }, out);
        self.begin_delete(now, id, &key, level, out);
    }

    fn on_get(&mut self, now: Instant, id: u64, key: KeyId, tag: Arc<str>, level: Level, out: &mut Vec<Effect>) {
        let result = match self.check_request(&key, level) {
            Err(error) => Err(error.into()),
            Ok(()) => self.read_local(&key, &tag),
        };
        if matches!(result, Ok(Read::Found(_))) {
            self.touch(&key, out);
        }
        match result {
            // A local tombstone is final; any other result may be outdated, so other replicas are asked.
            Ok(Read::Found(_) | Read::NotFound) if level != Level::Local => {
                self.begin_read(now, id, key, tag, level, out);
            }
            result => out.push(Effect::Reply { id, reply: Reply::Get(result) }),
        }
    }

    fn read_local(&self, key: &KeyId, tag: &str) -> Result<Read<Snapshot>, GetError> {
        match self.entries.get(key).map(|entry| &entry.data) {
            None => Ok(Read::NotFound),
            Some(Data::Tombstone { .. }) => Ok(Read::Deleted),
            Some(Data::Value(value)) if *value.tag() == *tag => Ok(Read::Found(Snapshot::new(&**value))),
            Some(Data::Value(value)) => Err(GetError::TypeMismatch {
                key: key.clone(),
                expected: tag.to_owned(),
                found: value.tag().to_string(),
            }),
        }
    }

    fn check_request(&self, key: &KeyId, level: Level) -> Result<(), RequestError> {
        if let Lifecycle::Stopped(reason) = &self.lifecycle {
            return Err(RequestError::Stopped(reason.clone()));
        }
        if let Some((reason, _)) = &self.stopping {
            return Err(RequestError::Stopped(reason.clone()));
        }
        if self.lifecycle == Lifecycle::Loading {
            return Err(RequestError::Overloaded);
        }
        if let Some(why) = problem(key) {
            return Err(InvalidKey { id: key.clone(), why }.into());
        }
        if !level.is_valid() {
            return Err(RequestError::InvalidConsistency);
        }
        if level != Level::Local && self.is_overloaded() {
            return Err(RequestError::Overloaded);
        }
        Ok(())
    }

    fn on_replicas(&mut self, now: Instant, replicas: Arc<Replicas>, out: &mut Vec<Effect>) {
        let before = std::mem::replace(&mut self.replicas, replicas);
        let mut effects = Vec::new();
        self.gate.on_replicas(self.moment(now), &self.replicas, &mut effects);
        self.pruning.on_replicas(now, &self.unrefused());
        for peer in self.replicas.others.iter().filter(|replica| replica.reachable).map(|replica| &replica.address) {
            match before.other(peer) {
                None => self.rounds.schedule(peer.clone()),
                Some(was) if !was.reachable => self.log.resend_now(peer, now),
                Some(_) => {}
            }
        }
        let known: BTreeSet<UniqueAddress> = self.replicas.others.iter().map(|r| r.address.clone()).collect();
        let gone: Vec<UniqueAddress> =
            before.others.iter().map(|r| r.address.clone()).filter(|peer| !known.contains(peer)).collect();
        for peer in &gone {
            self.rounds.forget(peer);
            self.give_up_on(peer, out);
            self.unanswered.answered(peer);
        }
        let suspects: Vec<UniqueAddress> =
            self.replicas.others.iter().filter(|r| !r.reachable).map(|r| r.address.clone()).collect();
        for peer in suspects.iter().filter(|peer| before.other(peer).is_some_and(|was| was.reachable)) {
            self.ask_instead_of(peer, out);
        }
        self.set_log_peers();
        self.perform_gate_effects(now, effects, out);
        self.begin_syncing(now, out);
        if self.replicas.is_anything_known() {
            self.evaluate_early(now, out);
        }
        if before.own_status.is_some() && self.replicas.removed.contains(&self.own) {
            self.on_stop(now, StopReason::Removed, out);
        }
    }

    fn reachable_peers(&self) -> BTreeSet<UniqueAddress> {
        let peers = self.replicas.others.iter().filter(|replica| replica.status.is_peer() && replica.reachable);
        let peers = peers.filter(|replica| self.gate.takes_deltas(&replica.address));
        peers.map(|replica| replica.address.clone()).collect()
    }

    /// Sends everything unsent, and waits until one voter holds all of it. Source: ddata G15.
    fn on_stop(&mut self, now: Instant, reason: StopReason, out: &mut Vec<Effect>) {
        if self.gate.is_refused() {
            // From now on a refused replicator no longer tells peers that it is refused.
            self.is_over = true;
        }
        if self.stopping.is_some() || matches!(self.lifecycle, Lifecycle::Stopped(_)) {
            return;
        }
        if self.lifecycle == Lifecycle::Loading {
            self.become_lifecycle(Lifecycle::Stopped(reason), out);
            return;
        }
        self.begin_last_store();
        let reachable = self.reachable_peers();
        // Propagate once per peer: one slice would leave out peers of a large cluster, and each call serves the next
        // ones.
        for _ in 0..reachable.len() {
            self.propagate(now, out);
        }
        self.stopping = Some((reason, now + self.settings.shutdown_flush_timeout));
    }

    fn finish_stop(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let Some((reason, deadline)) = self.stopping.clone() else { return };
        let voters = self.replicas.others.iter().filter(|replica| replica.status.is_voter() && replica.reachable);
        let voters = voters.filter(|replica| self.gate.takes_deltas(&replica.address));
        let has_acknowledged = |voter: &&Replica| self.log.len() == 0 || self.log.is_acknowledged_by(&voter.address);
        let is_alone = voters.clone().next().is_none();
        let up_to_date: Vec<UniqueAddress> =
            voters.filter(has_acknowledged).map(|voter| voter.address.clone()).collect();
        let is_out = is_alone || up_to_date.iter().any(|voter| !self.log.is_hinted(voter));
        if deadline <= now || (is_out && self.has_settled()) {
            self.stopping = None;
            self.fail_all(&reason, out);
            self.become_lifecycle(Lifecycle::Stopped(reason), out);
        } else if !is_out && let Some(voter) = up_to_date.first() {
            // The voter may still be asking for large entries; a complete round shows that it has all of them.
            self.open_round_soon(now, voter, out);
        }
    }

    fn become_lifecycle(&mut self, lifecycle: Lifecycle, out: &mut Vec<Effect>) {
        if self.lifecycle != lifecycle {
            self.lifecycle = lifecycle.clone();
            out.push(Effect::Lifecycle(lifecycle));
        }
    }

    /// Does everything that is due after any input.
    fn finish_input(&mut self, now: Instant, out: &mut Vec<Effect>) {
        match self.lifecycle {
            Lifecycle::Stopped(_) => return,
            Lifecycle::Loading => return self.tick_loading(now, out),
            Lifecycle::Syncing | Lifecycle::Running => {}
        }
        self.tick_requests(now, out);
        self.tick_unanswered(now, out);
        self.tick_gate(now, out);
        self.tick_rounds(now, out);
        if self.propagate_at.is_some_and(|at| at <= now) {
            self.propagate_at = None;
            self.propagate(now, out);
        }
        if self.notify_at.is_some_and(|at| at <= now) {
            self.notify_at = None;
            self.subscriptions.flush(&mut self.entries, out);
        }
        self.tick_pruning(now, out);
        self.store_changes(now, out);
        self.finish_stop(now, out);
        self.plan_expiry(now);
        if self.log.is_trimming() {
            self.rounds.step_at.get_or_insert(now);
        }
        // Plan no timer while there is nothing to send and no subscriber to notify.
        if self.propagate_at.is_none() && self.log.len() > 0 && self.log.has_work(&self.reachable_peers()) {
            self.propagate_at = Some(now + self.settings.delta_propagation_interval);
        }
        if self.subscriptions.has_work(&mut self.entries) && self.notify_at.is_none() {
            self.notify_at = Some(now + self.settings.notify_subscribers_interval);
        }
        self.check_invariants();
    }

    fn propagate(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let reachable = self.reachable_peers();
        for (to, message) in self.log.propagate(now, &self.settings, &self.types, &mut self.entries, &reachable) {
            self.stats.batches_sent += 1;
            self.send(to, message, out);
        }
    }

    fn send(&mut self, to: UniqueAddress, mut message: Message, out: &mut Vec<Effect>) {
        if self.settings.omits(Sabotage::DeltaMarkers) {
            message.forget_markers_of_deltas();
        }
        if message.is_exchange() {
            let is_held = message.request().is_some() && !self.gate.has_heard(&to);
            if is_held || !self.gate.exchanges_with(&to) {
                // One of both may hold what the other has forgotten. This peer is asked once that is excluded; another
                // one is asked at once.
                if let Some(request) = message.request() {
                    self.ask_instead_in(request, &to, out);
                }
                return;
            }
            self.note_contact(&to);
            if let Some(renewal) = self.renewal_towards(&to) {
                message.markers_mut().into_iter().for_each(|markers| _ = renewal.apply(markers));
            }
            if !self.entries.storing.says_met_others() {
                return self.hold(to, message);
            }
        }
        self.stats.full_states_sent += message.full_states();
        let bytes = message.size_hint();
        self.sent.count(message.kind(), bytes);
        let bulk = self.is_bulk(&message, bytes);
        out.push(Effect::Send { to, bulk, message });
    }

    /// Whether a message exceeds what the ordinary mailbox takes. The size is estimated first, and measured near the
    /// limit.
    fn is_bulk(&self, message: &Message, about: usize) -> bool {
        let most = self.settings.max_message_bytes;
        about > most || (about > most / 2 && message.encoded_len() > most)
    }

    /// Adds a type that peers may send from now on.
    pub fn add_type<T: ReplicatedData>(&mut self) {
        self.types.add::<T>();
        if !self.entries.storing.held_back.is_empty() && self.lifecycle != Lifecycle::Loading {
            self.load_held_back(&T::TAG.to_string());
        }
    }

    /// Adds types, as if each had been used here.
    pub fn add_types(&mut self, types: &TypeTable) {
        let tags = self.types.join(types);
        if !self.entries.storing.held_back.is_empty() && self.lifecycle != Lifecycle::Loading {
            tags.iter().for_each(|tag| self.load_held_back(tag));
        }
    }

    /// Whether there is nothing more to do. A replicator whose store is too old has stopped for its users, but answers
    /// others that it is refused until it is stopped. Source: ddata Z11.
    pub fn is_over(&self) -> bool {
        matches!(self.lifecycle, Lifecycle::Stopped(_)) && (self.is_over || !self.gate.is_refused())
    }

    /// The lifecycle.
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    /// Live ids that begin with `prefix` and come after `after`, ascending, at most `limit`.
    pub fn keys(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<KeyId> {
        let start = after.map_or(prefix, |after| after.max(prefix));
        let found = self.entries.from(start).filter(|(key, _)| after.is_none_or(|after| &***key > after));
        let found = found.take_while(|(key, _)| key.starts_with(prefix));
        let live = found.filter(|(_, entry)| matches!(entry.data, Data::Value(_)));
        live.map(|(key, _)| key.clone()).take(limit).collect()
    }

    /// The value of an entry as held here; `None` if the entry is absent, deleted, or of another type.
    pub fn value<T: ReplicatedData>(&self, key: &Key<T>) -> Option<&T> {
        match &self.entries.get(key.id())?.data {
            Data::Value(value) => value.as_any().downcast_ref(),
            Data::Tombstone { .. } => None,
        }
    }

    /// All entries with their digests, for comparing replicas in tests.
    pub fn digests(&self) -> BTreeMap<KeyId, greylag_crdt::Digest> {
        self.entries.iter().map(|(key, entry)| (key.clone(), entry.digest())).collect()
    }

    /// The sum over everything held here: equal sums mean equal data.
    pub fn root_sum(&self) -> crate::tree::Sum {
        self.entries.tree.sum(crate::tree::Prefix::ROOT)
    }

    /// How many records wait in the delta log.
    pub fn log_len(&self) -> usize {
        self.log.len()
    }

    /// Counters of what was dropped or refused so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }
}

/// The interval changed by up to a tenth either way, so that nodes which start together drift apart.
pub(crate) fn jitter(interval: Duration, chance: f64) -> Duration {
    interval.mul_f64(0.9 + 0.2 * chance)
}
