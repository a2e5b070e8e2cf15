//! Carries out what follows for entries, rounds and the store when the gate opens, closes, or refuses. Source: ddata
//! Z9, Z11.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use super::ReplicatorCore;
use crate::bounds::Bounds;
use crate::durable::StaleStore;
use crate::effect::Effect;
use crate::error::StopReason;
use crate::event::ReplicatorEvent;
use crate::gate::{GateEffect, Moment, Stale, Standing};
use crate::message::Message;
use crate::pruning::{Renewal, TimeChange, millis, unreachable};
use crate::read::Lifecycle;
use crate::replicas::Replicas;
use crate::sabotage::Sabotage;
use crate::sync::Round;
use crate::tree::{Sixteenths, Sum};

/// Times too far ahead are reported once in this time for each peer.
const TELLING: Duration = Duration::from_secs(60);

impl ReplicatorCore {
    pub(super) fn moment(&self, now: Instant) -> Moment {
        Moment { now, wall_ms: self.wall_ms(now), last_number: self.numbers.last() }
    }

    /// The bounds of wall times at present.
    pub(super) fn bounds(&self, now: Instant) -> Bounds {
        let now_ms = self.wall_ms(now);
        let latest_ms = match self.settings.omits(Sabotage::Horizon) {
            true => i64::MAX,
            false => now_ms.saturating_add(millis(self.settings.max_clock_skew)),
        };
        Bounds { now_ms, latest_ms, life_ms: millis(self.settings.longest_marker_life()) }
    }

    /// Sets the wall clock. If it went back by more than clocks may differ, times noted by it count as now.
    pub(super) fn set_wall(&mut self, now: Instant, wall_ms: i64, out: &mut Vec<Effect>) {
        let by_ms = self.wall_ms(now).saturating_sub(wall_ms);
        self.wall = (now, wall_ms);
        let mut effects = Vec::new();
        self.gate.on_wall(wall_ms, &mut effects);
        if by_ms > millis(self.settings.max_clock_skew) && !self.settings.omits(Sabotage::Horizon) {
            self.set_times(now, TimeChange::Bound);
            if effects.is_empty() {
                effects.push(GateEffect::ClockWentBack { by_ms });
            }
        }
        self.perform_gate_effects(now, effects, out);
    }

