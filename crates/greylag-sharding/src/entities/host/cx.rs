//! The requests that a handler may make of its shard.
//!
//! A [`ShardCx`] only collects requests; the shard carries them out when the handler has returned. So a
//! handler cannot wait, and nothing that it starts can re-enter it.
//!
//! Source: sharding §4.3 to §4.5, §4.10, §4.11.

use std::any::Any;
use std::borrow::Borrow;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::{Generation, TimerKey, UniqueAddress};
use greylag_persistence::{BlockingPoolFull, Ctx, Host, HostRequests, Message, Pace, Request, SharedHost};
use greylag_transport::Remoting;

use super::direct_ref::DirectRef;
use super::signal::Fenced;
use super::suspension::{Resumption, Suspension};
use crate::driver::Node;
use crate::held::discard;
use crate::ids::{EntityId, EntityTypeName, ShardId};
use crate::parcel::FAR;

/// Asynchronous work of an entity.
pub(crate) enum Work<M> {
    /// Runs on the runtime.
    Future(Pin<Box<dyn Future<Output = Option<Resumption<M>>> + Send>>),
    /// Runs on the blocking pool.
    Blocking(Box<dyn FnOnce() -> Option<Resumption<M>> + Send>),
}

impl<M: 'static> Work<M> {
    /// Wraps work of a user's handler.
    fn of(work: greylag_persistence::Work<M>) -> Self {
        match work {
            greylag_persistence::Work::Future(future) => {
                Self::Future(Box::pin(async move { future.await.map(Resumption::Message) }))
            }
            greylag_persistence::Work::Blocking(run) => {
                Self::Blocking(Box::new(move || run().map(Resumption::Message)))
            }
        }
    }

    fn map<N: 'static>(self, wrap: impl Fn(M) -> N + Send + 'static) -> Work<N> {
        let translate = move |resumption: Option<Resumption<M>>| {
            resumption.map(|resumption| match resumption {
                Resumption::Message(message) => Resumption::Message(wrap(message)),
                Resumption::Value(value) => Resumption::Value(value),
            })
        };
        match self {
            Self::Future(future) => Work::Future(Box::pin(async move {
                let resumption = future.await;
                translate(resumption)
            })),
            Self::Blocking(run) => Work::Blocking(Box::new(move || translate(run()))),
        }
    }
}

/// A change of an entity's timers.
pub(crate) enum TimerRequest<M> {
    Once {
        key: TimerKey,
        at: Instant,
        message: M,
        influences: bool,
    },
    Every {
        key: TimerKey,
        period: Duration,
        pace: Pace,
        make: MakeMessage<M>,
        influences: bool,
    },
    /// A value for [`super::HostedEntity::on_resume`], once.
    Wake {
        key: TimerKey,
        at: Instant,
        value: Box<dyn Any + Send>,
    },
    Cancel(TimerKey),
}

/// The receive timeout of an entity, and the maker of its messages.
pub(crate) struct ReceiveTimeoutRequest<M> {
    pub(crate) after: Duration,
    pub(crate) make: MakeMessage<M>,
}

/// Makes the messages of a timer that repeats.
pub(crate) type MakeMessage<M> = Box<dyn FnMut() -> M + Send>;

impl<M: 'static> TimerRequest<M> {
    fn map<N: 'static>(self, wrap: impl Fn(M) -> N + Send + 'static) -> TimerRequest<N> {
        match self {
            Self::Once { key, at, message, influences } => {
                TimerRequest::Once { key, at, message: wrap(message), influences }
            }
            Self::Every { key, period, pace, mut make, influences } => {
                TimerRequest::Every { key, period, pace, make: Box::new(move || wrap(make())), influences }
            }
            Self::Wake { key, at, value } => TimerRequest::Wake { key, at, value },
            Self::Cancel(key) => TimerRequest::Cancel(key),
        }
    }
}

