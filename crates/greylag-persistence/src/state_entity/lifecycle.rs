//! How an entity with a durable state ends, fails and starts anew, and how its handlers are called.

use std::time::Instant;

use greylag_core::{DeadLetterReason, EntityError};
use rand::RngExt;

use super::{DurableState, Out, Phase, StateEntityCore, fenced};
use crate::behavior::{Failure, FencedBy};
use crate::durable_state::{StateContext, StateSignal};
use crate::effect::guard;
use crate::entity::{Action, dead_letter};
use crate::settings::OnFailure;

impl<B: DurableState> StateEntityCore<B> {
    // ---- Handlers -------------------------------------------------------------------------------

    pub(super) fn with_context<R>(
        &mut self,
        handler: impl FnOnce(&mut B, &mut StateContext<'_>, &B::State) -> R,
    ) -> Result<R, String> {
        let mut cx = StateContext { id: &self.id, revision: self.revision, stashed: self.stash.aside_count() };
        let (behavior, state) = (&mut self.behavior, &self.state);
        guard(|| handler(behavior, &mut cx, state))
    }

    /// Tells the behaviour; a panic of its handler only matters where the caller says so.
    pub(super) fn try_signal(&mut self, signal: &StateSignal) -> Result<(), String> {
        if signal.is_failure() {
            tracing::warn!(id = %self.id, revision = %self.revision, incarnation = %self.incarnation, ?signal, "entity");
        } else {
            tracing::debug!(id = %self.id, revision = %self.revision, incarnation = %self.incarnation, ?signal, "entity");
        }
        self.with_context(|behavior, cx, state| behavior.on_signal(cx, state, signal))
    }

    /// Tells the behaviour; a panic of its handler is logged and swallowed, since the entity ends or
    /// starts anew anyway.
    pub(super) fn signal(&mut self, signal: StateSignal) {
        if let Err(message) = self.try_signal(&signal) {
            tracing::warn!(id = %self.id, message, "signal handler panicked");
        }
    }

    // ---- Ends -----------------------------------------------------------------------------------

    pub(super) fn on_stop(&mut self, now: Instant, out: &mut Out<B>) {
        match self.phase {
            Phase::Stopped => {}
            // A verdict will not come any more: whoever stops a failed entity has given it.
            Phase::Failed => self.stop_now(out),
            Phase::Running | Phase::Persisting(_) => {
                self.stop_requested = true;
                self.drain(now, out);
            }
            // Nothing waits for the state, so it need not be read.
            _ if self.stash.is_idle() => self.stop_now(out),
            _ => self.stop_requested = true,
        }
    }

    pub(super) fn stop_if_asked(&mut self, out: &mut Out<B>) {
        if self.stop_requested && self.stash.is_idle() && !self.owned.awaits_look() {
            self.stop_now(out);
        }
    }

    pub(super) fn stop_now(&mut self, out: &mut Out<B>) {
        if matches!(self.phase, Phase::Stopped) {
            return;
        }
        self.end_phase(EntityError::OutcomeUnknown, EntityError::Stopped, out);
        self.phase = Phase::Stopped;
        for command in self.take_waiting() {
            out.push(dead_letter(command, DeadLetterReason::EntityStopped, EntityError::Stopped));
        }
        self.signal(StateSignal::PostStop);
        out.push(Action::Stopped);
    }

    /// Ends for good, because somebody else writes the state. Waiting commands are left for
    /// [`StateEntityCore::take_waiting`].
    pub(super) fn become_fenced(&mut self, by: FencedBy, out: &mut Out<B>) {
        self.end_phase(fenced(), fenced(), out);
        self.phase = Phase::Stopped;
        self.signal(StateSignal::Fenced);
        self.signal(StateSignal::PostStop);
        out.push(Action::Fenced(by));
    }

    /// Ends this incarnation by a failure that only the host can judge.
    pub(super) fn fail(&mut self, failure: Failure, out: &mut Out<B>) {
        self.end_phase(EntityError::OutcomeUnknown, EntityError::Failed(failure.to_string()), out);
        if matches!(failure, Failure::Handler { .. } | Failure::StashFull) {
            // What the behaviour put aside rests on what it knew; what merely waits does not.
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

    /// After a failure of recovery or write: recover again after a wait, or leave it to the host.
    pub(super) fn restart_or_fail(&mut self, now: Instant, failure: Failure, out: &mut Out<B>) {
        let OnFailure::RestartBackoff(backoff) = self.settings.on_failure else { return self.fail(failure, out) };
        let wait = self.restarts.wait(now, backoff, self.rng.random::<f64>());
        self.back_off(now + wait, failure, out);
    }

    pub(super) fn back_off(&mut self, until: Instant, failure: Failure, out: &mut Out<B>) {
        self.end_phase(EntityError::OutcomeUnknown, EntityError::Failed(failure.to_string()), out);
        self.phase = Phase::BackingOff { until };
        out.push(Action::Restarting(failure));
        self.stop_if_asked(out);
    }

    pub(super) fn restart_now(&mut self, now: Instant, out: &mut Out<B>) {
        self.signal(StateSignal::PreRestart);
        self.begin_incarnation(now, out);
    }

    /// Lets go of everything that belongs to the incarnation that ends: the permit, the state, side
    /// effects that will not run. `pending` answers the tokens of a write on its way, `owned` those of
    /// chains that wait for a look at the store.
    pub(super) fn end_phase(&mut self, pending: EntityError, owned: EntityError, out: &mut Out<B>) {
        match std::mem::replace(&mut self.phase, Phase::Failed) {
            Phase::AwaitingPermit | Phase::Loading { .. } => out.push(Action::ReturnPermit(self.incarnation)),
            Phase::Persisting(write) => write.chain.refuse(pending),
            Phase::Running | Phase::BackingOff { .. } | Phase::Failed | Phase::Stopped => {}
        }
        self.owned.refuse(&owned);
        self.state = B::State::default();
        self.drain_at = None;
        self.stop_after_chain = false;
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
