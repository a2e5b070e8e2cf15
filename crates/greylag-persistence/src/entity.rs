//! One event-sourced entity as a pure machine: claim, snapshot, replay, then commands.
//!
//! ```text
//! AwaitingPermit -> Claiming -> LoadingSnapshot -> Replaying -> Running <-> Persisting
//!        ^                (any failure of recovery or append)                  |
//!        +--------------------------- BackingOff <----------------------------+
//! ```
//! While the entity recovers or persists, commands wait in the internal stash, so a handler only
//! ever sees durable state. User code runs inside `handle`, and every call of it is guarded: a
//! panic becomes [`Action::Failed`], and the host needs no `catch_unwind` of its own. The machine
//! holds no socket, clock or task; the host performs its [`Action`]s and gives it their answers.
//!
//! Source: persistence §2, §11.

pub(crate) mod end_answers;
mod input;
pub(crate) mod machine;
mod persisting;
mod recovery;
mod refills;
pub(crate) mod restarts;
mod snapshots;
pub(crate) mod stash;
mod tracking;

use std::collections::BTreeSet;
use std::time::Instant;

use greylag_core::{DeadLetterReason, EntityError, Generation, answer_dropped};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::background_work::{BackgroundWork, Work, WorkNo};
use crate::behavior::{DeleteFailure, EventSourced, Failure, FencedBy, Signal};
use crate::ctx::{Ctx, PersistenceKind, PersistentFacts, SharedHost};
use crate::effect::{Chain, ChainRequest, Primary, guard};
use crate::event::{SeqNr, WriterEpoch, WriterUuid};
use crate::journal::Caps;
use crate::marks::Marks;
use crate::ownership_proof::OwnershipProof;
use crate::persisted::{EventCodecs, Persisted};
use crate::persistence_id::PersistenceId;
use crate::settings::{EventSourcedSettings, OnFailure, SettingsError, StashOverflow};
use crate::snapshot::SnapshotCaps;
use crate::tracker::TrackerInput;

use end_answers::EndAnswers;
pub use input::{Action, DeletedBy, DroppedCommand, EntityCall, Incarnation, Input, StoreAnswer, StoreCall, Withheld};
use persisting::PendingAppend;
use recovery::{Claiming, LoadingSnapshot, Replaying};
use refills::Refills;
use restarts::Restarts;
use snapshots::Retention;
use stash::{Stash, Waiting};

/// The facts that the host gives a machine when it starts an entity.
#[derive(Debug, Clone)]
pub struct EntityInit {
    /// The ownership generation of the entity's shard; none for an entity outside of any shard,
    /// which is then fenced by epochs alone.
    pub generation: Option<Generation>,
    /// Larger at every start of a machine in this process; see [`Incarnation`].
    pub start: u64,
    /// Seed of writer uuids and jitter; must differ between any two starts anywhere.
    pub seed: [u8; 32],
    /// The journal's capabilities and limits.
    pub caps: Caps,
    /// The snapshot store's capabilities and limits.
    pub snapshot_caps: SnapshotCaps,
    /// The node's settings, from which the behaviour makes its own.
    pub settings: EventSourcedSettings,
    /// The runtime that hosts the entity, for its handlers.
    pub host: Option<SharedHost>,
}

/// The phase of an entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PhaseName {
    /// Waits for one of the node's recovery permits.
    AwaitingPermit,
    /// Claims its history in the journal.
    Claiming,
    /// Waits for a snapshot.
    LoadingSnapshot,
    /// Folds its events.
    Replaying,
    /// Handles commands.
    Running,
    /// Waits for the outcome of an append.
    Persisting,
    /// Waits before it recovers again.
    BackingOff,
    /// Waits for the host's verdict after a failure.
    Failed,
    /// Has ended.
    Stopped,
}

/// The state and number that a behaviour is shown at the end of an incarnation.
struct FinalState<S> {
    state: S,
    seq_nr: SeqNr,
}

impl<S: Default> FinalState<S> {
    fn none() -> Self {
        Self { state: S::default(), seq_nr: SeqNr::ZERO }
    }
}

