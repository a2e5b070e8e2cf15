//! A persistent entity as hosted by a shard: event-sourced, or with a durable state.
//!
//! The machine is `greylag_persistence::EntityCore` or `StateEntityCore`; this module passes commands to it, performs
//! its store calls, and keeps the mailbox suspended whenever it does not run (recovering, persisting, backing off), so
//! that commands wait in the shard's queue and nowhere else. The differences between the two machines are in
//! [`HostedMachine`].
//!
//! ```text
//! receive --> Input::Command --> Append --> suspend_for(store call | deadline) --> on_resume --> Answer
//! on_stop, recovering, no command waits --> Input::Stop --> Stopped
//! PreRestart, Fenced --> commands that wait --> front of the mailbox, for the successor
//! ```
//! A call that the machine waits for runs in the task of its suspension, all others in tasks of their own. A write goes
//! on in its store even if the entity that began it is dropped.
//!
//! Source: sharding §4.3, §4.6; persistence §2, §3, §11.

use std::any::Any;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use greylag_core::TimerKey;
use greylag_persistence::{
    Action, DroppedCommand, EntityCall, EntityCounters, EntityTally, Incarnation, Input, PersistenceId, RecoveryPermit,
    RecoveryPermits, StoreReturns, Work, WorkNo,
};
use tokio::sync::oneshot;

use crate::entity::{EntityInit, Failure};
use crate::host::{Fenced, HostedEntity, ShardCx, Signal, Suspension};

/// The actions of a machine.
pub(in crate::driver) type Actions<M> = Vec<Action<<M as HostedMachine>::Command, <M as HostedMachine>::Call>>;

/// The state of a machine, as far as its mailbox is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineState {
    /// Takes commands.
    Running,
    /// Has no state yet, and waits for a store, a permit or a deadline; no command reaches it.
    Recovering,
    /// Waits for the outcome of a write; no command reaches it.
    Persisting,
    /// Has ended; takes no inputs.
    Ended,
}

/// A machine of persistence that a shard can host.
pub trait HostedMachine: Sized + Send + 'static {
    /// The behaviour with its persistence id and its codecs, used to make each incarnation of the machine.
    type Made: Send + 'static;
    /// The messages of the entity.
    type Command: Send + 'static;
    /// The machine's store calls.
    type Call: EntityCall + Send + 'static;
    /// The store's answers.
    type Answer: Send + 'static;
    /// The store that performs the calls. Cheap to clone.
    type Store: Clone + Send + 'static;

    /// This node's store for the entity, as selected by the behaviour.
    ///
    /// # Errors
    /// Sharding was started without that store, or only this node reaches it.
    fn store(entity: &Self::Made, init: &EntityInit) -> Result<Self::Store, Failure>;

    /// The counters of entities on this store.
    fn counters(store: &Self::Store) -> EntityCounters;

    /// Counts how often breakers of this store have closed.
    fn store_returns(store: &Self::Store) -> StoreReturns;

    /// Starts the machine.
    ///
    /// # Errors
    /// Its settings are invalid.
    fn start(
        entity: Self::Made,
        store: &Self::Store,
        cx: &ShardCx<'_, Self::Command>,
        actions: &mut Actions<Self>,
    ) -> Result<Self, Failure>;

    /// Takes one input.
    fn handle(&mut self, now: Instant, input: Input<Self::Command, Self::Answer>, actions: &mut Actions<Self>);

    /// When a tick next has work to do.
    fn next_deadline(&self) -> Option<Instant>;

    /// The state of the machine.
    fn machine_state(&self) -> MachineState;

    /// Whether the entity must not be passivated for being idle.
    fn is_busy(&self) -> bool;

    /// Whether no command waits in the machine to be handled; stashed commands do not count.
    fn is_idle(&self) -> bool;

    /// Number of commands that wait in the machine, stashed or not yet handled.
    fn waiting_count(&self) -> usize;

    /// The persistence id of the history, or of the state.
    fn persistence_id(&self) -> &PersistenceId;

    /// Takes the work that the behaviour requested under this number; only once.
    fn take_work(&mut self, no: WorkNo) -> Option<Work<Self::Command>>;

    /// Takes the waiting commands, oldest first, for the successor.
    fn take_waiting(&mut self) -> Vec<Self::Command>;

    /// Ends the machine after a failure, for a successor to be made, and takes the waiting commands.
    fn stop_for_restart(&mut self, actions: &mut Actions<Self>) -> Vec<Self::Command>;

    /// Whether the machine can go on only with the answer to `call`.
    fn awaits(&self, call: &Self::Call) -> bool;

    /// Performs a call.
    fn perform(store: Self::Store, call: Self::Call) -> BoxFuture<'static, Self::Answer>;
}

