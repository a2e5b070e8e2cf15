//! Daemon processes: their setup, and the handle to them.
//!
//! Source: sharding §6.2.

mod command;
pub(super) mod handle;
mod init;
mod manager_driver;
mod returning;
mod store;
mod worker;

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use greylag_cluster::{Singleton, SingletonSettings};
use greylag_core::DeadLetterReason;

use self::command::{Command, CommandCodec};
pub use self::handle::{DaemonError, DaemonProcesses};
pub use self::init::DaemonInit;
use self::manager_driver::ManagerDriver;
use self::store::RecordStore;
use self::worker::{Latest, Worker};
use crate::driver::sharding::handle::Sharding;
use crate::driver::sharding::init_error::InitError;
use crate::entity::{Entity, Failure, Supervision};
use crate::entity_type::EntityType;
use crate::extractor::Extractor;
use crate::ids::{EntityId, EntityTypeName, ShardId, percent_encode};
use crate::key::EntityKey;
use crate::machine::daemon::{DaemonManagerConfig, ProcessId};
use crate::passivation::Passivation;
use crate::settings::DaemonProcessSettings;

/// A daemon process that is not started yet: a fixed number of workers, each alive once, spread over the nodes.
///
/// Made by [`Sharding::daemon_process`]; say it on every node, with the same number. Source: sharding §6.2.
#[must_use = "a daemon process is set up by start()"]
pub struct DaemonProcess<E: Entity, F> {
    sharding: Sharding,
    name: String,
    count: u32,
    factory: F,
    role: String,
    settings: DaemonProcessSettings,
    supervision: Supervision,
    stop_message: Option<fn() -> E::Message>,
}

impl Sharding {
    /// Runs `count` workers of this name in the cluster, from when the node is a member. Each worker is an entity that
    /// `factory` makes on the node where it runs; when the worker or its node ends, it is started again. No worker is
    /// passivated, and it gets messages only from itself: timers, and results of work that it began.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use greylag_sharding::{Ctx, Entity, Failure, InitError, Sharding};
    /// /// Works through every fourth part of something.
    /// struct Part {
    ///     index: u32,
    /// }
    ///
    /// impl Entity for Part {
    ///     type Message = ();
    ///
    ///     fn on_start(&mut self, cx: &mut Ctx<'_, ()>) {
    ///         cx.fixed_rate("work", Duration::from_secs(1), || ());
    ///     }
    ///
    ///     fn receive(&mut self, (): (), _: &mut Ctx<'_, ()>) -> Result<(), Failure> {
    ///         println!("part {}", self.index);
    ///         Ok(())
    ///     }
    /// }
    ///
    /// # async fn start(sharding: Sharding) -> Result<(), Box<dyn std::error::Error>> {
    /// let parts = sharding.daemon_process("parts", 4, |init| Ok(Part { index: init.index })).start()?;
    /// parts.change_number_of_processes(8).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// There are at most as many workers as the setting `number_of_shards` says. A number that was changed at run time
    /// is kept for as long as the cluster runs; after a full stop there are `count` again.
    pub fn daemon_process<E, F>(&self, name: impl Into<String>, count: u32, factory: F) -> DaemonProcess<E, F>
    where
        E: Entity,
        F: Fn(&DaemonInit) -> Result<E, Failure> + Send + Sync + 'static,
    {
        DaemonProcess {
            sharding: self.clone(),
            name: name.into(),
            count,
            factory,
            role: self.settings().role.clone(),
            settings: self.settings().daemon.clone(),
            supervision: Supervision::default(),
            stop_message: None,
        }
    }
}

