//! Moving a shard: all regions stop sending to it, the owner stops it, and only then does another region get it.
//!
//! ```text
//! AwaitAcks --all acked, gone, or proxies late--> AwaitStopped --ShardStopped(generation)--> Deallocated
//!     \--handoff_timeout--> the shard stays
//! ```
//! Source: sharding §2.9, §2.10, §2.11.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use greylag_core::{Generation, UniqueAddress};

use super::protocol::{CoordinatorEvent, Effect, HandOffPhase};
use super::registry::RegionEntry;
use super::{Coordinator, CoordinatorState, Sabotage};
use crate::ids::{RegionId, ShardId};
use crate::machine::membership::Phase;
use crate::machine::message::{Attempt, CoordinatorMessage, Epoch};
use crate::settings::ShardingSettings;
use crate::timetable::Timetable;

/// One handoff under way.
#[derive(Debug)]
pub(super) struct HandOff {
    owner: RegionId,
    generation: Generation,
    attempt: Attempt,
    /// The regions that were told to stop sending.
    participants: BTreeSet<RegionId>,
    /// The regions whose marks the owner waits for.
    flush_from: BTreeSet<RegionId>,
    step: Step,
    /// When unanswered messages are sent again.
    resend_at: Instant,
    /// When it is given up, or reported.
    deadline: Option<Instant>,
    /// The shard is to stop, and no new home is wanted for it: one is given when a region asks.
    is_stop: bool,
}

#[derive(Debug)]
enum Step {
    AwaitAcks { waiting: BTreeSet<RegionId>, proxy_deadline: Option<Instant> },
    AwaitStopped { timed_out: bool },
}

impl HandOff {
    fn deadline(&self) -> Option<Instant> {
        let proxies = match &self.step {
            Step::AwaitAcks { proxy_deadline, .. } => *proxy_deadline,
            Step::AwaitStopped { .. } => None,
        };
        [Some(self.resend_at), self.deadline, proxies].into_iter().flatten().min()
    }

    /// A region that is gone sends nothing more.
    fn forget(&mut self, region: &RegionId) {
        self.participants.remove(region);
        self.flush_from.remove(region);
        if let Step::AwaitAcks { waiting, .. } = &mut self.step {
            waiting.remove(region);
        }
    }

    /// Whether the shard gets a new home as soon as it has stopped.
    pub(super) fn is_move(&self) -> bool {
        !self.is_stop
    }

    fn is_acked(&self) -> bool {
        matches!(&self.step, Step::AwaitAcks { waiting, .. } if waiting.is_empty())
    }

    /// What is due now. `is_hosting` tells regions that host from proxies.
    fn tick(
        &mut self,
        now: Instant,
        shard: &ShardId,
        settings: &ShardingSettings,
        is_hosting: impl Fn(&RegionId) -> bool,
    ) -> Due {
        let over = self.deadline.is_some_and(|at| at <= now);
        let resend = self.resend_at <= now;
        if resend {
            self.resend_at = now + settings.retry_interval;
        }
        let (shard, owner) = (shard.clone(), self.owner.clone());
        let (generation, attempt) = (self.generation, self.attempt);
        match &mut self.step {
            Step::AwaitAcks { waiting, proxy_deadline } => {
                if proxy_deadline.is_some_and(|at| at <= now) {
                    *proxy_deadline = None;
                    // A proxy that comes late is put right by `StaleRoute` and its probe.
                    waiting.retain(is_hosting);
                }
                if waiting.is_empty() {
                    return Due::OrderStop;
                }
                if over {
                    return Due::Abandon;
                }
                let to = waiting.iter().filter(|_| resend).cloned().collect();
                let message = CoordinatorMessage::BeginHandOff { shard, generation, attempt, owner };
                Due::Say { event: None, to, message }
            }
            Step::AwaitStopped { timed_out } => {
                let event = over.then(|| {
                    // The handoff ends only with proof: reported at the timeout and once more at its double.
                    let again = std::mem::replace(timed_out, true);
                    self.deadline = (!again).then(|| now + settings.handoff_timeout);
                    let shard = shard.clone();
                    if again {
                        CoordinatorEvent::HandOffStuck { shard, owner: owner.clone() }
                    } else {
                        CoordinatorEvent::HandOffTimedOut { shard, phase: HandOffPhase::AwaitStopped }
                    }
                });
                let flush_from = self.flush_from.iter().cloned().collect();
                let message = CoordinatorMessage::HandOff { shard, generation, attempt, flush_from };
                Due::Say { event, to: resend.then_some(owner).into_iter().collect(), message }
            }
        }
    }
}

