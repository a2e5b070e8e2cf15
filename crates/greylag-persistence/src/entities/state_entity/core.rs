//! The machine itself: its inputs, its handlers, its writes, and the proof that it still owns the state.
//!
//! What the machine shares with an event-sourced entity is [`Lifecycle`]. A state store has no claims: a chain that
//! persists nothing and waits for a proof of ownership is proved current if the stored revision is still the one in
//! memory, since even a new owner of the state shows that same revision until it writes. A write of this entity proves
//! as much, since the write names the revision that it follows. Source: persistence §10.5.

use std::time::Instant;

use greylag_core::{EntityError, Generation, NotStoredReason};

use super::fence::RevisionFence;
use crate::contract::error::{ReadError, StateRejectReason, StateWriteError};
use crate::contract::records::codec::{EncodedValue, StoredCodec, UnreadableRecord};
use crate::contract::records::event::SeqNr;
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::revision::Revision;
use crate::contract::records::state::{StateCaps, StateWrite, StoredState};
use crate::contract::settings::SettingsError;
use crate::entities::behavior::chain::{Chain, guard};
use crate::entities::behavior::durable_state::{DurableState, DurableStateSettings, Primary, StateSignal};
use crate::entities::behavior::failure::{Failure, FencedBy, RecoveryFailure, RecoveryStep};
use crate::entities::behavior::persisted::{Persisted, StateCodec};
use crate::entities::context::background_work::{Work, WorkNo};
use crate::entities::context::ctx::{Ctx, PersistenceKind, PersistentFacts, SharedHost};
use crate::entities::lifecycle::end_answers::EndAnswers;
use crate::entities::lifecycle::input::{Action, EntityCall, Incarnation, Input, Withheld};
use crate::entities::lifecycle::machine::Machine;
use crate::entities::lifecycle::mailbox::Mailbox;
use crate::entities::lifecycle::ownership_proof::OwnershipProof;
use crate::entities::lifecycle::phases::{EntityPhase, Phases};
use crate::entities::lifecycle::turns::{End, Lifecycle};
use crate::entities::lifecycle::writers::Owner;

/// The facts that the host gives a machine when it starts an entity with a durable state.
#[derive(Debug, Clone)]
pub struct StateEntityInit {
    /// The ownership generation of the entity's shard; none for an entity outside of any shard,
    /// which is then fenced by revisions alone.
    pub generation: Option<Generation>,
    /// Larger at every start of a machine in this process; see [`Incarnation`].
    pub start: u64,
    /// Seed of writer uuids and jitter; must differ between any two starts anywhere.
    pub seed: [u8; 32],
    /// The state store's capabilities and limits.
    pub caps: StateCaps,
    /// The node's settings, from which the behaviour makes its own.
    pub settings: DurableStateSettings,
    /// The runtime that hosts the entity, for its handlers.
    pub host: Option<SharedHost>,
}

/// One call of a state store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateCall {
    /// [`StateStore::get`](crate::StateStore::get).
    Get {
        /// The id that the state belongs to.
        id: PersistenceId,
    },
    /// [`StateStore::upsert`](crate::StateStore::upsert).
    Upsert {
        /// Key, revision and writer of the write.
        write: StateWrite,
        /// The new state.
        value: EncodedValue,
        /// Tag by which change queries find the state.
        tag: Option<String>,
    },
    /// [`StateStore::delete`](crate::StateStore::delete).
    Delete {
        /// Key, revision and writer of the deletion.
        write: StateWrite,
    },
}

impl EntityCall for StateCall {}

/// A state store's answer to a [`StateCall`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateAnswer {
    /// To [`StateCall::Get`].
    Loaded(Result<StoredState, ReadError>),
    /// To [`StateCall::Upsert`] and [`StateCall::Delete`].
    Written(Result<(), StateWriteError>),
}

/// The phase of an entity with a durable state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatePhase {
    /// Waits for one of the node's recovery permits.
    AwaitingPermit,
    /// Waits for its state.
    Loading,
    /// Handles commands.
    Running,
    /// Waits for the outcome of a write.
    Persisting,
    /// Waits before it recovers again.
    BackingOff,
    /// Waits for the host's verdict after a failure.
    Failed,
    /// Has ended.
    Stopped,
}

/// A read of the state, which the entity begins with.
pub(crate) struct Loading {
    began: Instant,
    deadline: Instant,
}

/// The state and revision that a behaviour is shown at the end of an incarnation.
pub(crate) struct Last<S> {
    state: S,
    revision: Revision,
}

