//! The common course of both kinds of entities: how a command comes to its handler, and how an entity stops, fails and
//! restarts.
//!
//! The course is one text for both, so that they cannot differ in the order of effects. Where the kinds differ, the
//! machine says how, by the required methods of [`Lifecycle`].
//! Source: persistence §2.4, §2.6, §11.

use std::time::Instant;

use greylag_core::{EntityError, answer_dropped};

use super::end_answers::EndAnswers;
use super::input::{Action, Input};
use super::machine::Machine;
use super::mailbox::{Mailbox, stopped};
use super::ownership_proof::OwnershipProof;
use super::phases::{EntityPhase, Phases};
use crate::entities::behavior::chain::Chain;
use crate::entities::behavior::failure::{Failure, FencedBy};
use crate::entities::settings::StashOverflow;

/// The actions of a machine.
pub(crate) type Actions<L> = Vec<Action<<L as Machine>::Command, <L as Machine>::Call>>;

/// The end of an incarnation, as its behaviour is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Restart,
    Stop,
}

/// A machine of an entity that persists.
pub(crate) trait Lifecycle: Machine + Sized {
    type State;
    /// A recovery under way.
    type Recovery;
    /// A write under way, with the effects that follow it.
    type Write;
    /// The state and number that the behaviour is shown at the end of an incarnation; by default none.
    type Last: Default;

    fn phases(&mut self) -> &mut Phases<Self::Recovery, Self::Write>;

    fn mailbox(&mut self) -> &mut Mailbox<Self::Command>;

    fn ownership(&mut self) -> &mut OwnershipProof<Self::State>;

    /// Begins an incarnation: a new writer uuid, an empty state, the waiting commands unchanged.
    fn begin_incarnation(&mut self, out: &mut Actions<Self>);

    /// Begins to recover, now that the permit is granted.
    fn begin_recovery(&mut self, now: Instant, out: &mut Actions<Self>);

    /// Takes a store's answer to this incarnation.
    fn on_answer(&mut self, now: Instant, answer: Self::Answer, out: &mut Actions<Self>);

    /// Does what is due by `now`, besides the back-off and the commands.
    fn on_deadlines(&mut self, now: Instant, out: &mut Actions<Self>);

    /// Handles a command, in a running entity.
    fn process(&mut self, now: Instant, command: Self::Command, out: &mut Actions<Self>);

    /// Runs side effects in order.
    ///
    /// # Errors
    /// The answer for askers of later side effects, if a panic ended the entity.
    fn run_chain(&mut self, chain: Chain<Self::State>, out: &mut Actions<Self>) -> Result<(), EntityError>;

    /// The effects of a write that will not be awaited.
    fn chain_of(write: Self::Write) -> Chain<Self::State>;

    /// Takes the state for the end of the incarnation, if the entity runs: it is whole and stored then.
    fn take_last(&mut self) -> Self::Last;

    /// Drops the state, and what else belongs to the ending incarnation alone.
    fn end_incarnation(&mut self);

    /// Delivers the signal that ends the incarnation with its last state, and drops the state.
    fn signal_end(&mut self, end: End, last: Self::Last, out: &mut Actions<Self>);

    /// Ends the phase, because another writer owns the history, and tells the behaviour.
    fn end_fenced(&mut self, out: &mut Actions<Self>);

    // ---- Inputs ---------------------------------------------------------------------------------

    /// Takes one input.
    fn on_input(&mut self, now: Instant, input: Input<Self::Command, Self::Answer>, out: &mut Actions<Self>) {
        match input {
            Input::Command(command) => self.on_new_command(now, command, out),
            Input::PermitGranted(incarnation) => {
                if self.phases().on_permit(incarnation, out) {
                    self.begin_recovery(now, out);
                }
            }
            Input::Answer { incarnation, answer } if incarnation == self.phases().incarnation() => {
                self.on_answer(now, answer, out);
            }
            // A restarted entity must not consume its predecessor's answers.
            Input::Answer { .. } => {}
            Input::Worked { incarnation, work, command } if incarnation == self.phases().incarnation() => {
                if self.mailbox().on_worked(work, command, out) {
                    self.drain(now, out);
                }
            }
            // A previous incarnation began this work, and its outcome is unknown.
            Input::Worked { command, .. } => answer_dropped(EntityError::OutcomeUnknown, || drop(command)),
            Input::Tick => self.on_tick(now, out),
            Input::StoreBack => self.on_store_back(now, out),
            Input::Stop => self.on_stop(now, out),
            Input::StopNow => self.stop_now(out),
        }
    }

