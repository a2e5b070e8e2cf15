//! The life of one incarnation: its start, what its handlers leave behind, its failures, its stop request and its end.
//!
//! Source: sharding §4.1, §4.3, §4.5, §4.6, §4.7, §4.11 (`direct_ref`); persistence §2.7.

use std::time::{Duration, Instant};

use greylag_core::DeadLetterReason;

use super::life::Life;
use super::machine::Shard;
use super::protocol::{Effect, Ended, Notice, Outcome, SlotId, Weigh};
use super::remembering::Remembered;
use super::table::{Extra, IncarnationPhase, Item, Slot, StartDelay};
use crate::entity::{Backoff, Directive, FailureCause, Failures, Verdict};
use crate::host::Suspension;
use crate::ids::EntityId;
use crate::parcel::FAR;
use crate::settings::OnPermanentFailure;

impl<E, P: Weigh> Shard<E, P> {
    pub(super) fn begin_start(&mut self, now: Instant, at: u32, payload: Option<P>, out: &mut Vec<Effect<E, P>>) {
        let Some(payload) = self.note_start(now, at, payload, out) else { return };
        self.table.begin_incarnation(at);
        let tick = self.timers.tick();
        let slot = self.table.get_mut(at);
        slot.phase = IncarnationPhase::Starting;
        slot.touched = tick;
        self.passivating.watch(at, tick);
        self.touch(at);
        out.push(Effect::Start { slot: SlotId(at), payload });
    }

    pub(super) fn start_from_queue(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) {
        let slot = self.table.get_mut(at);
        let first = slot.existing().and_then(Extra::pop);
        match first {
            Some(Item::User { payload, .. }) if self.life.is_serving() => {
                self.begin_start(now, at, Some(payload), out);
            }
            Some(item) => self.table.get_mut(at).extra().push_front(item),
            None => self.free(at),
        }
    }

    pub(super) fn on_started(
        &mut self,
        now: Instant,
        at: u32,
        outcome: Outcome<P>,
        payload: Option<P>,
        out: &mut Vec<Effect<E, P>>,
    ) {
        let slot = self.table.get_mut(at);
        if slot.phase != IncarnationPhase::Starting {
            return;
        }
        slot.phase = IncarnationPhase::Active;
        if let Some(extra) = slot.existing() {
            extra.failed_starts = 0;
        }
        let at_once = outcome.is_empty() && !slot.has_queue();
        match payload {
            Some(payload) if at_once => out.push(Effect::Run { slot: SlotId(at), payload }),
            Some(payload) if outcome.stop => {
                // Drop the message: starting the entity again for it would go on for ever.
                let id = slot.id.clone().expect("a starting slot has an id");
                out.push(Effect::DeadLetter { id, payload, reason: DeadLetterReason::EntityStopped });
                self.on_done(now, at, outcome, out);
            }
            payload => {
                if let Some(payload) = payload {
                    slot.extra().push_front(Item::User { payload, activity: true });
                }
                self.on_done(now, at, outcome, out);
            }
        }
    }

    pub(super) fn on_done(&mut self, now: Instant, at: u32, outcome: Outcome<P>, out: &mut Vec<Effect<E, P>>) {
        let tick = self.timers.tick();
        let slot = self.table.get_mut(at);
        // An entity may be suspended here after it was handed its stop request.
        if !matches!(slot.phase, IncarnationPhase::Active | IncarnationPhase::Suspended(_)) {
            return;
        }
        if let Some(veto) = outcome.veto {
            slot.veto = veto;
            self.passivating.set_veto(at, veto);
        }
        if outcome.touch {
            slot.touched = tick;
            slot.restart_receive_timeout(now);
            if !slot.stop_requested {
                self.touch(at);
            }
        }
        if outcome.direct {
            self.table.give_address(at);
        }
        self.on_given_back(at, outcome.give_back);
        if outcome.fenced {
            return self.on_fenced(now, at, out);
        }
        if outcome.passivate {
            self.note_passivation(now, at, out);
        }
        if outcome.stop {
            return self.end(now, at, Ended::Stopped, out);
        }
        for change in outcome.timers {
            self.timers.change(at, self.table.get_mut(at), change);
        }
        if let Some(after) = outcome.receive_timeout {
            self.timers.set_receive_timeout(now, at, self.table.get_mut(at), after);
        }
        for payload in outcome.to_self {
            self.enqueue_internal(at, Item::Internal(payload));
        }
        if let Some(suspension) = outcome.suspend {
            let warn_after = self.settings.runtime.suspend_warn_after;
            self.timers.begin_suspension(now, at, self.table.get_mut(at), (suspension, warn_after));
        }
        if outcome.passivate {
            self.request_stop(now, at, out);
        }
        self.stop_suspended(now, at, out);
        self.make_ready(at);
    }