impl<S: Default> Default for Last<S> {
    fn default() -> Self {
        Self { state: S::default(), revision: Revision::NONE }
    }
}

/// A write under way, and the effects that follow it.
pub(crate) struct PendingWrite<S> {
    revision: Revision,
    state: S,
    chain: Chain<S>,
}

type Out<B> = Vec<Action<<B as DurableState>::Command, StateCall>>;

/// The machine of one entity with a durable state.
pub struct StateEntityCore<B: DurableState> {
    behavior: B,
    id: PersistenceId,
    settings: DurableStateSettings,
    codec: StoredCodec<B::State>,
    host: Option<SharedHost>,
    caps: StateCaps,
    phases: Phases<Loading, Box<PendingWrite<B::State>>>,
    fence: RevisionFence,
    state: B::State,
    revision: Revision,
    ownership: OwnershipProof<B::State>,
    mailbox: Mailbox<B::Command>,
}

impl<B: DurableState> StateEntityCore<B> {
    /// Starts an entity: its first action is [`Action::RequestPermit`].
    ///
    /// # Errors
    /// [`SettingsError`] if the settings of the behaviour cannot work.
    pub fn start(
        entity: Persisted<B, StateCodec<B>>,
        init: StateEntityInit,
        now: Instant,
        out: &mut Vec<Action<B::Command, StateCall>>,
    ) -> Result<Self, SettingsError> {
        let Persisted { behavior, id, codecs: StateCodec(codec) } = entity;
        let settings = behavior.settings(&init.settings);
        settings.validate()?;
        let mut core = Self {
            behavior,
            id,
            codec,
            host: init.host,
            caps: init.caps,
            phases: Phases::new(init.start, init.seed, settings.on_failure),
            mailbox: Mailbox::new(settings.stash_capacity, settings.stash_overflow, settings.unstash_budget, now),
            settings,
            fence: RevisionFence::new(init.generation),
            state: B::State::default(),
            revision: Revision::NONE,
            ownership: OwnershipProof::default(),
        };
        core.begin_incarnation(out);
        Ok(core)
    }

    /// Takes one input.
    pub fn handle(
        &mut self,
        now: Instant,
        input: Input<B::Command, StateAnswer>,
        out: &mut Vec<Action<B::Command, StateCall>>,
    ) {
        self.mailbox.begin_turn(now);
        self.on_input(now, input, out);
        self.mailbox.end_turn(now, self.phases.is_running());
        self.check_invariants();
    }

    /// Source: persistence §2.6, §10.5.
    fn check_invariants(&self) {
        self.fence.check_invariants(self.revision);
        let (runs, writes) = (self.phases.is_running(), self.phases.is_writing());
        self.ownership.check_invariants(runs, runs || writes);
        let is_overlooked = runs && self.mailbox.stop_is_overlooked();
        debug_assert!(
            !is_overlooked || self.ownership.awaits_check(),
            "a stop that is due is carried out in this turn or the next"
        );
        if let EntityPhase::Writing(write) = self.phases.phase() {
            debug_assert!(write.revision > self.revision, "a write continues the revisions");
        }
    }

