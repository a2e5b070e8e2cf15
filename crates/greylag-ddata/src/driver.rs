//! The tokio half: the handle that programs hold, and the task that runs the machine.

mod calls;
mod controls;
mod events;
mod mail;
mod membership;
mod numbers;
mod replicated;
mod store_task;
mod subscription;
mod task;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use greylag_crdt::{ReplicatedData, UpdateCx};
use greylag_transport::Remoting;
use tokio::sync::{mpsc, oneshot, watch};

pub use events::Events;
pub use mail::expect_replicators;
pub use membership::{Membership, MembershipHandle, PeersHandle};
pub use replicated::{Delete, Get, Replicated, Update};
pub use subscription::{AnySubscription, Changes, Subscription};

use crate::api::effect::Reply;
use crate::api::error::{DeleteError, GetError, RequestError, StartError, StopReason, UpdateError};
use crate::api::event::TypeConflict;
use crate::api::input::Input;
use crate::api::key::{Key, KeyId};
use crate::api::level::{ReadLevel, WriteLevel};
use crate::api::metrics::Metrics;
use crate::api::read::{Changed, Lifecycle, Read};
use crate::api::settings::ReplicatorSettings;
use crate::api::stats::Stats;
use crate::data::types::TypeTable;
use crate::membership::replicas::Replicas;
use crate::storage::store::DurableStore;
use calls::Call;
use controls::Controls;
use task::{Request, Task};

/// A replicator. Clones are cheap, and all handles of the same replicator. When the last one is dropped, the replicator
/// stops as after [`Self::shutdown`]. Source: ddata R1.
#[derive(Debug, Clone)]
pub struct Replicator {
    handle: Arc<Handle>,
}

#[derive(Debug)]
struct Handle {
    /// Requests, bounded: if the queue is full, the caller gets an error.
    requests: mpsc::Sender<Request>,
    /// Calls that must never be refused.
    controls: Arc<Controls<Request>>,
    lifecycle: watch::Receiver<Lifecycle>,
    replicas: watch::Receiver<Arc<Replicas>>,
}

