//! The end, failure and restart of an entity with a durable state, and calls of its handlers.

use std::time::Instant;

use greylag_core::{DeadLetterReason, EntityError, answer_dropped};
use rand::RngExt;

use super::{DurableState, FinalState, Out, Phase, StateEntityCore};
use crate::behavior::{Failure, FencedBy};
use crate::ctx::{Ctx, PersistenceKind, PersistentFacts};
use crate::durable_state::StateSignal;
use crate::effect::guard;
use crate::entity::end_answers::EndAnswers;
use crate::entity::stash::Waiting;
use crate::entity::{Action, dead_letter};
use crate::settings::OnFailure;

impl<B: DurableState> StateEntityCore<B> {
    // ---- Handlers -------------------------------------------------------------------------------

    /// `begins`: whether the incarnation goes on; only then are timers, work and messages to itself begun.
    pub(super) fn with_context<R>(
        &mut self,
        begins: bool,
        out: &mut Out<B>,
        handler: impl FnOnce(&mut B, &mut Ctx<'_, B::Command>, &B::State) -> R,
    ) -> Result<R, String> {
        let stashed = self.stash.aside_count();
        let kind = PersistenceKind::State { revision: self.revision };
        let facts = PersistentFacts { id: &self.id, kind, stashed, read_only: false };
        let mut cx = Ctx { facts: Some(facts), ..Ctx::new(self.background.now(), self.host.as_deref()) };
        let (behavior, state) = (&mut self.behavior, &self.state);
        let answer = guard(|| handler(behavior, &mut cx, state));
        let (requests, host_requests) = cx.into_requests();
        if answer.is_ok() && begins {
            let incarnation = self.incarnation;
            out.extend(self.background.take(requests).into_iter().map(|task| Action::of_host_task(incarnation, task)));
            out.extend(Action::of_host_requests(host_requests));
        }
        answer
    }

    /// Delivers a signal to the behaviour; the caller decides what a panic of its handler means.
    pub(super) fn try_signal(&mut self, signal: &StateSignal, out: &mut Out<B>) -> Result<(), String> {
        self.deliver_signal(true, signal, out)
    }

    fn deliver_signal(&mut self, begins: bool, signal: &StateSignal, out: &mut Out<B>) -> Result<(), String> {
        if signal.is_failure() {
            tracing::warn!(
                id = %self.id,
                revision = %self.revision,
                incarnation = %self.incarnation,
                ?signal,
                "entity signal"
            );
        } else {
            tracing::debug!(
                id = %self.id,
                revision = %self.revision,
                incarnation = %self.incarnation,
                ?signal,
                "entity signal"
            );
        }
        self.with_context(begins, out, |behavior, cx, state| behavior.on_signal(cx, state, signal))
    }

    /// Delivers a signal to the behaviour while the entity ends or starts anew: a panic of its handler is logged and
    /// swallowed, and timers, work and messages that the handler asks for are not begun.
    pub(super) fn signal(&mut self, signal: StateSignal, out: &mut Out<B>) {
        if let Err(message) = self.deliver_signal(false, &signal, out) {
            tracing::warn!(id = %self.id, message, "signal handler panicked");
        }
    }

    /// Takes the state for the end of the incarnation: the state of `Running`, which is whole and stored, else none.
    pub(super) fn final_state(&mut self) -> FinalState<B::State> {
        match self.phase {
            Phase::Running => FinalState { state: std::mem::take(&mut self.state), revision: self.revision },
            _ => FinalState::none(),
        }
    }

    /// Delivers the signal that ends the incarnation with its last state, and drops the state.
    pub(super) fn signal_end(&mut self, signal: StateSignal, last: FinalState<B::State>, out: &mut Out<B>) {
        self.state = last.state;
        let known = std::mem::replace(&mut self.revision, last.revision);
        self.signal(signal, out);
        self.state = B::State::default();
        self.revision = known;
    }

    // ---- Ends -----------------------------------------------------------------------------------

    pub(super) fn on_stop(&mut self, now: Instant, out: &mut Out<B>) {
        match self.phase {
            Phase::Stopped => {}
            // A stop of a failed entity is the host's verdict; no other verdict will come.
            Phase::Failed => self.stop_now(out),
            Phase::Running | Phase::Persisting(_) => {
                self.stop_requested = true;
                // Commands that the entity told itself before the stop are handled before it.
                self.background.take_self_commands().for_each(|command| self.stash.push_own(Waiting::Own(command)));
                self.drain(now, out);
            }
            // No command needs the state, so stop without reading it.
            _ if self.stash.is_idle() => self.stop_now(out),
            _ => self.stop_requested = true,
        }
    }

    pub(super) fn stop_if_asked(&mut self, out: &mut Out<B>) {
        if self.stop_requested && self.stash.is_idle() && !self.ownership.awaits_check() {
            self.stop_now(out);
        }
    }

    pub(super) fn stop_now(&mut self, out: &mut Out<B>) {
        if matches!(self.phase, Phase::Stopped) {
            return;
        }
        let last = self.final_state();
        self.end_phase(EndAnswers::stopped(), out);
        self.phase = Phase::Stopped;
        for command in self.take_waiting() {
            out.push(dead_letter(command, DeadLetterReason::EntityStopped, EntityError::Stopped));
        }
        self.signal_end(StateSignal::PostStop, last, out);
        out.push(Action::Stopped);
    }

    /// Ends for good, because another writer owns the state. Waiting commands are left for
    /// [`StateEntityCore::take_waiting`].
    pub(super) fn become_fenced(&mut self, by: FencedBy, out: &mut Out<B>) {
        self.end_phase(EndAnswers::fenced(), out);
        self.phase = Phase::Stopped;
        self.signal(StateSignal::Fenced, out);
        self.signal_end(StateSignal::PostStop, FinalState::none(), out);
        out.push(Action::Fenced(by));
    }

    /// Ends this incarnation by a failure; the host decides what follows.
    pub(super) fn fail(&mut self, failure: Failure, out: &mut Out<B>) {
        self.end_phase(EndAnswers::failed(&failure), out);
        if matches!(failure, Failure::Handler { .. } | Failure::StashFull) {
            // The behaviour put commands aside because of a state that is now lost; commands that merely wait stay.
            for command in self.stash.take_aside() {
                out.push(dead_letter(command, DeadLetterReason::EntityStopped, EntityError::Stopped));
            }
        }
        self.phase = Phase::Failed;
        if self.stop_requested && self.stash.is_idle() {
            return self.stop_now(out);
        }
        out.push(Action::Failed(failure));
    }

    /// After a failure of recovery or write: recovers again after a wait, or leaves the decision to the host.
    pub(super) fn restart_or_fail(&mut self, now: Instant, failure: Failure, out: &mut Out<B>) {
        let OnFailure::RestartBackoff(backoff) = self.settings.on_failure else { return self.fail(failure, out) };
        let wait = self.restarts.wait(now, backoff, self.rng.random::<f64>());
        self.back_off(now + wait, failure, out);
    }

    pub(super) fn back_off(&mut self, until: Instant, failure: Failure, out: &mut Out<B>) {
        self.end_phase(EndAnswers::failed(&failure), out);
        self.phase = Phase::BackingOff { until };
        out.push(Action::Restarting(failure));
        self.stop_if_asked(out);
    }

    /// Shortens the back-off, since the store answers again.
    pub(super) fn on_store_back(&mut self, now: Instant, out: &mut Out<B>) {
        if let Phase::BackingOff { until } = &mut self.phase {
            *until = self.restarts.shorten_backoff(now, *until);
            if *until <= now {
                self.restart_now(now, out);
            }
        }
    }

    pub(super) fn restart_now(&mut self, now: Instant, out: &mut Out<B>) {
        self.signal_end(StateSignal::PreRestart, FinalState::none(), out);
        self.begin_incarnation(now, out);
    }

    /// Releases everything that belongs to the ending incarnation: the permit, the state, side
    /// effects that will not run.
    pub(super) fn end_phase(&mut self, answers: EndAnswers, out: &mut Out<B>) {
        match std::mem::replace(&mut self.phase, Phase::Failed) {
            Phase::AwaitingPermit | Phase::Loading { .. } => out.push(Action::ReturnPermit(self.incarnation)),
            Phase::Persisting(write) => write.chain.refuse(answers.pending),
            Phase::Running | Phase::BackingOff { .. } | Phase::Failed | Phase::Stopped => {}
        }
        self.ownership.refuse(&answers.held);
        self.state = B::State::default();
        self.drain_at = None;
        self.stop_after_chain = false;
        self.background.end(&answers.background);
        answer_dropped(answers.background, || self.stash.drop_own());
    }

    pub(super) fn check_invariants(&self) {
        self.stash.check_invariants();
        debug_assert!(
            self.drain_at.is_none() || matches!(self.phase, Phase::Running),
            "only a running entity drains its stash"
        );
        debug_assert!(self.revision.is_none() || self.known >= Some(self.revision), "what is read is known");
    }
}