    /// When a [`Input::Tick`] next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let timer = self.mailbox.timers_due_at().filter(|_| self.phases.is_running());
        self.work_deadline().into_iter().chain(timer).min()
    }

    /// As [`StateEntityCore::next_deadline`], without timers, which may go on for ever.
    fn work_deadline(&self) -> Option<Instant> {
        let recovery = self.phases.recovery().map(|loading| loading.deadline);
        let work = [self.phases.back_off_until(), recovery, self.mailbox.drain_at(), self.ownership.retry_at()];
        work.into_iter().flatten().min()
    }

    /// Takes the work that [`Action::Work`] asks for; `None` the second time.
    pub fn take_work(&mut self, no: WorkNo) -> Option<Work<B::Command>> {
        self.mailbox.take_work(no)
    }

    /// Gives a failed entity a new behaviour and starts it anew; commands that wait are kept.
    pub fn restart(&mut self, _now: Instant, behavior: B, out: &mut Vec<Action<B::Command, StateCall>>) {
        self.signal_end(End::Restart, Last::default(), out);
        self.behavior = behavior;
        self.begin_incarnation(out);
    }

    /// Takes the waiting commands, oldest first; see [`EntityCore::take_waiting`](crate::EntityCore::take_waiting).
    pub fn take_waiting(&mut self) -> Vec<B::Command> {
        self.mailbox.take_all()
    }

    /// Ends this machine so that the host can start another in its place; see
    /// [`EntityCore::stop_for_restart`](crate::EntityCore::stop_for_restart).
    pub fn stop_for_restart(&mut self, out: &mut Vec<Action<B::Command, StateCall>>) -> Vec<B::Command> {
        self.end_for_restart(out)
    }

    /// The id of the state.
    pub fn persistence_id(&self) -> &PersistenceId {
        &self.id
    }

    /// The entity's phase.
    pub fn phase(&self) -> StatePhase {
        match self.phases.phase() {
            EntityPhase::AwaitingPermit => StatePhase::AwaitingPermit,
            EntityPhase::Recovering(_) => StatePhase::Loading,
            EntityPhase::Running => StatePhase::Running,
            EntityPhase::Writing(_) => StatePhase::Persisting,
            EntityPhase::BackingOff { .. } => StatePhase::BackingOff,
            EntityPhase::Failed => StatePhase::Failed,
            EntityPhase::Stopped => StatePhase::Stopped,
        }
    }

    /// The state, while it is known; always a durable state.
    pub fn state(&self) -> Option<&B::State> {
        (self.phases.is_running() || self.phases.is_writing()).then_some(&self.state)
    }

    /// The revision of the state, as far as it is known to be stored.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The incarnation that runs now.
    pub fn incarnation(&self) -> Incarnation {
        self.phases.incarnation()
    }

    /// Whether no command waits to be handled; commands put aside do not count.
    pub fn is_idle(&self) -> bool {
        self.mailbox.is_idle()
    }

    /// How many commands wait, put aside or not yet handled.
    pub fn waiting_count(&self) -> usize {
        self.mailbox.waiting_count()
    }

    // ---- Recovery -------------------------------------------------------------------------------

    fn on_loaded(&mut self, now: Instant, loaded: Result<StoredState, ReadError>, out: &mut Out<B>) {
        let Some(began) = self.phases.recovery().map(|loading| loading.began) else {
            return self.on_check(now, loaded, out);
        };
        let row = match loaded {
            Ok(row) => row,
            Err(error) => return self.recovery_failed(now, RecoveryFailure::Read(error), out),
        };
        if self.fence.is_superseded(&row) {
            return self.become_fenced(FencedBy::Revision(row.head()), out);
        }
        let seq_nr = seq_nr(row.revision);
        let state = match row.value.map(|value| guard(|| self.codec.decode_one(value))) {
            None => B::State::default(),
            Some(Ok(Ok(state))) => state,
            Some(Ok(Err(error))) => {
                let unreadable = UnreadableRecord { id: self.id.clone(), seq_nr, error };
                return self.recovery_failed(now, RecoveryFailure::Unreadable(unreadable), out);
            }
            Some(Err(message)) => {
                let failure = RecoveryFailure::Panicked { handler: "state codec", seq_nr, message };
                return self.recovery_failed(now, failure, out);
            }
        };
        self.state = state;
        self.set_revision(row.revision);
        if let Err(message) = self.try_signal(&StateSignal::RecoveryCompleted, out) {
            let failure = RecoveryFailure::Panicked { handler: "on_signal", seq_nr, message };
            return self.recovery_failed(now, failure, out);
        }
        self.phases.on_recovered(out);
        let (incarnation, took) = (self.phases.incarnation(), now.saturating_duration_since(began));
        out.push(Action::Recovered { incarnation, replayed: 0, skipped: 0, took });
        self.drain(now, out);
    }

    fn set_revision(&mut self, revision: Revision) {
        self.revision = revision;
        self.fence.on_stored(revision);
    }

    fn recovery_failed(&mut self, now: Instant, failure: RecoveryFailure, out: &mut Out<B>) {
        self.state = B::State::default();
        self.signal(StateSignal::RecoveryFailed(failure.clone()), out);
        self.restart_or_fail(now, Failure::Recovery(failure), out);
    }

    // ---- Handlers -------------------------------------------------------------------------------

    /// `begins`: whether the incarnation goes on; only then are timers, work and messages to itself begun.
    fn with_context<R>(
        &mut self,
        begins: bool,
        out: &mut Out<B>,
        handler: impl FnOnce(&mut B, &mut Ctx<'_, B::Command>, &B::State) -> R,
    ) -> Result<R, String> {
        let stashed = self.mailbox.aside_count();
        let kind = PersistenceKind::State { revision: self.revision };
        let facts = PersistentFacts { id: &self.id, kind, stashed, read_only: false };
        let mut cx = Ctx { facts: Some(facts), ..Ctx::new(self.mailbox.now(), self.host.as_deref()) };
        let (behavior, state) = (&mut self.behavior, &self.state);
        let answer = guard(|| handler(behavior, &mut cx, state));
        let (requests, host_requests) = cx.into_requests();
        if answer.is_ok() && begins {
            self.mailbox.carry_out(self.phases.incarnation(), requests, out);
            out.extend(Action::of_host_requests(host_requests));
        }
        answer
    }

    /// Delivers a signal to the behaviour; the caller decides what a panic of its handler means.
    fn try_signal(&mut self, signal: &StateSignal, out: &mut Out<B>) -> Result<(), String> {
        self.deliver_signal(true, signal, out)
    }

    fn deliver_signal(&mut self, begins: bool, signal: &StateSignal, out: &mut Out<B>) -> Result<(), String> {
        let (revision, incarnation) = (self.revision, self.phases.incarnation());
        if signal.is_failure() {
            tracing::warn!(id = %self.id, %revision, %incarnation, ?signal, "entity signal");
        } else {
            tracing::debug!(id = %self.id, %revision, %incarnation, ?signal, "entity signal");
        }
        self.with_context(begins, out, |behavior, cx, state| behavior.on_signal(cx, state, signal))
    }

    /// Delivers a signal to the behaviour while the entity ends or starts anew: a panic of its handler is logged and
    /// swallowed, and timers, work and messages that the handler asks for are not begun.
    fn signal(&mut self, signal: StateSignal, out: &mut Out<B>) {
        if let Err(message) = self.deliver_signal(false, &signal, out) {
            tracing::warn!(id = %self.id, message, "signal handler panicked");
        }
    }

    // ---- Writes ---------------------------------------------------------------------------------

    /// Stores a new state, or deletes the present one. The old state stands until the answer.
    fn persist(&mut self, state: Option<B::State>, chain: Chain<B::State>, out: &mut Out<B>) {
        let Some(revision) = self.revision.next() else {
            return self.withhold(StateRejectReason::RevisionOverflow, chain, out);
        };
        let write = self.fence.write(self.id.clone(), revision);
        let (call, state) = match state {
            None => (StateCall::Delete { write }, B::State::default()),
            Some(state) => match guard(|| self.encode(&write, &state)) {
                Ok(Ok((value, tag))) => (StateCall::Upsert { write, value, tag }, state),
                Ok(Err(reason)) => return self.withhold(reason, chain, out),
                Err(message) => {
                    let failure = Failure::Handler { handler: "state codec", message };
                    chain.refuse(EntityError::Failed(failure.to_string()));
                    return self.fail(failure, out);
                }
            },
        };
        self.fence.on_sent();
        self.phases.begin_write(Box::new(PendingWrite { revision, state, chain }));
        self.call(call, out);
    }

    fn encode(
        &self,
        write: &StateWrite,
        state: &B::State,
    ) -> Result<(EncodedValue, Option<String>), StateRejectReason> {
        let value = self.codec.encode(state).map_err(|error| StateRejectReason::Other(error.to_string()))?;
        let tag = self.behavior.tag(state);
        write.check(Some(&value), tag.as_deref(), &self.caps)?;
        Ok((value, tag))
    }

    /// Refuses a state that cannot be stored.
    fn withhold(&mut self, reason: StateRejectReason, chain: Chain<B::State>, out: &mut Out<B>) {
        out.push(Action::Withheld(Withheld::Write));
        self.on_rejected(reason, chain, out);
    }

    /// Nothing is stored, and the state is untouched: the entity goes on.
    fn on_rejected(&mut self, reason: StateRejectReason, chain: Chain<B::State>, out: &mut Out<B>) {
        chain.refuse(EntityError::NotStored(NotStoredReason::Rejected(reason.to_string())));
        if let Err(message) = self.try_signal(&StateSignal::PersistRejected(reason), out) {
            self.fail(Failure::Handler { handler: "on_signal", message }, out);
        }
    }

    fn on_written(&mut self, now: Instant, written: Result<(), StateWriteError>, out: &mut Out<B>) {
        let Some(write) = self.phases.end_write() else { return };
        let PendingWrite { revision, state, chain } = *write;
        match written {
            Ok(()) => {
                self.state = state;
                self.set_revision(revision);
                self.phases.note_stored();
                // No command was handled while the write was under way, so it came after every held chain and proves
                // them all. A stop that one of them asks for waits for the write's own chain: its state is stored.
                if let Err(error) = self.run_owned(u64::MAX, out) {
                    return chain.refuse(error);
                }
                if self.run_chain(chain, out).is_err() {
                    return;
                }
                if self.mailbox.stops_after_chain() {
                    return self.stop_now(out);
                }
            }
            Err(StateWriteError::Rejected(reason)) => {
                self.on_rejected(reason, chain, out);
                if self.phases.is_running() {
                    self.prove_held(out);
                }
            }
            Err(error) => return self.on_write_failed(now, error, chain, out),
        }
        self.drain(now, out);
    }

    fn on_write_failed(&mut self, now: Instant, error: StateWriteError, chain: Chain<B::State>, out: &mut Out<B>) {
        match &error {
            StateWriteError::RevisionMismatch { current } => {
                chain.refuse(fenced());
                if self.fence.owner_after_refusal(current) != Owner::Own {
                    return self.become_fenced(FencedBy::Revision(*current), out);
                }
                // A late duplicate of our own write: there is no other writer, so recover again.
                return self.restart_at_once(now, Failure::Write(error), out);
            }
            StateWriteError::NotStored(failure) => {
                chain.refuse(EntityError::NotStored(NotStoredReason::Unavailable(failure.to_string())));
            }
            StateWriteError::Unknown(_) | StateWriteError::Rejected(_) => chain.refuse(EntityError::OutcomeUnknown),
        }
        self.state = B::State::default();
        self.signal(StateSignal::PersistFailed(error.clone()), out);
        self.restart_or_fail(now, Failure::Write(error), out);
    }

    fn call(&self, call: StateCall, out: &mut Out<B>) {
        out.push(Action::Store { incarnation: self.phases.incarnation(), call });
    }

    // ---- Proof of ownership ---------------------------------------------------------------------

    /// Holds a chain until a read of the store, or a write, proves that the state was still the newest
    /// when its command was handled.
    fn hold_until_owned(&mut self, chain: Chain<B::State>, out: &mut Out<B>) {
        self.ownership.hold(chain);
        self.prove_held(out);
    }

    fn prove_held(&mut self, out: &mut Out<B>) {
        if self.ownership.begin_check() {
            self.call(StateCall::Get { id: self.id.clone() }, out);
        }
    }

    fn on_check(&mut self, now: Instant, row: Result<StoredState, ReadError>, out: &mut Out<B>) {
        let Some(through) = self.ownership.end_check() else { return };
        if !self.phases.is_running() {
            // The write under way proves at least as much.
            return;
        }
        let head = match row {
            Ok(row) => row.head(),
            Err(_) => {
                self.ownership.retry_later(now);
                return self.stop_if_asked(out);
            }
        };
        match self.fence.owner_of(&head, self.revision) {
            Owner::Current => {
                if self.run_owned(through, out).is_err() {
                    return;
                }
                // Stop before the next check: its chains are refused in any case.
                if self.mailbox.stops_after_chain() {
                    return self.stop_now(out);
                }
                self.prove_held(out);
                self.drain(now, out);
            }
            // A late duplicate of our own write: there is no other writer, so recover again.
            Owner::Own => {
                let failure = Failure::Write(StateWriteError::RevisionMismatch { current: head });
                self.restart_at_once(now, failure, out);
            }
            Owner::Other => self.become_fenced(FencedBy::Revision(head), out),
        }
    }

    fn retry_check(&mut self, now: Instant, out: &mut Out<B>) {
        if self.ownership.retry_is_due(now) && self.phases.is_running() {
            self.prove_held(out);
        }
    }
}

