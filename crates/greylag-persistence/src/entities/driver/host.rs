//! Runs one entity as a task, outside of any shard: event-sourced, or with a durable state.
//!
//! For entities that live in one process: the entity's mailbox is the task's inbox, and its claim names no
//! generation, so the entity is fenced by epochs alone. Sharded entities are hosted by their shard.

use std::collections::VecDeque;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use greylag_core::{DeadLetterReason, EntityError, NotStoredReason, ReplyTo, answer_dropped};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::ask;
use super::permits::{RecoveryPermit, RecoveryPermits};
use super::stores::{StatesInUse, Stores};
use crate::contract::driver::seed::random_seed;
use crate::contract::driver::store_returns::StoreReturns;
use crate::contract::records::codec::IntoStored;
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::settings::SettingsError;
use crate::entities::behavior::durable_state::DurableState;
use crate::entities::behavior::event_sourced::EventSourced;
use crate::entities::behavior::failure::{Failure, FencedBy};
use crate::entities::behavior::persisted::{EventCodecs, Persisted, StateCodec};
use crate::entities::context::background_work::{Work, WorkNo};
use crate::entities::counters::EntityTally;
use crate::entities::entity::{EntityCore, EntityInit};
use crate::entities::lifecycle::end_answers::EndAnswers;
use crate::entities::lifecycle::input::{Action, DroppedCommand, Incarnation, Input};
use crate::entities::lifecycle::machine::Machine;
use crate::entities::state_entity::{StateEntityCore, StateEntityInit};

/// Numbers the machines of this process, so that an answer never reaches a later machine.
static STARTS: AtomicU64 = AtomicU64::new(1);

/// A fresh number for [`EntityInit::start`].
pub fn next_start() -> u64 {
    STARTS.fetch_add(1, Ordering::Relaxed)
}

/// The end of an entity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The entity was stopped, or stopped itself.
    Stopped,
    /// Another writer owns its history.
    Fenced(FencedBy),
    /// The entity failed, and is not started again.
    Failed(Failure),
}

/// Sends commands to an entity that runs as a task. Cheap to clone; the entity stops after the last
/// handle is dropped.
#[derive(Debug)]
pub struct EntityHandle<C> {
    inbox: mpsc::Sender<InboxMessage<C>>,
}

/// An entry of an entity's inbox.
#[derive(Debug)]
enum InboxMessage<C> {
    Command(C),
    Stop,
    /// The turn of a command that the entity told itself.
    Own(Incarnation, WorkNo),
}

impl<C> Clone for EntityHandle<C> {
    fn clone(&self) -> Self {
        Self { inbox: self.inbox.clone() }
    }
}

impl<C> EntityHandle<C> {
    /// Sends a command; waits while the inbox is full.
    ///
    /// # Errors
    /// [`EntityError::Stopped`] if the entity has ended.
    pub async fn tell(&self, command: C) -> Result<(), EntityError> {
        self.inbox.send(InboxMessage::Command(command)).await.map_err(|_| EntityError::Stopped)
    }

    /// Sends the command that `command` makes of a reply token, and waits for the token's answer, for as long as the
    /// entity keeps the token: through recovery, and through restarts with back-off.
    ///
    /// # Errors
    /// [`EntityError`]: why the command was not answered.
    pub async fn ask<R: Send + 'static>(&self, command: impl FnOnce(ReplyTo<R>) -> C) -> Result<R, EntityError> {
        let (reply_to, coming) = ask::question();
        self.tell(command(reply_to)).await?;
        ask::answer(coming).await
    }

    /// Asks the entity to end after the commands sent before.
    pub async fn stop(&self) {
        // A send to an ended entity fails, and needs no stop.
        let _ = self.inbox.send(InboxMessage::Stop).await;
    }
}

/// Starts entities of one type as tasks, on the stores of a node: see [`Stores::events`] and [`Stores::states`].
#[must_use = "it starts entities by `spawn`"]
pub struct Spawn<C> {
    stores: Stores,
    permits: RecoveryPermits,
    codecs: C,
}

