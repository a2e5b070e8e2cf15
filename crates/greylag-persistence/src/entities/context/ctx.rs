//! The context of a handler, one type for every kind of entity: facts about the entity, and requests to its runtime.
//!
//! A [`Ctx`] answers from data that its runtime lends, and collects the handler's requests; the runtime carries them
//! out when the handler has returned. So a handler cannot wait, and no work that it begins can re-enter it: the result
//! of that work is a message like any other.
//!
//! ```text
//! plain entity:       shard ------------------------------> Ctx --> receive, on_start, on_signal
//! persistent entity:  shard or task --> EntityCore -------> Ctx --> on_command, on_signal
//! ```
//! Source: sharding §4.3 to §4.5, §4.10; persistence 77.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use greylag_core::{Generation, ReplyTo, TimerKey};

use super::background_work::{Message, Pace, Request, SHORTEST_PERIOD, Work, answer_when};
use super::timer_name::TimerName;
use crate::contract::records::event::SeqNr;
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::revision::Revision;
use crate::entities::marks::Marks;

/// The context of a handler. `M` is the type of its entity's messages or commands.
///
/// The results of work that a handler begins (timers, futures, blocking work, messages to itself) are messages of type
/// `M`. In a persistent entity they wait while a write is under way, none comes before recovery has completed, and all
/// work ends when the entity stops, restarts or is fenced. Source: persistence 77.
pub struct Ctx<'a, M> {
    pub(crate) now: Instant,
    pub(crate) host: Option<&'a dyn Host>,
    pub(crate) facts: Option<PersistentFacts<'a>>,
    pub(crate) requests: Vec<Request<M>>,
    pub(crate) host_requests: HostRequests,
}

/// A persistent entity's facts about its history or state.
#[derive(Clone, Copy)]
pub(crate) struct PersistentFacts<'a> {
    pub(crate) id: &'a PersistenceId,
    pub(crate) kind: PersistenceKind<'a>,
    pub(crate) stashed: usize,
    pub(crate) read_only: bool,
}

/// The kind of persistence, with its own facts.
#[derive(Clone, Copy)]
pub(crate) enum PersistenceKind<'a> {
    Events { seq_nr: SeqNr, marks: &'a Marks },
    State { revision: Revision },
}

/// A handler's requests to the runtime that hosts its entity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostRequests {
    /// [`Ctx::stop`].
    pub stop: bool,
    /// [`Ctx::passivate`].
    pub passivate: bool,
    /// [`Ctx::touch`].
    pub touch: bool,
    /// [`Ctx::veto_passivation`].
    pub veto: Option<bool>,
    /// The incarnation gets an address of its own from now on.
    pub direct: bool,
    /// [`Ctx::delete_events_to`].
    pub(crate) delete_to: Option<SeqNr>,
}

impl HostRequests {
    /// Whether nothing is requested.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A [`Host`] that an entity machine keeps.
pub type SharedHost = Arc<dyn Host>;

/// The runtime that hosts an entity, as its handlers see it: in a shard, the runtime of sharding. An entity that runs
/// as a task of its own has none.
pub trait Host: Send + Sync + fmt::Debug {
    /// The entity type's name.
    fn entity_type(&self) -> &str;
    /// The entity's id.
    fn id(&self) -> &str;
    /// The entity's shard.
    fn shard(&self) -> &str;
    /// The generation of the allocation under which the shard runs on this node.
    fn generation(&self) -> Generation;
    /// Number of the entity's incarnation; never used twice by a process.
    fn incarnation(&self) -> u64;
    /// The value that the layer above lends to its own extensions of [`Ctx`].
    fn lent(&self) -> &(dyn Any + Send + Sync);
    /// Takes a place in the pool for blocking work, which is returned when the answer is dropped.
    ///
    /// # Errors
    /// [`BlockingPoolFull`].
    fn blocking_place(&self) -> Result<Box<dyn Any + Send>, BlockingPoolFull>;
}

impl<'a, M> Ctx<'a, M> {
    /// A context of an entity that is not persistent: for runtimes, and for calling a handler by hand in a test.
    pub fn new(now: Instant, host: Option<&'a dyn Host>) -> Self {
        Self { now, host, facts: None, requests: Vec::new(), host_requests: HostRequests::default() }
    }