impl<B: DurableState> Lifecycle for StateEntityCore<B> {
    type State = B::State;
    type Recovery = Loading;
    type Write = Box<PendingWrite<B::State>>;
    type Last = Last<B::State>;

    fn phases(&mut self) -> &mut Phases<Self::Recovery, Self::Write> {
        &mut self.phases
    }

    fn mailbox(&mut self) -> &mut Mailbox<B::Command> {
        &mut self.mailbox
    }

    fn ownership(&mut self) -> &mut OwnershipProof<B::State> {
        &mut self.ownership
    }

    fn begin_incarnation(&mut self, out: &mut Out<B>) {
        self.fence.begin(self.phases.begin(out));
        self.state = B::State::default();
        self.revision = Revision::NONE;
    }

    fn begin_recovery(&mut self, now: Instant, out: &mut Out<B>) {
        self.phases.begin_recovery(Loading { began: now, deadline: now + self.settings.recovery_timeout });
        self.call(StateCall::Get { id: self.id.clone() }, out);
    }

    fn on_answer(&mut self, now: Instant, answer: StateAnswer, out: &mut Out<B>) {
        match answer {
            StateAnswer::Loaded(loaded) => self.on_loaded(now, loaded, out),
            StateAnswer::Written(written) => self.on_written(now, written, out),
        }
    }