impl Stores {
    /// Starts event-sourced entities outside of any shard, whose events are stored by `codec`.
    ///
    /// ```
    /// # use greylag_codec::json;
    /// # use greylag_core::ReplyTo;
    /// # use greylag_persistence::{Ctx, Effect, EventSourced, PersistenceId, Stores};
    /// # enum Command { Increment, Get(ReplyTo<u64>) }
    /// # struct Counter;
    /// # impl EventSourced for Counter {
    /// #     type Command = Command;
    /// #     type Event = ();
    /// #     type State = u64;
    /// #     fn on_command(&mut self, _: &mut Ctx<'_, Command>, count: &u64, command: Command) -> Effect<Self> {
    /// #         match command {
    /// #             Command::Increment => Effect::persist(()),
    /// #             Command::Get(reply_to) => Effect::reply(reply_to, *count),
    /// #         }
    /// #     }
    /// #     fn apply(count: &mut u64, _: &()) { *count += 1 }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let counters = Stores::in_memory().events(json("counter.incremented"));
    /// let (geese, _ended) = counters.spawn(PersistenceId::of("Counter", "geese")?, Counter)?;
    /// geese.tell(Command::Increment).await?;
    /// assert_eq!(geese.ask(Command::Get).await?, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn events<B: EventSourced, By>(&self, codec: impl IntoStored<B::Event, By>) -> Spawn<EventCodecs<B>> {
        Spawn { stores: self.clone(), permits: RecoveryPermits::default(), codecs: EventCodecs::new(codec) }
    }

    /// Starts entities with a durable state outside of any shard, stored by `codec`.
    pub fn states<B: DurableState, By>(&self, codec: impl IntoStored<B::State, By>) -> Spawn<StateCodec<B>> {
        Spawn { stores: self.clone(), permits: RecoveryPermits::default(), codecs: StateCodec::new(codec) }
    }
}

impl<C> Spawn<C> {
    /// Shares these recovery permits with other entities. Default: permits of its own.
    pub fn permits(self, permits: RecoveryPermits) -> Self {
        Self { permits, ..self }
    }
}

impl<B: EventSourced> Spawn<EventCodecs<B>> {
    /// Stores states by `codec`, which makes snapshots possible.
    pub fn snapshots<By>(self, codec: impl IntoStored<B::State, By>) -> Self {
        Self { codecs: self.codecs.snapshots(codec), ..self }
    }

    /// Starts an entity as a task of the current tokio runtime; see [`spawn`].
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn spawn(&self, id: PersistenceId, behavior: B) -> Result<Spawned<B::Command>, SettingsError> {
        spawn(self.codecs.of(id, behavior), self.stores.clone(), self.permits.clone())
    }
}

impl<B: DurableState> Spawn<StateCodec<B>> {
    /// Starts an entity as a task of the current tokio runtime; see [`spawn_state`].
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn spawn(&self, id: PersistenceId, behavior: B) -> Result<Spawned<B::Command>, SettingsError> {
        spawn_state(self.codecs.of(id, behavior), self.stores.clone(), self.permits.clone())
    }
}

impl<C> fmt::Debug for Spawn<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spawn").finish_non_exhaustive()
    }
}

/// An entity that runs as a task, and the channel that reports its end.
pub type Spawned<C> = (EntityHandle<C>, oneshot::Receiver<Ended>);

/// Starts `entity` as a task of the current tokio runtime. The entity's settings start from those of `stores`.
///
/// # Errors
/// [`SettingsError`] if the entity's settings cannot work, or it selects a store that does not exist.
pub fn spawn<B: EventSourced>(
    entity: Persisted<B, EventCodecs<B>>,
    stores: Stores,
    permits: RecoveryPermits,
) -> Result<Spawned<B::Command>, SettingsError> {
    let stores = stores.select(entity.behavior.journal_plugin_id(), entity.behavior.snapshot_plugin_id())?;
    let init = EntityInit {
        generation: None,
        start: next_start(),
        seed: random_seed(),
        caps: stores.journal.caps(),
        snapshot_caps: stores.snapshots.caps(),
        settings: stores.event_sourced_settings().clone(),
        host: None,
    };
    let tally = EntityTally::new(stores.counters().clone());
    let mut out = Vec::new();
    let core = EntityCore::start(entity, init, now(), &mut out)?;
    let store_returns = stores.store_returns();
    let call = move |call: crate::StoreCall| -> BoxFuture<'static, _> {
        let stores = stores.clone();
        Box::pin(async move { call.perform(&stores).await })
    };
    Ok(run(core, call, StoreReturnWatch::new(store_returns), permits, tally, out))
}

