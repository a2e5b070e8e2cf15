//! Moving shards: all regions stop sending to a shard, its owner stops it, and only then may another region get it.
//!
//! ```text
//! begin --> AwaitAcks --all acked, gone, or proxies late--> AwaitStopped --ended--> Flush, for the allocation that follows
//!               \--handoff_timeout--> Stays: the shard is where it was
//! ```
//! A handoff knows the regions that take part in it. Homes, requests and the fate of the shard are left to the
//! coordinator, which carries the effects out. Source: sharding §2.9, §2.10.

mod handoff;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use greylag_core::Generation;

pub(in crate::machine::coordinator) use self::handoff::HandOffEffect;
use self::handoff::{Due, HandOff, Step, Times};
use super::checked::CHECKED;
use crate::ids::{RegionId, ShardId};
use crate::machine::coordinator::protocol::{CoordinatorEvent, HandOffPhase, StoredHome};
use crate::machine::message::{Attempt, Epoch};
use crate::settings::ShardingSettings;
use crate::timetable::Timetable;

/// A shard to move, and the regions to tell.
#[derive(Debug)]
pub(in crate::machine::coordinator) struct Move {
    pub(in crate::machine::coordinator) owner: RegionId,
    pub(in crate::machine::coordinator) generation: Generation,
    /// Every registered region, including proxies: each is told to stop sending.
    pub(in crate::machine::coordinator) participants: BTreeSet<RegionId>,
    /// The participants that host. Proxies are not waited for as long.
    pub(in crate::machine::coordinator) hosting: BTreeSet<RegionId>,
}

/// A region's answer to the order to stop sending.
#[derive(Debug, Clone, Copy)]
pub(in crate::machine::coordinator) struct Ack {
    pub(in crate::machine::coordinator) generation: Generation,
    pub(in crate::machine::coordinator) attempt: Attempt,
    /// Whether a mark follows the messages that the region has sent.
    pub(in crate::machine::coordinator) flushed: bool,
}

/// The marks awaited in a handoff that has ended, and its participants.
#[derive(Debug)]
pub(in crate::machine::coordinator) struct Flush {
    pub(in crate::machine::coordinator) attempt: Attempt,
    pub(in crate::machine::coordinator) flush_from: BTreeSet<RegionId>,
    pub(in crate::machine::coordinator) participants: BTreeSet<RegionId>,
}

/// The machine: all handoffs under way, and the flush data of ended handoffs until the allocation that follows.
#[derive(Debug)]
pub(in crate::machine::coordinator) struct HandOffs {
    times: Times,
    by_shard: BTreeMap<ShardId, HandOff>,
    due: Timetable<ShardId>,
    /// Shards whose last awaited region is gone.
    acked: BTreeSet<ShardId>,
    flushes: BTreeMap<ShardId, Flush>,
    /// The last attempt of a shard that was given up, while the shard stays where it was.
    given_up: BTreeMap<ShardId, Attempt>,
    attempts: u64,
}

impl HandOffs {
    pub(in crate::machine::coordinator) fn new(settings: &ShardingSettings) -> Self {
        let times = Times {
            retry: settings.retry_interval,
            handoff: settings.handoff_timeout,
            proxy_ack: settings.proxy_ack_timeout,
        };
        Self {
            times,
            by_shard: BTreeMap::new(),
            due: Timetable::default(),
            acked: BTreeSet::new(),
            flushes: BTreeMap::new(),
            given_up: BTreeMap::new(),
            attempts: 0,
        }
    }

    /// When a `tick` next has work to do.
    pub(in crate::machine::coordinator) fn next_deadline(&self) -> Option<Instant> {
        self.due.next()
    }

    /// Begins a handoff: the regions that may send to the shard are told to stop.
    pub(in crate::machine::coordinator) fn begin(
        &mut self,
        now: Instant,
        epoch: Epoch,
        shard: &ShardId,
        to_move: Move,
        out: &mut Vec<HandOffEffect>,
    ) {
        let Move { owner, generation, participants, hosting } = to_move;
        let proxy_deadline = Some(now + self.times.proxy_ack);
        let handoff = HandOff {
            owner,
            generation,
            attempt: self.new_attempt(epoch),
            flush_from: BTreeSet::new(),
            step: Step::AwaitAcks { waiting: participants.clone(), hosting, proxy_deadline },
            participants,
            resend_at: now,
            deadline: Some(now + self.times.handoff),
            is_stop: false,
        };
        self.insert(shard, handoff);
        self.tick(now, shard, out);
    }

