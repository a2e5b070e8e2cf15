//! An entity that persists, as a shard hosts it: event-sourced, or with a durable state.
//!
//! The machine is `greylag_persistence::EntityCore` or `StateEntityCore`; this hands it commands,
//! performs what it asks of the stores, and keeps the mailbox suspended whenever it does not run
//! (recovering, persisting, backing off), so that commands wait in the shard's queue and nowhere else.
//! What differs between the two is in [`HostedMachine`].
//!
//! ```text
//! receive --> Input::Command --> Append --> suspend_for(store call | deadline) --> on_resume --> Answer
//! on_stop, recovering, no command waits --> Input::Stop --> Stopped
//! PreRestart, Fenced --> commands that wait --> front of the mailbox, for the successor
//! ```
//! A call that the machine waits for runs in the task of its suspension, all others in tasks of their own. A write that is
//! dropped with the entity that began it goes on in its store.
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
    RecoveryPermits, Reopenings, Work, WorkNo,
};
use tokio::sync::oneshot;

use crate::entity::{EntityInit, Failure};
use crate::host::{Fenced, HostedEntity, ShardCx, Signal, Suspension};

/// The actions of a machine.
pub(super) type Actions<M> = Vec<Action<<M as HostedMachine>::Command, <M as HostedMachine>::Call>>;

/// Where a machine stands, as far as its mailbox is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Takes commands.
    Running,
    /// Has no state yet, and waits for a store, a permit or a moment; no command reaches it.
    Recovering,
    /// Waits for the outcome of a write; no command reaches it.
    Persisting,
    /// Takes nothing any more.
    Ended,
}

/// A machine of persistence as its shard hosts it.
pub trait HostedMachine: Sized + Send + 'static {
    /// The behaviour with its persistence id and its codecs, from which each incarnation of the machine is made.
    type Made: Send + 'static;
    /// What the entity is sent.
    type Command: Send + 'static;
    /// What it asks of a store.
    type Call: EntityCall + Send + 'static;
    /// What the store answers.
    type Answer: Send + 'static;
    /// What performs its calls. Cheap to clone.
    type Store: Clone + Send + 'static;

    /// What this node has for it, of what the behaviour selects.
    ///
    /// # Errors
    /// Sharding was started without, or only this node would reach it.
    fn store(entity: &Self::Made, init: &EntityInit) -> Result<Self::Store, Failure>;

    /// Where entities on this store count.
    fn counters(store: &Self::Store) -> EntityCounters;

    /// How often breakers of this store have closed.
    fn reopenings(store: &Self::Store) -> Reopenings;

    /// Starts the machine.
    ///
    /// # Errors
    /// Its settings cannot work.
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

    /// Where it stands.
    fn standing(&self) -> Standing;

    /// Whether it must not be passivated for being idle.
    fn is_busy(&self) -> bool;

    /// Whether no command waits to be handled in it; those put aside do not count.
    fn is_idle(&self) -> bool;

    /// How many commands wait in it, put aside or not yet handled.
    fn waiting_count(&self) -> usize;

    /// The name of its history, or of its state.
    fn persistence_id(&self) -> &PersistenceId;

    /// The work that it asks for under this number; once.
    fn take_work(&mut self, no: WorkNo) -> Option<Work<Self::Command>>;

    /// Takes the commands that wait, oldest first, for its successor.
    fn take_waiting(&mut self) -> Vec<Self::Command>;

    /// Ends it after a failure, for a successor to be made, and takes the commands that wait.
    fn give_way(&mut self, actions: &mut Actions<Self>) -> Vec<Self::Command>;

    /// Whether it can go on only with the answer to `call`.
    fn awaits(&self, call: &Self::Call) -> bool;

    /// Performs a call.
    fn perform(store: Self::Store, call: Self::Call) -> BoxFuture<'static, Self::Answer>;
}

/// Names the one deadline of a machine that runs among the timers of its shard.
const WAKE: TimerKey = TimerKey::Name("greylag.persistence");

/// What a suspension of the entity ended with.
enum Woken<A, C> {
    /// A permit to recover.
    Permit(Incarnation, RecoveryPermit),
    /// A store answered.
    Answer(Incarnation, A),
    /// Work that the behaviour began is done.
    Worked(Incarnation, WorkNo, Option<C>),
    /// The store ended without an answer.
    Lost,
    /// A breaker of the stores has closed.
    StoreBack,
    /// The machine's deadline came first; the answer is still to come.
    Deadline(Option<Waiting<A>>),
}