/// Starts `entity`, whose state is kept by the selected state store of `stores`, as a task of the current
/// tokio runtime. The entity's settings start from those of `stores`.
///
/// # Errors
/// [`SettingsError`] if the entity's settings cannot work, or it selects a store that does not exist.
pub fn spawn_state<B: DurableState>(
    entity: Persisted<B, StateCodec<B>>,
    stores: Stores,
    permits: RecoveryPermits,
) -> Result<Spawned<B::Command>, SettingsError> {
    let StatesInUse { states, counters } = stores.select_states(entity.behavior.state_plugin_id())?;
    let (start, seed, caps) = (next_start(), random_seed(), states.caps());
    let settings = stores.durable_state_settings().clone();
    let init = StateEntityInit { generation: None, start, seed, caps, settings, host: None };
    let tally = EntityTally::new(counters.clone());
    let mut out = Vec::new();
    let core = StateEntityCore::start(entity, init, now(), &mut out)?;
    let store_returns = states.store_returns().map(|one| StoreReturns::of_all([Some(one)])).unwrap_or_default();
    let call = move |call: crate::StateCall| -> BoxFuture<'static, _> {
        let states = StatesInUse { states: states.clone(), counters: counters.clone() };
        Box::pin(async move { states.perform(call).await })
    };
    Ok(run(core, call, StoreReturnWatch::new(store_returns), permits, tally, out))
}

fn run<M: Machine>(
    core: M,
    call: impl Fn(M::Call) -> BoxFuture<'static, M::Answer> + Send + 'static,
    watch: StoreReturnWatch,
    permits: RecoveryPermits,
    tally: EntityTally,
    out: Vec<Action<M::Command, M::Call>>,
) -> (EntityHandle<M::Command>, oneshot::Receiver<Ended>) {
    let (inbox, commands) = mpsc::channel(1024);
    let (ended, end) = oneshot::channel();
    let (work, drop_log) = (JoinSet::new(), DropLog::default());
    let commands = Mailbox { commands, own: VecDeque::new(), outside_first: false };
    let host = Host { core, call, watch, permits, permit: None, commands, work, drop_log, tally, stops: false };
    tokio::spawn(async move {
        // The send fails only if the receiver was dropped, which is not an error.
        let _ = ended.send(host.run(out).await);
    });
    (EntityHandle { inbox }, end)
}

struct Host<M: Machine, F> {
    core: M,
    /// Performs a store call.
    call: F,
    watch: StoreReturnWatch,
    permits: RecoveryPermits,
    permit: Option<(Incarnation, RecoveryPermit)>,
    commands: Mailbox<M::Command>,
    work: JoinSet<TaskResult<M::Answer, M::Command>>,
    drop_log: DropLog,
    tally: EntityTally,
    /// Whether a handler asked for the entity's end.
    stops: bool,
}

/// Commands from outside, and the turns of commands that the entity told itself.
struct Mailbox<C> {
    commands: mpsc::Receiver<InboxMessage<C>>,
    own: VecDeque<(Incarnation, WorkNo)>,
    /// Whether a command from outside goes before the next own turn; alternates, so that an entity that always tells
    /// itself commands still gets those from outside.
    outside_first: bool,
}

impl<C> Mailbox<C> {
    /// The next message in its turn. Dropping the future loses no message.
    async fn next(&mut self) -> Option<InboxMessage<C>> {
        if self.own.is_empty() {
            return self.commands.recv().await;
        }
        // Yield: an entity that tells itself commands without end must not keep the thread.
        tokio::task::yield_now().await;
        self.outside_first = !self.outside_first;
        if self.outside_first
            && let Ok(message) = self.commands.try_recv()
        {
            return Some(message);
        }
        self.own.pop_front().map(|(incarnation, work)| InboxMessage::Own(incarnation, work))
    }
}

