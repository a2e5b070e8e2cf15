//! Moving a shard: all regions stop sending to it, the owner stops it, and only then does another region get it.
//!
//! ```text
//! AwaitAcks --all acked, gone, or proxies late--> AwaitStopped --ShardStopped(generation)--> Deallocated
//!     \--handoff_timeout--> the shard stays
//! ```
//! Source: sharding §2.9, §2.10, §2.11.

use std::collections::BTreeSet;
use std::time::Instant;

use greylag_core::{Generation, UniqueAddress};

use super::protocol::{CoordinatorEvent, Effect, HandOffPhase};
use super::{Coordinator, CoordinatorState, RegionEntry, Sabotage};
use crate::ids::{RegionId, ShardId};
use crate::membership::Phase;
use crate::message::{Attempt, CoordinatorMessage};

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
}

#[derive(Debug)]
enum Step {
    AwaitAcks { waiting: BTreeSet<RegionId>, proxy_deadline: Option<Instant> },
    AwaitStopped { timed_out: bool },
}

impl HandOff {
    pub(super) fn deadline(&self) -> Option<Instant> {
        let proxies = match &self.step {
            Step::AwaitAcks { proxy_deadline, .. } => *proxy_deadline,
            Step::AwaitStopped { .. } => None,
        };
        [Some(self.resend_at), self.deadline, proxies].into_iter().flatten().min()
    }

    /// A region that is gone sends nothing more.
    pub(super) fn forget(&mut self, region: &RegionId) {
        self.participants.remove(region);
        self.flush_from.remove(region);
        if let Step::AwaitAcks { waiting, .. } = &mut self.step {
            waiting.remove(region);
        }
    }

    fn is_acked(&self) -> bool {
        matches!(&self.step, Step::AwaitAcks { waiting, .. } if waiting.is_empty())
    }

    pub(super) fn resend_now(&mut self, now: Instant) {
        self.resend_at = now;
    }
}

impl Coordinator {
    fn new_attempt(&mut self) -> Attempt {
        let attempt = Attempt((self.epoch << Generation::SEQ_BITS) | self.next_attempt);
        self.next_attempt += 1;
        attempt
    }

    pub(super) fn on_rebalance(&mut self, now: Instant, shards: BTreeSet<ShardId>, out: &mut Vec<Effect>) {
        self.rebalancing = false;
        if self.state != CoordinatorState::Active {
            return;
        }
        let started: BTreeSet<_> = shards.into_iter().filter(|shard| self.begin_handoff(now, shard, out)).collect();
        if !started.is_empty() {
            out.push(Effect::Event(CoordinatorEvent::RebalanceStarted(started)));
        }
    }