/// The timer key of a running machine's deadline.
const WAKE: TimerKey = TimerKey::Name("greylag.persistence");

/// The result of a suspension of the entity.
enum SuspensionResult<A, C> {
    /// A permit to recover was granted.
    Permit(Incarnation, RecoveryPermit),
    /// A store has answered.
    Answer(Incarnation, A),
    /// Work that the behaviour began has ended.
    Worked(Incarnation, WorkNo, Option<C>),
    /// A store call ended without an answer.
    Lost,
    /// A breaker of the stores has closed.
    StoreBack,
    /// The machine's deadline came first; the answer is still awaited.
    Deadline(Option<AwaitedEvent<A>>),
}

/// The event that a suspended machine waits for.
enum AwaitedEvent<A> {
    Permit(Incarnation),
    /// A call made by the task that waits for it, so that an append takes one task and not two.
    Call(Incarnation, BoxFuture<'static, A>),
    /// The closing of a breaker of the stores, which ends a back-off.
    StoreBack(BoxFuture<'static, ()>),
}

/// Hosts the machine of one entity that persists. A [`HostedEntity`] whose messages are the commands.
///
/// `EntityType::event_sourced` and `EntityType::durable_state` make these; a wrapper that adds a
/// protocol of its own (as delivery does) holds one and calls it through [`ShardCx::nested`].
pub struct PersistentEntity<M: HostedMachine> {
    /// The behaviour from which the machine is made; `None` from `on_start` on.
    made: Option<M::Made>,
    core: Option<M>,
    store: Option<M::Store>,
    tally: Option<EntityTally>,
    init: EntityInit,
    permit: Option<RecoveryPermit>,
    waiting: Option<AwaitedEvent<M::Answer>>,
    /// How often breakers of the stores had closed when the incarnation began.
    store_returns: u64,
    /// The deadline of the running timer, while the entity is not suspended.
    timer: Option<Instant>,
    /// The last veto of automatic passivation told to the shard.
    busy: bool,
    /// The last veto of automatic passivation set by a handler.
    vetoed: bool,
    /// Whether a handler asked for the entity's end.
    stops: bool,
    /// The failure of a machine that only a new incarnation can replace.
    failed: Option<String>,
    /// Whether the mailbox is suspended.
    suspended: bool,
    /// Selects the commands that a successor gets.
    hands_on: fn(&M::Command) -> bool,
}

impl<M: HostedMachine> PersistentEntity<M> {
    /// Hosts `made` as the entity `init`.
    pub fn new(made: M::Made, init: &EntityInit) -> Self {
        Self {
            made: Some(made),
            core: None,
            store: None,
            tally: None,
            init: init.clone(),
            permit: None,
            waiting: None,
            store_returns: 0,
            timer: None,
            busy: false,
            vetoed: false,
            stops: false,
            failed: None,
            suspended: false,
            hands_on: |_| true,
        }
    }

    /// Hands only some of the waiting commands to a successor (all, by default) and drops the rest: for commands whose
    /// senders learn of the end and send them again.
    #[must_use]
    pub fn hands_on(self, hands_on: fn(&M::Command) -> bool) -> Self {
        Self { hands_on, ..self }
    }

    /// Whether the state is complete and commands are taken.
    pub fn is_running(&self) -> bool {
        self.core.as_ref().is_some_and(|core| core.machine_state() == MachineState::Running)
    }

    /// The machine; `None` before `on_start`.
    pub fn core(&self) -> Option<&M> {
        self.core.as_ref()
    }

    fn handle(&mut self, input: Input<M::Command, M::Answer>, cx: &mut ShardCx<'_, M::Command>) -> Result<(), Failure> {
        let mut actions = Vec::new();
        let Some(core) = &mut self.core else { return Ok(()) };
        // Measure only store answers, after which a snapshot may be encoded. Read the clock: the shard's time may be of
        // an earlier turn.
        let began = matches!(input, Input::Answer { .. }).then(tokio::time::Instant::now);
        core.handle(cx.now(), input, &mut actions);
        if let Some(tally) = &mut self.tally {
            let took = || began.map_or(Duration::ZERO, |began| began.elapsed());
            tally.turn(core.persistence_id(), &actions, core.waiting_count(), took);
        }
        self.perform(actions, cx)
    }

    fn perform(&mut self, actions: Actions<M>, cx: &mut ShardCx<'_, M::Command>) -> Result<(), Failure> {
        for action in actions {
            self.perform_one(action, cx)?;
        }
        if let Some(failure) = self.failed.take() {
            return Err(Failure::state_lost(failure));
        }
        if std::mem::take(&mut self.stops) {
            return self.handle(Input::Stop, cx);
        }
        self.suspend(cx)
    }

    fn perform_one(
        &mut self,
        action: Action<M::Command, M::Call>,
        cx: &mut ShardCx<'_, M::Command>,
    ) -> Result<(), Failure> {
        match action {
            Action::RequestPermit(incarnation) => {
                self.store_returns = self.store.as_ref().map_or(0, |store| M::store_returns(store).count());
                self.waiting = Some(AwaitedEvent::Permit(incarnation));
            }
            Action::ReturnPermit(_) => self.permit = None,
            Action::Work { incarnation, work } => self.run_work(incarnation, work, cx),
            // Queue a turn behind the messages that are in the mailbox by then.
            Action::ToSelf { incarnation, work } => {
                let turn = Some(SuspensionResult::<M::Answer, M::Command>::Worked(incarnation, work, None));
                cx.spawn_for(std::future::ready(turn));
            }
            Action::Store { incarnation, call } => self.call_store(incarnation, call, cx)?,
            // The tally counts these.
            Action::Recovered { .. } | Action::Withheld(_) => {}
            Action::Passivate => cx.passivate(),
            Action::HostRequests(requests) => {
                if requests.touch {
                    cx.touch();
                }
                if requests.direct {
                    cx.direct_ref();
                }
                self.vetoed = requests.veto.unwrap_or(self.vetoed);
                self.stops |= requests.stop;
            }
            Action::Unhandled => {
                tracing::debug!(entity_type = %cx.entity_type(), id = %cx.id(), "command unhandled");
            }
            Action::DeadLetter(dropped) => drop_command(dropped, cx),
            Action::Restarting(cause) => {
                // Requests of the failed incarnation end with it.
                (self.vetoed, self.stops) = (false, false);
                tracing::warn!(
                    entity_type = %cx.entity_type(), id = %cx.id(), %cause,
                    "entity failed; it restarts its recovery"
                );
                if let Some(store) = &self.store {
                    self.waiting =
                        Some(AwaitedEvent::StoreBack(Box::pin(M::store_returns(store).beyond(self.store_returns))));
                }
            }
            Action::Fenced(by) => {
                cx.fenced(Fenced { stored: by.generation() });
                let waiting = self.core.as_mut().map(HostedMachine::take_waiting);
                self.give_back(waiting.unwrap_or_default(), cx);
            }
            Action::Failed(failure) => self.failed = Some(failure.to_string()),
            Action::Stopped => cx.stop(),
        }
        Ok(())
    }

    /// Performs a store call. A call that the machine waits for is made by the task of its suspension; it may be
    /// dropped with the entity, and the store completes it (persistence J13). Other calls run in tasks of their own.
    fn call_store(
        &mut self,
        incarnation: Incarnation,
        call: M::Call,
        cx: &mut ShardCx<'_, M::Command>,
    ) -> Result<(), Failure> {
        let Some(store) = self.store.clone() else { return Ok(()) };
        if self.core.as_ref().is_some_and(|core| core.awaits(&call)) {
            self.waiting = Some(AwaitedEvent::Call(incarnation, M::perform(store, call)));
            return Ok(());
        }
        let (answered, answer) = oneshot::channel();
        tokio::spawn(async move {
            // Sending fails if the entity has ended; the call itself has completed.
            answered.send((incarnation, M::perform(store, call).await)).ok();
        });
        cx.spawn_for(async move {
            match answer.await {
                Ok((incarnation, answer)) => {
                    Some(SuspensionResult::<M::Answer, M::Command>::Answer(incarnation, answer))
                }
                Err(_) => None,
            }
        });
        Ok(())
    }

    /// Runs the work that the behaviour began. The result waits in the mailbox, behind the messages that are there by
    /// then.
    fn run_work(&mut self, incarnation: Incarnation, no: WorkNo, cx: &mut ShardCx<'_, M::Command>) {
        let result = move |command| Some(SuspensionResult::<M::Answer, M::Command>::Worked(incarnation, no, command));
        match self.core.as_mut().and_then(|core| core.take_work(no)) {
            Some(Work::Future(future)) => cx.spawn_for(async move { result(future.await) }),
            Some(Work::Blocking(run)) => cx.blocking_for(move || result(run())),
            None => {}
        }
    }

    fn give_back(&self, mut commands: Vec<M::Command>, cx: &mut ShardCx<'_, M::Command>) {
        commands.retain(self.hands_on);
        cx.give_back(commands);
    }

    /// Suspends the mailbox until the machine can go on, or sets a timer if the machine runs.
    fn suspend(&mut self, cx: &mut ShardCx<'_, M::Command>) -> Result<(), Failure> {
        let Some(core) = &self.core else { return Ok(()) };
        let deadline = core.next_deadline();
        match core.machine_state() {
            MachineState::Running => {
                let busy = core.is_busy() || self.vetoed;
                if std::mem::replace(&mut self.busy, busy) != busy {
                    cx.veto_passivation(busy);
                }
                if let Some(deadline) = deadline
                    && self.timer.is_none_or(|timer| deadline < timer)
                {
                    self.timer = Some(deadline);
                    let due = Some(SuspensionResult::<M::Answer, M::Command>::Deadline(None));
                    if deadline <= cx.now() {
                        // Queue the tick behind the present messages, with no delay: the machine only paused for other
                        // entities.
                        cx.spawn_for(std::future::ready(due));
                    } else {
                        cx.wake_at(WAKE, deadline, due);
                    }
                }
                Ok(())
            }
            MachineState::Ended => Ok(()),
            // Already suspended; do not suspend twice. A stop request may not have ended the entity.
            MachineState::Recovering | MachineState::Persisting if self.suspended => Ok(()),
            state => {
                let suspension = match state {
                    MachineState::Recovering => Suspension::Stoppable,
                    _ => Suspension::Closed,
                };
                self.suspended = true;
                let (waiting, recoveries) = (self.waiting.take(), cx.node_services().recoveries.clone());
                let wait = async move { Some(wait::<M::Answer, M::Command>(waiting, recoveries, deadline).await) };
                cx.suspend_as(suspension, wait).map_err(Failure::from)
            }
        }
    }
}

fn drop_command<C: 'static>(dropped: DroppedCommand<C>, cx: &ShardCx<'_, C>) {
    cx.remoting().dead_letter(dropped.reason, cx.id().as_str(), "");
    dropped.discard();
}

async fn wait<A, C>(
    mut waiting: Option<AwaitedEvent<A>>,
    recoveries: RecoveryPermits,
    deadline: Option<Instant>,
) -> SuspensionResult<A, C> {
    let result = async {
        match &mut waiting {
            Some(AwaitedEvent::Permit(incarnation)) => {
                Some(SuspensionResult::Permit(*incarnation, recoveries.acquire().await))
            }
            Some(AwaitedEvent::Call(incarnation, call)) => {
                let answer = AssertUnwindSafe(call).catch_unwind().await;
                Some(answer.map_or(SuspensionResult::Lost, |answer| SuspensionResult::Answer(*incarnation, answer)))
            }
            Some(AwaitedEvent::StoreBack(back)) => {
                back.await;
                Some(SuspensionResult::StoreBack)
            }
            None => None,
        }
    };
    let due = async {
        match deadline {
            Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        Some(result) = result => result,
        () = due => SuspensionResult::Deadline(waiting),
    }
}

impl<M: HostedMachine> HostedEntity for PersistentEntity<M> {
    type Message = M::Command;

    fn on_start(&mut self, cx: &mut ShardCx<'_, M::Command>) -> Result<(), Failure> {
        let Some(made) = self.made.take() else { return Ok(()) };
        let (store, mut actions) = (M::store(&made, &self.init)?, Vec::new());
        self.core = Some(M::start(made, &store, cx, &mut actions)?);
        self.tally = Some(EntityTally::new(M::counters(&store)));
        self.store = Some(store);
        self.perform(actions, cx)
    }

    fn receive(&mut self, command: M::Command, cx: &mut ShardCx<'_, M::Command>) -> Result<(), Failure> {
        self.handle(Input::Command(command), cx)
    }

    fn on_stop(&mut self, stop: Option<M::Command>, cx: &mut ShardCx<'_, M::Command>) -> Result<(), Failure> {
        // An entity without a state ends at once, unless commands wait for the state.
        let at_once =
            self.core.as_ref().is_some_and(|core| core.machine_state() == MachineState::Recovering && core.is_idle());
        match stop.filter(|_| !at_once) {
            Some(command) => self.handle(Input::Command(command), cx),
            None => self.handle(Input::Stop, cx),
        }
    }

    fn on_signal(&mut self, signal: Signal, cx: &mut ShardCx<'_, M::Command>) -> Result<(), Failure> {
        let Some(core) = &mut self.core else { return Ok(()) };
        let mut actions = Vec::new();
        let waiting = match signal {
            Signal::PreRestart => core.stop_for_restart(&mut actions),
            // An entity stopped by force drops its stashed commands; an entity that has ended has none left.
            Signal::PostStop => {
                core.handle(cx.now(), Input::StopNow, &mut actions);
                Vec::new()
            }
        };
        for action in actions {
            if let Action::DeadLetter(dropped) = action {
                drop_command(dropped, cx);
            }
        }
        self.give_back(waiting, cx);
        Ok(())
    }

    fn on_resume(&mut self, value: Box<dyn Any + Send>, cx: &mut ShardCx<'_, M::Command>) -> Result<(), Failure> {
        let Ok(result) = value.downcast::<Option<SuspensionResult<M::Answer, M::Command>>>() else { return Ok(()) };
        self.suspended = false;
        match *result {
            None => Ok(()),
            Some(SuspensionResult::Permit(incarnation, permit)) => {
                self.permit = Some(permit);
                self.handle(Input::PermitGranted(incarnation), cx)
            }
            Some(SuspensionResult::Answer(incarnation, answer)) => {
                self.handle(Input::Answer { incarnation, answer }, cx)
            }
            Some(SuspensionResult::Worked(incarnation, work, command)) => {
                self.handle(Input::Worked { incarnation, work, command }, cx)
            }
            // The store may have performed the call: only a new incarnation can find out.
            Some(SuspensionResult::Lost) => Err(Failure::state_lost("a store call ended without an answer")),
            Some(SuspensionResult::StoreBack) => self.handle(Input::StoreBack, cx),
            Some(SuspensionResult::Deadline(waiting)) => {
                self.timer = None;
                if self.waiting.is_none() {
                    self.waiting = waiting;
                }
                self.handle(Input::Tick, cx)
            }
        }
    }
}

impl<M: HostedMachine> fmt::Debug for PersistentEntity<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PersistentEntity").field("id", &self.init.id).finish_non_exhaustive()
    }
}