enum Phase<S> {
    AwaitingPermit,
    Claiming(Claiming),
    LoadingSnapshot(LoadingSnapshot),
    Replaying(Box<Replaying>),
    Running,
    Persisting(Box<PendingAppend<S>>),
    BackingOff { until: Instant },
    Failed,
    Stopped,
}

/// The machine of one event-sourced entity. See the [crate docs](crate) for how it is hosted.
pub struct EntityCore<B: EventSourced> {
    behavior: B,
    id: PersistenceId,
    settings: EventSourcedSettings,
    codecs: EventCodecs<B>,
    host: Option<SharedHost>,
    generation: Option<Generation>,
    caps: Caps,
    snapshot_caps: SnapshotCaps,
    rng: ChaCha8Rng,

    incarnation: Incarnation,
    writer_uuid: WriterUuid,
    /// The writer uuids of all incarnations of this machine that sent a claim.
    own_writers: BTreeSet<WriterUuid>,
    /// Whether a claim of any incarnation was ever answered.
    claim_answered: bool,

    phase: Phase<B::State>,
    state: B::State,
    seq_nr: SeqNr,
    epoch: WriterEpoch,
    marks: Marks,
    skipped_events: u64,
    /// Whether the beginning of the history was deleted and no snapshot replaced it.
    partial: bool,
    /// When the latest permit to recover was granted.
    permit_at: Option<Instant>,
    /// Deadline of the recovery step under way.
    step_deadline: Option<Instant>,

    stash: Stash<B::Command>,
    /// Set while stashed commands wait only for the entity's next turn, after `unstash_budget` ran out.
    drain_at: Option<Instant>,

    ownership: OwnershipProof<B::State>,
    saving: Option<snapshots::Saving>,
    retention: Retention,
    refills: Refills,
    queued_signals: Vec<Signal>,
    /// When the tracker next sends unconfirmed deliveries again; set while the entity runs.
    redeliver_at: Option<Instant>,
    stop_requested: bool,
    /// Set by `then_stop` while its chain runs.
    stop_after_chain: bool,

    restarts: Restarts,
    background: BackgroundWork<B::Command>,
}

impl<B: EventSourced> EntityCore<B> {
    /// Starts an entity: its first action is [`Action::RequestPermit`].
    ///
    /// # Errors
    /// [`SettingsError`] if the settings of the behaviour cannot work, alone or with this journal.
    pub fn start(
        entity: Persisted<B, EventCodecs<B>>,
        init: EntityInit,
        now: Instant,
        out: &mut Vec<Action<B::Command>>,
    ) -> Result<Self, SettingsError> {
        let Persisted { mut behavior, id, codecs } = entity;
        let settings = behavior.settings(&init.settings);
        settings.check()?;
        if settings.under_delivery && !init.caps.metadata {
            return Err(SettingsError::MetadataMissing);
        }
        if behavior.tracker(&mut B::State::default()).is_some() {
            settings.check_tracked()?;
        }
        let mut core = Self {
            id,
            codecs,
            host: init.host,
            behavior,
            stash: Stash::new(settings.stash_capacity),
            settings,
            generation: init.generation,
            caps: init.caps,
            snapshot_caps: init.snapshot_caps,
            rng: ChaCha8Rng::from_seed(init.seed),
            incarnation: Incarnation { start: init.start, restart: 0 },
            writer_uuid: WriterUuid::NONE,
            own_writers: BTreeSet::new(),
            claim_answered: false,
            phase: Phase::AwaitingPermit,
            state: B::State::default(),
            seq_nr: SeqNr::ZERO,
            epoch: WriterEpoch::NONE,
            marks: Marks::default(),
            skipped_events: 0,
            partial: false,
            permit_at: None,
            step_deadline: None,
            drain_at: None,
            ownership: OwnershipProof::default(),
            saving: None,
            retention: Retention::Idle,
            refills: Refills::default(),
            queued_signals: Vec::new(),
            redeliver_at: None,
            stop_requested: false,
            stop_after_chain: false,
            restarts: Restarts::default(),
            background: BackgroundWork::new(now),
        };
        core.begin_incarnation(now, out);
        Ok(core)
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: Input<B::Command>, out: &mut Vec<Action<B::Command>>) {
        self.background.observe(now);
        match input {
            Input::Command(command) => self.on_new_command(now, command, out),
            Input::PermitGranted(incarnation) => self.on_permit(now, incarnation, out),
            Input::Answer { incarnation, answer } if incarnation == self.incarnation => {
                self.on_answer(now, answer, out);
            }
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
        // Deliver signals queued by this input now (a refused delete queues one): no later input may come. Once, so
        // that a handler that asks for the same again on each signal cannot loop.
        if matches!(self.phase, Phase::Running) {
            self.deliver_queued(now, out);
        }
        self.background.takes_commands(now, matches!(self.phase, Phase::Running));
        self.check_invariants();
    }

    /// When a [`Input::Tick`] next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        // In `Persisting` the state holds events that are not stored yet, so trackers and timers must wait.
        let runs = matches!(self.phase, Phase::Running);
        let for_ever = [self.redeliver_at, self.background.next_deadline()].into_iter().flatten().filter(|_| runs);
        self.work_deadline().into_iter().chain(for_ever).min()
    }

