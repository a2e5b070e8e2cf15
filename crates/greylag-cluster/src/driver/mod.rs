//! The tokio half: the task that owns the machines, and the handles on it.
//!
//! One task on a small runtime owns the membership machine and the singleton managers of this node: on the transport's
//! control runtime, so that a heartbeat meets no other threads between its socket and the machine
//! ([`Cluster::start_on`]), or on a runtime of its own ([`Cluster::start`]). All inputs reach the task through one
//! bounded inbox; deadlines go first. User code (singleton instances, shutdown tasks) runs on the runtime that called
//! [`Cluster::start`], never here. Source: cluster C7.

mod bootstrap;
mod clock;
mod dial;
mod discovery;
mod events;
mod handle;
mod inbound;
pub(crate) mod lease;
mod lease_in_use;
mod lifecycle;
mod node;
mod pulse;
mod rates;
mod readiness;
mod shutdown;
mod singleton;
mod tasks;
pub(crate) mod watch;
mod witness;

use std::sync::Arc;

use greylag_core::{NodeAddress, Share};
use greylag_transport::Remoting;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{mpsc, oneshot};

pub use clock::Clock;
pub use discovery::{Discovery, DiscoveryError, SeedList};
pub use events::ClusterEvents;
pub use handle::{BoxFuture, Cluster, DeathWitness, Target};
pub use pulse::Pulse;
pub use readiness::Readiness;
pub use singleton::{
    Mailbox, NoMessages, Singleton, SingletonAnswer, SingletonAskError, SingletonContext, SingletonRef,
    SingletonSendError, StopToken,
};
pub use tasks::{RunningHere, Runs};
pub use watch::Watch;
pub use witness::{ChildWitness, FileWitness};

use crate::core::{ClusterCore, Command, Input};
use crate::error::{JoinError, StartError};
use crate::health::Health;
use crate::settings::ClusterSettings;
use crate::shutdown::ShutdownReason;
use crate::singleton::SingletonMessage;
use crate::singleton::manager::ManagerInput;
use crate::view::MembershipView;

/// Inputs that may wait for the driver's task. Control traffic of a node is far below this; inputs beyond are dropped
/// and counted, and every protocol here repeats itself.
pub(crate) const INBOX: usize = 8192;

/// Bytes that messages of peers may have together in one inbox of the cluster's own protocols. The messages of a
/// thousand members at once have a tenth of it; messages beyond are dropped and counted like the rest.
pub(crate) const INBOX_BYTES: usize = 64 * 1024 * 1024;

/// An input of the task that owns the machines.
pub(crate) enum DriverInput {
    /// A peer's message, with its share of [`INBOX_BYTES`].
    Received(Box<Self>, Share),
    /// Join, and answer with the outcome.
    Join { seeds: Vec<NodeAddress>, reply: oneshot::Sender<Result<(), JoinError>> },
    /// A user's command.
    Command(Command),
    /// Answer with this node's health.
    Health(oneshot::Sender<Health>),
    /// A message, a fact about a peer, the end of a dial.
    Core(Input),
    /// Begin the orderly shutdown.
    Shutdown(ShutdownReason),
    /// Run a singleton.
    Singleton(Box<singleton::StartSingleton>),
    /// This node sends to a singleton that others run; it answers for older processes at its address.
    SingletonElsewhere(Arc<str>),
    /// A message between managers of one singleton.
    SingletonMessage { name: Arc<str>, message: SingletonMessage },
    /// An event of a singleton's lease.
    Manager { name: Arc<str>, input: ManagerInput },
    /// An instance has ended.
    InstanceEnded { name: Arc<str>, instance_id: u64 },
    /// Hand the singletons over in the shutdown; answer when none of them runs here.
    ExitingPhase(oneshot::Sender<()>),
    /// The last handle was dropped.
    HandlesGone,
    /// Every phase of the shutdown has run.
    Close(ShutdownReason),
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
    let hub = Arc::new(events::EventHub::new(settings.event_buffer, view));
    let (report_terminated, terminated) = tokio::sync::watch::channel(None);
    let tasks = Arc::new(tasks::ShutdownTasks::new(settings.coordinated_shutdown.clone()));
    let clock = settings.clock.clone();
    let now = clock.now();
    let mut core = ClusterCore::new(remoting.self_address().clone(), settings.clone(), rand::random(), now)
        .on_host(remoting.host_id().as_deref());
    core.handle(now, Input::WallClock(node::wall_clock()), &mut Vec::new());
    let node = node::Node::new(
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
    let watches = watch::Watches::start(&handle, remoting.clone(), &hub, clock);
    let threads = handle::Threads { handle, user: Handle::current() };
    let singletons = singleton::Singletons::default();
    let inner = handle::Inner {
        settings,
        remoting,
        inbox,
        hub,
        singletons,
        tasks,
        terminated,
        watches,
        pulse,
        checks: readiness::Checks::default(),
        threads,
    };
    Cluster { inner: Arc::new(inner) }
}