    /// Counts and reports that a peer sent a time too far ahead.
    pub(super) fn note_implausible(
        &mut self,
        now: Instant,
        peer: &UniqueAddress,
        ahead_ms: i64,
        out: &mut Vec<Effect>,
    ) {
        self.stats.implausible_times += 1;
        if self.conflicts.times.is_news(now, &peer.to_string().into(), TELLING) {
            out.push(Effect::Event(ReplicatorEvent::ImplausibleHorizon { peer: peer.clone(), ahead_ms }));
        }
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

    /// Whether a message may be accepted now. A closed gate accepts data in rounds with members that let this store
    /// pass, and nothing else. Source: ddata G13, Z11.
    pub(super) fn may_take(&self, from: &UniqueAddress, message: &Message) -> bool {
        if !message.is_exchange() || message.is_bare_reply() {
            return true;
        }
        self.gate.exchanges_with(from) && !(self.gate.is_closed() && message.is_request())
    }

    /// Answers as a refused replicator: it shows its state to replicators that ask, and does nothing else.
    pub(super) fn answer_refused(
        &mut self,
        now: Instant,
        from: UniqueAddress,
        message: &Message,
        out: &mut Vec<Effect>,
    ) {
        if let Message::SyncOpen { round, .. } = message
            && self.gate.is_refused()
            && !self.is_over
        {
            let pruning = self.news_for(now, &from);
            out.push(Effect::Send { to: from, bulk: false, message: Message::SyncDiffers { round: *round, pruning } });
        }
    }

    /// Takes a member's standing.
    pub(super) fn hear(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        standing: &Standing,
        answers: Option<u64>,
        out: &mut Vec<Effect>,
    ) {
        let mut effects = Vec::new();
        let (exchanged, was_heard) = (self.gate.exchanges_with(from), self.gate.has_heard(from));
        let refused = self.gate.refused();
        self.gate.on_standing(self.moment(now), from, standing, answers, &mut effects);
        self.perform_gate_effects(now, effects, out);
        if self.gate.refused() != refused {
            self.pruning.on_replicas(now, &self.unrefused());
            self.set_log_peers();
        }
        if !self.gate.exchanges_with(from) {
            return;
        }
        if !exchanged {
            self.rounds.schedule(from.clone());
            self.open_initial_rounds(now, out);
        }
        if !exchanged || !was_heard {
            self.ask_again(from, out);
        }
    }

    pub(super) fn tick_gate(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let mut effects = Vec::new();
        self.gate.on_tick(self.moment(now), &mut effects);
        self.perform_gate_effects(now, effects, out);
    }

    /// Carries out the effects of the gate.
    pub(super) fn perform_gate_effects(&mut self, now: Instant, effects: Vec<GateEffect>, out: &mut Vec<Effect>) {
        let takes_over = effects.contains(&GateEffect::TookOver);
        if takes_over {
            self.entries.storing.meta_is_first();
            self.rounds.begin_anew();
        }
        for effect in effects {
            match effect {
                GateEffect::TookOver => {}
                GateEffect::Raised => self.entries.storing.meta_is_first(),
                GateEffect::Ask(member) => self.ask_standing(now, member, out),
                GateEffect::Opened { parted } => self.on_gate_opened(now, parted),
                GateEffect::Stale(stale) => self.on_stale(stale, out),
                GateEffect::Implausible { peer, ahead_ms } => self.note_implausible(now, &peer, ahead_ms, out),
                GateEffect::ClockWentBack { by_ms } => {
                    out.push(Effect::Event(ReplicatorEvent::ClockWentBack { by_ms }));
                }
                GateEffect::Closed { waiting_for, unmet } => {
                    out.push(Effect::Event(ReplicatorEvent::GateClosed { waiting_for, unmet }));
                }
            }
        }
        if takes_over {
            self.open_initial_rounds(now, out);
            let members: Vec<UniqueAddress> =
                self.replicas.others.iter().map(|replica| replica.address.clone()).collect();
            for member in members.iter().filter(|member| self.gate.exchanges_with(member)).collect::<Vec<_>>() {
                self.ask_again(member, out);
            }
        }
    }

    /// Asks a member for its standing, by a round about no entry.
    fn ask_standing(&mut self, now: Instant, member: UniqueAddress, out: &mut Vec<Effect>) {
        let (round, pruning) = (self.numbers.draw(), self.news_for(now, &member));
        self.send(member, Message::SyncOpen { round, part: Sixteenths::NONE, root: Sum::default(), pruning }, out);
    }

    /// Renews markers when the gate has opened: perhaps no member has heard of markers performed here shortly before
    /// the histories parted, so they count as performed now and are not forgotten too early.
    pub(super) fn on_gate_opened(&mut self, now: Instant, parted: i64) {
        let since = parted.saturating_sub(millis(self.settings.max_pruning_dissemination));
        self.set_times(now, TimeChange::Renew { since, now_ms: self.wall_ms(now) });
        self.storage.loaded.clear();
    }

    /// The renewal to apply to markers that are sent to a peer, because markers here will be renewed when the gate
    /// opens, or are being renewed: a receiver of their former times would forget them before others have heard of
    /// them. Source: ddata Z9.
    pub(super) fn renewal_towards(&self, peer: &UniqueAddress) -> Option<Renewal> {
        let since_parting = |parted: i64| parted.saturating_sub(millis(self.settings.max_pruning_dissemination));
        let of_store = self.gate.parted_from(peer).map(|parted| (since_parting(parted), self.entries.now_ms()));
        let (since, now_ms) = of_store.or_else(|| self.pruning.time_changes.renewal())?;
        let lives = [self.settings.pruning_marker_time_to_live, self.settings.durable.pruning_marker_time_to_live];
        Some(Renewal { since, now_ms, life_ms: lives.into_iter().map(millis).max().unwrap_or_default() })
    }

    /// Handles a store that is too old, or has forgotten what others have not.
    fn on_stale(&mut self, stale: Stale, out: &mut Vec<Effect>) {
        let Stale { policy, synced_at, parted, own_horizon, horizon, peer, is_of_store } = stale;
        if policy == StaleStore::Refuse {
            return self.stop_at_once(StopReason::StoreTooOld { synced_at, parted, own_horizon, horizon, peer }, out);
        }
        let mut dropped = BTreeSet::new();
        if policy == StaleStore::Discard {
            self.entries.storing.discard();
            dropped = std::mem::take(&mut self.storage.loaded);
            if !is_of_store {
                dropped.extend(self.entries.iter().map(|(key, _)| key.clone()));
            }
            // Drop records of unknown types too: they are just as old.
            for key in std::mem::take(&mut self.entries.storing.held_back).into_keys() {
                self.entries.storing.gather(&key, None);
                dropped.insert(key);
            }
        }
        for key in &dropped {
            self.log.clear_deltas(key);
            self.entries.forget(key);
        }
        self.give_up_writes(&dropped, out);
        self.entries.storing.meta_is_due = true;
        let dropped = dropped.len();
        let event = ReplicatorEvent::StaleStore { synced_at, parted, own_horizon, horizon, peer, dropped };
        out.push(Effect::Event(event));
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

    /// Notes that a round with a member exchanged everything.
    pub(super) fn note_complete_round(
        &mut self,
        now: Instant,
        peer: &UniqueAddress,
        round: &Round,
        out: &mut Vec<Effect>,
    ) {
        let ago = millis(now.saturating_duration_since(round.began_at));
        let began_ms = self.wall_ms(now).saturating_sub(ago);
        let mut effects = Vec::new();
        self.gate.on_complete_round(self.moment(now), peer, began_ms, round.all_were_reachable, &mut effects);
        if !std::mem::replace(&mut self.storage.has_completed_a_round, true) {
            self.entries.storing.meta_is_due = true;
        }
        self.perform_gate_effects(now, effects, out);
    }

    /// Whether this replicator is current, and so judges the stores of others. Source: ddata Z11.
    pub fn is_current(&self) -> bool {
        self.gate.is_current()
    }

    /// Whether the gate is closed: the loaded entries are exchanged with no member so far.
    pub fn is_gate_closed(&self) -> bool {
        self.gate.is_closed()
    }

    /// Whether the store was refused, and others are still answered so.
    pub fn is_refused(&self) -> bool {
        self.gate.is_refused() && matches!(self.lifecycle, Lifecycle::Stopped(_)) && !self.is_over
    }
}
