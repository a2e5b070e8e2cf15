//! The local replica: what it holds, what it remembers of others, and what it may send.
//!
//! It takes data in under the rules for merging, logs the own changes for the peers, prunes, and lets messages out that
//! the gate and the store allow. It holds no conversation: requests ([`super::requests`]) and rounds
//! ([`super::rounds`]) do that with its means. Source: ddata §3, §5, Z9, Z11.

mod merging;
mod pruning;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use greylag_crdt::{DotSource, ReplicatedData};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::held_messages::HeldMessages;
use super::observed::Observed;
use super::wall_clock::WallClock;
use super::writer::Writer;
use crate::api::effect::{Effect, Snapshot};
use crate::api::error::GetError;
use crate::api::event::ReplicatorEvent;
use crate::api::key::KeyId;
use crate::api::read::{Lifecycle, Read};
use crate::api::settings::ReplicatorSettings;
use crate::api::settings::omissions::Clause;
use crate::data::entries::{Data, Entries};
use crate::data::tree::{Sixteenths, Sum};
use crate::data::types::TypeTable;
use crate::dissemination::delta_log::{DeltaLog, Record, RecordContent};
use crate::gate::{Gate, Moment};
use crate::membership::replicas::Replicas;
use crate::messages::bounds::Bounds;
use crate::messages::message::{Message, Nacked};
use crate::pruning::{Pruning, PruningNews, Renewal, millis, unreachable};
use crate::storage::store::StoreMeta;

/// The local replica.
#[derive(Debug)]
pub(super) struct LocalReplica {
    pub(super) settings: ReplicatorSettings,
    pub(super) types: TypeTable,
    pub(super) writer: Writer,
    pub(super) rng: ChaCha8Rng,
    pub(super) replicas: Arc<Replicas>,
    pub(super) wall: WallClock,
    lifecycle: Lifecycle,
    pub(super) entries: Entries,
    pub(super) log: DeltaLog,
    pub(super) gate: Gate,
    pub(super) pruning: Pruning,
    pub(super) observed: Observed,
    /// Messages held back until the store says that this replicator has met others.
    held: HeldMessages,
    /// Peers with which a round begins soon, before others are served.
    pub(super) scheduled: BTreeSet<UniqueAddress>,
}

impl LocalReplica {
    /// A replica that holds nothing and knows no other one; `seed` decides every random choice.
    pub(super) fn new(
        settings: ReplicatorSettings,
        types: TypeTable,
        own: UniqueAddress,
        numbers: DotSource,
        seed: u64,
        now: Instant,
    ) -> Self {
        let writer = Writer::new(own, numbers.clone());
        let replica = writer.replica();
        Self {
            types,
            writer,
            rng: ChaCha8Rng::seed_from_u64(seed),
            replicas: Arc::new(Replicas::default()),
            wall: WallClock::new(now),
            lifecycle: if settings.durable.is_used() { Lifecycle::Loading } else { Lifecycle::Syncing },
            entries: Entries::new(replica, numbers, &settings),
            log: DeltaLog::default(),
            gate: Gate::new(replica, &settings, now),
            pruning: Pruning::new(replica, &settings, now),
            observed: Observed::default(),
            held: HeldMessages::default(),
            scheduled: BTreeSet::new(),
            settings,
        }
    }

    pub(super) fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    pub(super) fn become_lifecycle(&mut self, lifecycle: Lifecycle, out: &mut Vec<Effect>) {
        if self.lifecycle != lifecycle {
            self.lifecycle = lifecycle.clone();
            out.push(Effect::Lifecycle(lifecycle));
        }
    }

    /// The interval changed by up to a tenth either way, so that nodes which start together drift apart.
    pub(super) fn jittered(&mut self, interval: Duration) -> Duration {
        interval.mul_f64(0.9 + 0.2 * self.rng.random_range(0.0..1.0))
    }

    pub(super) fn moment(&self, now: Instant) -> Moment {
        Moment { now, wall_ms: self.wall.ms(now), last_number: self.writer.last() }
    }