    /// As [`EntityCore::next_deadline`], without redeliveries and timers, which may go on for ever.
    fn work_deadline(&self) -> Option<Instant> {
        let backoff = match self.phase {
            Phase::BackingOff { until } => Some(until),
            _ => None,
        };
        [backoff, self.step_deadline, self.drain_at, self.ownership.retry_at()].into_iter().flatten().min()
    }

    /// Gives a failed entity a new behaviour and starts it anew; commands that wait are kept.
    pub fn restart(&mut self, now: Instant, behavior: B, out: &mut Vec<Action<B::Command>>) {
        self.signal_end(Signal::PreRestart, FinalState::none(), out);
        self.behavior = behavior;
        self.begin_incarnation(now, out);
    }

    /// Takes the work that [`Action::Work`] asks for; `None` the second time.
    pub fn take_work(&mut self, no: WorkNo) -> Option<Work<B::Command>> {
        self.background.take_work(no)
    }

    /// Takes the waiting commands, oldest first: those put aside, then those not yet handled. For
    /// an entity that failed or ended by [`Action::Fenced`]; the host gives the commands to its successor.
    pub fn take_waiting(&mut self) -> Vec<B::Command> {
        self.stash.take_all()
    }

    /// Ends this machine so that the host can start another in its place; for hosts that make a new machine
    /// instead of [`EntityCore::restart`]. Delivers [`Signal::PreRestart`], answers an append under way
    /// [`EntityError::OutcomeUnknown`], and returns the waiting commands, oldest first.
    pub fn stop_for_restart(&mut self, out: &mut Vec<Action<B::Command>>) -> Vec<B::Command> {
        let last = self.final_state();
        self.end_phase(EndAnswers::stopped(), out);
        self.phase = Phase::Stopped;
        self.signal_end(Signal::PreRestart, last, out);
        self.take_waiting()
    }

    /// The id of the history.
    pub fn persistence_id(&self) -> &PersistenceId {
        &self.id
    }

    /// The entity's phase.
    pub fn phase(&self) -> PhaseName {
        match self.phase {
            Phase::AwaitingPermit => PhaseName::AwaitingPermit,
            Phase::Claiming(_) => PhaseName::Claiming,
            Phase::LoadingSnapshot(_) => PhaseName::LoadingSnapshot,
            Phase::Replaying(_) => PhaseName::Replaying,
            Phase::Running => PhaseName::Running,
            Phase::Persisting(_) => PhaseName::Persisting,
            Phase::BackingOff { .. } => PhaseName::BackingOff,
            Phase::Failed => PhaseName::Failed,
            Phase::Stopped => PhaseName::Stopped,
        }
    }

    /// The state, while it is complete and durable.
    pub fn state(&self) -> Option<&B::State> {
        matches!(self.phase, Phase::Running).then_some(&self.state)
    }

    /// The number of the last event known to be stored.
    pub fn seq_nr(&self) -> SeqNr {
        self.seq_nr
    }

    /// The deliveries that the history shows as applied; complete after [`Action::Recovered`].
    pub fn marks(&self) -> &Marks {
        &self.marks
    }

    /// How many events of the last replay were skipped because this code does not know them; not zero
    /// only with [`OnUnknownEvent::Skip`](crate::OnUnknownEvent::Skip).
    pub fn skipped_events(&self) -> u64 {
        self.skipped_events
    }