/// The requests of a handler; carried out when it has returned.
pub(crate) struct Requests<M> {
    pub(crate) stop: bool,
    pub(crate) passivate: bool,
    pub(crate) touch: bool,
    pub(crate) direct: bool,
    pub(crate) veto: Option<bool>,
    pub(crate) fenced: Option<Fenced>,
    pub(crate) suspend: Option<(Work<M>, Suspension)>,
    pub(crate) spawn: Vec<Work<M>>,
    pub(crate) timers: Vec<TimerRequest<M>>,
    /// The latest request; `Some(None)` cancels the receive timeout.
    pub(crate) receive_timeout: Option<Option<ReceiveTimeoutRequest<M>>>,
    pub(crate) to_self: Vec<M>,
    pub(crate) give_back: Vec<M>,
}

impl<M> Default for Requests<M> {
    fn default() -> Self {
        Self {
            stop: false,
            passivate: false,
            touch: false,
            direct: false,
            veto: None,
            fenced: None,
            suspend: None,
            spawn: Vec::new(),
            timers: Vec::new(),
            receive_timeout: None,
            to_self: Vec::new(),
            give_back: Vec::new(),
        }
    }
}

impl<M: 'static> Requests<M> {
    /// Adds a request of a user's handler.
    fn take(&mut self, now: Instant, request: Request<M>) {
        match request {
            Request::Set { key, after, message: Message::Once(message), influences } => match now.checked_add(after) {
                Some(at) => self.timers.push(TimerRequest::Once { key, at, message, influences }),
                // A time beyond the clock's range never comes.
                None => self.timers.push(TimerRequest::Cancel(key)),
            },
            Request::Set { key, message: Message::Every { period, pace, make }, influences, .. } => {
                self.timers.push(TimerRequest::Every { key, period, pace, make, influences });
            }
            Request::ReceiveTimeout { after, make } => {
                self.set_receive_timeout(Some(ReceiveTimeoutRequest { after, make }));
            }
            Request::CancelReceiveTimeout => self.set_receive_timeout(None),
            Request::Cancel(key) => self.timers.push(TimerRequest::Cancel(key)),
            Request::Work(work) => self.spawn.push(Work::of(work)),
            Request::ToSelf(message) => self.to_self.push(message),
            Request::Suspend(future) => {
                let work = async move { Some(Resumption::Message(future.await)) };
                self.suspend = Some((Work::Future(Box::pin(work)), Suspension::Closed));
            }
        }
    }
}

impl<M> Requests<M> {
    /// Replaces the receive timeout; the previous maker is a user value whose destructor may panic.
    fn set_receive_timeout(&mut self, latest: Option<ReceiveTimeoutRequest<M>>) {
        discard(self.receive_timeout.replace(latest));
    }

    /// The flags of the requests.
    fn host_requests(&self) -> HostRequests {
        let mut host_requests = HostRequests::default();
        (host_requests.stop, host_requests.passivate, host_requests.touch) = (self.stop, self.passivate, self.touch);
        (host_requests.direct, host_requests.veto) = (self.direct, self.veto);
        host_requests
    }

    /// Adds flags; of two requests about passivation the later one holds.
    fn merge(&mut self, host_requests: &HostRequests) {
        self.stop |= host_requests.stop;
        self.passivate |= host_requests.passivate;
        self.touch |= host_requests.touch;
        self.direct |= host_requests.direct;
        self.veto = host_requests.veto.or(self.veto);
    }

    /// Drops all requests, one value after the other: each may have a destructor that panics.
    pub(crate) fn discard(self) {
        let Self { suspend, spawn, timers, receive_timeout, to_self, give_back, .. } = self;
        discard(suspend);
        discard(receive_timeout);
        spawn.into_iter().for_each(discard);
        timers.into_iter().for_each(discard);
        to_self.into_iter().chain(give_back).for_each(discard);
    }

    /// Whether there is nothing to carry out: the usual case.
    pub(crate) fn is_empty(&self) -> bool {
        let flags = self.stop || self.passivate || self.touch || self.direct;
        let options = self.veto.is_some() || self.fenced.is_some() || self.suspend.is_some();
        let messages = !self.to_self.is_empty() || !self.give_back.is_empty();
        let times = !self.timers.is_empty() || self.receive_timeout.is_some();
        !flags && !options && !messages && !times && self.spawn.is_empty()
    }
}

/// The place of an entity: the same for all entities of one shard incarnation.
#[derive(Debug)]
pub(crate) struct CtxScope {
    pub(crate) entity_type: EntityTypeName,
    pub(crate) shard: ShardId,
    pub(crate) generation: Generation,
    pub(crate) node: Arc<Node>,
}