    /// Whether a handoff of the shard began: it has a durable home and is not moving yet.
    pub(super) fn begin_handoff(&mut self, now: Instant, shard: &ShardId, out: &mut Vec<Effect>) -> bool {
        if self.pending.contains_key(shard) || self.handoffs.contains_key(shard) {
            return false;
        }
        let Some(home) = self.homes.get(shard).map(|entry| &entry.stored).filter(|home| !home.deallocated) else {
            return false;
        };
        let (owner, generation) = (home.region.clone(), home.generation);
        let attempt = self.new_attempt();
        let participants: BTreeSet<_> =
            self.regions.iter().filter(|(_, entry)| !entry.refused).map(|(region, _)| region.clone()).collect();
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
        };
        self.unstarted.remove(shard);
        self.handoffs.insert(shard.clone(), handoff);
        self.tick_handoff(now, shard, out);
        true
    }

    /// The owner is stopping it already, on the word of a predecessor of this incarnation.
    pub(super) fn await_stopped(&mut self, now: Instant, shard: &ShardId, owner: &RegionId, generation: Generation) {
        if self.handoffs.contains_key(shard) {
            return;
        }
        let attempt = self.new_attempt();
        let handoff = HandOff {
            owner: owner.clone(),
            generation,
            attempt,
            participants: BTreeSet::new(),
            flush_from: BTreeSet::new(),
            step: Step::AwaitStopped { timed_out: false },
            resend_at: now + self.config.settings.retry_interval,
            deadline: Some(now + self.config.settings.handoff_timeout),
        };
        self.handoffs.insert(shard.clone(), handoff);
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
        let Some(handoff) = self.handoffs.get_mut(shard) else { return };
        if handoff.attempt != attempt || handoff.generation != generation {
            return;
        }
        let Step::AwaitAcks { waiting, .. } = &mut handoff.step else { return };
        if waiting.remove(region) && flushed {
            handoff.flush_from.insert(region.clone());
        }
        if waiting.is_empty() {
            self.order_stop(now, shard, out);
        }
    }

    fn order_stop(&mut self, now: Instant, shard: &ShardId, out: &mut Vec<Effect>) {
        if let Some(handoff) = self.handoffs.get_mut(shard) {
            handoff.step = Step::AwaitStopped { timed_out: false };
            handoff.resend_at = now;
            handoff.deadline = Some(now + self.config.settings.handoff_timeout);
        }
        self.tick_handoff(now, shard, out);
    }

    /// Goes on with handoffs whose last awaited region is gone.
    pub(super) fn go_on_without_gone(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let acked = self.handoffs.iter().filter(|(_, handoff)| handoff.is_acked());
        for shard in acked.map(|(shard, _)| shard.clone()).collect::<Vec<_>>() {
            self.order_stop(now, &shard, out);
        }
    }

    pub(super) fn tick_handoffs(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let due = self.handoffs.iter().filter(|(_, handoff)| handoff.deadline().is_some_and(|at| at <= now));
        for shard in due.map(|(shard, _)| shard.clone()).collect::<Vec<_>>() {
            self.tick_handoff(now, &shard, out);
        }
    }

    fn tick_handoff(&mut self, now: Instant, shard: &ShardId, out: &mut Vec<Effect>) {
        let settings = &self.config.settings;
        let Some(handoff) = self.handoffs.get_mut(shard) else { return };
        let over = handoff.deadline.is_some_and(|at| at <= now);
        let resend = handoff.resend_at <= now;
        if resend {
            handoff.resend_at = now + settings.retry_interval;
        }
        let (owner, generation, attempt) = (handoff.owner.clone(), handoff.generation, handoff.attempt);
        match &mut handoff.step {
            Step::AwaitAcks { waiting, proxy_deadline } => {
                if proxy_deadline.is_some_and(|at| at <= now) {
                    *proxy_deadline = None;
                    // A proxy that comes late is put right by `StaleRoute` and its probe.
                    waiting.retain(|region| self.regions.get(region).is_some_and(|entry| !entry.proxy));
                }
                if waiting.is_empty() {
                    return self.order_stop(now, shard, out);
                }
                if over {
                    return self.abandon(shard, out);
                }
                if resend {
                    for region in waiting.clone() {
                        let (shard, owner) = (shard.clone(), owner.clone());
                        let message = CoordinatorMessage::BeginHandOff { shard, generation, attempt, owner };
                        self.send(&region, message, out);
                    }
                }
            }
            Step::AwaitStopped { timed_out } => {
                if over {
                    // The handoff ends only with proof: reported at the timeout and once more at its double.
                    let again = std::mem::replace(timed_out, true);
                    handoff.deadline = (!again).then(|| now + settings.handoff_timeout);
                    let (shard, owner) = (shard.clone(), owner.clone());
                    out.push(Effect::Event(if again {
                        CoordinatorEvent::HandOffStuck { shard, owner }
                    } else {
                        CoordinatorEvent::HandOffTimedOut { shard, phase: HandOffPhase::AwaitStopped }
                    }));
                }
                if resend {
                    let flush_from = handoff.flush_from.iter().cloned().collect();
                    let shard = shard.clone();
                    let message = CoordinatorMessage::HandOff { shard, generation, attempt, flush_from };
                    self.send(&owner, message, out);
                }
            }
        }
    }

    /// Ends a handoff because a region did not stop sending in time: the shard stays where it is.
    fn abandon(&mut self, shard: &ShardId, out: &mut Vec<Effect>) {
        let Some(handoff) = self.handoffs.remove(shard) else { return };
        let phase = HandOffPhase::AwaitAcks;
        out.push(Effect::Event(CoordinatorEvent::HandOffTimedOut { shard: shard.clone(), phase }));
        if let Some(entry) = self.regions.get_mut(&handoff.owner) {
            entry.shutting_down = false;
        }
        for region in handoff.participants.iter().filter(|region| **region != handoff.owner) {
            self.tell_homes(region, std::slice::from_ref(shard), CoordinatorMessage::ShardHomes, out);
        }
        self.answer_requests(out);
    }

    pub(super) fn on_shard_stopped(
        &mut self,
        region: &RegionId,
        shard: &ShardId,
        generation: Generation,
        leftovers: bool,
    ) {
        let key = (shard.clone(), region.clone());
        if self.drops.get(&key).is_some_and(|(dropped, _)| *dropped <= generation) {
            self.drops.remove(&key);
        }
        let unchecked = self.sabotage == Some(Sabotage::GenerationCheck);
        let ended = self.decided(shard).is_some_and(|home| {
            let same = home.region == *region && home.generation == generation;
            !home.deallocated && (same || unchecked)
        });
        if !ended {
            return;
        }
        if let Some(handoff) = self.handoffs.remove(shard) {
            let waited = matches!(handoff.step, Step::AwaitStopped { .. });
            let flush_from = if waited { handoff.flush_from } else { BTreeSet::new() };
            self.flushes.insert(shard.clone(), (handoff.attempt, flush_from, handoff.participants));
            // At once, even with no traffic: an idle cluster would shed its shards otherwise.
            self.eager.insert(shard.clone());
        }
        self.deallocate(shard, leftovers.then(|| region.clone()));
    }

    pub(super) fn on_graceful(&mut self, now: Instant, region: &RegionId, out: &mut Vec<Effect>) {
        if self.state != CoordinatorState::Active {
            return;
        }
        let others = self.members.members.keys().any(|node| *node != region.node && self.can_host(node));
        if let Some(entry) = self.regions.get_mut(region) {
            entry.shutting_down = true;
        }
        if !others {
            return self.send(region, CoordinatorMessage::StopHere, out);
        }
        let owned = self.homes.iter().filter(|(_, e)| !e.stored.deallocated && e.stored.region == *region);
        for shard in owned.map(|(shard, _)| shard.clone()).collect::<Vec<_>>() {
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
        stays && !self.without_region.contains(node) && !self.regions.iter().any(goes)
    }
}
