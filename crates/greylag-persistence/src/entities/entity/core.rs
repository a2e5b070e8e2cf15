//! The machine itself: its inputs, its handlers, and what follows recovery, commands and signals.
//!
//! What the machine shares with an entity of a durable state is [`Lifecycle`]; its own parts are the [`Recovery`], the
//! [`Fence`], the folded [`History`], its [`Snapshots`] and its [`Deliveries`].

use std::time::Instant;

use greylag_core::{EntityError, Generation};

use super::deliveries::Deliveries;
use super::fence::Fence;
use super::history::{History, Last};
use super::pending_append::PendingAppend;
use super::recovery::{Ground, Next, Recovery};
use super::snapshots::{Follows, Snapshots};
use crate::contract::journal::Caps;
use crate::contract::records::event::{SeqNr, WriterEpoch};
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::snapshot::SnapshotCaps;
use crate::contract::settings::SettingsError;
use crate::entities::behavior::chain::{Chain, guard};
use crate::entities::behavior::event_sourced::{EventSourced, Primary};
use crate::entities::behavior::failure::{DeleteFailure, Failure, RecoveryFailure, RecoveryStep};
use crate::entities::behavior::persisted::{EventCodecs, Persisted};
use crate::entities::behavior::signal::Signal;
use crate::entities::context::background_work::{Work, WorkNo};
use crate::entities::context::ctx::{Ctx, PersistenceKind, PersistentFacts, SharedHost};
use crate::entities::lifecycle::end_answers::EndAnswers;
use crate::entities::lifecycle::input::{Action, DeletedBy, Incarnation, Input, StoreAnswer, StoreCall, Withheld};
use crate::entities::lifecycle::machine::Machine;
use crate::entities::lifecycle::mailbox::Mailbox;
use crate::entities::lifecycle::ownership_proof::OwnershipProof;
use crate::entities::lifecycle::phases::{EntityPhase, Phases};
use crate::entities::lifecycle::turns::{End, Lifecycle};
use crate::entities::marks::Marks;
use crate::entities::settings::EventSourcedSettings;
use crate::entities::tracker::TrackerInput;

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

pub(super) type Out<B> = Vec<Action<<B as EventSourced>::Command>>;