/// An entity in its shard, as seen by its handlers.
#[derive(Debug)]
pub(crate) struct InShard<S, I> {
    pub(crate) scope: S,
    pub(crate) id: I,
    pub(crate) incarnation: u64,
}

impl<S, I> Host for InShard<S, I>
where
    S: Borrow<CtxScope> + Send + Sync + fmt::Debug,
    I: Borrow<EntityId> + Send + Sync + fmt::Debug,
{
    fn entity_type(&self) -> &str {
        self.scope.borrow().entity_type.as_str()
    }

    fn id(&self) -> &str {
        self.id.borrow().as_str()
    }

    fn shard(&self) -> &str {
        self.scope.borrow().shard.as_str()
    }

    fn generation(&self) -> Generation {
        self.scope.borrow().generation
    }

    fn incarnation(&self) -> u64 {
        self.incarnation
    }

    fn lent(&self) -> &(dyn Any + Send + Sync) {
        &*self.scope.borrow().node
    }

    fn blocking_place(&self) -> Result<Box<dyn Any + Send>, BlockingPoolFull> {
        Ok(Box::new(self.scope.borrow().node.blocking.place()?))
    }
}

/// The entity has suspended itself already, in this handler or before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the entity is suspended already; one suspension at a time")]
pub struct AlreadySuspended;

/// A handler's requests to its shard, and its access to the entity's place.
pub struct ShardCx<'a, M> {
    scope: &'a Arc<CtxScope>,
    id: &'a EntityId,
    incarnation: u64,
    now: Instant,
    requests: &'a mut Requests<M>,
}

