//! One handoff: the answers that it waits for, and its deadlines.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use greylag_core::Generation;

use crate::ids::{RegionId, ShardId};
use crate::machine::coordinator::protocol::{CoordinatorEvent, HandOffPhase};
use crate::machine::message::{Attempt, CoordinatorMessage};

/// An effect of the handoffs, which the coordinator carries out in the order of the list.
#[derive(Debug)]
pub(in crate::machine::coordinator) enum HandOffEffect {
    /// Send a message to a region.
    Say { to: RegionId, message: CoordinatorMessage },
    /// Publish an event to subscribers.
    Event(CoordinatorEvent),
    /// Not all regions have stopped sending in time: the shard stays, and the participants are told its home.
    Stays { shard: ShardId, owner: RegionId, participants: BTreeSet<RegionId> },
}

/// One handoff under way.
#[derive(Debug)]
pub(super) struct HandOff {
    pub(super) owner: RegionId,
    pub(super) generation: Generation,
    pub(super) attempt: Attempt,
    /// The regions that were told to stop sending.
    pub(super) participants: BTreeSet<RegionId>,
    /// The regions whose marks the owner waits for.
    pub(super) flush_from: BTreeSet<RegionId>,
    pub(super) step: Step,
    /// When unanswered messages are sent again.
    pub(super) resend_at: Instant,
    /// When the handoff is given up, or reported.
    pub(super) deadline: Option<Instant>,
    /// Whether the shard only stops: it gets a new home when a region asks for one.
    pub(super) is_stop: bool,
}

#[derive(Debug)]
pub(super) enum Step {
    AwaitAcks { waiting: BTreeSet<RegionId>, hosting: BTreeSet<RegionId>, proxy_deadline: Option<Instant> },
    AwaitStopped { timed_out: bool },
}

/// Timeouts of a handoff.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) retry: Duration,
    pub(super) handoff: Duration,
    pub(super) proxy_ack: Duration,
}

impl HandOff {
    pub(super) fn deadline(&self) -> Option<Instant> {
        let proxies = match &self.step {
            Step::AwaitAcks { proxy_deadline, .. } => *proxy_deadline,
            Step::AwaitStopped { .. } => None,
        };
        [Some(self.resend_at), self.deadline, proxies].into_iter().flatten().min()
    }

    /// Removes a region that is gone, which sends nothing any more.
    pub(super) fn forget(&mut self, region: &RegionId) {
        self.participants.remove(region);
        self.flush_from.remove(region);
        if let Step::AwaitAcks { waiting, .. } = &mut self.step {
            waiting.remove(region);
        }
    }

    pub(super) fn is_acked(&self) -> bool {
        matches!(&self.step, Step::AwaitAcks { waiting, .. } if waiting.is_empty())
    }

    /// Does what is due now.
    pub(super) fn tick(&mut self, now: Instant, shard: &ShardId, times: Times, out: &mut Vec<HandOffEffect>) -> Due {
        let is_over = self.deadline.is_some_and(|at| at <= now);
        let is_again = self.resend_at <= now;
        if is_again {
            self.resend_at = now + times.retry;
        }
        let (shard, owner) = (shard.clone(), self.owner.clone());
        let (generation, attempt) = (self.generation, self.attempt);
        match &mut self.step {
            Step::AwaitAcks { waiting, hosting, proxy_deadline } => {
                if proxy_deadline.take_if(|at| *at <= now).is_some() {
                    // Do not wait for proxies any longer: `StaleRoute` and a probe correct the route of a late proxy.
                    waiting.retain(|region| hosting.contains(region));
                }
                if waiting.is_empty() {
                    return Due::OrderStop;
                }
                if is_over {
                    return Due::GiveUp;
                }
                let message = CoordinatorMessage::BeginHandOff { shard, generation, attempt, owner };
                let say = |to: &RegionId| HandOffEffect::Say { to: to.clone(), message: message.clone() };
                out.extend(waiting.iter().filter(|_| is_again).map(say));
            }
            Step::AwaitStopped { timed_out } => {
                if is_over {
                    // Never end the handoff without proof: report it at the timeout and once more at twice the timeout.
                    let is_stuck = std::mem::replace(timed_out, true);
                    self.deadline = (!is_stuck).then(|| now + times.handoff);
                    let shard = shard.clone();
                    out.push(HandOffEffect::Event(if is_stuck {
                        CoordinatorEvent::HandOffStuck { shard, owner: owner.clone() }
                    } else {
                        CoordinatorEvent::HandOffTimedOut { shard, phase: HandOffPhase::AwaitStopped }
                    }));
                }
                if is_again {
                    let flush_from = self.flush_from.iter().cloned().collect();
                    let message = CoordinatorMessage::HandOff { shard, generation, attempt, flush_from };
                    out.push(HandOffEffect::Say { to: owner, message });
                }
            }
        }
        Due::Nothing
    }
}

/// The next step of a handoff.
pub(super) enum Due {
    /// All regions have acked, or are gone: the owner must stop the shard.
    OrderStop,
    /// A region did not stop sending in time.
    GiveUp,
    Nothing,
}
