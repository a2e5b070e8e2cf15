//! One handoff: what it waits for, and what is due for it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use greylag_core::Generation;

use super::HandOffEffect;
use crate::ids::{RegionId, ShardId};
use crate::machine::coordinator::protocol::{CoordinatorEvent, HandOffPhase};
use crate::machine::message::{Attempt, CoordinatorMessage};

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
    /// When it is given up, or reported.
    pub(super) deadline: Option<Instant>,
    /// The shard is to stop, and no new home is wanted for it: one is given when a region asks.
    pub(super) is_stop: bool,
}

#[derive(Debug)]
pub(super) enum Step {
    AwaitAcks { waiting: BTreeSet<RegionId>, hosting: BTreeSet<RegionId>, proxy_deadline: Option<Instant> },
    AwaitStopped { timed_out: bool },
}

/// How long a handoff waits for what.
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

    /// A region that is gone sends nothing more.
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

    /// What is due now.
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
                    // A proxy that comes late is put right by `StaleRoute` and its probe.
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
                    // The handoff ends only with proof: reported at the timeout and once more at its double.
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

/// What a handoff goes on to.
pub(super) enum Due {
    /// All have acked, or are gone: the owner stops the shard.
    OrderStop,
    /// A region did not stop sending in time.
    GiveUp,
    Nothing,
}