/// What is due for a handoff.
enum Due {
    /// All have acked, or are gone: the owner stops the shard.
    OrderStop,
    /// A region did not stop sending in time: the shard stays.
    Abandon,
    /// Something to report, and a message to some regions.
    Say { event: Option<CoordinatorEvent>, to: Vec<RegionId>, message: CoordinatorMessage },
}

/// The marks that were waited for in a handoff that has ended, and who took part in it.
#[derive(Debug)]
pub(super) struct Flush {
    pub(super) attempt: Attempt,
    pub(super) flush_from: BTreeSet<RegionId>,
    pub(super) participants: BTreeSet<RegionId>,
}

/// All handoffs under way, and what is kept of those that have ended until the allocation that follows.
#[derive(Debug, Default)]
pub(super) struct HandOffs {
    by_shard: BTreeMap<ShardId, HandOff>,
    due: Timetable<ShardId>,
    /// Those of which the last awaited region is gone.
    acked: BTreeSet<ShardId>,
    flushes: BTreeMap<ShardId, Flush>,
    /// The last try of a shard that was given up, while the shard stays where it was.
    given_up: BTreeMap<ShardId, Attempt>,
    attempts: u64,
}

impl HandOffs {
    fn new_attempt(&mut self, epoch: Epoch) -> Attempt {
        self.attempts += 1;
        Attempt((epoch << Generation::SEQ_BITS) | self.attempts)
    }

    /// Whether the shard is moving.
    pub(super) fn contains(&self, shard: &ShardId) -> bool {
        self.by_shard.contains_key(shard)
    }

    /// The shards that are moving.
    pub(super) fn shards(&self) -> impl Iterator<Item = &ShardId> {
        self.by_shard.keys()
    }

    /// A shard that is moving is to stop: no new home is wanted for it.
    pub(super) fn only_stop(&mut self, shard: &ShardId) {
        self.update(shard, |handoff| handoff.is_stop = true);
    }

    /// Ends a handoff, or forgets it.
    pub(super) fn remove(&mut self, shard: &ShardId) -> Option<HandOff> {
        self.due.remove(shard);
        self.acked.remove(shard);
        self.by_shard.remove(shard)
    }

    fn insert(&mut self, shard: &ShardId, handoff: HandOff) {
        self.due.change(shard, handoff.deadline());
        self.by_shard.insert(shard.clone(), handoff);
    }

    /// Changes a handoff, and keeps its time right.
    fn update<R>(&mut self, shard: &ShardId, change: impl FnOnce(&mut HandOff) -> R) -> Option<R> {
        let handoff = self.by_shard.get_mut(shard)?;
        let answer = change(handoff);
        self.due.change(shard, handoff.deadline());
        Some(answer)
    }

    /// A region that is gone acks nothing, and sends nothing.
    pub(super) fn forget(&mut self, region: &RegionId) {
        for (shard, handoff) in &mut self.by_shard {
            handoff.forget(region);
            if handoff.is_acked() {
                self.acked.insert(shard.clone());
            }
        }
    }

    /// When a handoff has something to do by itself.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.next()
    }

    /// Makes every handoff send its unanswered messages again at once, without waiting for the next repeat.
    pub(super) fn resend_now(&mut self, now: Instant) {
        for shard in self.by_shard.keys().cloned().collect::<Vec<_>>() {
            self.update(&shard, |handoff| handoff.resend_at = now);
        }
    }

    /// The shards that wait for regions to stop sending to them.
    fn unacked(&self) -> Vec<ShardId> {
        let waits = |(_, handoff): &(&ShardId, &HandOff)| matches!(handoff.step, Step::AwaitAcks { .. });
        self.by_shard.iter().filter(waits).map(|(shard, _)| shard.clone()).collect()
    }

    /// The last try to hand off the home that the shard has that was given up.
    pub(super) fn given_up(&self, shard: &ShardId) -> Option<Attempt> {
        self.given_up.get(shard).copied()
    }

    /// The home that could not be handed off has ended all the same.
    pub(super) fn end_given_up(&mut self, shard: &ShardId) {
        self.given_up.remove(shard);
    }

    /// What is kept of the handoff that ended before the allocation of the shard.
    pub(super) fn flush(&self, shard: &ShardId) -> Option<&Flush> {
        self.flushes.get(shard)
    }

    /// The allocation that follows is durable.
    pub(super) fn end_flush(&mut self, shard: &ShardId) {
        self.flushes.remove(shard);
    }
}