    /// The bounds of wall times at present.
    pub(super) fn bounds(&self, now: Instant) -> Bounds {
        let now_ms = self.wall.ms(now);
        let latest_ms = match self.settings.omits(Clause::Horizon) {
            true => i64::MAX,
            false => now_ms.saturating_add(millis(self.settings.max_clock_skew)),
        };
        Bounds { now_ms, latest_ms, life_ms: millis(self.settings.longest_marker_life()) }
    }

    /// The replicas without those whose stores were refused: nothing waits for refused ones.
    pub(super) fn unrefused(&self) -> Replicas {
        let refused = self.gate.refused();
        let mut replicas = (*self.replicas).clone();
        replicas.others.retain(|replica| !refused.contains(&replica.address));
        replicas
    }

    pub(super) fn all_are_reachable(&self) -> bool {
        self.replicas.unmet.is_empty() && unreachable(&self.unrefused()).is_none()
    }

    /// Makes the delta log serve every replica that takes part in rounds and is not refused.
    pub(super) fn set_log_peers(&mut self) {
        let replicas = self.unrefused();
        let peers = replicas.others.iter().filter(|replica| replica.status.is_peer());
        self.log.set_peers(&peers.map(|replica| replica.address.clone()).collect::<BTreeSet<_>>());
    }

    /// The peers that deltas are sent to.
    pub(super) fn reachable_peers(&self) -> BTreeSet<UniqueAddress> {
        let peers = self.replicas.others.iter().filter(|replica| replica.status.is_peer() && replica.reachable);
        let peers = peers.filter(|replica| self.gate.takes_deltas(&replica.address));
        peers.map(|replica| replica.address.clone()).collect()
    }

    /// Logs a change for the peers.
    pub(super) fn append(&mut self, record: Record, out: &mut Vec<Effect>) {
        let seq = self.writer.draw();
        self.log.append(&self.types, seq, record);
        for (peer, records) in self.log.enforce_limits(&self.settings) {
            out.push(Effect::Event(ReplicatorEvent::PeerLagging { peer, records }));
        }
    }

    /// Notes that a caller used an entry. Peers are told only of uses that matter.
    pub(super) fn touch(&mut self, key: &KeyId, out: &mut Vec<Effect>) {
        if self.entries.touch(key) {
            self.append(
                Record { key: key.clone(), tag: "".into(), prev: 0, version: 0, content: RecordContent::Touch },
                out,
            );
        }
    }

    /// Sends the next batches of the delta log.
    pub(super) fn propagate(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let reachable = self.reachable_peers();
        for (to, message) in self.log.propagate(now, &self.settings, &self.types, &mut self.entries, &reachable) {
            self.observed.stats.batches_sent += 1;
            self.send(to, message, out);
        }
    }

    /// Takes a peer's acknowledgement of a batch of the delta log.
    pub(super) fn on_ack(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        range: (u64, u64),
        nacked: &[Nacked],
        is_exchanging: bool,
        out: &mut Vec<Effect>,
    ) {
        let (settings, types, entries) = (&self.settings, &self.types, &mut self.entries);
        for (to, message) in self.log.on_ack(now, settings, types, entries, from, range, nacked, is_exchanging) {
            self.observed.stats.batches_sent += 1;
            self.send(to, message, out);
        }
    }

    /// Asks a member for its standing, by a round about no entry.
    pub(super) fn ask_standing(&mut self, now: Instant, member: UniqueAddress, out: &mut Vec<Effect>) {
        let (round, pruning) = (self.writer.draw(), self.news_for(now, &member));
        self.send(member, Message::SyncOpen { round, part: Sixteenths::NONE, root: Sum::default(), pruning }, out);
    }

    /// Drops entries of a store that is too old: the loaded ones, and all others too if the history here is as old.
    /// Returns the dropped entries.
    pub(super) fn drop_stale(&mut self, loaded: BTreeSet<KeyId>, is_of_store: bool) -> BTreeSet<KeyId> {
        let mut dropped = loaded;
        self.entries.storing.discard();
        if !is_of_store {
            dropped.extend(self.entries.iter().map(|(key, _)| key.clone()));
        }
        // Drop records of unknown types too: they are just as old.
        for key in std::mem::take(&mut self.entries.storing.held_back).into_keys() {
            self.entries.storing.gather(&key, None);
            dropped.insert(key);
        }
        for key in &dropped {
            self.log.clear_deltas(key);
            self.entries.forget(key);
        }
        dropped
    }