impl<'a, M: 'static> ShardCx<'a, M> {
    pub(crate) fn new(
        scope: &'a Arc<CtxScope>,
        id: &'a EntityId,
        incarnation: u64,
        now: Instant,
        requests: &'a mut Requests<M>,
    ) -> Self {
        Self { scope, id, incarnation, now, requests }
    }

    /// The entity's id.
    pub fn id(&self) -> &EntityId {
        self.id
    }

    /// The entity type's name.
    pub fn entity_type(&self) -> &EntityTypeName {
        &self.scope.entity_type
    }

    /// The entity's shard.
    pub fn shard(&self) -> &ShardId {
        &self.scope.shard
    }

    /// The allocation under which the shard runs here.
    pub fn generation(&self) -> Generation {
        self.scope.generation
    }

    /// Number of this incarnation; never used twice by a process.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The time of this handler run.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// This process.
    pub fn node(&self) -> &UniqueAddress {
        self.scope.node.remoting.self_address()
    }

    /// The transport of this node.
    pub fn remoting(&self) -> &Arc<dyn Remoting> {
        &self.scope.node.remoting
    }

    /// Runs a user's handler, and takes its requests.
    pub fn run<R>(&mut self, handler: impl FnOnce(&mut Ctx<'_, M>) -> R) -> R {
        let host = InShard { scope: &**self.scope, id: self.id, incarnation: self.incarnation };
        let mut cx = Ctx::new(self.now, Some(&host));
        let answer = catch_unwind(AssertUnwindSafe(|| handler(&mut cx)));
        // Take the requests also after a panic: a destructor that panics while the handler's panic unwinds would end
        // the process.
        let (requests, host_requests) = cx.into_requests();
        self.requests.merge(&host_requests);
        for request in requests {
            self.requests.take(self.now, request);
        }
        answer.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// The entity, as seen by handlers that are called elsewhere.
    pub(crate) fn host(&self) -> SharedHost {
        Arc::new(InShard { scope: self.scope.clone(), id: self.id.clone(), incarnation: self.incarnation })
    }

    /// The node's services for its entities.
    pub(crate) fn node_services(&self) -> &Node {
        &self.scope.node
    }

    /// Ends this incarnation when the handler has returned. Messages that are queued, or come later, start a new
    /// incarnation.
    pub fn stop(&mut self) {
        self.requests.stop = true;
    }

    /// Asks the shard to end this incarnation once it has handled the messages queued by now: the stop request arrives
    /// at [`super::HostedEntity::on_stop`]. Ignored while such a request is under way.
    pub fn passivate(&mut self) {
        self.requests.passivate = true;
    }

    /// Counts as activity, as a message does, for automatic passivation.
    pub fn touch(&mut self) {
        self.requests.touch = true;
    }

    /// While `true`, automatic passivation leaves this entity alone. Starts `false`.
    pub fn veto_passivation(&mut self, veto: bool) {
        self.requests.veto = Some(veto);
    }

    /// Takes the last request about passivation of this handler run, even of an inner handler: for a wrapper that
    /// vetoes for its own reasons, and combines both.
    pub fn take_veto(&mut self) -> Option<bool> {
        self.requests.veto.take()
    }

    /// Queues a message to this entity, behind those queued by now.
    pub fn tell_self(&mut self, message: M) {
        self.requests.to_self.push(message);
    }

    /// Sends `message` to this entity after `delay`, unless the incarnation ends before. A timer of
    /// the same key is replaced, even if its message is queued already.
    pub fn once(&mut self, key: impl Into<TimerKey>, delay: Duration, message: M) {
        let key = key.into();
        self.requests.timers.push(TimerRequest::Once {
            key,
            at: self.now.checked_add(delay).unwrap_or(self.now + FAR),
            message,
            influences: true,
        });
    }

    /// Cancels a timer; its message is not delivered, even if it is queued already.
    pub fn cancel(&mut self, key: impl Into<TimerKey>) {
        self.requests.timers.push(TimerRequest::Cancel(key.into()));
    }

    /// Passes `value` to [`super::HostedEntity::on_resume`] at `at`, replacing an earlier call with the same key; ends
    /// with the incarnation, and does not put off a receive timeout.
    pub(crate) fn wake_at(&mut self, key: TimerKey, at: Instant, value: impl Any + Send) {
        self.requests.timers.push(TimerRequest::Wake { key, at, value: Box::new(value) });
    }

    /// Runs `future` outside of the shard; `map` turns its result into an ordinary message at the back of the queue.
    /// The future is cancelled when the incarnation ends.
    pub fn spawn<T: Send + 'static>(
        &mut self,
        future: impl Future<Output = T> + Send + 'static,
        map: impl FnOnce(T) -> M + Send + 'static,
    ) {
        let work = async move { Some(Resumption::Message(map(future.await))) };
        self.requests.spawn.push(Work::Future(Box::pin(work)));
    }

    /// As [`ShardCx::spawn`], but the result goes to [`super::HostedEntity::on_resume`].
    pub fn spawn_for<T: Send + 'static>(&mut self, future: impl Future<Output = T> + Send + 'static) {
        let work = async move { Some(Resumption::Value(Box::new(future.await))) };
        self.requests.spawn.push(Work::Future(Box::pin(work)));
    }

    /// As [`ShardCx::spawn`], for a closure that blocks; the closure runs on the blocking pool and cannot be cancelled
    /// once it has begun, but a result that comes after the incarnation's end is discarded.
    ///
    /// # Errors
    /// [`BlockingPoolFull`]: `run` was dropped, and will not run.
    pub fn blocking<T: Send + 'static>(
        &mut self,
        run: impl FnOnce() -> T + Send + 'static,
        map: impl FnOnce(T) -> M + Send + 'static,
    ) -> Result<(), BlockingPoolFull> {
        let place = self.scope.node.blocking.place()?;
        let work = move || {
            let message = map(run());
            drop(place);
            Some(Resumption::Message(message))
        };
        self.requests.spawn.push(Work::Blocking(Box::new(work)));
        Ok(())
    }

    /// As [`ShardCx::blocking`], but the result goes to [`super::HostedEntity::on_resume`], and the work already has
    /// its place in the pool.
    pub(crate) fn blocking_for<T: Send + 'static>(&mut self, run: impl FnOnce() -> T + Send + 'static) {
        self.requests.spawn.push(Work::Blocking(Box::new(move || Some(Resumption::Value(Box::new(run()))))));
    }

    /// Suspends this entity from the end of this handler until `future` is done: its result is handled first, then the
    /// messages queued meanwhile, in order.
    ///
    /// # Errors
    /// [`AlreadySuspended`] on the second call within one handler run.
    pub fn suspend<T: Send + 'static>(
        &mut self,
        future: impl Future<Output = T> + Send + 'static,
        map: impl FnOnce(T) -> M + Send + 'static,
    ) -> Result<(), AlreadySuspended> {
        self.begin_suspension(Suspension::Closed, async move { Some(Resumption::Message(map(future.await))) })
    }

    /// As [`ShardCx::suspend`], but the result goes to [`super::HostedEntity::on_resume`].
    ///
    /// # Errors
    /// As [`ShardCx::suspend`].
    pub fn suspend_for<T: Send + 'static>(
        &mut self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<(), AlreadySuspended> {
        self.suspend_as(Suspension::Closed, future)
    }

    /// As [`ShardCx::suspend_for`], but selects whether stop requests may come. An entity whose suspension is stoppable
    /// and that does not end on its stop request must not suspend itself again before it is resumed.
    pub(crate) fn suspend_as<T: Send + 'static>(
        &mut self,
        suspension: Suspension,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<(), AlreadySuspended> {
        self.begin_suspension(suspension, async move { Some(Resumption::Value(Box::new(future.await))) })
    }

    fn begin_suspension(
        &mut self,
        suspension: Suspension,
        work: impl Future<Output = Option<Resumption<M>>> + Send + 'static,
    ) -> Result<(), AlreadySuspended> {
        if self.requests.suspend.is_some() {
            return Err(AlreadySuspended);
        }
        self.requests.suspend = Some((Work::Future(Box::pin(work)), suspension));
        Ok(())
    }

    /// Puts messages that were taken and not handled back to the front of the queue, in their order. If the incarnation
    /// ends, its successor gets them, wherever the successor lives.
    pub(crate) fn give_back(&mut self, messages: impl IntoIterator<Item = M>) {
        self.requests.give_back.extend(messages);
    }

    /// The journal knows a newer owner or writer: ends the incarnation without any directive and has
    /// the region confirm the shard's home before the entity starts again. Source: sharding §4.6.
    pub fn fenced(&mut self, fenced: Fenced) {
        self.requests.fenced = Some(fenced);
    }

    /// The address of this incarnation alone.
    pub fn direct_ref(&mut self) -> DirectRef {
        self.requests.direct = true;
        DirectRef::of(self.node(), self.scope.entity_type.as_str(), self.scope.shard.as_str(), self.incarnation)
    }

    /// Runs `f` with a context for messages of another type, which `wrap` turns into this entity's messages: for an
    /// entity that wraps another one.
    pub fn nested<N: 'static, R>(
        &mut self,
        wrap: impl Fn(N) -> M + Clone + Send + 'static,
        f: impl FnOnce(&mut ShardCx<'_, N>) -> R,
    ) -> R {
        let mut inner = Requests::default();
        let mut cx = ShardCx::new(self.scope, self.id, self.incarnation, self.now, &mut inner);
        let result = catch_unwind(AssertUnwindSafe(|| f(&mut cx)));
        let outer = &mut *self.requests;
        outer.merge(&inner.host_requests());
        outer.fenced = inner.fenced.or(outer.fenced);
        if let Some((work, suspension)) = inner.suspend {
            outer.suspend = Some((work.map(wrap.clone()), suspension));
        }
        outer.spawn.extend(inner.spawn.into_iter().map(|work| work.map(wrap.clone())));
        outer.timers.extend(inner.timers.into_iter().map(|timer| timer.map(wrap.clone())));
        if let Some(told) = inner.receive_timeout {
            let wrap = wrap.clone();
            outer.set_receive_timeout(told.map(|ReceiveTimeoutRequest { after, mut make }| ReceiveTimeoutRequest {
                after,
                make: Box::new(move || wrap(make())) as MakeMessage<M>,
            }));
        }
        outer.to_self.extend(inner.to_self.into_iter().map(wrap.clone()));
        outer.give_back.extend(inner.give_back.into_iter().map(wrap));
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl<M> fmt::Debug for ShardCx<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardCx")
            .field("entity_type", &self.scope.entity_type)
            .field("id", self.id)
            .field("incarnation", &self.incarnation)
            .finish_non_exhaustive()
    }
}
