//! Entities that fail: the verdicts of their supervision, and how long entities back off.
//!
//! Source: sharding §4.6.

use std::time::{Duration, Instant};

use greylag_core::DeadLetterReason;

use super::protocol::{Effect, Ended, SlotId, Weigh};
use super::slab::{Phase, Slot, StartDelay};
use super::stopping::stale;
use super::{Life, Shard};
use crate::entity::{Backoff, Directive, FailureCause, Failures, Verdict};
use crate::parcel::FAR;

impl<E, P: Weigh> Shard<E, P> {
    pub(super) fn on_failed(
        &mut self,
        now: Instant,
        at: u32,
        cause: &FailureCause,
        payload: Option<P>,
        out: &mut Vec<Effect<E, P>>,
    ) {
        let slot = self.table.get_mut(at);
        if slot.id.is_none() || matches!(slot.phase, Phase::Absent | Phase::Held | Phase::Storing) {
            return;
        }
        if matches!(cause, FailureCause::Start(_)) && self.remembering.is_some() {
            let failed = &mut slot.extra().failed_starts;
            *failed = failed.saturating_add(1);
        }
        if let Some(payload) = payload {
            let id = slot.id.clone().expect("checked above");
            out.push(Effect::DeadLetter { id, payload, reason: DeadLetterReason::EntityStartFailed });
        }
        let directive = self.supervision.decide(cause);
        let slot = self.table.get_mut(at);
        let goes_on = !slot.stop_requested;
        match directive {
            Directive::Resume => {
                out.extend(verdict(slot, cause, Verdict::Resumed));
                // An entity that fails on its stop request may be suspended, and stays so.
                if !matches!(slot.phase, Phase::Suspended(_)) {
                    slot.phase = Phase::Active;
                }
                self.make_ready(at);
            }
            Directive::Restart if goes_on && self.may_restart(now, at) => {
                out.extend(verdict(self.table.get(at), cause, Verdict::Restarted));
                self.restart(at, out);
            }
            Directive::Backoff(backoff) if goes_on && self.life == Life::Serving => {
                let wait = self.next_wait(now, at, &backoff);
                out.extend(verdict(self.table.get(at), cause, Verdict::BacksOff(wait)));
                self.end_incarnation(at, Ended::Failed, out);
                let until = now.checked_add(wait).unwrap_or(now + FAR);
                self.hold(at, until, StartDelay::Backoff);
            }
            Directive::Escalate if self.life == Life::Serving => {
                out.extend(verdict(self.table.get(at), cause, Verdict::Escalated));
                self.fail_shard(now, out);
            }
            _ => {
                out.extend(verdict(self.table.get(at), cause, Verdict::Stopped));
                self.end(now, at, Ended::Failed, out);
            }
        }
    }

    pub(super) fn may_restart(&mut self, now: Instant, at: u32) -> bool {
        let (window, most) = (self.supervision.restart_window, self.supervision.max_restarts as usize);
        let restarts = &mut self.table.get_mut(at).extra().restarts;
        while restarts.front().is_some_and(|at| now.saturating_duration_since(*at) > window) {
            restarts.pop_front();
        }
        restarts.push_back(now);
        restarts.len() <= most
    }

    /// Replaces the entity by a new value; user messages are kept, items that belonged to the old incarnation are not.
    pub(super) fn restart(&mut self, at: u32, out: &mut Vec<Effect<E, P>>) {
        self.table.end_address(at);
        self.table.begin_incarnation(at);
        let slot = self.table.get_mut(at);
        slot.phase = Phase::Starting;
        slot.veto = false;
        self.passivating.set_veto(at, false);
        self.forget_times(at);
        if let Some(extra) = self.table.get_mut(at).existing() {
            out.extend(extra.end_incarnation().into_iter().map(stale));
        }
        out.push(Effect::Restart { slot: SlotId(at) });
    }

    /// Ends the incarnation; its messages wait until the region has had time to learn which region owns the shard. If
    /// that is another region, the shard is killed and the messages travel there.
    pub(super) fn on_fenced(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) {
        if self.life != Life::Serving || self.is_passivating(at) {
            return self.end(now, at, Ended::Fenced, out);
        }
        self.end_incarnation(at, Ended::Fenced, out);
        let until = now + self.settings.retry_interval;
        self.hold(at, until, StartDelay::Fenced);
    }

    /// Starts no incarnation before `until`.
    pub(super) fn hold(&mut self, at: u32, until: Instant, why: StartDelay) {
        let slot = self.table.get_mut(at);
        slot.phase = Phase::Held;
        slot.extra().held = Some((until, why));
        self.timers.set_deadline(until, at);
    }

    /// How long an entity that failed waits for its next incarnation.
    pub(super) fn next_wait(&mut self, now: Instant, at: u32, backoff: &Backoff) -> Duration {
        let before = Failures::count(&mut self.table.get_mut(at).extra().failures, now, backoff.reset_after);
        backoff.wait(before, self.table.chance(at))
    }
}

/// Reports the verdict on an entity that failed.
pub(super) fn verdict<E, P>(slot: &Slot<E, P>, cause: &FailureCause, verdict: Verdict) -> Option<Effect<E, P>> {
    Some(Effect::Failed { id: slot.id.clone()?, cause: cause.clone(), verdict })
}