/// Reports the return of one of the entity's stores while it backs off.
struct StoreReturnWatch {
    store_returns: StoreReturns,
    /// The count when the incarnation began.
    seen: u64,
    /// Waits for a greater count; set while the entity backs off.
    back: Option<BoxFuture<'static, ()>>,
}

impl StoreReturnWatch {
    fn new(store_returns: StoreReturns) -> Self {
        Self { store_returns, seen: 0, back: None }
    }

    /// Starts waiting: the entity backs off.
    fn begin(&mut self) {
        self.back = Some(Box::pin(self.store_returns.clone().beyond(self.seen)));
    }

    /// Stops waiting: the entity's next incarnation begins.
    fn end(&mut self) {
        (self.seen, self.back) = (self.store_returns.count(), None);
    }

    async fn is_back(&mut self) {
        match &mut self.back {
            Some(back) => back.await,
            None => std::future::pending().await,
        }
        self.back = None;
    }
}

/// Limits log lines about dropped commands, so that a flood gives one line.
#[derive(Default)]
struct DropLog {
    unlogged: u64,
    logged_at: Option<Instant>,
}

/// Shortest time between two warnings of one entity about dropped commands.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

impl DropLog {
    fn log(&mut self, id: &PersistenceId, reason: DeadLetterReason) {
        if let Some(commands) = self.count(now()) {
            tracing::warn!(%id, ?reason, commands, "commands dropped");
        }
    }

    /// Counts one dropped command; returns the number to log now, if a line is due.
    fn count(&mut self, now: Instant) -> Option<u64> {
        self.unlogged += 1;
        let is_due = self.logged_at.is_none_or(|at| now.saturating_duration_since(at) >= LOG_INTERVAL);
        is_due.then(|| {
            self.logged_at = Some(now);
            std::mem::take(&mut self.unlogged)
        })
    }
}

/// The result of a task that the host runs for the entity.
enum TaskResult<A, C> {
    Permit(Incarnation, RecoveryPermit),
    Answer(Incarnation, A),
    Worked(Incarnation, WorkNo, Option<C>),
}

impl<M: Machine, F: Fn(M::Call) -> BoxFuture<'static, M::Answer> + Send + 'static> Host<M, F> {
    async fn run(mut self, mut out: Vec<Action<M::Command, M::Call>>) -> Ended {
        let mut open = true;
        loop {
            for action in std::mem::take(&mut out) {
                if let Some(ended) = self.perform(action) {
                    self.clean_up(&ended);
                    return ended;
                }
            }
            if std::mem::take(&mut self.stops) {
                self.turn(Input::Stop, &mut out);
                continue;
            }
            let input = tokio::select! {
                () = sleep_until(self.core.next_deadline()) => Input::Tick,
                () = self.watch.is_back() => Input::StoreBack,
                Some(done) = self.work.join_next() => match done {
                    Ok(TaskResult::Permit(incarnation, permit)) => {
                        self.permit = Some((incarnation, permit));
                        Input::PermitGranted(incarnation)
                    }
                    Ok(TaskResult::Answer(incarnation, answer)) => Input::Answer { incarnation, answer },
                    Ok(TaskResult::Worked(incarnation, work, command)) => Input::Worked { incarnation, work, command },
                    // The lost call may have been carried out; only a new incarnation can find out.
                    Err(_) => {
                        let ended = Ended::Failed(Failure::StoreLost);
                        self.clean_up(&ended);
                        return ended;
                    }
                },
                received = self.commands.next(), if open => match received {
                    Some(InboxMessage::Command(command)) => Input::Command(command),
                    Some(InboxMessage::Own(incarnation, work)) => Input::Worked { incarnation, work, command: None },
                    Some(InboxMessage::Stop) => Input::Stop,
                    None => {
                        open = false;
                        Input::Stop
                    }
                },
            };
            self.turn(input, &mut out);
        }
    }