    /// Waits for an owner that stops the shard already, by the order of a predecessor of this incarnation.
    pub(in crate::machine::coordinator) fn await_stopped(
        &mut self,
        now: Instant,
        epoch: Epoch,
        shard: &ShardId,
        owner: &RegionId,
        generation: Generation,
    ) {
        let handoff = HandOff {
            owner: owner.clone(),
            generation,
            attempt: self.new_attempt(epoch),
            participants: BTreeSet::new(),
            flush_from: BTreeSet::new(),
            step: Step::AwaitStopped { timed_out: false },
            resend_at: now + self.times.retry,
            deadline: Some(now + self.times.handoff),
            is_stop: false,
        };
        self.insert(shard, handoff);
    }

    /// Notes that a region has stopped sending. The last ack lets the owner stop the shard.
    pub(in crate::machine::coordinator) fn on_ack(
        &mut self,
        now: Instant,
        region: &RegionId,
        shard: &ShardId,
        ack: Ack,
        out: &mut Vec<HandOffEffect>,
    ) {
        let is_last = self.update(shard, |handoff| {
            if handoff.attempt != ack.attempt || handoff.generation != ack.generation {
                return false;
            }
            let Step::AwaitAcks { waiting, .. } = &mut handoff.step else { return false };
            if waiting.remove(region) && ack.flushed {
                handoff.flush_from.insert(region.clone());
            }
            waiting.is_empty()
        });
        if is_last == Some(true) {
            self.order_stop(now, shard, out);
        }
    }

    /// Goes on with handoffs whose last awaited region is gone.
    pub(in crate::machine::coordinator) fn go_on_without_gone(&mut self, now: Instant, out: &mut Vec<HandOffEffect>) {
        for shard in std::mem::take(&mut self.acked) {
            self.order_stop(now, &shard, out);
        }
    }

    /// The shards whose handoff has work to do.
    pub(in crate::machine::coordinator) fn due(&self, now: Instant) -> Vec<ShardId> {
        self.due.due(now)
    }

    /// Does everything that is due for one shard.
    pub(in crate::machine::coordinator) fn tick(
        &mut self,
        now: Instant,
        shard: &ShardId,
        out: &mut Vec<HandOffEffect>,
    ) {
        let times = self.times;
        match self.update(shard, |handoff| handoff.tick(now, shard, times, out)) {
            None | Some(Due::Nothing) => {}
            Some(Due::OrderStop) => self.order_stop(now, shard, out),
            Some(Due::GiveUp) => {
                let (shard, phase) = (shard.clone(), HandOffPhase::AwaitAcks);
                out.push(HandOffEffect::Event(CoordinatorEvent::HandOffTimedOut { shard: shard.clone(), phase }));
                self.give_up(&shard, out);
            }
        }
    }

    fn order_stop(&mut self, now: Instant, shard: &ShardId, out: &mut Vec<HandOffEffect>) {
        let deadline = now + self.times.handoff;
        self.update(shard, |handoff| {
            handoff.step = Step::AwaitStopped { timed_out: false };
            handoff.resend_at = now;
            handoff.deadline = Some(deadline);
        });
        self.tick(now, shard, out);
    }

    /// Gives up a handoff in which not all regions have stopped sending.
    pub(in crate::machine::coordinator) fn give_up(&mut self, shard: &ShardId, out: &mut Vec<HandOffEffect>) {
        let Some(HandOff { attempt, owner, participants, .. }) = self.remove(shard) else { return };
        self.given_up.insert(shard.clone(), attempt);
        out.push(HandOffEffect::Stays { shard: shard.clone(), owner, participants });
    }

    /// Ends the handoff of a home that has ended, and keeps its flush data for the next home. Returns whether the shard
    /// gets another home at once; `None` if it was not moving.
    pub(in crate::machine::coordinator) fn stopped(&mut self, shard: &ShardId) -> Option<bool> {
        let handoff = self.remove(shard)?;
        let is_move = !handoff.is_stop;
        let waited = matches!(handoff.step, Step::AwaitStopped { .. });
        let flush_from = if waited { handoff.flush_from } else { BTreeSet::new() };
        let flush = Flush { attempt: handoff.attempt, flush_from, participants: handoff.participants };
        self.flushes.insert(shard.clone(), flush);
        Some(is_move)
    }

    /// Ends the handoff of a shard that does not move any more: its owner is gone, or another one has claimed it.
    /// Returns the same as [`HandOffs::stopped`].
    pub(in crate::machine::coordinator) fn end(&mut self, shard: &ShardId) -> Option<bool> {
        self.remove(shard).map(|handoff| !handoff.is_stop)
    }

    fn new_attempt(&mut self, epoch: Epoch) -> Attempt {
        self.attempts += 1;
        Attempt((epoch << Generation::SEQ_BITS) | self.attempts)
    }

    /// Whether the shard is moving.
    pub(in crate::machine::coordinator) fn contains(&self, shard: &ShardId) -> bool {
        self.by_shard.contains_key(shard)
    }

