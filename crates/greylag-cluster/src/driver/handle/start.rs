//! Starts the tasks of a node, and what its user starts on it.

use std::sync::Arc;

use greylag_transport::Remoting;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::mpsc;

use super::bootstrap;
use super::cluster::{Cluster, Inner};
use super::discovery::Discovery;
use super::readiness::Checks;
use super::site::{Site, Threads};
use crate::bootstrap::BootstrapSettings;
use crate::core::{ClusterCore, Input};
use crate::driver::clock::wall_clock;
use crate::driver::ending::tasks::ShutdownTasks;
use crate::driver::events::EventHub;
use crate::driver::input::INBOX;
use crate::driver::node::Node;
use crate::driver::singleton::{Singleton, SingletonRef, Singletons, StartedSingleton};
use crate::driver::watch::Watches;
use crate::error::{JoinError, SingletonError, StartError};
use crate::membership::view::MembershipView;
use crate::settings::ClusterSettings;

impl Cluster {
    /// Starts the tasks of a node that has not joined yet, on `cluster_threads` threads of their own. If the transport
    /// has threads for control traffic, [`Cluster::start_on`] is better.
    ///
    /// # Errors
    /// [`StartError`]; nothing runs then.
    pub async fn start(settings: ClusterSettings, remoting: Arc<dyn Remoting>) -> Result<Self, StartError> {
        settings.validate().map_err(StartError::Config)?;
        let own = own_runtime(&settings)?;
        Ok(spawn(settings, remoting, own.handle().clone(), Some(own)))
    }

    /// Starts the tasks of a node that has not joined yet on the small runtime that carries control traffic, such as
    /// `GrpcTransport::control_runtime`: then no user code stands between a heartbeat's socket and the machine that
    /// answers it. User code (singletons, shutdown tasks) runs on the runtime of the caller. Source: cluster C7.
    ///
    /// # Errors
    /// [`StartError`]; nothing runs then.
    pub async fn start_on(
        control: Handle,
        settings: ClusterSettings,
        remoting: Arc<dyn Remoting>,
    ) -> Result<Self, StartError> {
        settings.validate().map_err(StartError::Config)?;
        Ok(spawn(settings, remoting, control, None))
    }

    /// Joins the cluster of the nodes that discovery finds, or founds it with them. Completes when this node is a
    /// member; until then it continues for as long as the answers may still change.
    ///
    /// A cluster is founded only when `required_contacts` nodes were found and have chosen the same one of them. So one
    /// discovery cannot result in two clusters, however its answers differ, while `required_contacts` is more than half
    /// of the processes that start. The nodes of one cluster use either this or [`Cluster::join_seed_nodes`] with a
    /// list, not both.
    ///
    /// Source: cluster M24. See `docs/design/bootstrap.md`.
    ///
    /// # Errors
    /// [`JoinError`], after which this process cannot join any more.
    ///
    /// # Panics
    /// Outside a tokio runtime, or if [`BootstrapSettings::validate`] finds problems.
    pub async fn bootstrap(&self, discovery: Arc<dyn Discovery>, settings: BootstrapSettings) -> Result<(), JoinError> {
        bootstrap::bootstrap(self, discovery, settings).await
    }

    /// Takes part in a singleton: one instance in the whole cluster, on the oldest member with the role, and a way to
    /// it from every node. Call this on every node that may host the singleton or sends to it; the same name again
    /// yields the same singleton. Source: cluster P1.
    ///
    /// # Errors
    /// [`SingletonError`]; nothing was started.
    pub fn singleton<M: Send + 'static>(&self, singleton: Singleton<M>) -> Result<SingletonRef<M>, SingletonError> {
        let StartedSingleton { name, settings, running, port } =
            self.inner.singletons.start(&self.inner.site, singleton)?;
        Ok(SingletonRef { name, settings, cluster: self.clone(), running, port })
    }
}

/// A runtime for the cluster's own tasks alone.
fn own_runtime(settings: &ClusterSettings) -> Result<Runtime, StartError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(settings.cluster_threads)
        .thread_name("greylag-cluster")
        .enable_all()
        .build()
        .map_err(StartError::Runtime)
}

/// The runtime of the task that owns the machines; ends with that task.
struct OwnRuntime(Option<Runtime>);

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Do not wait for the runtime's tasks, since one of them drops it.
            runtime.shutdown_background();
        }
    }
}

/// Starts the tasks of a node on `handle`; `own` is the runtime behind it, if it is the cluster's.
fn spawn(settings: ClusterSettings, remoting: Arc<dyn Remoting>, handle: Handle, own: Option<Runtime>) -> Cluster {
    let (inbox, receiver) = mpsc::channel(INBOX);
    let view = Arc::new(MembershipView::empty(remoting.self_address().clone()));
    let hub = Arc::new(EventHub::new(settings.event_buffer, view));
    let (report_terminated, terminated) = tokio::sync::watch::channel(None);
    let tasks = Arc::new(ShutdownTasks::new(settings.coordinated_shutdown.clone()));
    let clock = settings.clock.clone();
    let now = clock.now();
    let mut core = ClusterCore::new(remoting.self_address().clone(), settings.clone(), rand::random(), now)
        .on_host(remoting.host_id().as_deref());
    core.handle(now, Input::WallClock(wall_clock()), &mut Vec::new());
    let node = Node::new(
        core,
        settings.clone(),
        remoting.clone(),
        inbox.clone(),
        hub.clone(),
        tasks.clone(),
        report_terminated,
        Handle::current(),
    );
    let pulse = node.pulse();
    let own = OwnRuntime(own);
    handle.spawn(async move {
        node.run(receiver).await;
        drop(own);
    });
    let watches = Watches::start(&handle, remoting.clone(), &hub, clock);
    let threads = Threads { handle, user: Handle::current() };
    let singletons = Singletons::default();
    let site = Site { settings, remoting, inbox, hub, tasks, terminated, pulse, threads };
    let inner = Inner { site, singletons, watches, checks: Checks::default() };
    Cluster { inner: Arc::new(inner) }
}