    /// The incarnation that runs now.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Whether the entity runs and has unconfirmed deliveries; they are sent again only
    /// while the entity lives.
    pub fn is_delivering(&self) -> bool {
        self.redeliver_at.is_some()
    }

    /// Whether no command waits to be handled; commands put aside do not count. A stop of an idle entity before
    /// [`PhaseName::Running`] ends it at once.
    pub fn is_idle(&self) -> bool {
        self.stash.is_idle()
    }

    /// How many commands wait, put aside or not yet handled.
    pub fn waiting_count(&self) -> usize {
        self.stash.len()
    }

    fn on_answer(&mut self, now: Instant, answer: StoreAnswer, out: &mut Vec<Action<B::Command>>) {
        match answer {
            StoreAnswer::Head(head) => self.on_head(now, head, out),
            StoreAnswer::Claimed(claim) => self.on_claimed(now, claim, out),
            StoreAnswer::Advanced(advanced) => self.on_advanced(now, advanced, out),
            StoreAnswer::Snapshot(snapshot) => self.on_snapshot(now, snapshot, out),
            StoreAnswer::Page(page) => self.on_page(now, page, out),
            StoreAnswer::Appended(appended) => self.on_appended(now, appended, out),
            StoreAnswer::SnapshotSaved(seq_nr, saved) => self.on_snapshot_saved(now, seq_nr, saved, out),
            StoreAnswer::EventsDeleted(to, by, deleted) => self.on_events_deleted(now, to, by, deleted, out),
            StoreAnswer::SnapshotsDeleted(criteria, deleted) => {
                self.on_snapshots_deleted(now, criteria, deleted, out);
            }
        }
    }