impl Coordinator {
    pub(super) fn on_rebalance(&mut self, now: Instant, shards: BTreeSet<ShardId>, out: &mut Vec<Effect>) {
        self.rebalancing = false;
        if self.state != CoordinatorState::Active || self.members.is_preparing() {
            return;
        }
        let started: BTreeSet<_> = shards.into_iter().filter(|shard| self.begin_handoff(now, shard, out)).collect();
        if !started.is_empty() {
            out.push(Effect::Event(CoordinatorEvent::RebalanceStarted(started)));
        }
    }

    /// Whether a handoff of the shard began: it has a durable home and is not moving yet.
    pub(super) fn begin_handoff(&mut self, now: Instant, shard: &ShardId, out: &mut Vec<Effect>) -> bool {
        if self.ledger.is_pending(shard) || self.handoffs.contains(shard) {
            return false;
        }
        let durable = self.ledger.durable(shard).map(|entry| &entry.stored);
        let Some(home) = durable.filter(|home| !home.deallocated) else {
            return false;
        };
        let (owner, generation) = (home.region.clone(), home.generation);
        let attempt = self.handoffs.new_attempt(self.epoch);
        let participants: BTreeSet<_> =
            self.registry.regions().filter(|(_, entry)| !entry.refused).map(|(region, _)| region.clone()).collect();
        let settings = &self.config.settings;
        let handoff = HandOff {
            owner,
            generation,
            attempt,
            flush_from: BTreeSet::new(),
            step: Step::AwaitAcks {
                waiting: participants.clone(),
                proxy_deadline: Some(now + settings.proxy_ack_timeout),
            },
            participants,
            resend_at: now,
            deadline: Some(now + settings.handoff_timeout),
            is_stop: false,
        };
        self.unstarted.remove(shard);
        self.handoffs.insert(shard, handoff);
        self.tick_handoff(now, shard, out);
        true
    }

    /// The owner is stopping it already, on the word of a predecessor of this incarnation.
    pub(super) fn await_stopped(&mut self, now: Instant, shard: &ShardId, owner: &RegionId, generation: Generation) {
        if self.handoffs.contains(shard) {
            return;
        }
        let attempt = self.handoffs.new_attempt(self.epoch);
        let handoff = HandOff {
            owner: owner.clone(),
            generation,
            attempt,
            participants: BTreeSet::new(),
            flush_from: BTreeSet::new(),
            step: Step::AwaitStopped { timed_out: false },
            resend_at: now + self.config.settings.retry_interval,
            deadline: Some(now + self.config.settings.handoff_timeout),
            is_stop: false,
        };
        self.handoffs.insert(shard, handoff);
    }

    #[expect(clippy::too_many_arguments, reason = "they are the fields of one message")]
    pub(super) fn on_ack(
        &mut self,
        now: Instant,
        region: &RegionId,
        shard: &ShardId,
        generation: Generation,
        attempt: Attempt,
        flushed: bool,
        out: &mut Vec<Effect>,
    ) {
        let is_last = self.handoffs.update(shard, |handoff| {
            if handoff.attempt != attempt || handoff.generation != generation {
                return false;
            }
            let Step::AwaitAcks { waiting, .. } = &mut handoff.step else { return false };
            if waiting.remove(region) && flushed {
                handoff.flush_from.insert(region.clone());
            }
            waiting.is_empty()
        });
        if is_last == Some(true) {
            self.order_stop(now, shard, out);
        }
    }

    fn order_stop(&mut self, now: Instant, shard: &ShardId, out: &mut Vec<Effect>) {
        let deadline = now + self.config.settings.handoff_timeout;
        self.handoffs.update(shard, |handoff| {
            handoff.step = Step::AwaitStopped { timed_out: false };
            handoff.resend_at = now;
            handoff.deadline = Some(deadline);
        });
        self.tick_handoff(now, shard, out);
    }

    /// Goes on with handoffs whose last awaited region is gone.
    pub(super) fn go_on_without_gone(&mut self, now: Instant, out: &mut Vec<Effect>) {
        for shard in std::mem::take(&mut self.handoffs.acked) {
            self.order_stop(now, &shard, out);
        }
    }

    pub(super) fn tick_handoffs(&mut self, now: Instant, out: &mut Vec<Effect>) {
        for shard in self.handoffs.due.due(now) {
            self.tick_handoff(now, &shard, out);
        }
    }

