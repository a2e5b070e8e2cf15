//! The tokio half: tasks that own the machines, and the handles on them.

mod events;
mod handle;
mod singleton;
mod tasks;

use std::sync::Arc;

use greylag_core::NodeAddress;
use greylag_transport::Remoting;
use tokio::sync::{mpsc, oneshot, watch};

pub use events::ClusterEvents;
pub use handle::{BoxFuture, Cluster, Target};
pub use singleton::{SingletonContext, SingletonFactory, SingletonHandle, StopToken};

use crate::core::Command;
use crate::error::{JoinError, StartError};
use crate::settings::ClusterSettings;
use crate::shutdown::ShutdownReason;
use crate::view::MembershipView;

/// What reaches the task that owns the membership.
pub(crate) enum DriverInput {
    /// Join, and say how it went.
    Join { seeds: Vec<NodeAddress>, reply: oneshot::Sender<Result<(), JoinError>> },
    /// A user's command.
    Command(Command),
    /// Begin the orderly shutdown.
    Shutdown(ShutdownReason),
}

fn spawn(settings: ClusterSettings, remoting: Arc<dyn Remoting>) -> Result<Cluster, StartError> {
    let (inbox, _receiver) = mpsc::channel(1024);
    let view = Arc::new(MembershipView::empty(remoting.self_address().clone()));
    let hub = Arc::new(events::EventHub::new(settings.event_buffer, view));
    let (_terminated, terminated) = watch::channel(None);
    let inner = handle::Inner {
        tasks: tasks::ShutdownTasks::new(settings.coordinated_shutdown.clone()),
        settings,
        remoting,
        inbox,
        hub,
        singletons: singleton::Singletons::new(),
        terminated,
        runtime: tokio::runtime::Handle::current(),
    };
    Ok(Cluster { inner: Arc::new(inner) })
}