    /// Puts messages that the entity took and did not handle in front of its queue, since they are the oldest.
    pub(super) fn on_given_back(&mut self, at: u32, payloads: Vec<P>) {
        let slot = self.table.get_mut(at);
        for payload in payloads.into_iter().rev() {
            slot.extra().push_front(Item::User { payload, activity: true });
        }
    }

    pub(super) fn on_resumed(
        &mut self,
        now: Instant,
        (at, incarnation): (u32, u64),
        payload: P,
        suspension: bool,
        out: &mut Vec<Effect<E, P>>,
    ) {
        let current = self.table.is_current(at, incarnation);
        let slot = current.then(|| self.table.get_mut(at));
        match slot {
            Some(slot) if suspension && matches!(slot.phase, IncarnationPhase::Suspended(_)) => {
                self.timers.end_suspension(now, at, self.table.get_mut(at));
                out.push(Effect::Run { slot: SlotId(at), payload });
                self.make_ready(at);
            }
            Some(slot)
                if !suspension && matches!(slot.phase, IncarnationPhase::Active | IncarnationPhase::Suspended(_)) =>
            {
                self.enqueue_internal(at, Item::Result(payload));
            }
            _ => out.push(Effect::Late(payload)),
        }
    }

    pub(super) fn on_direct(&mut self, incarnation: u64, payload: P, out: &mut Vec<Effect<E, P>>) {
        match self.table.addressed(incarnation) {
            Some(at) => {
                let room = self.room();
                if self.table.get_mut(at).extra().has_room(&payload, room) {
                    return self.enqueue_internal(at, Item::Direct(payload));
                }
                let reason = DeadLetterReason::EntityMailboxFull;
                out.push(Effect::DropDirect { payload, reason });
            }
            None => out.push(Effect::DropDirect { payload, reason: DeadLetterReason::StaleRecipient }),
        }
    }