    fn on_deadlines(&mut self, now: Instant, out: &mut Out<B>) {
        if self.phases.recovery().is_some_and(|loading| loading.deadline <= now) {
            self.recovery_failed(now, RecoveryFailure::Timeout(RecoveryStep::State), out);
        }
        self.retry_check(now, out);
    }

    fn process(&mut self, _now: Instant, command: B::Command, out: &mut Out<B>) {
        let effect = self.with_context(true, out, |behavior, cx, state| behavior.on_command(cx, state, command));
        let effect = match effect {
            Ok(effect) => effect,
            Err(message) => return self.fail(Failure::Handler { handler: "on_command", message }, out),
        };
        match effect.primary {
            Primary::Persist(state) => return self.persist(Some(state), effect.chain, out),
            Primary::Delete => return self.persist(None, effect.chain, out),
            Primary::Stash(command) => {
                // If the entity does not run on, its state is lost: it failed, or stopped because a stop was requested
                // before.
                if !self.put_aside(command, out) {
                    return effect.chain.refuse(EntityError::Failed(Failure::StashFull.to_string()));
                }
            }
            Primary::Unhandled => out.push(Action::Unhandled),
            Primary::None => {}
        }
        if effect.when_owned {
            return self.hold_until_owned(effect.chain, out);
        }
        if self.run_chain(effect.chain, out).is_ok() && self.mailbox.stops_after_chain() {
            self.stop_now(out);
        }
    }