    fn on_new_command(&mut self, now: Instant, command: Self::Command, out: &mut Actions<Self>) {
        if self.mailbox().stop_is_requested() || self.phases().is_stopped() {
            return out.push(stopped(command));
        }
        // Queue behind earlier commands; `drain` takes the new command at once if there are none.
        match self.mailbox().on_command(command, out) {
            Ok(()) => self.drain(now, out),
            Err(overflow) => self.on_stash_overflow(overflow, out),
        }
    }

    fn on_stash_overflow(&mut self, overflow: StashOverflow, out: &mut Actions<Self>) {
        if overflow == StashOverflow::Fail {
            self.fail(Failure::StashFull, out);
        }
    }

    fn on_tick(&mut self, now: Instant, out: &mut Actions<Self>) {
        if self.phases().has_backed_off(now) {
            self.restart_now(out);
        }
        self.on_deadlines(now, out);
        let runs = self.phases().is_running();
        if self.mailbox().on_tick(now, runs) {
            self.drain(now, out);
        }
    }

    // ---- Commands -------------------------------------------------------------------------------

    /// Handles waiting commands while the entity runs, those of an unstash-all first. A loop, not a
    /// recursion; pauses after `unstash_budget` commands.
    fn drain(&mut self, now: Instant, out: &mut Actions<Self>) {
        for _ in 0..self.mailbox().begin_drain() {
            if !self.phases().is_running() {
                return;
            }
            match self.mailbox().next(now) {
                None => return self.stop_if_asked(out),
                Some(Ok(Some(command))) => self.process(now, command, out),
                Some(Ok(None)) => {}
                Some(Err(failure)) => return self.fail(failure, out),
            }
        }
        if self.phases().is_running() {
            self.mailbox().pause_drain(now);
        }
    }

    /// Puts a command aside; returns whether the entity still runs.
    fn put_aside(&mut self, command: Self::Command, out: &mut Actions<Self>) -> bool {
        if let Err(overflow) = self.mailbox().put_aside(command, out) {
            self.on_stash_overflow(overflow, out);
        }
        self.phases().is_running()
    }

    /// After a command and all its effects: stops if the chain asked for it, else goes on with the waiting commands.
    fn finish_command(&mut self, now: Instant, out: &mut Actions<Self>) {
        if !self.phases().is_running() {
            return;
        }
        if self.mailbox().stops_after_chain() {
            return self.stop_now(out);
        }
        self.drain(now, out);
    }

    /// Runs the held chains up to number `through`; the error is that of `run_chain`.
    fn run_owned(&mut self, through: u64, out: &mut Actions<Self>) -> Result<(), EntityError> {
        while let Some(chain) = self.ownership().pop(through) {
            self.run_chain(chain, out)?;
        }
        Ok(())
    }

    // ---- Ends -----------------------------------------------------------------------------------

    fn on_stop(&mut self, now: Instant, out: &mut Actions<Self>) {
        let is_idle = self.mailbox().is_idle();
        match self.phases().phase() {
            EntityPhase::Stopped => {}
            // A stop of a failed entity is the host's verdict; no other verdict will come.
            EntityPhase::Failed => self.stop_now(out),
            EntityPhase::Running | EntityPhase::Writing(_) => {
                self.mailbox().request_stop();
                // Commands that the entity told itself before the stop are handled before it.
                self.mailbox().queue_self_commands();
                self.drain(now, out);
            }
            // No command needs the state, so stop without recovery.
            _ if is_idle => self.stop_now(out),
            _ => self.mailbox().request_stop(),
        }
    }

