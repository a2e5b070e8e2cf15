//! Applies pruning to entries, some at a time. Source: ddata §5.

use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use greylag_crdt::{Performed, ReplicaId};

use super::LocalReplica;
use crate::api::effect::Effect;
use crate::api::event::ReplicatorEvent;
use crate::api::key::KeyId;
use crate::api::settings::omissions::Clause;
use crate::data::entries::{Data, EntryContent, Rules};
use crate::data::types::AnyData;
use crate::dissemination::delta_log::{Record, RecordContent};
use crate::pruning::{PruningNews, PruningStep, RemainingEntries, Renewal, TimeChange, Work, millis, unreachable};

/// The most entries of one step; requests are served between steps.
const STEP: usize = 1_000;
/// The pause between two steps.
const PAUSE: Duration = Duration::from_millis(1);

impl LocalReplica {
    /// The time at or before which markers must have ended to be forgotten now; `None` if none may be forgotten.
    pub(in crate::replicator) fn forgets_before(&self, now: Instant) -> Option<i64> {
        let before = self.pruning.forgets_before(now, self.wall.ms(now), &self.settings);
        before.filter(|_| self.gate.may_forget() && !self.pruning.time_changes.has_to_renew())
    }

    pub(in crate::replicator) fn on_pruning_news(&mut self, now: Instant, from: &UniqueAddress, news: &PruningNews) {
        self.pruning.on_news(now, self.wall.ms(now), from, news, self.settings.longest_marker_life());
    }

    pub(in crate::replicator) fn pruning_deadline(&self) -> Option<Instant> {
        let tick = self.settings.pruning_interval.map(|_| self.pruning.tick_at);
        [tick, self.pruning.time_changes.next_deadline()].into_iter().flatten().min()
    }

    /// Begins a change of the times of markers and tombstones in all entries; some change at once, the others in
    /// further steps.
    pub(in crate::replicator) fn set_times(&mut self, now: Instant, change: TimeChange) {
        self.pruning.time_changes.add(now, change);
        self.set_some_times(now);
    }

    /// Does one step of the changes that [`Self::set_times`] began, if it is due. Source: ddata Z2, H2.
    fn set_some_times(&mut self, now: Instant) {
        let Some((change, remaining)) = self.pruning.time_changes.take_due(now) else { return };
        let (mut left, mut rest) = (STEP, Some(remaining));
        while left > 0
            && let Some(remaining) = rest
        {
            let looked_at;
            (looked_at, rest) = self.set_times_of(now, change, remaining, left);
            left -= looked_at;
        }
        self.pruning.time_changes.put_back(change, rest, now + PAUSE);
    }

    /// Goes through at most `limit` of the remaining entries. Returns how many it went through, and what is left.
    fn set_times_of(
        &mut self,
        now: Instant,
        change: TimeChange,
        remaining: RemainingEntries,
        limit: usize,
    ) -> (usize, Option<RemainingEntries>) {
        let bounds = self.bounds(now);
        match remaining {
            RemainingEntries::Markers { after } => {
                let ends = self.entries.index.ended_after(i64::MAX, after.as_ref(), limit);
                for (_, key) in &ends {
                    match change {
                        TimeChange::Bound => self.entries.bound_markers(key, &bounds),
                        TimeChange::Renew { since, now_ms } => {
                            let life_ms = millis(self.settings.marker_life(key));
                            self.entries.renew_markers(key, &Renewal { since, now_ms, life_ms });
                        }
                    }
                }
                let then = (change == TimeChange::Bound).then_some(RemainingEntries::Tombstones { after: None });
                let rest = (ends.len() == limit).then(|| RemainingEntries::Markers { after: ends.last().cloned() });
                (ends.len(), rest.or(then))
            }
            RemainingEntries::Tombstones { after } => {
                let ids = self.entries.ids_after(after.as_ref(), limit);
                ids.iter().for_each(|key| self.entries.bound_tombstone(key, &bounds));
                let rest = (ids.len() == limit).then(|| RemainingEntries::Tombstones { after: ids.last().cloned() });
                (ids.len(), rest)
            }
        }
    }

    /// The pruning tick, and its further steps.
    pub(in crate::replicator) fn tick_pruning(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.set_some_times(now);
        let Some(interval) = self.settings.pruning_interval.filter(|_| self.pruning.tick_at <= now) else { return };
        if self.pruning.work.is_empty() && self.forget_some(now) {
            self.pruning.tick_at = now + PAUSE;
            return;
        }
        if self.pruning.work.is_empty() {
            self.begin_pruning(now, out);
        } else if self.gate.may_prune() {
            self.perform_some(now, out);
        } else {
            // A store has turned up that may hold more of the removed replicas than was collected: stop performing.
            self.pruning.work.clear();
        }
        self.pruning.tick_at = now + if self.pruning.work.is_empty() { interval } else { PAUSE };
    }

    fn begin_pruning(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let wall_ms = self.wall.ms(now);
        let lifetime = self.settings.longest_marker_life();
        let replicas = self.unrefused();
        self.pruning.drop_finished(wall_ms, &replicas, &self.entries.index, lifetime);
        if self.replicas.own_status.is_none() || !self.replicas.unmet.is_empty() || !self.gate.may_prune() {
            return;
        }
        if let Some(by) = unreachable(&replicas) {
            if self.pruning.has_something_to_do(&self.entries.index) {
                out.push(Effect::Event(ReplicatorEvent::PruningBlocked { by: by.clone() }));
            }
            return;
        }
        self.pruning.announce(now, wall_ms, self.writer.own(), &replicas, &self.entries.index, &self.settings);
        self.scheduled.extend(self.pruning.continue_rounds(&replicas, &self.entries.index));
        self.perform_some(now, out);
    }

