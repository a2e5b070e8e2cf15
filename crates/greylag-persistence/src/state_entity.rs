//! One entity with a durable state as a pure machine: read the state, then commands.
//!
//! ```text
//! AwaitingPermit -> Loading -> Running <-> Persisting
//!        ^    (a failure of either)            |
//!        +---------- BackingOff <--------------+
//! ```
//! There is no claim: the revision is the fence. A write names the revision that it makes, so if another
//! writer wrote since this entity read, this entity's write is a mismatch and the entity ends as fenced.
//! Handlers see a new state only after it is stored, so a refused write leaves nothing to repair.
//!
//! Stash, failures and side effects are those of [`EntityCore`](crate::EntityCore), in the same parts.
//! Source: persistence §3.

mod lifecycle;
mod ownership;

use std::collections::BTreeSet;
use std::time::Instant;

use greylag_core::{DeadLetterReason, EntityError, Generation, NotStoredReason, answer_dropped};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::background_work::{BackgroundWork, Work, WorkNo};
use crate::behavior::{Failure, FencedBy, RecoveryFailure, RecoveryStep};
use crate::codec::{EncodedValue, StoredCodec, UnreadableRecord};
use crate::ctx::SharedHost;
use crate::durable_state::{DurableState, DurableStateSettings, StateSignal};
use crate::effect::{Chain, ChainRequest, guard};
use crate::entity::end_answers::EndAnswers;
use crate::entity::machine::Machine;
use crate::entity::restarts::Restarts;
use crate::entity::stash::{Stash, Waiting};
use crate::entity::{Action, EntityCall, Incarnation, Input, Withheld, dead_letter};
use crate::error::{ReadError, StateRejectReason, StateWriteError};
use crate::event::{SeqNr, WriterUuid};
use crate::ownership_proof::OwnershipProof;
use crate::persisted::{Persisted, StateCodec};
use crate::persistence_id::PersistenceId;
use crate::settings::{SettingsError, StashOverflow};
use crate::state::{Revision, StateCaps, StateWrite, StoredState};
use crate::state_effect::Primary;

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

enum Phase<S> {
    AwaitingPermit,
    Loading { began: Instant, deadline: Instant },
    Running,
    Persisting(Box<PendingWrite<S>>),
    BackingOff { until: Instant },
    Failed,
    Stopped,
}

/// The state and revision that a behaviour is shown at the end of an incarnation.
struct FinalState<S> {
    state: S,
    revision: Revision,
}

impl<S: Default> FinalState<S> {
    fn none() -> Self {
        Self { state: S::default(), revision: Revision::NONE }
    }
}

/// A write under way, and the effects that follow it.
struct PendingWrite<S> {
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
    generation: Option<Generation>,
    caps: StateCaps,
    rng: ChaCha8Rng,

    incarnation: Incarnation,
    writer_uuid: WriterUuid,
    /// The writer uuids of all incarnations of this machine that sent a write.
    own_writers: BTreeSet<WriterUuid>,
    /// The greatest revision that any incarnation of this machine knew to be stored.
    known: Option<Revision>,

    phase: Phase<B::State>,
    state: B::State,
    revision: Revision,
    ownership: OwnershipProof<B::State>,