/// The machine of one event-sourced entity. See the [crate docs](crate) for how it is hosted.
pub struct EntityCore<B: EventSourced> {
    pub(super) behavior: B,
    pub(super) id: PersistenceId,
    pub(super) settings: EventSourcedSettings,
    pub(super) codecs: EventCodecs<B>,
    host: Option<SharedHost>,
    pub(super) caps: Caps,
    pub(super) phases: Phases<Box<Recovery>, Box<PendingAppend<B::State>>>,
    pub(super) fence: Fence,
    pub(super) history: History<B::State>,
    pub(super) ownership: OwnershipProof<B::State>,
    mailbox: Mailbox<B::Command>,
    snapshots: Snapshots,
    deliveries: Deliveries,
    /// Signals that wait until the state is durable.
    pub(super) queued_signals: Vec<Signal>,
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
        settings.validate()?;
        if settings.under_delivery && !init.caps.metadata {
            return Err(SettingsError::MetadataMissing);
        }
        if behavior.tracker(&mut B::State::default()).is_some() {
            settings.check_tracked()?;
        }
        let mut core = Self {
            behavior,
            id,
            codecs,
            host: init.host,
            caps: init.caps,
            phases: Phases::new(init.start, init.seed, settings.on_failure),
            mailbox: Mailbox::new(settings.stash_capacity, settings.stash_overflow, settings.unstash_budget, now),
            settings,
            fence: Fence::new(init.generation),
            history: History::default(),
            ownership: OwnershipProof::default(),
            snapshots: Snapshots::new(init.snapshot_caps),
            deliveries: Deliveries::default(),
            queued_signals: Vec::new(),
        };
        core.begin_incarnation(out);
        Ok(core)
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: Input<B::Command>, out: &mut Vec<Action<B::Command>>) {
        self.mailbox.begin_turn(now);
        self.on_input(now, input, out);
        // Deliver signals queued by this input now (a refused delete queues one): no later input may come. Once, so
        // that a handler that asks for the same again on each signal cannot loop.
        if self.phases.is_running() {
            self.deliver_queued(out);
        }
        self.mailbox.end_turn(now, self.phases.is_running());
        self.check_invariants();
    }

    /// Source: persistence §2.3 to §2.6, §10.5.
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let (runs, writes) = (self.phases.is_running(), self.phases.is_writing());
        self.ownership.check_invariants(runs, runs || writes);
        assert!(
            !runs || !self.mailbox.stop_is_overlooked() || self.ownership.awaits_check(),
            "a stop that is due is carried out in this turn or the next"
        );
        let claims = !self.settings.recovery.read_only;
        assert!(
            !(runs || writes) || !claims || self.fence.epoch() != WriterEpoch::NONE,
            "an entity runs under its claim"
        );
        assert!(runs || writes || !self.is_delivering(), "only an entity that lives sends its deliveries again");
        match self.phases.phase() {
            EntityPhase::Recovering(recovery) => recovery.check_invariants(),
            EntityPhase::Writing(append) => {
                assert!(claims && append.last > self.history.seq_nr(), "an append continues the history");
            }
            _ => {}
        }
    }

    /// When a [`Input::Tick`] next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        // While an append is under way the state holds events that are not stored yet, so trackers and timers must wait.
        let runs = self.phases.is_running();
        let for_ever = [self.deliveries.redeliver_at(), self.mailbox.timers_due_at()];
        self.work_deadline().into_iter().chain(for_ever.into_iter().flatten().filter(|_| runs)).min()
    }

    /// As [`EntityCore::next_deadline`], without redeliveries and timers, which may go on for ever.
    fn work_deadline(&self) -> Option<Instant> {
        let recovery = self.phases.recovery().map(|recovery| recovery.deadline());
        let work = [self.phases.back_off_until(), recovery, self.mailbox.drain_at(), self.ownership.retry_at()];
        work.into_iter().flatten().min()
    }

    /// Gives a failed entity a new behaviour and starts it anew; commands that wait are kept.
    pub fn restart(&mut self, _now: Instant, behavior: B, out: &mut Vec<Action<B::Command>>) {
        self.signal_end(End::Restart, Last::default(), out);
        self.behavior = behavior;
        self.begin_incarnation(out);
    }

    /// Takes the work that [`Action::Work`] asks for; `None` the second time.
    pub fn take_work(&mut self, no: WorkNo) -> Option<Work<B::Command>> {
        self.mailbox.take_work(no)
    }

    /// Takes the waiting commands, oldest first: those put aside, then those not yet handled. For
    /// an entity that failed or ended by [`Action::Fenced`]; the host gives the commands to its successor.
    pub fn take_waiting(&mut self) -> Vec<B::Command> {
        self.mailbox.take_all()
    }

    /// Ends this machine so that the host can start another in its place; for hosts that make a new machine
    /// instead of [`EntityCore::restart`]. Delivers [`Signal::PreRestart`], answers an append under way
    /// [`EntityError::OutcomeUnknown`], and returns the waiting commands, oldest first.
    pub fn stop_for_restart(&mut self, out: &mut Vec<Action<B::Command>>) -> Vec<B::Command> {
        self.end_for_restart(out)
    }

    /// The id of the history.
    pub fn persistence_id(&self) -> &PersistenceId {
        &self.id
    }

    /// The entity's phase.
    pub fn phase(&self) -> PhaseName {
        match self.phases.phase() {
            EntityPhase::AwaitingPermit => PhaseName::AwaitingPermit,
            EntityPhase::Recovering(recovery) => match recovery.step() {
                RecoveryStep::Claim => PhaseName::Claiming,
                RecoveryStep::Snapshot => PhaseName::LoadingSnapshot,
                RecoveryStep::Replay | RecoveryStep::State => PhaseName::Replaying,
            },
            EntityPhase::Running => PhaseName::Running,
            EntityPhase::Writing(_) => PhaseName::Persisting,
            EntityPhase::BackingOff { .. } => PhaseName::BackingOff,
            EntityPhase::Failed => PhaseName::Failed,
            EntityPhase::Stopped => PhaseName::Stopped,
        }
    }

    /// The state, while it is complete and durable.
    pub fn state(&self) -> Option<&B::State> {
        self.phases.is_running().then_some(self.history.state())
    }

    /// The number of the last event known to be stored.
    pub fn seq_nr(&self) -> SeqNr {
        self.history.seq_nr()
    }

    /// The deliveries that the history shows as applied; complete after [`Action::Recovered`].
    pub fn marks(&self) -> &Marks {
        self.history.marks()
    }

    /// How many events of the last replay were skipped because this code does not know them; not zero
    /// only with [`OnUnknownEvent::Skip`](crate::OnUnknownEvent::Skip).
    pub fn skipped_events(&self) -> u64 {
        self.history.skipped_events()
    }

    /// The incarnation that runs now.
    pub fn incarnation(&self) -> Incarnation {
        self.phases.incarnation()
    }

    /// Whether the entity runs and has unconfirmed deliveries; they are sent again only
    /// while the entity lives.
    pub fn is_delivering(&self) -> bool {
        self.deliveries.redeliver_at().is_some()
    }

    /// Whether no command waits to be handled; commands put aside do not count. A stop of an idle entity before
    /// [`PhaseName::Running`] ends it at once.
    pub fn is_idle(&self) -> bool {
        self.mailbox.is_idle()
    }

    /// How many commands wait, put aside or not yet handled.
    pub fn waiting_count(&self) -> usize {
        self.mailbox.waiting_count()
    }

    // ---- Recovery -------------------------------------------------------------------------------

    fn ground(&mut self) -> (Ground<'_, B>, Option<&mut Recovery>) {
        let recovery = self.phases.recovery_mut().map(Box::as_mut);
        let ground = Ground {
            behavior: &self.behavior,
            id: &self.id,
            settings: &self.settings,
            codecs: &self.codecs,
            caps: &self.caps,
            fence: &mut self.fence,
            history: &mut self.history,
            snapshots: &mut self.snapshots,
        };
        (ground, recovery)
    }

    fn on_recovery_answer(&mut self, now: Instant, answer: StoreAnswer, out: &mut Out<B>) {
        let (mut ground, Some(recovery)) = self.ground() else { return };
        match recovery.on_answer(now, answer, &mut ground) {
            Next::Ignored => {}
            Next::Call(call) => self.call(call, out),
            Next::Finished { replayed } => self.finish_recovery(now, replayed, out),
            Next::Fenced(by) => self.become_fenced(by, out),
            Next::Failed(failure) => self.recovery_failed(now, failure, out),
        }
    }

    fn finish_recovery(&mut self, now: Instant, replayed: u64, out: &mut Out<B>) {
        if let Err(message) = self.try_signal(Signal::RecoveryCompleted, out) {
            let (handler, seq_nr) = ("on_signal", self.history.seq_nr());
            return self.recovery_failed(now, RecoveryFailure::Panicked { handler, seq_nr, message }, out);
        }
        let took = self.phases.recovery().map(|recovery| recovery.took(now)).unwrap_or_default();
        self.phases.on_recovered(out);
        out.push(Action::Recovered {
            incarnation: self.phases.incarnation(),
            replayed,
            skipped: self.history.skipped_events(),
            took,
        });
        if let Err(failure) = self.track(now, TrackerInput::Recovered(self.settings.delivery_tracker)) {
            return self.fail(failure, out);
        }
        if self.settings.snapshot_every.is_some_and(|every| replayed >= every.get()) {
            self.take_snapshot(false, out);
        }
        self.deliver_queued(out);
        self.drain(now, out);
    }

    fn recovery_failed(&mut self, now: Instant, failure: RecoveryFailure, out: &mut Out<B>) {
        // The behaviour must not see a half-built state.
        self.history.drop_state();
        self.signal(Signal::RecoveryFailed(failure.clone()), out);
        self.restart_or_fail(now, Failure::Recovery(failure), out);
    }

    // ---- Snapshots and deliveries ---------------------------------------------------------------

    pub(super) fn take_snapshot(&mut self, by_count: bool, out: &mut Out<B>) {
        let codec = (&self.behavior, self.codecs.snapshots.as_ref());
        match self.snapshots.save(by_count, &self.id, &self.settings, codec, &self.history) {
            Ok(call) => call.into_iter().for_each(|call| self.call(call, out)),
            Err(reason) => {
                out.push(Action::Withheld(Withheld::Snapshot));
                self.signal_running(Signal::SnapshotFailed(self.history.seq_nr(), reason), out);
            }
        }
    }

    fn follow(&mut self, (call, signal): Follows, out: &mut Out<B>) {
        call.into_iter().for_each(|call| self.call(call, out));
        self.signal_running(signal, out);
    }

    /// Passes an input to the tracker, if the behaviour has one. A warning of the tracker is queued with the waiting
    /// signals.
    ///
    /// # Errors
    /// The behaviour panicked; the caller fails the entity.
    pub(super) fn track(&mut self, now: Instant, input: TrackerInput) -> Result<(), Failure> {
        if self.settings.recovery.read_only {
            // A read-only entity may show an old state, and must not repeat the deliveries of that time.
            return Ok(());
        }
        let warning = self.deliveries.track(now, &mut self.behavior, self.history.state_mut(), input)?;
        self.queued_signals.extend(warning);
        Ok(())
    }

    fn redeliver(&mut self, now: Instant, out: &mut Out<B>) {
        if !self.phases.is_running() || !self.deliveries.is_due(now) {
            return;
        }
        match self.track(now, TrackerInput::Tick) {
            Ok(()) => self.deliver_queued(out),
            Err(failure) => self.fail(failure, out),
        }
    }

    // ---- Handlers -------------------------------------------------------------------------------

    /// Calls a handler with a context, and carries out the requests that the handler made of it. `begins`: whether the
    /// incarnation goes on; only then are timers, work and messages to itself begun.
    fn with_context<R>(
        &mut self,
        begins: bool,
        out: &mut Out<B>,
        handler: impl FnOnce(&mut B, &mut Ctx<'_, B::Command>, &B::State) -> R,
    ) -> Result<R, String> {
        let facts = PersistentFacts {
            id: &self.id,
            kind: PersistenceKind::Events { seq_nr: self.history.seq_nr(), marks: self.history.marks() },
            stashed: self.mailbox.aside_count(),
            read_only: self.settings.recovery.read_only,
        };
        let mut cx = Ctx { facts: Some(facts), ..Ctx::new(self.mailbox.now(), self.host.as_deref()) };
        let (behavior, state) = (&mut self.behavior, self.history.state());
        let answer = guard(|| handler(behavior, &mut cx, state));
        let (requests, host_requests) = cx.into_requests();
        if answer.is_ok() {
            if let Some(to) = host_requests.delete_to {
                self.begin_delete(to, out);
            }
            if begins {
                self.mailbox.carry_out(self.phases.incarnation(), requests, out);
                out.extend(Action::of_host_requests(host_requests));
            }
        }
        answer
    }

    /// Delivers a signal to the behaviour; the caller decides what a panic of its handler means.
    fn try_signal(&mut self, signal: Signal, out: &mut Out<B>) -> Result<(), String> {
        self.deliver_signal(true, signal, out)
    }

    fn deliver_signal(&mut self, begins: bool, signal: Signal, out: &mut Out<B>) -> Result<(), String> {
        let (seq_nr, incarnation) = (self.history.seq_nr(), self.phases.incarnation());
        if signal.is_failure() {
            tracing::warn!(id = %self.id, %seq_nr, %incarnation, ?signal, "entity signal");
        } else {
            tracing::debug!(id = %self.id, %seq_nr, %incarnation, ?signal, "entity signal");
        }
        self.with_context(begins, out, |behavior, cx, state| behavior.on_signal(cx, state, &signal))
    }

    /// Delivers a signal to the behaviour while the entity ends or starts anew: a panic of its handler is logged and
    /// swallowed, and timers, work and messages that the handler asks for are not begun.
    pub(super) fn signal(&mut self, signal: Signal, out: &mut Out<B>) {
        if let Err(message) = self.deliver_signal(false, signal, out) {
            tracing::warn!(id = %self.id, message, "signal handler panicked");
        }
    }

    /// Delivers a signal to a running behaviour; a panic of its handler fails the entity. While the state holds
    /// events that are not stored, the signal waits for the outcome.
    pub(super) fn signal_running(&mut self, signal: Signal, out: &mut Out<B>) {
        if self.phases.is_writing() {
            self.queued_signals.push(signal);
        } else if !self.phases.is_running() {
            self.signal(signal, out);
        } else if let Err(message) = self.try_signal(signal, out) {
            self.fail(Failure::Handler { handler: "on_signal", message }, out);
        }
    }

    /// Delivers the signals that waited until the state was durable.
    pub(super) fn deliver_queued(&mut self, out: &mut Out<B>) {
        for signal in std::mem::take(&mut self.queued_signals) {
            if !self.phases.is_running() {
                return;
            }
            self.signal_running(signal, out);
        }
    }

    fn begin_delete(&mut self, to: SeqNr, out: &mut Out<B>) {
        let last = self.history.seq_nr();
        let refused = if self.settings.recovery.read_only {
            Some(DeleteFailure::ReadOnly)
        } else if to != SeqNr::MAX && to > last {
            Some(DeleteFailure::InvalidRange { last })
        } else {
            None
        };
        match refused {
            Some(failure) => self.queued_signals.push(Signal::DeleteEventsFailed(to, failure)),
            None => {
                let (id, epoch, by) = (self.id.clone(), self.fence.epoch(), DeletedBy::Handler);
                self.call(StoreCall::DeleteEvents { id, epoch, to, by }, out);
            }
        }
    }

    pub(super) fn call(&self, call: StoreCall, out: &mut Out<B>) {
        out.push(Action::Store { incarnation: self.phases.incarnation(), call });
    }
}