    /// Does one step of the work that was queued last.
    fn perform_some(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let Some(mut work) = self.pruning.work.pop() else { return };
        let keys = self.entries.index.naming(work.removed, work.after.as_ref(), STEP);
        let is_last = keys.len() < STEP;
        work.after = keys.last().cloned();
        for key in keys {
            match &mut work.phase {
                PruningStep::Scan { numbers } => *numbers = wider(*numbers, self.uncovered_numbers(&key, work.removed)),
                PruningStep::Perform => work.performed += usize::from(self.perform(now, &key, work.removed, out)),
            }
        }
        if is_last {
            self.finish_phase(work, out);
        } else {
            self.pruning.work.push(work);
        }
    }

    fn finish_phase(&mut self, work: Work, out: &mut Vec<Effect>) {
        match work.phase {
            PruningStep::Scan { numbers } => {
                if let Some((lowest, highest)) = numbers {
                    self.pruning.ranges.cover(self.writer.numbers(), work.removed, lowest, highest);
                }
                self.pruning.work.push(Work { phase: PruningStep::Perform, after: None, ..work });
            }
            PruningStep::Perform if work.performed > 0 => {
                let (removed, entries) = (work.removed, work.performed);
                out.push(Effect::Event(ReplicatorEvent::PruningDone { removed, entries }));
            }
            PruningStep::Perform => {}
        }
    }

    /// The lowest and highest number of a removed replica in an entry, if the entry has to be performed.
    fn uncovered_numbers(&self, key: &KeyId, removed: ReplicaId) -> Option<(u64, u64)> {
        let entry = self.entries.get(key)?;
        let pruning = entry.value()?.pruning()?;
        pruning.needs_pruning(removed, entry.markers().of(removed)).then(|| pruning.numbers_of(removed))?
    }

    /// Performs a removed replica in an entry: puts what it left under the own name. Returns whether anything was put.
    /// Source: ddata Z5.
    fn perform(&mut self, now: Instant, key: &KeyId, removed: ReplicaId, out: &mut Vec<Effect>) -> bool {
        let wall_ms = self.wall.ms(now);
        let Some(entry) = self.entries.get(key) else { return false };
        let Some(value) = entry.value() else { return false };
        if !value.pruning().is_some_and(|pruning| pruning.needs_pruning(removed, entry.markers().of(removed))) {
            return false;
        }
        let (mut value, mut markers) = (value.boxed_clone(), entry.markers().clone());
        let before = markers.get(removed, self.writer.replica()).cloned();
        let mut own = before.clone().unwrap_or_else(|| Performed::new(removed, self.writer.replica()));
        let Some(pruning) = value.pruning_mut() else { return false };
        pruning.prune(removed, self.pruning.ranges.of(removed), entry.born(), &mut own);
        if self.settings.omits(Clause::MovedTo) {
            own.moved.forget_owner_slots();
        }
        if before.as_ref().is_some_and(|before| (&before.ranges, &before.moved) == (&own.ranges, &own.moved))
            || (own.ranges.is_empty() && own.moved.is_empty())
        {
            return false;
        }
        own.performed_at = wall_ms;
        own.obsolete_at = Some(wall_ms.saturating_add(millis(self.settings.marker_life(key))));
        if !self.settings.omits(Clause::Marker) {
            markers.add(&own);
        }
        markers.clean(pruning);
        let mut versions = entry.versions.to_map();
        versions.retain(|origin, _| !markers.removed().contains(origin));
        let (size_bound, born, tag) = (entry.size_bound, entry.born(), AnyData::tag(&*value));
        let (used_ms, is_alike) = (None, entry.value().is_some_and(|before| value.reads_like(before)));
        let content = EntryContent { data: Data::Value(value), versions, markers, size_bound, born, used_ms };
        if is_alike {
            self.entries.set_without_notice(key, content);
        } else {
            self.entries.set(key, content);
        }
        self.observed.stats.performed += 1;
        self.observed.stats.performed_again += u64::from(before.is_some());
        let version = self.writer.draw();
        // Log the full state: no delta can express what was put where.
        self.append(Record { key: key.clone(), tag, prev: 0, version, content: RecordContent::Full }, out);
        true
    }

    /// Forgets markers of some entries whose markers have ended. Returns whether there are more to examine. Source:
    /// ddata Z2, Z9.
    fn forget_some(&mut self, now: Instant) -> bool {
        let before = self.forgets_before(now);
        let after = self.pruning.forgotten_to.take();
        let Some(ended) = before else { return false };
        let keys = self.entries.index.ended_after(ended, after.as_ref(), STEP);
        let has_more = keys.len() == STEP;
        self.pruning.forgotten_to = keys.last().filter(|_| has_more).cloned();
        for (_, key) in keys {
            let rules = Rules::new(&self.types, &self.settings, before);
            for marker in self.entries.forget_markers(&rules, &key) {
                self.raise_horizon(marker.performed_at);
                self.observed.stats.markers_forgotten += 1;
            }
        }
        has_more
    }
}

fn wider(one: Option<(u64, u64)>, other: Option<(u64, u64)>) -> Option<(u64, u64)> {
    match (one, other) {
        (Some((low, high)), Some((l, h))) => Some((low.min(l), high.max(h))),
        (one, other) => one.or(other),
    }
}