    /// Does what is due for one handoff.
    fn tick_handoff(&mut self, now: Instant, shard: &ShardId, out: &mut Vec<Effect>) {
        let registry = &self.registry;
        let is_hosting = |region: &RegionId| registry.get(region).is_some_and(|entry| !entry.proxy);
        let settings = &self.config.settings;
        match self.handoffs.update(shard, |handoff| handoff.tick(now, shard, settings, is_hosting)) {
            None => {}
            Some(Due::OrderStop) => self.order_stop(now, shard, out),
            Some(Due::Abandon) => {
                let (shard, phase) = (shard.clone(), HandOffPhase::AwaitAcks);
                out.push(Effect::Event(CoordinatorEvent::HandOffTimedOut { shard: shard.clone(), phase }));
                self.abandon(&shard, out);
            }
            Some(Due::Say { event, to, message }) => {
                out.extend(event.map(Effect::Event));
                for region in to {
                    self.send(&region, message.clone(), out);
                }
            }
        }
    }

    /// Ends a handoff for which not all regions have stopped sending: the shard stays where it is.
    fn abandon(&mut self, shard: &ShardId, out: &mut Vec<Effect>) {
        let Some(handoff) = self.handoffs.remove(shard) else { return };
        self.handoffs.given_up.insert(shard.clone(), handoff.attempt);
        if let Some(entry) = self.registry.get_mut(&handoff.owner) {
            entry.shutting_down = false;
        }
        for region in handoff.participants.iter().filter(|region| **region != handoff.owner) {
            self.tell_homes(region, std::slice::from_ref(shard), CoordinatorMessage::ShardHomes, out);
        }
        self.answer_requests(out);
    }

    /// Ends the handoffs for which regions would have to stop sending: in a cluster that prepares to end none does.
    pub(super) fn abandon_unacked(&mut self, out: &mut Vec<Effect>) {
        for shard in self.handoffs.unacked() {
            self.abandon(&shard, out);
        }
    }

    pub(super) fn on_shard_stopped(
        &mut self,
        region: &RegionId,
        shard: &ShardId,
        generation: Generation,
        leftovers: bool,
    ) {
        if self.drops.stopped(shard, region, generation) {
            self.requests.look_again(shard);
            self.stops.look_again(shard);
        }
        let unchecked = self.sabotage == Some(Sabotage::GenerationCheck);
        let ended = self.ledger.decided(shard).is_some_and(|home| {
            let same = home.region == *region && home.generation == generation;
            !home.deallocated && (same || unchecked)
        });
        if !ended {
            return;
        }
        if let Some(handoff) = self.handoffs.remove(shard) {
            let moves = handoff.is_move();
            let waited = matches!(handoff.step, Step::AwaitStopped { .. });
            let flush_from = if waited { handoff.flush_from } else { BTreeSet::new() };
            let flush = Flush { attempt: handoff.attempt, flush_from, participants: handoff.participants };
            self.handoffs.flushes.insert(shard.clone(), flush);
            if moves {
                // At once, even with no traffic: an idle cluster would shed its shards otherwise.
                self.requests.make_eager(shard);
            }
        }
        self.deallocate(shard, leftovers.then(|| region.clone()));
    }

    pub(super) fn on_graceful(&mut self, now: Instant, region: &RegionId, out: &mut Vec<Effect>) {
        if self.state != CoordinatorState::Active {
            return;
        }
        let takes = |node: &UniqueAddress| *node != region.node && self.can_host(node);
        let others = !self.members.is_preparing() && self.members.members.keys().any(takes);
        if let Some(entry) = self.registry.get_mut(region) {
            entry.shutting_down = true;
        }
        if !others {
            return self.send(region, CoordinatorMessage::StopHere, out);
        }
        let mut owned: Vec<_> = self.ledger.shards_of(region).to_vec();
        owned.sort();
        for shard in owned {
            self.begin_handoff(now, &shard, out);
        }
    }

    /// Whether a shard could be given to this node: it stays, and a region that hosts is there or may still register.
    fn can_host(&self, node: &UniqueAddress) -> bool {
        let stays = self.members.members.get(node).is_some_and(|member| {
            matches!(member.phase, Phase::Up | Phase::Preparing) && member.has_role(&self.config.role)
        });
        let goes = |(region, entry): (&RegionId, &RegionEntry)| {
            region.node == *node && !entry.proxy && (entry.shutting_down || entry.refused)
        };
        stays && !self.registry.is_without_region(node) && !self.registry.regions().any(goes)
    }
}