impl<B: EventSourced> Lifecycle for EntityCore<B> {
    type State = B::State;
    type Recovery = Box<Recovery>;
    type Write = Box<PendingAppend<B::State>>;
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
        self.history = History::default();
        self.snapshots.begin();
    }

    fn begin_recovery(&mut self, now: Instant, out: &mut Out<B>) {
        let (recovery, call) = Recovery::begin(now, &mut self.ground().0);
        self.phases.begin_recovery(Box::new(recovery));
        self.call(call, out);
    }

    fn on_answer(&mut self, now: Instant, answer: StoreAnswer, out: &mut Out<B>) {
        match answer {
            StoreAnswer::Head(head) if self.phases.recovery().is_none() => self.on_proof(now, head, out),
            StoreAnswer::Head(_)
            | StoreAnswer::Claimed(_)
            | StoreAnswer::Advanced(_)
            | StoreAnswer::Snapshot(_)
            | StoreAnswer::Page(_) => self.on_recovery_answer(now, answer, out),
            StoreAnswer::Appended(appended) => self.on_appended(now, appended, out),
            StoreAnswer::SnapshotSaved(seq_nr, saved) => {
                let epoch = self.fence.epoch();
                let follows = self.snapshots.on_saved(&self.id, &self.settings, epoch, seq_nr, saved);
                self.follow(follows, out);
            }
            StoreAnswer::EventsDeleted(to, by, deleted) => {
                let follows = self.snapshots.on_events_deleted(&self.id, to, by, deleted);
                self.follow(follows, out);
            }
            StoreAnswer::SnapshotsDeleted(criteria, deleted) => {
                let follows = self.snapshots.on_snapshots_deleted(criteria, deleted);
                self.follow(follows, out);
            }
        }
    }

    fn on_deadlines(&mut self, now: Instant, out: &mut Out<B>) {
        let late = self.phases.recovery().filter(|recovery| recovery.deadline() <= now);
        if let Some(step) = late.map(|recovery| recovery.step()) {
            self.recovery_failed(now, RecoveryFailure::Timeout(step), out);
        }
        self.retry_proof(now, out);
        self.redeliver(now, out);
    }

    fn process(&mut self, now: Instant, command: B::Command, out: &mut Out<B>) {
        let effect = self.with_context(true, out, |behavior, cx, state| behavior.on_command(cx, state, command));
        let effect = match effect {
            Ok(effect) => effect,
            Err(message) => return self.fail(Failure::Handler { handler: "on_command", message }, out),
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
                // If the entity does not run on, its state is lost: it failed, or stopped because a stop was requested
                // before.
                if !self.put_aside(command, out) {
                    return effect.chain.refuse(EntityError::Failed(Failure::StashFull.to_string()));
                }
            }
            Primary::Unhandled => out.push(Action::Unhandled),
            Primary::None | Primary::Persist(_) => {}
        }
        if effect.when_owned {
            self.hold_until_owned(effect.chain, out);
        } else if self.run_chain(effect.chain, out).is_err() {
            return;
        }
        self.deliver_queued(out);
        if self.mailbox.stops_after_chain() && self.phases.is_running() {
            self.stop_now(out);
        }
    }

    fn run_chain(&mut self, chain: Chain<B::State>, out: &mut Out<B>) -> Result<(), EntityError> {
        let (state, number) = (self.history.state(), self.history.seq_nr().as_u64());
        self.mailbox.run_chain(chain, state, number, out).map_err(|failure| self.fail_for(failure, out))
    }

    fn chain_of(append: Box<PendingAppend<B::State>>) -> Chain<B::State> {
        append.chain
    }

    fn take_last(&mut self) -> Last<B::State> {
        if self.phases.is_running() { self.history.take_last() } else { Last::default() }
    }

    fn end_incarnation(&mut self) {
        self.history.drop_state();
        self.snapshots.end();
        self.queued_signals.clear();
        self.deliveries.end();
    }

    fn signal_end(&mut self, end: End, last: Last<B::State>, out: &mut Out<B>) {
        let known = self.history.show(last);
        let signal = match end {
            End::Restart => Signal::PreRestart,
            End::Stop => Signal::PostStop,
        };
        self.signal(signal, out);
        self.history.hide(known);
    }

    fn end_fenced(&mut self, out: &mut Out<B>) {
        let queued = std::mem::take(&mut self.queued_signals);
        self.end_phase(EndAnswers::fenced(), out);
        self.phases.stop();
        self.signal(Signal::Fenced, out);
        queued.into_iter().for_each(|signal| self.signal(signal, out));
    }
}

impl<B: EventSourced> Machine for EntityCore<B> {
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