/// What a suspended machine waits for.
enum Waiting<A> {
    Permit(Incarnation),
    /// A call that is made by the task that waits for it: an append takes one task, not two.
    Call(Incarnation, BoxFuture<'static, A>),
    /// That a breaker of the stores closes; a back-off ends then.
    StoreBack(BoxFuture<'static, ()>),
}

/// Hosts the machine of one entity that persists. A [`HostedEntity`] whose messages are the commands.
///
/// `EntityType::event_sourced` and `EntityType::durable_state` make these; a wrapper that adds a
/// protocol of its own (as delivery does) holds one and calls it through [`ShardCx::nested`].
pub struct PersistentEntity<M: HostedMachine> {
    /// Until `on_start`.
    made: Option<M::Made>,
    core: Option<M>,
    store: Option<M::Store>,
    tally: Option<EntityTally>,
    init: EntityInit,
    permit: Option<RecoveryPermit>,
    waiting: Option<Waiting<M::Answer>>,
    /// How often breakers of the stores had closed as the incarnation began.
    reopenings: u64,
    /// The deadline for which a timer runs while the entity is not suspended.
    timer: Option<Instant>,
    /// What the shard was told last about automatic passivation.
    busy: bool,
    /// What a handler said about it.
    vetoed: bool,
    /// A handler asked for the entity's end.
    stops: bool,
    /// The machine waits for a verdict that only a new incarnation can be.
    failed: Option<String>,
    /// The mailbox is suspended.
    suspended: bool,
    /// Which commands a successor gets.
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
            reopenings: 0,
            timer: None,
            busy: false,
            vetoed: false,
            stops: false,
            failed: None,
            suspended: false,
            hands_on: |_| true,
        }
    }

    /// Hands only some of the commands that wait to a successor (all, by default) and drops the rest:
    /// for commands whose senders learn of the end and send them again.
    #[must_use]
    pub fn hands_on(self, hands_on: fn(&M::Command) -> bool) -> Self {
        Self { hands_on, ..self }
    }

    /// Whether the state is complete and commands are taken.
    pub fn is_running(&self) -> bool {
        self.core.as_ref().is_some_and(|core| core.standing() == Standing::Running)
    }

    /// The machine; `None` before `on_start`.
    pub fn core(&self) -> Option<&M> {
        self.core.as_ref()
    }