    /// The entry as a caller of this type reads it.
    pub(super) fn read(&self, key: &KeyId, tag: &str) -> Result<Read<Snapshot>, GetError> {
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

    /// Sends a message that asks for nothing; it is left out if nothing may be exchanged with the peer.
    pub(super) fn send(&mut self, to: UniqueAddress, message: Message, out: &mut Vec<Effect>) {
        debug_assert!(message.request().is_none(), "the caller must learn that a question was not sent");
        self.send_if_allowed(to, message, out);
    }

    /// Sends a message, or holds it back for the store. Returns whether the gate allows it; if not, one of both may
    /// hold what the other has forgotten.
    pub(super) fn send_if_allowed(&mut self, to: UniqueAddress, mut message: Message, out: &mut Vec<Effect>) -> bool {
        if self.settings.omits(Clause::DeltaMarkers) {
            message.forget_markers_of_deltas();
        }
        if message.is_exchange() {
            let is_held = message.request().is_some() && !self.gate.has_heard(&to);
            if is_held || !self.gate.exchanges_with(&to) {
                return false;
            }
            self.note_contact(&to);
            if let Some(renewal) = self.renewal_towards(&to) {
                message.markers_mut().into_iter().for_each(|markers| _ = renewal.apply(markers));
            }
            if !self.entries.storing.says_met_others() {
                self.hold(to, message);
                return true;
            }
        }
        let bytes = message.size_hint();
        self.observed.on_sent(&message, bytes);
        let bulk = self.is_bulk(&message, bytes);
        out.push(Effect::Send { to, bulk, message });
        true
    }

    /// Whether a message exceeds what the ordinary mailbox takes. The size is estimated first, and measured near the
    /// limit.
    fn is_bulk(&self, message: &Message, about: usize) -> bool {
        let most = self.settings.max_message_bytes;
        about > most || (about > most / 2 && message.encoded_len() > most)
    }

    /// Holds a message back until the store says that this replicator has met others.
    fn hold(&mut self, to: UniqueAddress, message: Message) {
        if !self.held.keep(to, message) {
            self.observed.stats.unsent += 1;
        }
    }

    /// Whether messages are held back.
    pub(super) fn holds_messages(&self) -> bool {
        !self.held.is_empty()
    }

    /// The messages held back that go out now, because the store has answered. If the store failed they count as lost:
    /// by the time it works again, requests have been repeated and rounds have restarted.
    pub(super) fn release_held(&mut self, is_stored: bool) -> Vec<(UniqueAddress, Message)> {
        if is_stored && !self.entries.storing.says_met_others() {
            return Vec::new();
        }
        let (released, lost): (Vec<_>, Vec<_>) =
            self.held.take().into_iter().partition(|(to, _)| is_stored && self.replicas.other(to).is_some());
        self.observed.stats.unsent += lost.len() as u64;
        released
    }

    /// The renewal to apply to markers that are sent to a peer, because markers here will be renewed when the gate
    /// opens, or are being renewed: a receiver of their former times would forget them before others have heard of
    /// them. Source: ddata Z9.
    fn renewal_towards(&self, peer: &UniqueAddress) -> Option<Renewal> {
        let since_parting = |parted: i64| parted.saturating_sub(millis(self.settings.max_pruning_dissemination));
        let of_store = self.gate.parted_from(peer).map(|parted| (since_parting(parted), self.entries.now_ms()));
        let (since, now_ms) = of_store.or_else(|| self.pruning.time_changes.renewal())?;
        let lives = [self.settings.pruning_marker_time_to_live, self.settings.durable.pruning_marker_time_to_live];
        Some(Renewal { since, now_ms, life_ms: lives.into_iter().map(millis).max().unwrap_or_default() })
    }

    /// Whether a message may be accepted now. A closed gate accepts data in rounds with members that let this store
    /// pass, and nothing else. Source: ddata G13, Z11.
    pub(super) fn may_take(&self, from: &UniqueAddress, message: &Message) -> bool {
        if !message.is_exchange() || message.is_bare_reply() {
            return true;
        }
        self.gate.exchanges_with(from) && !(self.gate.is_closed() && message.is_request())
    }

    /// Raises the horizon, because a marker or tombstone of this time was forgotten: data here must not judge a store
    /// that still has it. Source: ddata Z9.
    pub(super) fn raise_horizon(&mut self, time: i64) {
        let horizon = time.saturating_add(millis(self.settings.max_pruning_dissemination));
        let mut effects = Vec::new();
        self.gate.raise_horizon(Some(horizon), &mut effects);
        if !effects.is_empty() {
            self.entries.storing.meta_is_first();
        }
    }

    /// Notes that data went to or came from a member: from now on only complete rounds make the store fresher.
    pub(super) fn note_contact(&mut self, peer: &UniqueAddress) {
        if self.gate.note_exchange(peer) {
            self.entries.storing.meta_is_first();
        }
    }

    /// Notes that data come from a member. They lack what the member has forgotten, so its horizon holds here too, and
    /// is stored before the data. Source: ddata Z9.
    pub(super) fn note_data_of(&mut self, peer: &UniqueAddress) {
        let mut effects = Vec::new();
        self.gate.take_horizon_of(peer, &mut effects);
        if !effects.is_empty() {
            self.entries.storing.meta_is_first();
        }
    }

    /// The known pruning rounds, with the own standing.
    pub(super) fn pruning_news(&self) -> PruningNews {
        let (number, last_ms) = (self.writer.last(), self.wall.last_ms());
        PruningNews {
            rounds: self.pruning.rounds(),
            standing: self.gate.standing_for(self.writer.own(), number, last_ms),
        }
    }

    /// The pruning rounds and the standing to send to a peer whenever a round begins.
    pub(super) fn news_for(&mut self, now: Instant, peer: &UniqueAddress) -> PruningNews {
        let number = self.writer.draw();
        PruningNews { rounds: self.pruning.rounds(), standing: self.gate.standing_for(peer, number, self.wall.ms(now)) }
    }

    /// The store's own record as it would be written now.
    pub(super) fn meta(&self, now: Instant) -> StoreMeta {
        let wall_ms = self.wall.ms(now);
        let removed = self.pruning.removed().collect();
        let mut meta = StoreMeta { written_at: wall_ms, removed, ..StoreMeta::default() };
        self.gate.remember(wall_ms, &mut meta);
        meta
    }

    /// Takes over the store's own record. Only time in touch with others counts for markers: an owner that ran on alone
    /// has told no member what it put where, however old its marker is, and others may have pruned the same replica
    /// again. A store that is loaded twice before its replicator meets a member counts the time alone twice, which only
    /// keeps markers for longer. Source: ddata Z9.
    pub(super) fn take_over(&mut self, now: Instant, meta: &StoreMeta) {
        self.pruning.restore(now, &meta.removed, &self.replicas);
        let in_touch = meta.synced_at.map_or(meta.written_at, |synced_at| synced_at.min(meta.written_at));
        let alone = self.wall.ms(now).saturating_sub(in_touch);
        if alone > 0 {
            self.entries.prolong_markers(alone);
        }
    }

    /// Adds a type that peers may send from now on.
    pub(super) fn add_type<T: ReplicatedData>(&mut self) {
        self.types.add::<T>();
        if !self.entries.storing.held_back.is_empty() && self.lifecycle != Lifecycle::Loading {
            self.load_held_back(&T::TAG.to_string());
        }
    }

    /// Adds types, as if each had been used here.
    pub(super) fn add_types(&mut self, types: &TypeTable) {
        let tags = self.types.join(types);
        if !self.entries.storing.held_back.is_empty() && self.lifecycle != Lifecycle::Loading {
            tags.iter().for_each(|tag| self.load_held_back(tag));
        }
    }
}