    /// Stops if a stop was requested and all earlier commands are done, including chains that wait for the ownership
    /// check under way.
    fn stop_if_asked(&mut self, out: &mut Actions<Self>) {
        if self.mailbox().stop_is_due() && !self.ownership().awaits_check() {
            self.stop_now(out);
        }
    }

    fn stop_now(&mut self, out: &mut Actions<Self>) {
        if self.phases().is_stopped() {
            return;
        }
        let last = self.take_last();
        self.end_phase(EndAnswers::stopped(), out);
        self.phases().stop();
        self.mailbox().drop_all(out);
        self.signal_end(End::Stop, last, out);
        out.push(Action::Stopped);
    }

    /// Ends the machine so that its host can start another in its place; returns the waiting commands.
    fn end_for_restart(&mut self, out: &mut Actions<Self>) -> Vec<Self::Command> {
        let last = self.take_last();
        self.end_phase(EndAnswers::stopped(), out);
        self.phases().stop();
        self.signal_end(End::Restart, last, out);
        self.mailbox().take_all()
    }

    /// Ends for good, because another writer owns the history or the state. Waiting commands are left for
    /// `take_waiting`.
    fn become_fenced(&mut self, by: FencedBy, out: &mut Actions<Self>) {
        self.end_fenced(out);
        self.signal_end(End::Stop, Self::Last::default(), out);
        out.push(Action::Fenced(by));
    }

    /// Ends this incarnation by a failure; the host decides what follows.
    fn fail(&mut self, failure: Failure, out: &mut Actions<Self>) {
        self.end_phase(EndAnswers::failed(&failure), out);
        if matches!(failure, Failure::Handler { .. } | Failure::StashFull) {
            // The behaviour put commands aside because of a state that is now lost; commands that merely wait stay.
            self.mailbox().drop_aside(out);
        }
        if self.mailbox().stop_is_due() {
            return self.stop_now(out);
        }
        out.push(Action::Failed(failure));
    }

    /// Fails; returns the answer for the askers of side effects that will not run.
    fn fail_for(&mut self, failure: Failure, out: &mut Actions<Self>) -> EntityError {
        let error = EntityError::Failed(failure.to_string());
        self.fail(failure, out);
        error
    }

    /// After a failure of recovery or write: recovers again after a wait, or leaves the decision to the host.
    fn restart_or_fail(&mut self, now: Instant, failure: Failure, out: &mut Actions<Self>) {
        match self.phases().next_attempt(now) {
            Some(until) => self.back_off(until, failure, out),
            None => self.fail(failure, out),
        }
    }

    fn back_off(&mut self, until: Instant, failure: Failure, out: &mut Actions<Self>) {
        self.end_phase(EndAnswers::failed(&failure), out);
        self.phases().back_off(until);
        out.push(Action::Restarting(failure));
        self.stop_if_asked(out);
    }

    /// Recovers again without a wait, unless the entity stops.
    fn restart_at_once(&mut self, now: Instant, failure: Failure, out: &mut Actions<Self>) {
        self.back_off(now, failure, out);
        if self.phases().is_backing_off() {
            self.restart_now(out);
        }
    }

    /// Shortens the back-off, since the store answers again.
    fn on_store_back(&mut self, now: Instant, out: &mut Actions<Self>) {
        self.phases().on_store_back(now);
        if self.phases().has_backed_off(now) {
            self.restart_now(out);
        }
    }

    fn restart_now(&mut self, out: &mut Actions<Self>) {
        self.signal_end(End::Restart, Self::Last::default(), out);
        self.begin_incarnation(out);
    }

    /// Releases everything that belongs to the ending incarnation: the permit, the state, side
    /// effects that will not run.
    fn end_phase(&mut self, answers: EndAnswers, out: &mut Actions<Self>) {
        if let Some(write) = self.phases().end(out) {
            Self::chain_of(write).refuse(answers.pending);
        }
        self.ownership().refuse(&answers.held);
        self.end_incarnation();
        self.mailbox().end_incarnation(answers.background);
    }
}