    fn handle(&mut self, input: Input<M::Command, M::Answer>, cx: &mut ShardCx<'_, M::Command>) -> Result<(), Failure> {
        let mut actions = Vec::new();
        let Some(core) = &mut self.core else { return Ok(()) };
        // Only the answer of a store has a snapshot encoded; the shard's clock may be that of an earlier turn.
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
                self.reopenings = self.store.as_ref().map_or(0, |store| M::reopenings(store).count());
                self.waiting = Some(Waiting::Permit(incarnation));
            }
            Action::ReturnPermit(_) => self.permit = None,
            Action::Work { incarnation, work } => self.run_work(incarnation, work, cx),
            // A turn in the mailbox, behind the messages that are there by then.
            Action::ToSelf { incarnation, work } => {
                let turn = Some(Woken::<M::Answer, M::Command>::Worked(incarnation, work, None));
                cx.spawn_for(std::future::ready(turn));
            }
            Action::Store { incarnation, call } => self.call_store(incarnation, call, cx)?,
            // Counted by the tally.
            Action::Recovered { .. } | Action::Withheld(_) => {}
            Action::Passivate => cx.passivate(),
            Action::Wish(wishes) => {
                if wishes.touch {
                    cx.touch();
                }
                if wishes.direct {
                    cx.direct_ref();
                }
                self.vetoed = wishes.veto.unwrap_or(self.vetoed);
                self.stops |= wishes.stop;
            }
            Action::Unhandled => {
                tracing::debug!(entity_type = %cx.entity_type(), id = %cx.id(), "command unhandled");
            }
            Action::DeadLetter(dropped) => drop_command(dropped, cx),
            Action::Restarting(cause) => {
                // Wishes of the incarnation that failed end with it.
                (self.vetoed, self.stops) = (false, false);
                tracing::warn!(entity_type = %cx.entity_type(), id = %cx.id(), %cause, "entity recovers again");
                if let Some(store) = &self.store {
                    self.waiting = Some(Waiting::StoreBack(Box::pin(M::reopenings(store).beyond(self.reopenings))));
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

    /// Performs a store call. One that the machine waits for is made by the task of its suspension; it may be dropped with
    /// the entity, and the store goes on with it (persistence J13). Others are tasks of their own.
    fn call_store(
        &mut self,
        incarnation: Incarnation,
        call: M::Call,
        cx: &mut ShardCx<'_, M::Command>,
    ) -> Result<(), Failure> {
        let Some(store) = self.store.clone() else { return Ok(()) };
        if self.core.as_ref().is_some_and(|core| core.awaits(&call)) {
            self.waiting = Some(Waiting::Call(incarnation, M::perform(store, call)));
            return Ok(());
        }
        let (answered, answer) = oneshot::channel();
        tokio::spawn(async move {
            // The receiver is gone once the entity has ended; the call itself goes on to its end.
            answered.send((incarnation, M::perform(store, call).await)).ok();
        });
        cx.spawn_for(async move {
            match answer.await {
                Ok((incarnation, answer)) => Some(Woken::<M::Answer, M::Command>::Answer(incarnation, answer)),
                Err(_) => None,
            }
        });
        Ok(())
    }

    /// Runs the work that the behaviour began. The result waits in the mailbox, behind the messages there by then.
    fn run_work(&mut self, incarnation: Incarnation, no: WorkNo, cx: &mut ShardCx<'_, M::Command>) {
        let woken = move |command| Some(Woken::<M::Answer, M::Command>::Worked(incarnation, no, command));
        match self.core.as_mut().and_then(|core| core.take_work(no)) {
            Some(Work::Future(future)) => cx.spawn_for(async move { woken(future.await) }),
            Some(Work::Blocking(run)) => cx.blocking_for(move || woken(run())),
            None => {}
        }
    }

    fn give_back(&self, mut commands: Vec<M::Command>, cx: &mut ShardCx<'_, M::Command>) {
        commands.retain(self.hands_on);
        cx.give_back(commands);
    }

    /// Suspends the mailbox until the machine can go on, or sets a timer if it runs.
    fn suspend(&mut self, cx: &mut ShardCx<'_, M::Command>) -> Result<(), Failure> {
        let Some(core) = &self.core else { return Ok(()) };
        let deadline = core.next_deadline();
        match core.standing() {
            Standing::Running => {
                let busy = core.is_busy() || self.vetoed;
                if std::mem::replace(&mut self.busy, busy) != busy {
                    cx.veto_passivation(busy);
                }
                if let Some(deadline) = deadline
                    && self.timer.is_none_or(|timer| deadline < timer)
                {
                    self.timer = Some(deadline);
                    let due = Some(Woken::<M::Answer, M::Command>::Deadline(None));
                    if deadline <= cx.now() {
                        // Only a pause for others: behind what is queued by now, and not a tick later.
                        cx.spawn_for(std::future::ready(due));
                    } else {
                        cx.wake_at(WAKE, deadline, due);
                    }
                }
                Ok(())
            }
            Standing::Ended => Ok(()),
            // A stop request that did not end the entity leaves it waiting as before.
            Standing::Recovering | Standing::Persisting if self.suspended => Ok(()),
            standing => {
                let suspension = match standing {
                    Standing::Recovering => Suspension::Stoppable,
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
    mut waiting: Option<Waiting<A>>,
    recoveries: RecoveryPermits,
    deadline: Option<Instant>,
) -> Woken<A, C> {
    let woken = async {
        match &mut waiting {
            Some(Waiting::Permit(incarnation)) => Some(Woken::Permit(*incarnation, recoveries.acquire().await)),
            Some(Waiting::Call(incarnation, call)) => {
                let answer = AssertUnwindSafe(call).catch_unwind().await;
                Some(answer.map_or(Woken::Lost, |answer| Woken::Answer(*incarnation, answer)))
            }
            Some(Waiting::StoreBack(back)) => {
                back.await;
                Some(Woken::StoreBack)
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
        Some(woken) = woken => woken,
        () = due => Woken::Deadline(waiting),
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
        // Without a state there is nothing to put in order, unless commands wait for it.
        let at_once = self.core.as_ref().is_some_and(|core| core.standing() == Standing::Recovering && core.is_idle());
        match stop.filter(|_| !at_once) {
            Some(command) => self.handle(Input::Command(command), cx),
            None => self.handle(Input::Stop, cx),
        }
    }

    fn on_signal(&mut self, signal: Signal, cx: &mut ShardCx<'_, M::Command>) -> Result<(), Failure> {
        let Some(core) = &mut self.core else { return Ok(()) };
        let mut actions = Vec::new();
        let waiting = match signal {
            Signal::PreRestart => core.give_way(&mut actions),
            // An entity stopped by force drops the commands it put aside; one that has ended has none left.
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
        let Ok(woken) = value.downcast::<Option<Woken<M::Answer, M::Command>>>() else { return Ok(()) };
        self.suspended = false;
        match *woken {
            None => Ok(()),
            Some(Woken::Permit(incarnation, permit)) => {
                self.permit = Some(permit);
                self.handle(Input::PermitGranted(incarnation), cx)
            }
            Some(Woken::Answer(incarnation, answer)) => self.handle(Input::Answer { incarnation, answer }, cx),
            Some(Woken::Worked(incarnation, work, command)) => {
                self.handle(Input::Worked { incarnation, work, command }, cx)
            }
            // The store may have done the call: only a new incarnation can find out.
            Some(Woken::Lost) => Err(Failure::state_lost("a store call ended without an answer")),
            Some(Woken::StoreBack) => self.handle(Input::StoreBack, cx),
            Some(Woken::Deadline(waiting)) => {
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