    /// Source: sharding §2.9.
    pub(in crate::machine::coordinator) fn check_invariants<'a>(
        &self,
        decided: impl Fn(&ShardId) -> Option<&'a StoredHome>,
    ) {
        if !cfg!(debug_assertions) || self.by_shard.len() > CHECKED {
            return;
        }
        assert_eq!(self.due.len(), self.by_shard.len(), "each handoff has a deadline");
        assert!(self.acked.is_empty(), "a handoff goes on without the regions that are gone");
        for (shard, handoff) in &self.by_shard {
            assert_eq!(self.due.get(shard), handoff.deadline(), "{shard:?}: the handoff goes on in time");
            let home = decided(shard);
            let is_home =
                home.is_some_and(|home| home.region == handoff.owner && home.generation == handoff.generation);
            assert!(is_home, "{shard:?}: what is handed off is a home, not {home:?}");
            assert!(
                handoff.flush_from.is_subset(&handoff.participants),
                "{shard:?}: marks come from those told to stop"
            );
            if let Step::AwaitAcks { waiting, .. } = &handoff.step {
                assert!(!waiting.is_empty(), "{shard:?}: the last ack lets the owner stop the shard");
                assert!(waiting.is_subset(&handoff.participants), "{shard:?}: acks come from those told to stop");
            }
        }
    }

    /// The regions that take part in handoffs, as often as they do.
    pub(in crate::machine::coordinator) fn participants(&self) -> impl Iterator<Item = &RegionId> {
        self.by_shard.values().flat_map(|handoff| &handoff.participants)
    }

    /// The shards that are moving.
    pub(in crate::machine::coordinator) fn shards(&self) -> impl Iterator<Item = &ShardId> {
        self.by_shard.keys()
    }

    /// Makes a handoff a mere stop: the shard gets no new home after it.
    pub(in crate::machine::coordinator) fn only_stop(&mut self, shard: &ShardId) {
        self.update(shard, |handoff| handoff.is_stop = true);
    }

    fn remove(&mut self, shard: &ShardId) -> Option<HandOff> {
        self.due.remove(shard);
        self.acked.remove(shard);
        self.by_shard.remove(shard)
    }

    fn insert(&mut self, shard: &ShardId, handoff: HandOff) {
        self.due.change(shard, handoff.deadline());
        self.by_shard.insert(shard.clone(), handoff);
    }

    /// Changes a handoff, and updates its deadline.
    fn update<R>(&mut self, shard: &ShardId, change: impl FnOnce(&mut HandOff) -> R) -> Option<R> {
        let handoff = self.by_shard.get_mut(shard)?;
        let answer = change(handoff);
        self.due.change(shard, handoff.deadline());
        Some(answer)
    }

    /// Removes a region that is gone from all handoffs: it neither acks nor sends.
    pub(in crate::machine::coordinator) fn forget(&mut self, region: &RegionId) {
        for (shard, handoff) in &mut self.by_shard {
            handoff.forget(region);
            if handoff.is_acked() {
                self.acked.insert(shard.clone());
            }
        }
    }

    /// Makes every handoff send its unanswered messages again at once, without waiting for the next repeat.
    pub(in crate::machine::coordinator) fn resend_now(&mut self, now: Instant) {
        for shard in self.by_shard.keys().cloned().collect::<Vec<_>>() {
            self.update(&shard, |handoff| handoff.resend_at = now);
        }
    }

    /// The shards that wait for regions to stop sending to them.
    pub(in crate::machine::coordinator) fn unacked(&self) -> Vec<ShardId> {
        let waits = |(_, handoff): &(&ShardId, &HandOff)| matches!(handoff.step, Step::AwaitAcks { .. });
        self.by_shard.iter().filter(waits).map(|(shard, _)| shard.clone()).collect()
    }

    /// The last attempt that was given up to hand off the shard's present home.
    pub(in crate::machine::coordinator) fn given_up(&self, shard: &ShardId) -> Option<Attempt> {
        self.given_up.get(shard).copied()
    }

    /// Forgets the attempt that was given up: the home has ended since.
    pub(in crate::machine::coordinator) fn end_given_up(&mut self, shard: &ShardId) {
        self.given_up.remove(shard);
    }

    /// The flush data of the handoff that ended before the allocation of the shard.
    pub(in crate::machine::coordinator) fn flush(&self, shard: &ShardId) -> Option<&Flush> {
        self.flushes.get(shard)
    }

    /// Forgets the flush data: the allocation that follows is durable.
    pub(in crate::machine::coordinator) fn end_flush(&mut self, shard: &ShardId) {
        self.flushes.remove(shard);
    }
}