impl Replicator {
    /// Starts a replicator on the current tokio runtime.
    ///
    /// `types` lists the types that peers may send before this node has used them.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        settings: ReplicatorSettings,
        types: TypeTable,
        remoting: Arc<dyn Remoting>,
        membership: Membership,
    ) -> Result<Self, StartError> {
        if settings.durable.is_used() {
            return Err(StartError::Settings(format!(
                "durable.keys is {:?} and there is no store; start with `Replicator::start_durable`",
                settings.durable.keys
            )));
        }
        Self::start_with(settings, types, remoting, membership, None)
    }

    /// [`Self::start`] with a store for the entries that `settings.durable` names. They are loaded before anything is
    /// served; requests wait meanwhile. `types` has to list the types of stored entries.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use greylag_core::Registry;
    /// # use greylag_crdt::{CounterOverflow, GCounter};
    /// # use greylag_ddata::{DurableSettings, Key, Membership, MemoryStore, ReadLevel, Replicator, ReplicatorSettings, TypeTable, WriteLevel};
    /// # use greylag_transport::memory::MemoryNetwork;
    /// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
    /// # let network = MemoryNetwork::new();
    /// # let disk = MemoryStore::default();
    /// # let store = || Arc::new(disk.clone());
    /// # let remoting = |uid: &str| network.node(uid.parse().unwrap(), Arc::new(Registry::new()));
    /// let durable = DurableSettings::of(["visits", "shard-*"]);
    /// let settings = ReplicatorSettings { durable, ..ReplicatorSettings::test() };
    /// // `store()` opens the same place each time: for files, a `greylag_store_sled::DdataStore`.
    /// let start = |uid| Replicator::start_durable(settings.clone(), TypeTable::new(), remoting(uid), Membership::fixed([]), store());
    ///
    /// let visits = Key::<GCounter>::new("visits")?;
    /// let before = start("a:1#1")?;
    /// before.update(&visits, WriteLevel::Local, GCounter::new, |visits, cx| visits.increment(cx, 3)).await?;
    /// before.shutdown().await; // a crash would do: what was acknowledged is on disk
    ///
    /// let after = start("a:1#2")?;
    /// assert_eq!(after.get(&visits, ReadLevel::Local).await?.found().map(|visits| visits.value()), Some(3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`StartError`]. A store that cannot be read stops the replicator later, see [`Self::lifecycle`].
    pub fn start_durable(
        settings: ReplicatorSettings,
        types: TypeTable,
        remoting: Arc<dyn Remoting>,
        membership: Membership,
        store: Arc<dyn DurableStore>,
    ) -> Result<Self, StartError> {
        Self::start_with(settings, types, remoting, membership, Some(store))
    }

    fn start_with(
        settings: ReplicatorSettings,
        types: TypeTable,
        remoting: Arc<dyn Remoting>,
        membership: Membership,
        store: Option<Arc<dyn DurableStore>>,
    ) -> Result<Self, StartError> {
        settings.validate()?;
        let (ordinary, bulk) = mail::mailboxes(&settings.name);
        mail::limits::check(&settings, &*remoting, &ordinary, &bulk)?;
        let (requests, request_queue) = mpsc::channel(settings.mailbox_capacity);
        let controls = Arc::new(Controls::default());
        membership.check_roles(&settings.roles)?;
        let (name, numbers) = numbers::claim(remoting.self_address(), &settings.name, settings.dot_floor)?;
        #[cfg(feature = "cluster")]
        let cluster = membership.cluster();
        let replicas = membership.attach(&settings, &remoting);
        let (task, lifecycle) = Task::new(settings, types, remoting, replicas.clone(), name, numbers, store);
        tokio::spawn(task.run(request_queue, controls.clone()));
        let started = Self { handle: Arc::new(Handle { requests, controls, lifecycle, replicas }) };
        #[cfg(feature = "cluster")]
        if let Some(cluster) = cluster {
            started.flush_on_exit(&cluster);
        }
        Ok(started)
    }

    /// Makes a leaving node flush before its peers hear that it is gone.
    #[cfg(feature = "cluster")]
    fn flush_on_exit(&self, cluster: &greylag_cluster::Cluster) {
        // Weak, so that the cluster does not keep a replicator alive whose last handle is gone.
        let handle = Arc::downgrade(&self.handle);
        let flush = move || -> greylag_cluster::BoxFuture<'static, bool> {
            Box::pin(async move {
                if let Some(handle) = handle.upgrade() {
                    Self { handle }.shutdown().await;
                }
                true
            })
        };
        cluster.on_phase(greylag_cluster::Phase::ClusterExitingDone, "ddata", flush);
    }

    /// Changes an entry: `modify` runs on its value, or on `init()` if the entry is absent, and the result is
    /// replicated to as many replicas as `level` says. Requests for one key run one at a time, in order.
    ///
    /// `modify` must not block: it runs in the replicator's task.
    ///
    /// # Errors
    /// [`UpdateError`]; only `Timeout` and `StoreFailed` leave the change made.
    pub async fn update<T, O, E>(
        &self,
        key: &Key<T>,
        level: WriteLevel,
        init: impl FnOnce() -> T + Send + 'static,
        modify: impl FnOnce(&mut T, &mut UpdateCx<'_>) -> Result<O, E> + Send + 'static,
    ) -> Result<O, UpdateError<E>>
    where
        T: ReplicatedData,
        O: Send + 'static,
        E: Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let (key, call) = (key.clone(), Call::now(level));
        self.request(Box::new(move |task: &mut Task| {
            let (id, now, wall_ms) = task.begin();
            match task.core.update(now, wall_ms, id, &key, level, init, modify, &mut task.effects) {
                Err(error) => drop(answer.send(Err(error))),
                Ok(output) => task.wait_for(id, call, move |reply| {
                    if let Reply::Update(result) = reply {
                        drop(answer.send(result.map(|()| output).map_err(widen)));
                    }
                }),
            }
        }))?;
        answered.await.unwrap_or_else(|_| Err(self.stopped().into()))
    }

    /// Reads an entry.
    ///
    /// # Errors
    /// [`GetError`].
    pub async fn get<T: ReplicatedData>(&self, key: &Key<T>, level: ReadLevel) -> Result<Read<T>, GetError> {
        let (answer, answered) = oneshot::channel();
        let (key, call) = (key.id().clone(), Call::now(level));
        self.request(Box::new(move |task: &mut Task| {
            task.core.add_type::<T>();
            let (id, _, _) = task.begin();
            task.wait_for(id, call, move |reply| {
                if let Reply::Get(result) = reply {
                    drop(answer.send(result));
                }
            });
            task.handle(Input::Get { id, key, tag: T::TAG.to_string().into(), level });
        }))?;
        let read = answered.await.unwrap_or_else(|_| Err(self.stopped().into()))?;
        Ok(match read {
            Read::Found(snapshot) => snapshot.to::<T>().map_or(Read::NotFound, Read::Found),
            Read::NotFound => Read::NotFound,
            Read::Deleted => Read::Deleted,
        })
    }

    /// Deletes an entry for good: its tombstone absorbs everything that is merged into it.
    ///
    /// # Errors
    /// [`DeleteError`].
    pub async fn delete<T: ReplicatedData>(&self, key: &Key<T>, level: WriteLevel) -> Result<(), DeleteError> {
        let (answer, answered) = oneshot::channel();
        let (key, call) = (key.id().clone(), Call::now(level));
        self.request(Box::new(move |task: &mut Task| {
            let (id, _, wall_ms) = task.begin();
            task.wait_for(id, call, move |reply| {
                if let Reply::Delete(result) = reply {
                    drop(answer.send(result));
                }
            });
            task.handle(Input::Delete { id, key, level, wall_ms });
        }))?;
        answered.await.unwrap_or_else(|_| Err(self.stopped().into()))
    }

    /// Adds types that peers may send before this replica has used them.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn add_types(&self, types: TypeTable) -> Result<(), RequestError> {
        self.request(Box::new(move |task: &mut Task| task.core.add_types(&types)))
    }

    /// Subscribes to an entry, or to all entries of a prefix. Dropping the subscription ends it.
    pub fn subscribe<T: ReplicatedData>(&self, key: &Key<T>) -> Subscription<T> {
        let (subscription, feed) = subscription::channel::<Changed<T>>(self.handle.controls.clone());
        let (number, pattern) = (subscription.number(), key.id().clone());
        let begin = move |task: &mut Task| {
            task.core.add_type::<T>();
            task.follow(number, Box::new(move |key, notice| feed.push(key, notice)));
            task.handle(Input::Subscribe { subscriber: number, pattern, tag: T::TAG.to_string().into() });
        };
        self.handle.controls.begin(number, Box::new(begin));
        subscription
    }

    /// Subscribes to all entries whose ids begin with `prefix`, of any type: events name the entry and its type. Only
    /// types that this node can read are seen. Source: ddata R17.
    pub fn subscribe_any(&self, prefix: &str) -> AnySubscription {
        let (subscription, feed) = subscription::channel::<crate::api::read::ChangedAny>(self.handle.controls.clone());
        let (number, pattern): (u64, KeyId) = (subscription.number(), format!("{prefix}*").into());
        let begin = move |task: &mut Task| {
            task.follow(number, Box::new(move |key, notice| feed.push(key, notice)));
            task.handle(Input::SubscribeAny { subscriber: number, pattern });
        };
        self.handle.controls.begin(number, Box::new(begin));
        subscription
    }

    /// Live ids that begin with `prefix` and come after `after`, ascending, at most `limit`.
    ///
    /// # Errors
    /// [`RequestError`].
    pub async fn keys(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<KeyId>, RequestError> {
        let (prefix, after) = (prefix.to_owned(), after.map(ToOwned::to_owned));
        self.ask(move |task| task.core.keys(&prefix, after.as_deref(), limit)).await
    }

    /// Counters of what was dropped, refused, sent and exchanged so far.
    ///
    /// # Errors
    /// [`RequestError`].
    pub async fn stats(&self) -> Result<Stats, RequestError> {
        self.ask(|task| task.stats()).await
    }

    /// The state in numbers: what is held, sent, refused and waited for. Source: ddata I3.
    ///
    /// # Errors
    /// [`RequestError`].
    pub async fn metrics(&self) -> Result<Metrics, RequestError> {
        self.ask(Task::metrics).await
    }

    /// The entries of which peers hold another type; such entries never converge. Source: ddata R6, A5.
    ///
    /// # Errors
    /// [`RequestError`].
    pub async fn conflicts(&self) -> Result<Vec<TypeConflict>, RequestError> {
        self.ask(|task| task.core.conflicts()).await
    }

    /// Events from now on that operators may want to know; without the lifecycle, which [`Replicator::lifecycle`]
    /// shows. Source: ddata I3.
    ///
    /// # Errors
    /// [`RequestError`].
    pub async fn events(&self) -> Result<Events, RequestError> {
        self.ask(|task| task.events.listen()).await
    }

    /// The number of voters; 0 while durable entries are loaded.
    pub fn replica_count(&self) -> usize {
        match *self.handle.lifecycle.borrow() {
            Lifecycle::Loading => 0,
            _ => self.handle.replicas.borrow().voter_count(),
        }
    }

    /// The replicas known now; watch the channel to wait for peers.
    pub fn replicas(&self) -> watch::Receiver<Arc<Replicas>> {
        self.handle.replicas.clone()
    }

    /// Notifies subscribers now, without waiting for the interval.
    pub fn flush_changes(&self) {
        self.handle.controls.flush();
    }

    /// The lifecycle of the replicator; watch the channel to follow it.
    pub fn lifecycle(&self) -> watch::Receiver<Lifecycle> {
        self.handle.lifecycle.clone()
    }

    /// Waits until durable entries are loaded. Returns `false` if the replicator stopped instead.
    pub async fn wait_loaded(&self) -> bool {
        let mut lifecycle = self.lifecycle();
        let loaded = lifecycle.wait_for(|now| *now != Lifecycle::Loading).await;
        loaded.is_ok_and(|now| !matches!(*now, Lifecycle::Stopped(_)))
    }

    /// Waits until this replicator has caught up with enough others. Returns whether it did so in time.
    pub async fn wait_synced(&self, timeout: Duration) -> bool {
        let mut lifecycle = self.lifecycle();
        let running = lifecycle.wait_for(|now| !matches!(now, Lifecycle::Loading | Lifecycle::Syncing));
        match tokio::time::timeout(timeout, running).await {
            Ok(Ok(now)) => *now == Lifecycle::Running,
            _ => false,
        }
    }

    /// Stops in order: sends the changes that no peer has yet, waits until one voter confirms them, and ends.
    pub async fn shutdown(&self) {
        self.handle.controls.stop();
        let mut lifecycle = self.lifecycle();
        // An error means that the task has ended, as wanted.
        drop(lifecycle.wait_for(|now| matches!(now, Lifecycle::Stopped(_))).await);
        // A refused replicator answers peers until its task ends; the end of the task closes this channel.
        self.handle.requests.closed().await;
    }

    async fn ask<R: Send + 'static>(&self, f: impl FnOnce(&mut Task) -> R + Send + 'static) -> Result<R, RequestError> {
        let (answer, answered) = oneshot::channel();
        self.request(Box::new(move |task: &mut Task| drop(answer.send(f(task)))))?;
        answered.await.map_err(|_| self.stopped())
    }

    fn request(&self, request: Request) -> Result<(), RequestError> {
        if matches!(*self.handle.lifecycle.borrow(), Lifecycle::Stopped(_)) {
            return Err(self.stopped());
        }
        self.handle.requests.try_send(request).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => RequestError::Overloaded,
            mpsc::error::TrySendError::Closed(_) => self.stopped(),
        })
    }

    fn stopped(&self) -> RequestError {
        match &*self.handle.lifecycle.borrow() {
            Lifecycle::Stopped(reason) => RequestError::Stopped(reason.clone()),
            _ => RequestError::Stopped(StopReason::ShutDown),
        }
    }
}

/// The same error with the error type of a closure that can fail.
fn widen<E>(error: UpdateError<Infallible>) -> UpdateError<E> {
    match error {
        UpdateError::Timeout { needed, acked, refused } => UpdateError::Timeout { needed, acked, refused },
        UpdateError::Modify(never) => match never {},
        UpdateError::ModifyPanicked => UpdateError::ModifyPanicked,
        UpdateError::Merge(error) => UpdateError::Merge(error),
        UpdateError::StoreFailed { key } => UpdateError::StoreFailed { key },
        UpdateError::Deleted { key } => UpdateError::Deleted { key },
        UpdateError::TypeMismatch { key, expected, found } => UpdateError::TypeMismatch { key, expected, found },
        UpdateError::EntryTooLarge { key, size, max } => UpdateError::EntryTooLarge { key, size, max },
        UpdateError::Request(error) => UpdateError::Request(error),
    }
}