    fn turn(&mut self, input: Input<M::Command, M::Answer>, out: &mut Vec<Action<M::Command, M::Call>>) {
        let began = now();
        self.core.handle(began, input, out);
        let took = || now().saturating_duration_since(began);
        self.tally.turn(self.core.persistence_id(), out, self.core.waiting_count(), took);
    }

    /// Answers the callers that still wait with the entity's end, since it is not started again.
    fn clean_up(&mut self, ended: &Ended) {
        let error = match ended {
            Ended::Fenced(_) => EntityError::NotStored(NotStoredReason::Fenced),
            Ended::Stopped => EntityError::Stopped,
            Ended::Failed(failure) => EndAnswers::failed(failure).held,
        };
        let mut out = Vec::new();
        self.turn(Input::StopNow, &mut out);
        for action in out {
            if let Action::DeadLetter(dropped) = action {
                self.drop_log.log(self.core.persistence_id(), dropped.reason);
                DroppedCommand { answer: error.clone(), ..dropped }.discard();
            }
        }
        self.commands.commands.close();
        answer_dropped(error, || {
            drop(self.core.take_waiting());
            self.commands.own.clear();
            while self.commands.commands.try_recv().is_ok() {}
        });
    }

    /// Performs an action of the machine; returns the end, if the entity has ended.
    fn perform(&mut self, action: Action<M::Command, M::Call>) -> Option<Ended> {
        match action {
            Action::RequestPermit(incarnation) => {
                self.watch.end();
                let permits = self.permits.clone();
                self.work.spawn(async move { TaskResult::Permit(incarnation, permits.acquire().await) });
            }
            Action::ReturnPermit(incarnation) => self.permit = self.permit.take().filter(|held| held.0 != incarnation),
            Action::Store { incarnation, call } => {
                let answer = (self.call)(call);
                self.work.spawn(async move { TaskResult::Answer(incarnation, answer.await) });
            }
            Action::Work { incarnation, work: no } => {
                if let Some(work) = self.core.take_work(no) {
                    let id = self.core.persistence_id().clone();
                    self.work.spawn(async move { TaskResult::Worked(incarnation, no, run_work(id, work).await) });
                }
            }
            Action::ToSelf { incarnation, work } => self.commands.own.push_back((incarnation, work)),
            Action::DeadLetter(dropped) => {
                self.drop_log.log(self.core.persistence_id(), dropped.reason);
                dropped.discard();
            }
            Action::Restarting(failure) => {
                tracing::warn!(id = %self.core.persistence_id(), %failure, "entity failed; restarting after back-off");
                self.watch.begin();
            }
            Action::Unhandled => tracing::debug!(id = %self.core.persistence_id(), "command unhandled"),
            Action::Recovered { .. } | Action::Withheld(_) | Action::Passivate => {}
            // An entity outside of any shard is not passivated, so only a stop counts.
            Action::HostRequests(requests) => self.stops |= requests.stop,
            Action::Fenced(by) => return Some(Ended::Fenced(by)),
            Action::Failed(failure) => return Some(Ended::Failed(failure)),
            Action::Stopped => return Some(Ended::Stopped),
        }
        None
    }
}

/// Runs work; a panic ends only the work, and the entity does not wait for its result.
async fn run_work<C: Send + 'static>(id: PersistenceId, work: Work<C>) -> Option<C> {
    let done = match work {
        Work::Future(future) => AssertUnwindSafe(future).catch_unwind().await.ok(),
        Work::Blocking(run) => tokio::task::spawn_blocking(run).await.ok(),
    };
    if done.is_none() {
        tracing::warn!(%id, "background work of an entity panicked or was aborted");
    }
    done.flatten()
}

/// The runtime's clock, so that a test can pause it.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Persistence §2.4: a stash that overflows is logged as a warning, but not once for each command.
    #[test]
    fn a_flood_of_dropped_commands_is_logged_once_in_ten_seconds() {
        let (start, mut drop_log) = (Instant::now(), DropLog::default());
        let logged: Vec<_> = (0..25_000).filter_map(|ms| drop_log.count(start + Duration::from_millis(ms))).collect();
        assert_eq!(logged, [1, 10_000, 10_000]);
    }
}