    fn run_chain(&mut self, chain: Chain<B::State>, out: &mut Out<B>) -> Result<(), EntityError> {
        let number = self.revision.as_u64();
        self.mailbox.run_chain(chain, &self.state, number, out).map_err(|failure| self.fail_for(failure, out))
    }

    fn chain_of(write: Box<PendingWrite<B::State>>) -> Chain<B::State> {
        write.chain
    }

    fn take_last(&mut self) -> Last<B::State> {
        if self.phases.is_running() {
            Last { state: std::mem::take(&mut self.state), revision: self.revision }
        } else {
            Last::default()
        }
    }

    fn end_incarnation(&mut self) {
        self.state = B::State::default();
    }

    fn signal_end(&mut self, end: End, last: Last<B::State>, out: &mut Out<B>) {
        self.state = last.state;
        let known = std::mem::replace(&mut self.revision, last.revision);
        let signal = match end {
            End::Restart => StateSignal::PreRestart,
            End::Stop => StateSignal::PostStop,
        };
        self.signal(signal, out);
        self.state = B::State::default();
        self.revision = known;
    }

    fn end_fenced(&mut self, out: &mut Out<B>) {
        self.end_phase(EndAnswers::fenced(), out);
        self.phases.stop();
        self.signal(StateSignal::Fenced, out);
    }
}

impl<B: DurableState> Machine for StateEntityCore<B> {
    type Command = B::Command;
    type Call = StateCall;
    type Answer = StateAnswer;

    fn handle(&mut self, now: Instant, input: Input<B::Command, StateAnswer>, out: &mut Out<B>) {
        self.handle(now, input, out);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.next_deadline()
    }

    fn work_deadline(&self) -> Option<Instant> {
        self.work_deadline()
    }

    fn take_work(&mut self, no: WorkNo) -> Option<Work<B::Command>> {
        self.take_work(no)
    }

    fn take_waiting(&mut self) -> Vec<B::Command> {
        self.take_waiting()
    }

    fn waiting_count(&self) -> usize {
        self.waiting_count()
    }

    fn persistence_id(&self) -> &PersistenceId {
        self.persistence_id()
    }
}

/// A revision as a sequence number, for errors that name a number of a history.
fn seq_nr(revision: Revision) -> SeqNr {
    SeqNr::saturating(revision.as_u64())
}

fn fenced() -> EntityError {
    EntityError::NotStored(NotStoredReason::Fenced)
}