    stash: Stash<B::Command>,
    /// Set while stashed commands wait only for the entity's next turn, after `unstash_budget` ran out.
    drain_at: Option<Instant>,
    stop_requested: bool,
    /// Set by `then_stop` while its chain runs.
    stop_after_chain: bool,
    restarts: Restarts,
    background: BackgroundWork<B::Command>,
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
        settings.check()?;
        let mut core = Self {
            id,
            codec,
            host: init.host,
            behavior,
            stash: Stash::new(settings.stash_capacity),
            settings,
            generation: init.generation,
            caps: init.caps,
            rng: ChaCha8Rng::from_seed(init.seed),
            incarnation: Incarnation { start: init.start, restart: 0 },
            writer_uuid: WriterUuid::NONE,
            own_writers: BTreeSet::new(),
            known: None,
            phase: Phase::AwaitingPermit,
            state: B::State::default(),
            revision: Revision::NONE,
            ownership: OwnershipProof::default(),
            drain_at: None,
            stop_requested: false,
            stop_after_chain: false,
            restarts: Restarts::default(),
            background: BackgroundWork::new(now),
        };
        core.begin_incarnation(now, out);
        Ok(core)
    }

    /// Takes one input.
    pub fn handle(
        &mut self,
        now: Instant,
        input: Input<B::Command, StateAnswer>,
        out: &mut Vec<Action<B::Command, StateCall>>,
    ) {
        self.background.observe(now);
        match input {
            Input::Command(command) => self.on_new_command(now, command, out),
            Input::PermitGranted(incarnation) => self.on_permit(now, incarnation, out),
            Input::Answer { incarnation, answer } if incarnation == self.incarnation => match answer {
                StateAnswer::Loaded(loaded) => self.on_loaded(now, loaded, out),
                StateAnswer::Written(written) => self.on_written(now, written, out),
            },
            // A restarted entity must not consume its predecessor's answers.
            Input::Answer { .. } => {}
            Input::Worked { incarnation, work, command } if incarnation == self.incarnation => {
                self.on_worked(now, work, command, out);
            }
            // A previous incarnation began this work, and its outcome is unknown.
            Input::Worked { command, .. } => answer_dropped(EntityError::OutcomeUnknown, || drop(command)),
            Input::Tick => self.on_tick(now, out),
            Input::StoreBack => self.on_store_back(now, out),
            Input::Stop => self.on_stop(now, out),
            Input::StopNow => self.stop_now(out),
        }
        self.background.takes_commands(now, matches!(self.phase, Phase::Running));
        self.check_invariants();
    }

    /// When a [`Input::Tick`] next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let timer = self.background.next_deadline().filter(|_| matches!(self.phase, Phase::Running));
        self.work_deadline().into_iter().chain(timer).min()
    }

    /// As [`StateEntityCore::next_deadline`], without timers, which may go on for ever.
    fn work_deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::BackingOff { until } => Some(until),
            Phase::Loading { deadline, .. } => Some(deadline),
            _ => self.drain_at.into_iter().chain(self.ownership.retry_at()).min(),
        }
    }

    /// Takes the work that [`Action::Work`] asks for; `None` the second time.
    pub fn take_work(&mut self, no: WorkNo) -> Option<Work<B::Command>> {
        self.background.take_work(no)
    }

    /// Gives a failed entity a new behaviour and starts it anew; commands that wait are kept.
    pub fn restart(&mut self, now: Instant, behavior: B, out: &mut Vec<Action<B::Command, StateCall>>) {
        self.signal_end(StateSignal::PreRestart, FinalState::none(), out);
        self.behavior = behavior;
        self.begin_incarnation(now, out);
    }

    /// Takes the waiting commands, oldest first; see [`EntityCore::take_waiting`](crate::EntityCore::take_waiting).
    pub fn take_waiting(&mut self) -> Vec<B::Command> {
        self.stash.take_all()
    }

    /// Ends this machine so that the host can start another in its place; see
    /// [`EntityCore::stop_for_restart`](crate::EntityCore::stop_for_restart).
    pub fn stop_for_restart(&mut self, out: &mut Vec<Action<B::Command, StateCall>>) -> Vec<B::Command> {
        let last = self.final_state();
        self.end_phase(EndAnswers::stopped(), out);
        self.phase = Phase::Stopped;
        self.signal_end(StateSignal::PreRestart, last, out);
        self.take_waiting()
    }

    /// The id of the state.
    pub fn persistence_id(&self) -> &PersistenceId {
        &self.id
    }

    /// The entity's phase.
    pub fn phase(&self) -> StatePhase {
        match self.phase {
            Phase::AwaitingPermit => StatePhase::AwaitingPermit,
            Phase::Loading { .. } => StatePhase::Loading,
            Phase::Running => StatePhase::Running,
            Phase::Persisting(_) => StatePhase::Persisting,
            Phase::BackingOff { .. } => StatePhase::BackingOff,
            Phase::Failed => StatePhase::Failed,
            Phase::Stopped => StatePhase::Stopped,
        }
    }

    /// The state, while it is known; always a durable state.
    pub fn state(&self) -> Option<&B::State> {
        matches!(self.phase, Phase::Running | Phase::Persisting(_)).then_some(&self.state)
    }

    /// The revision of the state, as far as it is known to be stored.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The incarnation that runs now.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Whether no command waits to be handled; commands put aside do not count.
    pub fn is_idle(&self) -> bool {
        self.stash.is_idle()
    }

    /// How many commands wait, put aside or not yet handled.
    pub fn waiting_count(&self) -> usize {
        self.stash.len()
    }

    // ---- Recovery -------------------------------------------------------------------------------

    /// Begins an incarnation: a new writer uuid, no state, the stashes unchanged.
    fn begin_incarnation(&mut self, _now: Instant, out: &mut Out<B>) {
        self.incarnation = Incarnation { restart: self.incarnation.restart + 1, ..self.incarnation };
        self.writer_uuid = WriterUuid::from_u128(self.rng.random::<u128>());
        self.state = B::State::default();
        self.revision = Revision::NONE;
        self.phase = Phase::AwaitingPermit;
        out.push(Action::RequestPermit(self.incarnation));
    }

    fn on_permit(&mut self, now: Instant, granted: Incarnation, out: &mut Out<B>) {
        if granted != self.incarnation || !matches!(self.phase, Phase::AwaitingPermit) {
            // Return a permit that this incarnation no longer waits for, so that it does not leak.
            return out.push(Action::ReturnPermit(granted));
        }
        self.phase = Phase::Loading { began: now, deadline: now + self.settings.recovery_timeout };
        self.call(StateCall::Get { id: self.id.clone() }, out);
    }

    fn on_loaded(&mut self, now: Instant, loaded: Result<StoredState, ReadError>, out: &mut Out<B>) {
        let Phase::Loading { began, .. } = self.phase else { return self.on_check(now, loaded, out) };
        let row = match loaded {
            Ok(row) => row,
            Err(error) => return self.recovery_failed(now, RecoveryFailure::Read(error), out),
        };
        if self.is_superseded(&row) {
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
        self.phase = Phase::Running;
        out.push(Action::ReturnPermit(self.incarnation));
        let (incarnation, took) = (self.incarnation, now.saturating_duration_since(began));
        out.push(Action::Recovered { incarnation, replayed: 0, skipped: 0, took });
        self.drain(now, out);
    }

    /// Whether another writer owns this state now. With a generation, the stored generation decides. Without one,
    /// a first start accepts any row; a restarted machine that finds another writer's later write must not
    /// write over it, which would fence that rightful successor.
    fn is_superseded(&self, row: &StoredState) -> bool {
        match (self.generation, self.known) {
            (Some(_), _) => row.generation > self.generation,
            (None, Some(known)) => row.revision > known && !self.own_writers.contains(&row.writer_uuid),
            (None, None) => false,
        }
    }

    fn set_revision(&mut self, revision: Revision) {
        self.revision = revision;
        self.known = self.known.max(Some(revision));
    }

    fn recovery_failed(&mut self, now: Instant, failure: RecoveryFailure, out: &mut Out<B>) {
        self.state = B::State::default();
        self.signal(StateSignal::RecoveryFailed(failure.clone()), out);
        self.restart_or_fail(now, Failure::Recovery(failure), out);
    }

    fn on_tick(&mut self, now: Instant, out: &mut Out<B>) {
        match self.phase {
            Phase::BackingOff { until } if until <= now => self.restart_now(now, out),
            Phase::Loading { deadline, .. } if deadline <= now => {
                self.recovery_failed(now, RecoveryFailure::Timeout(RecoveryStep::State), out);
            }
            _ => {}
        }
        self.retry_check(now, out);
        let mut has_work = self.drain_at.is_some_and(|at| at <= now);
        if matches!(self.phase, Phase::Running) {
            for timer in self.background.due(now) {
                self.stash.push_own(Waiting::Timer(timer));
                has_work = true;
            }
            if let Some(timeout) = self.background.receive_timeout_due(now) {
                self.stash.push_own(Waiting::ReceiveTimeout(timeout));
                has_work = true;
            }
        }
        if has_work {
            self.drain(now, out);
        }
    }

    /// Queues the result of work behind the waiting commands.
    fn on_worked(&mut self, now: Instant, work: WorkNo, command: Option<B::Command>, out: &mut Out<B>) {
        let Some(command) = self.background.finish(work, command) else { return };
        if self.stop_requested {
            return out.push(dead_letter(command, DeadLetterReason::EntityStopped, EntityError::Stopped));
        }
        self.stash.push_own(Waiting::Own(command));
        self.drain(now, out);
    }

    // ---- Commands -------------------------------------------------------------------------------

    fn on_new_command(&mut self, now: Instant, command: B::Command, out: &mut Out<B>) {
        if self.stop_requested || matches!(self.phase, Phase::Stopped) {
            return out.push(dead_letter(command, DeadLetterReason::EntityStopped, EntityError::Stopped));
        }
        // Queue behind earlier commands; `drain` takes the new command at once if there are none.
        match self.stash.push(command) {
            Ok(()) => self.drain(now, out),
            Err(command) => self.on_stash_overflow(command, out),
        }
    }

    fn on_stash_overflow(&mut self, command: B::Command, out: &mut Out<B>) {
        out.push(dead_letter(command, DeadLetterReason::StashFull, EntityError::StashFull));
        if self.settings.stash_overflow == StashOverflow::Fail {
            self.fail(Failure::StashFull, out);
        }
    }

    /// Handles waiting commands while the entity runs. A loop, not a recursion; pauses after
    /// `unstash_budget` commands.
    fn drain(&mut self, now: Instant, out: &mut Out<B>) {
        self.drain_at = None;
        for _ in 0..self.settings.unstash_budget.get() {
            if !matches!(self.phase, Phase::Running) {
                return;
            }
            let Some(waiting) = self.stash.next() else { return self.stop_if_asked(out) };
            // The closure that makes the command of a repeating timer or a receive timeout is user code.
            let command = match waiting {
                Waiting::Command(command) => {
                    self.background.restart_receive_timeout(now);
                    Ok(Some(command))
                }
                Waiting::Own(command) => Ok(Some(command)),
                Waiting::Timer(timer) => guard(|| self.background.fire(now, timer)),
                Waiting::ReceiveTimeout(timeout) => guard(|| self.background.fire_receive_timeout(now, timeout)),
            };
            let command = match command {
                Ok(command) => command,
                Err(message) => return self.fail(Failure::Handler { handler: "timer", message }, out),
            };
            if let Some(command) = command {
                self.process(command, out);
            }
        }
        if matches!(self.phase, Phase::Running) {
            self.drain_at = Some(now);
        }
    }

    fn process(&mut self, command: B::Command, out: &mut Out<B>) {
        let effect = self.with_context(true, out, |behavior, cx, state| behavior.on_command(cx, state, command));
        let effect = match effect {
            Ok(effect) => effect,
            Err(message) => return self.fail(Failure::Handler { handler: "on_command", message }, out),
        };
        match effect.primary {
            Primary::Persist(state) => return self.persist(Some(state), effect.chain, out),
            Primary::Delete => return self.persist(None, effect.chain, out),
            Primary::Stash(command) => {
                if let Err(command) = self.stash.put_aside(command) {
                    self.on_stash_overflow(command, out);
                    // `fail` took the state: the entity failed, or stopped because a stop was requested before.
                    if !matches!(self.phase, Phase::Running) {
                        return effect.chain.refuse(EntityError::Failed(Failure::StashFull.to_string()));
                    }
                }
            }
            Primary::Unhandled => out.push(Action::Unhandled),
            Primary::None => {}
        }
        if effect.when_owned {
            return self.hold_until_owned(effect.chain, out);
        }
        if self.run_chain(effect.chain, out).is_ok() && self.stop_after_chain {
            self.stop_now(out);
        }
    }

    // ---- Writes ---------------------------------------------------------------------------------

    /// Stores a new state, or deletes the present one. The old state stands until the answer.
    fn persist(&mut self, state: Option<B::State>, chain: Chain<B::State>, out: &mut Out<B>) {
        let Some(revision) = self.revision.next() else {
            return self.withhold(StateRejectReason::RevisionOverflow, chain, out);
        };
        let (id, generation, writer_uuid) = (self.id.clone(), self.generation, self.writer_uuid);
        let write = StateWrite { id, revision, generation, writer_uuid };
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
        self.own_writers.insert(writer_uuid);
        self.phase = Phase::Persisting(Box::new(PendingWrite { revision, state, chain }));
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
        let PendingWrite { revision, state, chain } = match std::mem::replace(&mut self.phase, Phase::Running) {
            Phase::Persisting(pending) => *pending,
            other => {
                self.phase = other;
                return;
            }
        };
        match written {
            Ok(()) => {
                self.state = state;
                self.set_revision(revision);
                self.restarts.note_stored();
                if let Err(error) = self.run_owned(u64::MAX, out) {
                    return chain.refuse(error);
                }
                if self.run_chain(chain, out).is_err() {
                    return;
                }
                if self.stop_after_chain {
                    return self.stop_now(out);
                }
            }
            Err(StateWriteError::Rejected(reason)) => {
                self.on_rejected(reason, chain, out);
                if matches!(self.phase, Phase::Running) {
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
                if !self.own_writers.contains(&current.writer_uuid) {
                    return self.become_fenced(FencedBy::Revision(*current), out);
                }
                // A late duplicate of our own write: there is no other writer, so recover again.
                self.back_off(now, Failure::Write(error), out);
                if matches!(self.phase, Phase::BackingOff { .. }) {
                    self.restart_now(now, out);
                }
                return;
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

    /// Runs side effects in order.
    ///
    /// # Errors
    /// The answer for askers of later side effects, if a panic ended the entity.
    fn run_chain(&mut self, chain: Chain<B::State>, out: &mut Out<B>) -> Result<(), EntityError> {
        let ran = chain.run(&self.state, self.revision.as_u64(), |asked| match asked {
            ChainRequest::UnstashAll => self.stash.unstash_all(),
            ChainRequest::Passivate => out.push(Action::Passivate),
            ChainRequest::Stop => self.stop_after_chain = true,
        });
        ran.map_err(|failure| {
            let error = EntityError::Failed(failure.to_string());
            self.fail(failure, out);
            error
        })
    }

    fn call(&self, call: StateCall, out: &mut Out<B>) {
        out.push(Action::Store { incarnation: self.incarnation, call });
    }
}

/// A revision as a sequence number, for errors that name a number of a history.
fn seq_nr(revision: Revision) -> SeqNr {
    SeqNr::saturating(revision.as_u64())
}

fn fenced() -> EntityError {
    EntityError::NotStored(NotStoredReason::Fenced)
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
