//! Singletons of this node: one task per name that owns its manager, and the instance it runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use greylag_core::UniqueAddress;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

use super::DriverInput;
use super::handle::{BoxFuture, Cluster};
use super::lease_in_use::{LeaseInUse, LeaseNews};
use crate::settings::{Downing, SingletonSettings};
use crate::singleton::manager::{ManagerInput, SingletonManager};

/// Makes an instance: a future that runs until its [`StopToken`] resolves, then ends in its own time.
/// An instance that ends by itself is not started again on this node.
pub type SingletonFactory = Arc<dyn Fn(SingletonContext, StopToken) -> BoxFuture<'static, ()> + Send + Sync>;

/// What an instance knows of itself, for fencing in storage of its own. Source: cluster P5.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SingletonContext {
    /// The singleton's name.
    pub name: String,
    /// Drawn for each instance.
    pub instance_id: u64,
    /// The age of the node it runs on.
    pub oldest_up_number: u32,
}

/// Tells an instance when it must end.
#[derive(Debug, Clone)]
pub struct StopToken(watch::Receiver<bool>);

impl StopToken {
    /// Completes when the instance must end.
    pub async fn stopped(&mut self) {
        // The other half gone means that nobody would ever say stop: the node has ended.
        let _gone = self.0.wait_for(|stop| *stop).await;
    }

    /// Whether the instance must end.
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }
}

/// A singleton, seen from this node.
#[derive(Debug, Clone)]
pub struct SingletonHandle {
    name: Arc<str>,
    settings: SingletonSettings,
    cluster: Cluster,
    running: watch::Receiver<bool>,
}

impl SingletonHandle {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The node that hosts it, or will once it is cleared to, as far as this node can tell.
    pub fn host(&self) -> Option<UniqueAddress> {
        let view = self.cluster.view();
        view.oldest(self.settings.role.as_deref()).map(|member| member.address.clone())
    }

    /// Whether the instance runs on this node.
    pub fn is_running_here(&self) -> bool {
        *self.running.borrow()
    }

    /// Follows [`SingletonHandle::is_running_here`].
    pub fn running_here(&self) -> watch::Receiver<bool> {
        self.running.clone()
    }
}

/// The singletons started on this node, by name.
#[derive(Default)]
pub(crate) struct Singletons {
    started: Mutex<BTreeMap<Arc<str>, (SingletonSettings, watch::Receiver<bool>)>>,
}

impl Singletons {
    pub(crate) fn start(
        &self,
        cluster: &Cluster,
        name: &str,
        settings: SingletonSettings,
        factory: SingletonFactory,
    ) -> SingletonHandle {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        let name: Arc<str> = name.into();
        let (settings, running) = started.entry(name.clone()).or_insert_with(|| {
            warn_if_nobody_decides(cluster, &name);
            let (report, running) = watch::channel(false);
            let settings_of_task = settings.clone();
            let start = StartSingleton { name: name.clone(), settings: settings_of_task, factory, running: report };
            cluster.inner.input(DriverInput::Singleton(Box::new(start)));
            (settings, running)
        });
        SingletonHandle { name, settings: settings.clone(), cluster: cluster.clone(), running: running.clone() }
    }
}

/// Whoever runs singletons (sharding does, for each coordinator) without a resolver must hear of it
/// before the night in which a node is lost. Source: cluster S1.
fn warn_if_nobody_decides(cluster: &Cluster, name: &str) {
    if cluster.settings().downing == Downing::None {
        tracing::warn!(
            node = %cluster.self_address(),
            singleton = name,
            "downing = none: when a node is lost and its death is not proven, this singleton does not move, joins \
             stop at WeaklyUp and leaves stall, until an operator downs the node and so vouches that its process is \
             dead; set cluster.downing = split_brain_resolver"
        );
    }
}

/// What the driver needs to run a singleton.
pub(crate) struct StartSingleton {
    pub(crate) name: Arc<str>,
    pub(crate) settings: SingletonSettings,
    pub(crate) factory: SingletonFactory,
    pub(crate) running: watch::Sender<bool>,
}

/// What a manager is told of its lease.
pub(crate) fn lease_news(name: Arc<str>) -> impl Fn(LeaseNews) -> Option<DriverInput> + Send + Sync {
    move |news| {
        let input = match news {
            LeaseNews::Result(outcome) => ManagerInput::LeaseResult(outcome),
            LeaseNews::Released => ManagerInput::LeaseReleased,
            LeaseNews::Lost => ManagerInput::LeaseLost,
        };
        Some(DriverInput::Manager { name: name.clone(), input })
    }
}

/// A singleton in the hands of the driver: its manager, and the instance while there is one.
pub(crate) struct Slot {
    pub(crate) manager: SingletonManager,
    /// `None`: no lease is used.
    pub(crate) lease: Option<LeaseInUse>,
    start: Box<StartSingleton>,
    instance_id: u64,
    stop: Option<watch::Sender<bool>>,
}

impl Slot {
    pub(crate) fn new(start: Box<StartSingleton>, manager: SingletonManager, lease: Option<LeaseInUse>) -> Self {
        Self { manager, lease, start, instance_id: 0, stop: None }
    }

    /// Starts an instance on the runtime of the user, whose code must not hold up the cluster's own
    /// tasks. A panic ends the instance like a return.
    pub(crate) fn start_instance(&mut self, up_number: u32, user: &Handle, inbox: &mpsc::Sender<DriverInput>) {
        let (stop, token) = watch::channel(false);
        self.instance_id = rand::random();
        self.stop = Some(stop);
        self.start.running.send_replace(true);
        let name = self.start.name.clone();
        let instance_id = self.instance_id;
        let context = SingletonContext { name: name.to_string(), instance_id, oldest_up_number: up_number };
        let factory = self.start.factory.clone();
        let inbox = inbox.clone();
        let task = user.spawn(async move { factory(context, StopToken(token)).await });
        user.spawn(async move {
            if let Err(error) = task.await {
                tracing::error!(singleton = %name, %error, "the instance failed");
            }
            let _node_has_ended = inbox.send(DriverInput::InstanceEnded { name, instance_id }).await;
        });
    }

    pub(crate) fn stop_instance(&self) {
        if let Some(stop) = &self.stop {
            stop.send_replace(true);
        }
    }

    /// True if that was the present instance.
    pub(crate) fn instance_ended(&mut self, instance_id: u64) -> bool {
        let present = self.stop.is_some() && self.instance_id == instance_id;
        if present {
            self.stop = None;
            self.start.running.send_replace(false);
        }
        present
    }
}