impl<E, F> DaemonProcess<E, F>
where
    E: Entity,
    F: Fn(&DaemonInit) -> Result<E, Failure> + Send + Sync + 'static,
{
    /// Sets the role of the nodes that run workers. Default: the setting `role`, which is all nodes.
    pub fn role(mut self, role: impl Into<String>) -> Self {
        self.role = role.into();
        self
    }

    /// Sets how often workers are asked to start. Default: the settings `sharded_daemon_process.*`.
    pub fn settings(mut self, settings: DaemonProcessSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Sets how failed workers are supervised. A worker that is stopped is started again by the next round of the
    /// manager.
    pub fn supervision(mut self, supervision: Supervision) -> Self {
        self.supervision = supervision;
        self
    }

    /// Sets the message that asks a worker to stop; the worker then calls `stop` of its context. Default: none, and the
    /// worker is stopped at once.
    pub fn stop_message(mut self, message: fn() -> E::Message) -> Self {
        self.stop_message = Some(message);
        self
    }

    /// Sets the daemon process up on this node. The same call again returns the same handle.
    ///
    /// # Errors
    /// [`InitError`]: nothing was started.
    pub fn start(self) -> Result<DaemonProcesses, InitError> {
        let type_name = EntityTypeName::new(&format!("sharded-daemon-process-{}", self.name))?;
        let refuse = |reason: String| InitError::DaemonProcess { name: self.name.clone(), reason };
        let (sharding, count) = (self.sharding.clone(), self.count);
        let most = sharding.settings().number_of_shards;
        if count == 0 || count > most {
            return Err(refuse(format!(
                "{count} processes; there must be from 1 to {most}, which is number_of_shards"
            )));
        }
        self.settings.validate()?;
        let Some(cluster) = sharding.cluster() else {
            return Err(refuse("it needs a cluster, and this node stands alone".to_owned()));
        };
        if let Some((known, handle)) = sharding.known_daemon(&self.name) {
            let differs = InitError::Differs { name: type_name, field: "number of processes" };
            return if known == count { Ok(handle) } else { Err(differs) };
        }
        let replicator = sharding.replicator_of(&self.role)?;
        let store = replicator.map(|replicator| RecordStore::new(replicator, &type_name, sharding.settings()));
        let latest = store.clone().map(|store| Latest::new(store, count, sharding.settings().retry_interval));
        let (config, name, role) = (self.manager_config(), self.name.clone(), self.role.clone());
        let region = sharding.init(self.workers(&type_name, latest.clone()))?;
        let manager_driver = store.map(|store| ManagerDriver::new(region.clone(), store, config, cluster.pulse()));
        let manager = cluster.singleton(manager(&name, role, manager_driver));
        let manager =
            manager.map_err(|error| InitError::DaemonProcess { name: name.clone(), reason: error.to_string() })?;
        if let Some(latest) = latest {
            sharding.spawn(returning::start_with_shards(Arc::downgrade(&region.0), region.subscribe(), latest));
        }
        let handle = DaemonProcesses::new(manager, sharding.settings());
        sharding.know_daemon(name, (count, handle.clone()));
        Ok(handle)
    }

    fn manager_config(&self) -> DaemonManagerConfig {
        let settings = self.sharding.settings();
        DaemonManagerConfig {
            initial: self.count,
            most: settings.number_of_shards,
            keep_alive_interval: self.settings.keep_alive_interval,
            throttle_interval: self.settings.keep_alive_throttle_interval,
            retry_interval: settings.retry_interval,
            stop_retry_interval: (settings.handoff_timeout / 4).max(Duration::from_millis(1)),
        }
    }

    /// The entity type of the workers. `latest` is `None` on a node that runs no worker.
    fn workers(self, type_name: &EntityTypeName, latest: Option<Latest>) -> EntityType<E::Message> {
        let Self { sharding, factory, role, supervision, stop_message, .. } = self;
        let factory = Arc::new(factory);
        let workers = EntityType::hosting(EntityKey::named(type_name.as_str()), move |init| {
            let latest = latest.clone().ok_or_else(|| Failure::new("this node does not run workers"))?;
            Ok(Worker::new(init, latest, factory.clone()))
        });
        let shards = NonZeroU32::new(sharding.settings().number_of_shards).expect("checked when sharding started");
        let mut workers =
            workers.local_only().extractor(ByIndex(shards)).passivation(Passivation::none()).forget_entities();
        workers = workers.supervision(supervision);
        if !role.is_empty() {
            workers = workers.role(role);
        }
        match stop_message {
            Some(message) => workers.stop_message(message),
            None => workers,
        }
    }
}

/// The singleton that keeps the workers. On a node that does not run it, the singleton only passes questions on.
fn manager<M: Send + 'static>(
    name: &str,
    role: String,
    manager_driver: Option<ManagerDriver<M>>,
) -> Singleton<Command> {
    let name = format!("sharded-daemon-process/{}", percent_encode(name));
    let singleton = match manager_driver {
        None => Singleton::proxy(name),
        Some(manager_driver) => Singleton::new(name, move |_, mailbox| manager_driver.clone().run(mailbox)),
    };
    let role = Some(role).filter(|role| !role.is_empty());
    singleton.codec(CommandCodec).settings(SingletonSettings { role, ..SingletonSettings::default() })
}

impl<E: Entity, F> fmt::Debug for DaemonProcess<E, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, count, role, .. } = self;
        f.debug_struct("DaemonProcess")
            .field("name", name)
            .field("count", count)
            .field("role", role)
            .finish_non_exhaustive()
    }
}

/// Places worker `i` of every revision in shard `i`.
struct ByIndex(NonZeroU32);

impl ByIndex {
    fn index(&self, id: &EntityId) -> Option<u32> {
        // The number of shards bounds bare indices too, since no revision has more workers.
        ProcessId::read(id.as_str(), self.0.get()).map(|id| id.index).filter(|index| *index < self.0.get())
    }
}

impl Extractor for ByIndex {
    fn shard_id(&self, id: &EntityId) -> Result<ShardId, DeadLetterReason> {
        self.index(id).map(ShardId::from_index).ok_or(DeadLetterReason::InvalidShardId)
    }

    fn shard_index(&self, id: &EntityId) -> Option<u32> {
        self.index(id)
    }

    fn number_of_shards(&self) -> Option<NonZeroU32> {
        Some(self.0)
    }

    fn identity(&self) -> (&'static str, u32) {
        ("sharded-daemon-process", 1)
    }
}