    fn on_tick(&mut self, now: Instant, out: &mut Vec<Action<B::Command>>) {
        if matches!(self.phase, Phase::BackingOff { until } if until <= now) {
            self.end_back_off(now, out);
        }
        if self.step_deadline.is_some_and(|deadline| deadline <= now) {
            self.on_step_timeout(now, out);
        }
        self.retry_proof(now, out);
        self.redeliver(now, out);
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
    fn on_worked(
        &mut self,
        now: Instant,
        work: WorkNo,
        command: Option<B::Command>,
        out: &mut Vec<Action<B::Command>>,
    ) {
        let Some(command) = self.background.finish(work, command) else { return };
        if self.stop_requested {
            return out.push(dead_letter(command, DeadLetterReason::EntityStopped, EntityError::Stopped));
        }
        self.stash.push_own(Waiting::Own(command));
        self.drain(now, out);
    }

    // ---- Commands -------------------------------------------------------------------------------

    fn on_new_command(&mut self, now: Instant, command: B::Command, out: &mut Vec<Action<B::Command>>) {
        if self.stop_requested || matches!(self.phase, Phase::Stopped) {
            return out.push(dead_letter(command, DeadLetterReason::EntityStopped, EntityError::Stopped));
        }
        // Queue behind earlier commands; `drain` takes the new command at once if there are none.
        match self.stash.push(command) {
            Ok(()) => self.drain(now, out),
            Err(command) => self.on_stash_overflow(now, command, out),
        }
    }

    fn on_stash_overflow(&mut self, now: Instant, command: B::Command, out: &mut Vec<Action<B::Command>>) {
        out.push(dead_letter(command, DeadLetterReason::StashFull, EntityError::StashFull));
        if self.settings.stash_overflow == StashOverflow::Fail {
            self.fail(now, Failure::StashFull, out);
        }
    }

    /// Handles waiting commands while the entity runs, those of an unstash-all first. A loop, not a
    /// recursion; pauses after `unstash_budget` commands.
    fn drain(&mut self, now: Instant, out: &mut Vec<Action<B::Command>>) {
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
                Err(message) => return self.fail(now, Failure::Handler { handler: "timer", message }, out),
            };
            if let Some(command) = command {
                self.process(now, command, out);
            }
        }
        if matches!(self.phase, Phase::Running) {
            self.drain_at = Some(now);
        }
    }

    fn process(&mut self, now: Instant, command: B::Command, out: &mut Vec<Action<B::Command>>) {
        let effect = self.with_context(true, out, |behavior, cx, state| behavior.on_command(cx, state, command));
        let effect = match effect {
            Ok(effect) => effect,
            Err(message) => return self.fail(now, Failure::Handler { handler: "on_command", message }, out),
        };
        let is_persisting = effect.is_persisting();
        match effect.primary {
            Primary::Persist(events) if is_persisting => {
                return self.persist(now, events, effect.metadata, effect.mark, effect.chain, out);
            }
            Primary::None if is_persisting => {
                return self.persist(now, Vec::new(), effect.metadata, effect.mark, effect.chain, out);
            }
            Primary::Stash(command) => {
                if let Err(command) = self.stash.put_aside(command) {
                    self.on_stash_overflow(now, command, out);
                    // `fail` took the state: the entity failed, or stopped because a stop was requested before.
                    if !matches!(self.phase, Phase::Running) {
                        return effect.chain.refuse(EntityError::Failed(Failure::StashFull.to_string()));
                    }
                }
            }
            Primary::Unhandled => out.push(Action::Unhandled),
            Primary::None | Primary::Persist(_) => {}
        }
        if effect.when_owned {
            self.hold_until_owned(effect.chain, out);
        } else if self.run_chain(now, effect.chain, out).is_err() {
            return;
        }
        self.deliver_queued(now, out);
        if self.stop_after_chain && matches!(self.phase, Phase::Running) {
            self.stop_now(out);
        }
    }

    /// Runs side effects in order.
    ///
    /// # Errors
    /// The answer for askers of later side effects, if a panic ended the entity.
    fn run_chain(
        &mut self,
        now: Instant,
        chain: Chain<B::State>,
        out: &mut Vec<Action<B::Command>>,
    ) -> Result<(), EntityError> {
        let ran = chain.run(&self.state, self.seq_nr.as_u64(), |asked| match asked {
            ChainRequest::UnstashAll => self.stash.unstash_all(),
            ChainRequest::Passivate => out.push(Action::Passivate),
            ChainRequest::Stop => self.stop_after_chain = true,
        });
        ran.map_err(|failure| {
            let error = EntityError::Failed(failure.to_string());
            self.fail(now, failure, out);
            error
        })
    }

    // ---- Handlers -------------------------------------------------------------------------------

    /// Calls a handler with a context, and carries out the requests that the handler made of it. `begins`: whether the
    /// incarnation goes on; only then are timers, work and messages to itself begun.
    fn with_context<R>(
        &mut self,
        begins: bool,
        out: &mut Vec<Action<B::Command>>,
        handler: impl FnOnce(&mut B, &mut Ctx<'_, B::Command>, &B::State) -> R,
    ) -> Result<R, String> {
        let facts = PersistentFacts {
            id: &self.id,
            kind: PersistenceKind::Events { seq_nr: self.seq_nr, marks: &self.marks },
            stashed: self.stash.aside_count(),
            read_only: self.settings.recovery.read_only,
        };
        let mut cx = Ctx { facts: Some(facts), ..Ctx::new(self.background.now(), self.host.as_deref()) };
        let (behavior, state) = (&mut self.behavior, &self.state);
        let answer = guard(|| handler(behavior, &mut cx, state));
        let (requests, host_requests) = cx.into_requests();
        if answer.is_ok() {
            if let Some(to) = host_requests.delete_to {
                self.begin_delete(to, out);
            }
            if begins {
                let incarnation = self.incarnation;
                out.extend(
                    self.background.take(requests).into_iter().map(|task| Action::of_host_task(incarnation, task)),
                );
                out.extend(Action::of_host_requests(host_requests));
            }
        }
        answer
    }

    /// Delivers a signal to the behaviour; the caller decides what a panic of its handler means.
    fn try_signal(&mut self, signal: Signal, out: &mut Vec<Action<B::Command>>) -> Result<(), String> {
        self.deliver_signal(true, signal, out)
    }

    fn deliver_signal(
        &mut self,
        begins: bool,
        signal: Signal,
        out: &mut Vec<Action<B::Command>>,
    ) -> Result<(), String> {
        if signal.is_failure() {
            tracing::warn!(
                id = %self.id,
                seq_nr = %self.seq_nr,
                incarnation = %self.incarnation,
                ?signal,
                "entity signal"
            );
        } else {
            tracing::debug!(
                id = %self.id,
                seq_nr = %self.seq_nr,
                incarnation = %self.incarnation,
                ?signal,
                "entity signal"
            );
        }
        self.with_context(begins, out, |behavior, cx, state| behavior.on_signal(cx, state, &signal))
    }

    /// Delivers a signal to the behaviour while the entity ends or starts anew: a panic of its handler is logged and
    /// swallowed, and timers, work and messages that the handler asks for are not begun.
    fn signal(&mut self, signal: Signal, out: &mut Vec<Action<B::Command>>) {
        if let Err(message) = self.deliver_signal(false, signal, out) {
            tracing::warn!(id = %self.id, message, "signal handler panicked");
        }
    }

    /// Delivers a signal to a running behaviour; a panic of its handler fails the entity. While the state holds
    /// events that are not stored, the signal waits for the outcome.
    fn signal_running(&mut self, now: Instant, signal: Signal, out: &mut Vec<Action<B::Command>>) {
        match self.phase {
            Phase::Running => {
                if let Err(message) = self.try_signal(signal, out) {
                    self.fail(now, Failure::Handler { handler: "on_signal", message }, out);
                }
            }
            Phase::Persisting(_) => self.queued_signals.push(signal),
            _ => self.signal(signal, out),
        }
    }

    fn begin_delete(&mut self, to: SeqNr, out: &mut Vec<Action<B::Command>>) {
        let refused = if self.settings.recovery.read_only {
            Some(DeleteFailure::ReadOnly)
        } else if to != SeqNr::MAX && to > self.seq_nr {
            Some(DeleteFailure::InvalidRange { last: self.seq_nr })
        } else {
            None
        };
        match refused {
            Some(failure) => self.queued_signals.push(Signal::DeleteEventsFailed(to, failure)),
            None => {
                let (id, epoch, by) = (self.id.clone(), self.epoch, DeletedBy::Handler);
                self.call(StoreCall::DeleteEvents { id, epoch, to, by }, out);
            }
        }
    }

    fn call(&self, call: StoreCall, out: &mut Vec<Action<B::Command>>) {
        out.push(Action::Store { incarnation: self.incarnation, call });
    }

    // ---- Ends -----------------------------------------------------------------------------------

    fn on_stop(&mut self, now: Instant, out: &mut Vec<Action<B::Command>>) {
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
            // No command needs the state, so stop without recovery.
            _ if self.stash.is_idle() => self.stop_now(out),
            _ => self.stop_requested = true,
        }
    }

    /// Stops if a stop was requested and all earlier commands are done, including chains that wait for the ownership
    /// check under way.
    fn stop_if_asked(&mut self, out: &mut Vec<Action<B::Command>>) {
        if self.stop_requested && self.stash.is_idle() && !self.ownership.awaits_check() {
            self.stop_now(out);
        }
    }

    fn stop_now(&mut self, out: &mut Vec<Action<B::Command>>) {
        if matches!(self.phase, Phase::Stopped) {
            return;
        }
        let last = self.final_state();
        self.end_phase(EndAnswers::stopped(), out);
        self.phase = Phase::Stopped;
        for command in self.take_waiting() {
            out.push(dead_letter(command, DeadLetterReason::EntityStopped, EntityError::Stopped));
        }
        self.signal_end(Signal::PostStop, last, out);
        out.push(Action::Stopped);
    }

    /// Takes the state for the end of the incarnation: the state of `Running`, which is whole and stored, else none.
    fn final_state(&mut self) -> FinalState<B::State> {
        match self.phase {
            Phase::Running => FinalState { state: std::mem::take(&mut self.state), seq_nr: self.seq_nr },
            _ => FinalState::none(),
        }
    }

    /// Delivers the signal that ends the incarnation with its last state, and drops the state.
    fn signal_end(&mut self, signal: Signal, last: FinalState<B::State>, out: &mut Vec<Action<B::Command>>) {
        self.state = last.state;
        let known = std::mem::replace(&mut self.seq_nr, last.seq_nr);
        self.signal(signal, out);
        self.state = B::State::default();
        self.seq_nr = known;
    }

    /// Ends for good, because another writer owns the history. Waiting commands are left for
    /// [`EntityCore::take_waiting`].
    fn become_fenced(&mut self, by: FencedBy, out: &mut Vec<Action<B::Command>>) {
        let queued = std::mem::take(&mut self.queued_signals);
        self.end_phase(EndAnswers::fenced(), out);
        self.phase = Phase::Stopped;
        self.signal(Signal::Fenced, out);
        queued.into_iter().for_each(|signal| self.signal(signal, out));
        self.signal_end(Signal::PostStop, FinalState::none(), out);
        out.push(Action::Fenced(by));
    }

    /// Ends this incarnation by a failure; the host decides what follows.
    fn fail(&mut self, _now: Instant, failure: Failure, out: &mut Vec<Action<B::Command>>) {
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

    /// After a failure of recovery or append: recovers again after a wait, or leaves the decision to the host.
    fn restart_or_fail(&mut self, now: Instant, failure: Failure, out: &mut Vec<Action<B::Command>>) {
        let OnFailure::RestartBackoff(backoff) = self.settings.on_failure else {
            return self.fail(now, failure, out);
        };
        let wait = self.restarts.wait(now, backoff, self.rng.random::<f64>());
        self.back_off(now + wait, failure, out);
    }

    fn back_off(&mut self, until: Instant, failure: Failure, out: &mut Vec<Action<B::Command>>) {
        self.end_phase(EndAnswers::failed(&failure), out);
        self.phase = Phase::BackingOff { until };
        out.push(Action::Restarting(failure));
        if self.stop_requested && self.stash.is_idle() {
            self.stop_now(out);
        }
    }

    /// Shortens the back-off, since the store answers again.
    fn on_store_back(&mut self, now: Instant, out: &mut Vec<Action<B::Command>>) {
        if let Phase::BackingOff { until } = &mut self.phase {
            *until = self.restarts.shorten_backoff(now, *until);
            if *until <= now {
                self.end_back_off(now, out);
            }
        }
    }

    fn end_back_off(&mut self, now: Instant, out: &mut Vec<Action<B::Command>>) {
        if matches!(self.phase, Phase::BackingOff { .. }) {
            self.signal_end(Signal::PreRestart, FinalState::none(), out);
            self.begin_incarnation(now, out);
        }
    }

    /// Releases everything that belongs to the ending incarnation: the permit, the state, side
    /// effects that will not run.
    fn end_phase(&mut self, answers: EndAnswers, out: &mut Vec<Action<B::Command>>) {
        match std::mem::replace(&mut self.phase, Phase::Failed) {
            Phase::AwaitingPermit | Phase::Claiming(_) | Phase::LoadingSnapshot(_) | Phase::Replaying(_) => {
                out.push(Action::ReturnPermit(self.incarnation));
            }
            Phase::Persisting(append) => append.chain.refuse(answers.pending),
            Phase::Running | Phase::BackingOff { .. } | Phase::Failed | Phase::Stopped => {}
        }
        self.ownership.refuse(&answers.held);
        self.state = B::State::default();
        self.step_deadline = None;
        self.drain_at = None;
        self.saving = None;
        self.retention = Retention::Idle;
        self.queued_signals.clear();
        self.redeliver_at = None;
        self.stop_after_chain = false;
        self.background.end(&answers.background);
        answer_dropped(answers.background, || self.stash.drop_own());
    }

    fn check_invariants(&self) {
        self.stash.check_invariants();
        let recovering = matches!(self.phase, Phase::Claiming(_) | Phase::LoadingSnapshot(_) | Phase::Replaying(_));
        debug_assert_eq!(recovering, self.step_deadline.is_some(), "a step of recovery has a deadline");
        debug_assert!(
            self.drain_at.is_none() || matches!(self.phase, Phase::Running),
            "only a running entity drains its stash"
        );
    }
}

impl<B: EventSourced> machine::Machine for EntityCore<B> {
    type Command = B::Command;
    type Call = StoreCall;
    type Answer = StoreAnswer;

    fn handle(&mut self, now: Instant, input: Input<B::Command>, out: &mut Vec<Action<B::Command>>) {
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

pub(crate) fn dead_letter<C, Call>(command: C, reason: DeadLetterReason, answer: EntityError) -> Action<C, Call> {
    Action::DeadLetter(DroppedCommand { command, reason, answer })
}