    /// A context for calling a handler of an event-sourced behaviour by hand, in a test of the behaviour alone.
    pub fn for_events(now: Instant, id: &'a PersistenceId, seq_nr: SeqNr, marks: &'a Marks) -> Self {
        let facts =
            PersistentFacts { id, kind: PersistenceKind::Events { seq_nr, marks }, stashed: 0, read_only: false };
        Self { facts: Some(facts), ..Self::new(now, None) }
    }

    /// A context for calling a handler of a behaviour with a durable state by hand, in a test of the behaviour alone.
    pub fn for_state(now: Instant, id: &'a PersistenceId, revision: Revision) -> Self {
        let facts = PersistentFacts { id, kind: PersistenceKind::State { revision }, stashed: 0, read_only: false };
        Self { facts: Some(facts), ..Self::new(now, None) }
    }

    /// The handler's requests to its runtime, for extensions of the context by the layer of that runtime.
    pub fn host_requests_mut(&mut self) -> &mut HostRequests {
        &mut self.host_requests
    }

    /// The handler's requests, for the runtime that called it.
    pub fn into_requests(self) -> (Vec<Request<M>>, HostRequests) {
        (self.requests, self.host_requests)
    }

    // --- facts ---

    /// The time of this handler run.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The entity's id; outside of any shard, the part of its persistence id behind the type.
    pub fn id(&self) -> &str {
        match (self.host, &self.facts) {
            (Some(host), _) => host.id(),
            (None, Some(facts)) => facts.id.entity_id(),
            (None, None) => "",
        }
    }

    /// The entity type's name; outside of any shard, the part of its persistence id before the id.
    pub fn entity_type(&self) -> &str {
        match (self.host, &self.facts) {
            (Some(host), _) => host.entity_type(),
            (None, Some(facts)) => facts.id.entity_type(),
            (None, None) => "",
        }
    }

    /// The runtime that hosts the entity; `None` outside of any shard.
    pub fn host(&self) -> Option<&'a dyn Host> {
        self.host
    }

    /// The id of its history or state; `None` for an entity that is not persistent.
    pub fn persistence_id(&self) -> Option<&PersistenceId> {
        self.facts.as_ref().map(|facts| facts.id)
    }

    /// The number of the last event stored; 0 for an entity without events.
    pub fn seq_nr(&self) -> SeqNr {
        match self.kind() {
            Some(PersistenceKind::Events { seq_nr, .. }) => seq_nr,
            _ => SeqNr::ZERO,
        }
    }

    /// The number of writes and deletions of the durable state; 0 for an entity without one.
    pub fn revision(&self) -> Revision {
        match self.kind() {
            Some(PersistenceKind::State { revision }) => revision,
            _ => Revision::NONE,
        }
    }

    /// The deliveries that the history shows as applied, as of now.
    pub fn marks(&self) -> &Marks {
        static NONE: LazyLock<Marks> = LazyLock::new(Marks::default);
        match self.kind() {
            Some(PersistenceKind::Events { marks, .. }) => marks,
            _ => &NONE,
        }
    }