    pub(super) fn on_failed(
        &mut self,
        now: Instant,
        at: u32,
        cause: &FailureCause,
        payload: Option<P>,
        out: &mut Vec<Effect<E, P>>,
    ) {
        let slot = self.table.get_mut(at);
        if slot.id.is_none()
            || matches!(slot.phase, IncarnationPhase::Absent | IncarnationPhase::Held | IncarnationPhase::Storing)
        {
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
                if !matches!(slot.phase, IncarnationPhase::Suspended(_)) {
                    slot.phase = IncarnationPhase::Active;
                }
                self.make_ready(at);
            }
            Directive::Restart if goes_on && self.may_restart(now, at) => {
                out.extend(verdict(self.table.get(at), cause, Verdict::Restarted));
                self.restart(at, out);
            }
            Directive::Backoff(backoff) if goes_on && self.life.is_serving() => {
                let wait = self.next_wait(now, at, &backoff);
                out.extend(verdict(self.table.get(at), cause, Verdict::BacksOff(wait)));
                self.end_incarnation(at, Ended::Failed, out);
                let until = now.checked_add(wait).unwrap_or(now + FAR);
                self.timers.hold(at, self.table.get_mut(at), until, StartDelay::Backoff);
            }
            Directive::Escalate if self.life.is_serving() => {
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
        slot.phase = IncarnationPhase::Starting;
        slot.veto = false;
        self.passivating.set_veto(at, false);
        self.timers.forget(self.table.get_mut(at));
        if let Some(extra) = self.table.get_mut(at).existing() {
            out.extend(extra.end_incarnation().into_iter().map(stale));
        }
        out.push(Effect::Restart { slot: SlotId(at) });
    }

    /// Ends the incarnation; its messages wait until the region has had time to learn which region owns the shard. If
    /// that is another region, the shard is killed and the messages travel there.
    pub(super) fn on_fenced(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) {
        if !self.life.is_serving() || self.is_passivating(at) {
            return self.end(now, at, Ended::Fenced, out);
        }
        self.end_incarnation(at, Ended::Fenced, out);
        let until = now + self.settings.retry_interval;
        self.timers.hold(at, self.table.get_mut(at), until, StartDelay::Fenced);
    }

    /// How long an entity that failed waits for its next incarnation.
    pub(super) fn next_wait(&mut self, now: Instant, at: u32, backoff: &Backoff) -> Duration {
        let before = Failures::count(&mut self.table.get_mut(at).extra().failures, now, backoff.reset_after);
        backoff.wait(before, self.table.chance(at))
    }

    /// Queues the stop request behind the messages that wait by now.
    pub(super) fn request_stop(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) {
        let slot = self.table.get_mut(at);
        let lives = slot.entity.is_some() || slot.phase == IncarnationPhase::Starting;
        if slot.stop_requested || !lives {
            return;
        }
        slot.stop_requested = true;
        self.passivating.terminated(at);
        self.enqueue_internal(at, Item::Stop);
        self.stop_suspended(now, at, out);
    }

    /// Hands the stop request to a stoppable suspended entity (a recovery, which needs no completion if the entity
    /// ends), once no message waits before the request. Source: persistence §2.7.
    pub(super) fn stop_suspended(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) {
        let slot = self.table.get_mut(at);
        if !slot.stop_requested || slot.phase != IncarnationPhase::Suspended(Suspension::Stoppable) {
            return;
        }
        let Some(extra) = slot.existing() else { return };
        // The stop request overtakes results, timers and silences: only messages from outside are waited for.
        let own = |item: &Item<P>| matches!(item, Item::Result(_) | Item::Timer(_) | Item::ReceiveTimeout);
        let first = extra.queue.iter().position(|item| !own(item));
        if let Some(first) = first.filter(|first| matches!(extra.queue[*first], Item::Stop)) {
            extra.queue.remove(first);
            self.begin_stop(now, at, out);
        }
    }

    pub(super) fn begin_stop(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) {
        let timeout = match self.life {
            // The shard's own deadline covers all its entities.
            Life::Stopping { .. } => Duration::ZERO,
            _ => self.settings.passivation_stop_timeout,
        };
        let slot = self.table.get_mut(at);
        if !timeout.is_zero() {
            slot.extra().stop_deadline = Some(now + timeout);
            self.timers.set_deadline(now + timeout, at);
        }
        if self.life.is_serving() {
            self.timers.warn_of_stop(now, at, self.table.get_mut(at));
        }
        out.push(Effect::SendStop { slot: SlotId(at) });
    }

    /// Ends an incarnation; waiting user messages start the next incarnation, or become leftovers if the shard stops.
    pub(super) fn end(&mut self, now: Instant, at: u32, why: Ended, out: &mut Vec<Effect<E, P>>) {
        self.end_incarnation(at, why, out);
        if !self.life.is_serving() {
            self.note_end_of_passivation(now, at, out);
            self.make_leftovers(at);
            self.check_stopped(now, out);
        } else if self.remembering.is_some() {
            self.end_remembered(now, at, why, out);
        } else if self.table.get(at).has_queue() {
            self.make_ready(at);
        } else {
            self.free(at);
        }
    }

    /// Ends an incarnation and keeps waiting messages for the next one.
    pub(super) fn end_incarnation(&mut self, at: u32, why: Ended, out: &mut Vec<Effect<E, P>>) {
        self.passivating.terminated(at);
        let incarnation = self.table.number(at);
        self.table.end_address(at);
        let slot = self.table.get_mut(at);
        let id = slot.id.clone().expect("a live slot has an id");
        let entity = slot.entity.take();
        out.push(Effect::End { slot: SlotId(at), id, incarnation, entity, why });
        slot.phase = IncarnationPhase::Absent;
        slot.veto = false;
        slot.stop_requested = false;
        let mut deadlines = [None, None];
        self.timers.forget(self.table.get_mut(at));
        let slot = self.table.get_mut(at);
        if let Some(extra) = slot.existing() {
            deadlines = [extra.stop_deadline.take(), extra.held.take().map(|(until, _)| until)];
            out.extend(extra.end_incarnation().into_iter().map(stale));
            self.turns.later -= extra.keep_later();
        }
        for at_time in deadlines.into_iter().flatten() {
            self.timers.end_deadline(at_time, at);
        }
        if self.turns.end_of(at) {
            self.table.get_mut(at).ready = false;
        }
    }

    /// Turns waiting messages into leftovers, since no entity starts here any more.
    pub(super) fn make_leftovers(&mut self, at: u32) {
        self.cancel_storing(at);
        let slot = self.table.get_mut(at);
        let Some(id) = slot.id.clone() else { return };
        if let Some(extra) = slot.existing() {
            self.turns.later -= extra.later_count();
            let users = extra.take_users();
            self.leftovers.extend(users.into_iter().map(|payload| (id.clone(), payload)));
        }
        self.free(at);
    }

    /// Frees the slot of an entity of which nothing is left.
    pub(super) fn free(&mut self, at: u32) {
        let slot = self.table.get(at);
        if slot.id.is_some() {
            self.turns.forget(at, slot.ready);
            self.table.remove(at);
        }
    }

    pub(super) fn state_of(&self, id: &EntityId) -> Option<Remembered> {
        self.remembering.as_ref()?.state(id)
    }

    pub(super) fn state_at(&self, at: u32) -> Option<Remembered> {
        self.state_of(self.table.get(at).id.as_ref()?)
    }

    /// Changes the state of an entity. A forbidden change is a bug, and fails the shard if the settings say so.
    pub(super) fn transition(
        &mut self,
        now: Instant,
        id: &EntityId,
        to: Option<Remembered>,
        out: &mut Vec<Effect<E, P>>,
    ) {
        let Some(remembering) = &mut self.remembering else { return };
        if let Err(invalid) = remembering.change(id, to) {
            out.push(Effect::Notice(Notice::InvalidTransition(invalid)));
            if self.settings.remember.fail_on_invalid_transition {
                self.fail_shard(now, out);
            }
        }
    }

    pub(super) fn transition_at(&mut self, now: Instant, at: u32, to: Remembered, out: &mut Vec<Effect<E, P>>) {
        if let Some(id) = self.table.get(at).id.clone() {
            self.transition(now, &id, Some(to), out);
        }
    }

    /// Notes that an incarnation begins; returns the message that it begins for. `None` if the shard failed meanwhile:
    /// then the message is among those that the region gets back.
    #[allow(clippy::option_option)]
    pub(super) fn note_start(
        &mut self,
        now: Instant,
        at: u32,
        payload: Option<P>,
        out: &mut Vec<Effect<E, P>>,
    ) -> Option<Option<P>> {
        // An entity that is replaced, held after a failure, or fenced has stayed `Active`.
        if self.remembering.is_none() || self.state_at(at) == Some(Remembered::Active) {
            return Some(payload);
        }
        if let Some(payload) = payload {
            self.table.get_mut(at).extra().push_front(Item::User { payload, activity: true });
        }
        self.transition_at(now, at, Remembered::Active, out);
        if !self.life.is_serving() {
            return None;
        }
        match self.table.get_mut(at).existing().and_then(Extra::pop) {
            Some(Item::User { payload, .. }) => Some(Some(payload)),
            Some(item) => {
                self.table.get_mut(at).extra().push_front(item);
                Some(None)
            }
            None => Some(None),
        }
    }

    /// Notes that a passivating entity is to be forgotten. Nothing but passivation forgets an entity.
    pub(super) fn note_passivation(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) {
        let serving = self.life.is_serving() && !self.table.get(at).stop_requested;
        if serving && self.remembering.is_some() {
            self.transition_at(now, at, Remembered::Passivating, out);
        }
    }

    pub(super) fn is_passivating(&self, at: u32) -> bool {
        self.state_at(at) == Some(Remembered::Passivating)
    }

    /// Forgets an entity that was passivating and has ended in a stopping shard.
    pub(super) fn note_end_of_passivation(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) {
        if self.is_passivating(at) && self.life != Life::Stopped {
            self.transition_at(now, at, Remembered::RememberingStop, out);
        }
    }

    /// Notes that an incarnation has ended while the shard serves.
    pub(super) fn end_remembered(&mut self, now: Instant, at: u32, why: Ended, out: &mut Vec<Effect<E, P>>) {
        if self.is_passivating(at) {
            self.begin_storing(at);
            return self.transition_at(now, at, Remembered::RememberingStop, out);
        }
        self.transition_at(now, at, Remembered::WaitingForRestart, out);
        if !self.life.is_serving() {
            return;
        }
        match why {
            Ended::Failed => self.wait_after_failure(now, at, out),
            _ if self.table.get(at).has_queue() => self.make_ready(at),
            _ => self.timers.hold(
                at,
                self.table.get_mut(at),
                now + self.settings.remember.entity_restart_backoff,
                StartDelay::Stopped,
            ),
        }
    }

    /// Holds a remembered entity that has failed for good, or could not start: its wait grows with each failure, and
    /// the entity is given up in the end if the settings say so.
    fn wait_after_failure(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) {
        let settings = &self.settings.remember;
        let (most, on_permanent_failure) = (settings.max_start_failures, settings.on_permanent_failure);
        let max = settings.entity_restart_backoff_max;
        let reset_after = max.saturating_mul(2);
        let min = settings.entity_restart_backoff;
        let backoff = Backoff { min, max, reset_after, jitter: 0.0, ..Backoff::default() };
        let failures = self.table.get_mut(at).extra().failed_starts;
        let is_given_up = most > 0 && failures >= most;
        if is_given_up && let Some(id) = self.table.get(at).id.clone() {
            let forgotten = on_permanent_failure == OnPermanentFailure::Forget;
            out.push(Effect::Notice(Notice::GivenUp { id: id.clone(), failures, forgotten }));
            if forgotten {
                let waiting = self.table.get_mut(at).extra().take_users();
                let reason = DeadLetterReason::EntityStartFailed;
                out.extend(waiting.into_iter().map(|payload| Effect::DeadLetter { id: id.clone(), payload, reason }));
                self.begin_storing(at);
                return self.transition(now, &id, Some(Remembered::RememberingStop), out);
            }
        }
        let wait = self.next_wait(now, at, &backoff);
        let until = now.checked_add(wait).unwrap_or(now + FAR);
        self.timers.hold(
            at,
            self.table.get_mut(at),
            until,
            if is_given_up { StartDelay::GivenUp } else { StartDelay::Backoff },
        );
    }

    /// The entity's messages wait for a write from now on.
    pub(super) fn begin_storing(&mut self, at: u32) {
        if let Some(remembering) = &mut self.remembering {
            remembering.begin_storing(self.table.get_mut(at));
        }
    }

    /// The entity's messages wait for no write any more.
    pub(super) fn end_storing(&mut self, at: u32) {
        if let Some(remembering) = &mut self.remembering {
            remembering.end_storing(self.table.get_mut(at));
        }
    }

    /// Cancels the entity's start, unless it is on its way to the store: the shard stops, and need not store it.
    pub(super) fn cancel_storing(&mut self, at: u32) {
        if let Some(remembering) = &mut self.remembering {
            remembering.cancel_storing(self.table.get_mut(at));
        }
    }
}

/// Drops a direct message whose incarnation ends.
fn stale<E, P>(payload: P) -> Effect<E, P> {
    Effect::DropDirect { payload, reason: DeadLetterReason::StaleRecipient }
}

/// Reports the verdict on an entity that failed.
fn verdict<E, P>(slot: &Slot<E, P>, cause: &FailureCause, verdict: Verdict) -> Option<Effect<E, P>> {
    Some(Effect::Failed { id: slot.id.clone()?, cause: cause.clone(), verdict })
}