    fn kind(&self) -> Option<PersistenceKind<'a>> {
        self.facts.as_ref().map(|facts| facts.kind)
    }

    /// Number of commands put aside.
    pub fn stashed_count(&self) -> usize {
        self.facts.as_ref().map_or(0, |facts| facts.stashed)
    }

    /// Whether persists are refused.
    pub fn is_read_only(&self) -> bool {
        self.facts.as_ref().is_some_and(|facts| facts.read_only)
    }

    // --- requests to the runtime ---

    /// Ends this incarnation when the handler has returned. Messages that are queued for it, or come later, start a new
    /// incarnation. A persistent entity ends after the commands sent to it by now, as by `Effect::stop`.
    pub fn stop(&mut self) {
        self.host_requests.stop = true;
    }

    /// Asks the shard to end this incarnation once it has handled the messages queued by now. Ignored while such a
    /// request is under way, and outside of any shard.
    pub fn passivate(&mut self) {
        self.host_requests.passivate = true;
    }

    /// Counts as activity, like a message, for automatic passivation.
    pub fn touch(&mut self) {
        self.host_requests.touch = true;
    }

    /// While `true`, automatic passivation skips this entity. Initially `false`.
    pub fn veto_passivation(&mut self, veto: bool) {
        self.host_requests.veto = Some(veto);
    }

    /// Deletes the events up to `to` in the background ([`SeqNr::MAX`]: all); a signal reports the outcome. Without a
    /// snapshot that covers these events, the next recovery fails. Ignored by an entity without events.
    pub fn delete_events_to(&mut self, to: SeqNr) {
        self.host_requests.delete_to = self.host_requests.delete_to.max(Some(to));
    }

    // --- work to begin ---

    /// Queues a message to this entity, behind the messages queued by now, unless the incarnation ends before: a
    /// message that depends on a lost state is not handled by the next incarnation. A stop that is requested later
    /// waits for it.
    pub fn tell_self(&mut self, message: M) {
        self.requests.push(Request::ToSelf(message));
    }

    /// Sends `message` to this entity after `delay`, unless the incarnation ends before. A timer of the same key is
    /// replaced, even if its message is queued already. Source: sharding §4.4.
    pub fn once(&mut self, timer: impl Into<TimerName>, delay: Duration, message: M) {
        self.set_timer(timer.into(), delay, Message::Once(message));
    }

    /// Sends a message made by `message` to this entity again and again, `delay` after the previous one was handled.
    /// Replaces a timer of the same key. A delay of zero counts as a millisecond.
    pub fn fixed_delay(
        &mut self,
        timer: impl Into<TimerName>,
        delay: Duration,
        message: impl FnMut() -> M + Send + 'static,
    ) {
        self.repeat(timer.into(), delay, Pace::Delay, message);
    }

    /// Sends a message made by `message` to this entity every `period`; periods that pass while the entity cannot take
    /// a message count as one. Replaces a timer of the same key. A period of zero counts as a millisecond.
    pub fn fixed_rate(
        &mut self,
        timer: impl Into<TimerName>,
        period: Duration,
        message: impl FnMut() -> M + Send + 'static,
    ) {
        self.repeat(timer.into(), period, Pace::Rate, message);
    }

    fn repeat(&mut self, timer: TimerName, period: Duration, pace: Pace, make: impl FnMut() -> M + Send + 'static) {
        let period = period.max(SHORTEST_PERIOD);
        self.set_timer(timer, period, Message::Every { period, pace, make: Box::new(make) });
    }

    fn set_timer(&mut self, timer: TimerName, after: Duration, message: Message<M>) {
        let TimerName { key, influences } = timer;
        self.requests.push(Request::Set { key, after, message, influences });
    }

    /// Cancels a timer; its message is not handled, even if it is queued already.
    pub fn cancel(&mut self, key: impl Into<TimerKey>) {
        self.requests.push(Request::Cancel(key.into()));
    }

    /// Sets the receive timeout: sends a message made by `message` to this entity whenever it has handled no message
    /// for `after`, again and again until [`Ctx::cancel_receive_timeout`]; replaces an earlier receive timeout.
    /// Messages from outside restart the timeout, and so do those of timers, except timers set by
    /// [`NotInfluence`](crate::NotInfluence). In a shard, messages that are no activity for the entity's type do not
    /// restart it, and [`Ctx::touch`] does. Results of work and messages to itself do not. Time in which the entity is
    /// suspended, persists or recovers does not count. Zero counts as a millisecond. The timeout's message is no
    /// activity for automatic passivation. The timeout ends with the incarnation. Source: sharding §4.4.
    pub fn set_receive_timeout(&mut self, after: Duration, message: impl FnMut() -> M + Send + 'static) {
        let (after, make) = (after.max(SHORTEST_PERIOD), Box::new(message));
        self.requests.push(Request::ReceiveTimeout { after, make });
    }

    /// Cancels the receive timeout, even if its message is queued already.
    pub fn cancel_receive_timeout(&mut self) {
        self.requests.push(Request::CancelReceiveTimeout);
    }

    /// Runs `future` beside the entity; `map` makes its result a message at the back of the queue. The future is
    /// cancelled when the incarnation ends. Source: sharding §4.3.
    pub fn spawn<T: Send + 'static>(
        &mut self,
        future: impl Future<Output = T> + Send + 'static,
        map: impl FnOnce(T) -> M + Send + 'static,
    ) where
        M: 'static,
    {
        let work = async move { Some(map(future.await)) };
        self.requests.push(Request::Work(Work::Future(Box::pin(work))));
    }

    /// Runs `future` beside the entity, without a result. The future is cancelled when the incarnation ends.
    pub fn run(&mut self, future: impl Future<Output = ()> + Send + 'static)
    where
        M: 'static,
    {
        let work = async move {
            future.await;
            None
        };
        self.requests.push(Request::Work(Work::Future(Box::pin(work))));
    }

    /// As [`Ctx::spawn`], for a closure that blocks; it runs on the blocking pool and cannot be cancelled once it has
    /// begun, but a result after the incarnation's end is discarded. Outside of any shard the pool has no limit.
    ///
    /// # Errors
    /// [`BlockingPoolFull`]: `run` was dropped, and will not run.
    pub fn blocking<T: Send + 'static>(
        &mut self,
        run: impl FnOnce() -> T + Send + 'static,
        map: impl FnOnce(T) -> M + Send + 'static,
    ) -> Result<(), BlockingPoolFull>
    where
        M: 'static,
    {
        let place = self.host.map(Host::blocking_place).transpose()?;
        let work = move || {
            let message = map(run());
            drop(place);
            Some(message)
        };
        self.requests.push(Request::Work(Work::Blocking(Box::new(work))));
        Ok(())
    }

    /// Answers `to` with what `future` resolves to. If the incarnation ends before, the asker is told that no answer
    /// will come.
    pub fn reply_when<R: Send + 'static>(&mut self, to: ReplyTo<R>, future: impl Future<Output = R> + Send + 'static)
    where
        M: 'static,
    {
        self.requests.push(Request::Work(answer_when(to, future)));
    }

    /// Holds back all messages to this entity from the end of this handler until `future` is done; its result is
    /// handled first, then the messages queued meanwhile, in order.
    ///
    /// # Errors
    /// [`CannotSuspend`].
    pub fn suspend<T: Send + 'static>(
        &mut self,
        future: impl Future<Output = T> + Send + 'static,
        map: impl FnOnce(T) -> M + Send + 'static,
    ) -> Result<(), CannotSuspend>
    where
        M: 'static,
    {
        if self.facts.is_some() {
            return Err(CannotSuspend::Persists);
        }
        if self.requests.iter().any(|request| matches!(request, Request::Suspend(_))) {
            return Err(CannotSuspend::AlreadySuspended);
        }
        let work = async move { map(future.await) };
        self.requests.push(Request::Suspend(Box::pin(work)));
        Ok(())
    }
}

impl<M> fmt::Debug for Ctx<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ctx({} {})", self.entity_type(), self.id())
    }
}

/// Blocking work was refused, since the node's limit of running and waiting work is reached. Try again later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the blocking pool is full: {running} threads are busy and {waiting} pieces of work wait; try again later")]
pub struct BlockingPoolFull {
    /// Threads that are busy.
    pub running: usize,
    /// Pieces of work that wait for a thread.
    pub waiting: usize,
}

/// Why an entity was not suspended. The future was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CannotSuspend {
    /// The same handler call has suspended the entity already; an entity waits for one future at a time.
    #[error("the entity is suspended already; one suspension at a time")]
    AlreadySuspended,
    /// A persistent entity is suspended only by its writes; it puts commands aside instead.
    #[error("an entity that persists cannot be suspended; stash its commands until the work is done")]
    Persists,
}
