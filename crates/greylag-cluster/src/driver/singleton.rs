//! Singletons of this node: one manager per name if the node has the role, owned by the driver's task, and one port per
//! name wherever messages are sent or taken.
//!
//! Source: cluster P1.

mod definition;
mod mailbox;
mod port;
mod reference;
mod slot;

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use tokio::task::AbortHandle;

pub(crate) use definition::Stop;
pub use definition::{NoMessages, Singleton, SingletonContext, StopToken};
pub use mailbox::Mailbox;
pub use reference::{SingletonAnswer, SingletonAskError, SingletonRef, SingletonSendError};
pub(crate) use slot::{Slot, StartSingleton, lease_input};

use super::DriverInput;
use super::handle::{Cluster, Inner};
use crate::error::{ConfigError, SingletonError};
use crate::event::{EventKind, InitialState};
use crate::settings::{ClusterSettings, Downing, SingletonSettings};
use definition::{Factory, JobFactory, Runs};
use port::Port;

/// The singletons started on this node, by name. Their tasks end when this is dropped.
#[derive(Default)]
pub(crate) struct Singletons {
    started: Mutex<BTreeMap<Arc<str>, Started>>,
}

struct Started {
    message_type: TypeId,
    settings: Arc<SingletonSettings>,
    can_host: bool,
    running: watch::Receiver<bool>,
    /// Kept if no manager reports, so that followers of `running` wait instead of being told of an end.
    _report: Option<watch::Sender<bool>>,
    /// An `Arc<Port<M>>` of the singleton's message type; `None` if it takes no messages.
    port: Option<Box<dyn Any + Send + Sync>>,
    task: Option<AbortHandle>,
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Singletons {
    /// Source: cluster P1.
    pub(crate) fn start<M: Send + 'static>(
        &self,
        cluster: &Cluster,
        singleton: Singleton<M>,
    ) -> Result<SingletonRef<M>, SingletonError> {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        let name: Arc<str> = singleton.name.as_str().into();
        if !started.contains_key(&name) {
            check(&singleton, cluster.settings())?;
            started.insert(name.clone(), Started::new(&cluster.inner, &name, singleton));
        } else if started[&name].message_type != TypeId::of::<M>() {
            return Err(SingletonError::OtherMessages { name: name.to_string() });
        } else if singleton.can_host() && !started[&name].can_host {
            return Err(SingletonError::ProxyOnly { name: name.to_string() });
        }
        let known = &started[&name];
        let port = known.port.as_ref().and_then(|port| port.downcast_ref::<Arc<Port<M>>>().cloned());
        let (settings, running) = (known.settings.clone(), known.running.clone());
        Ok(SingletonRef { name, settings, cluster: cluster.clone(), running, port })
    }
}

/// Checks whether a singleton can be started by its definition.
fn check<M: Send + 'static>(singleton: &Singleton<M>, cluster: &ClusterSettings) -> Result<(), SingletonError> {
    let mut problems = singleton.settings.validate().err().unwrap_or_default();
    if singleton.name.is_empty() {
        let (setting, value) = ("singleton.name".into(), String::new());
        problems.push(ConfigError { setting, value, why: "must not be empty" });
    }
    if !problems.is_empty() {
        return Err(SingletonError::Config { name: singleton.name.clone(), problems });
    }
    if singleton.settings.use_lease && hosts(singleton, cluster) && cluster.leases.is_none() {
        return Err(SingletonError::NoLeaseProvider { name: singleton.name.clone() });
    }
    Ok(())
}

/// Whether the instance may run on this node.
fn hosts<M: Send + 'static>(singleton: &Singleton<M>, cluster: &ClusterSettings) -> bool {
    singleton.can_host() && singleton.settings.role.as_ref().is_none_or(|role| cluster.has_role(role))
}

impl Started {
    fn new<M: Send + 'static>(inner: &Inner, name: &Arc<str>, singleton: Singleton<M>) -> Self {
        let (report, running) = watch::channel(false);
        let hosts = hosts(&singleton, &inner.settings);
        let settings = Arc::new(singleton.settings.clone());
        let can_host = singleton.can_host();
        // No port for a job: it takes no messages.
        let port = (!matches!(singleton.runs, Runs::Job(_))).then(|| {
            let (remoting, clock) = (inner.remoting.clone(), inner.settings.clock.clone());
            Port::new(&singleton, remoting, clock, inner.pulse.clone())
        });
        let factory: Option<JobFactory> = match (singleton.runs, &port) {
            (Runs::Job(factory), _) => Some(factory),
            (Runs::Messages(factory), Some((port, _))) => Some(with_mailbox(port.clone(), factory)),
            _ => None,
        };
        let report = if let Some(factory) = factory.filter(|_| hosts) {
            warn_without_downing(inner, name);
            let settings = SingletonSettings::clone(&settings);
            let start = StartSingleton { name: name.clone(), settings, factory, running: report };
            inner.input(DriverInput::Singleton(Box::new(start)));
            None
        } else {
            inner.input(DriverInput::SingletonElsewhere(name.clone()));
            Some(report)
        };
        let (port, task) = port
            .map(|(port, inbox)| {
                let events = inner.hub.subscribe([EventKind::Members].into(), InitialState::Snapshot);
                let task = inner.threads.user.spawn(port.clone().run(inbox, events)).abort_handle();
                (Box::new(port) as Box<dyn Any + Send + Sync>, task)
            })
            .unzip();
        Self { message_type: TypeId::of::<M>(), settings, can_host, running, _report: report, port, task }
    }
}

/// Makes an instance whose mailbox is open from its start until it is told to end, or ends by itself.
fn with_mailbox<M: Send + 'static>(port: Arc<Port<M>>, factory: Factory<M>) -> JobFactory {
    Arc::new(move |context, mut stop| {
        let (port, factory) = (port.clone(), factory.clone());
        Box::pin(async move {
            let (mailbox, gate) = port.open(context.instance_id, stop.clone());
            let mut instance = factory(context, mailbox);
            tokio::select! {
                () = &mut instance => {}
                () = stop.stopped() => {
                    gate.close();
                    instance.await;
                }
            }
        })
    })
}

/// Warns an operator who runs singletons (sharding starts one for each coordinator) without a resolver, before a node
/// is lost. Source: cluster S1.
fn warn_without_downing(inner: &Inner, name: &str) {
    if inner.settings.downing == Downing::None {
        tracing::warn!(
            node = %inner.remoting.self_address(),
            singleton = name,
            "downing = none: when a node is lost and its death is not proven, this singleton does not move, joins \
             stop at WeaklyUp and leaves stall, until an operator downs the node and so vouches that its process is \
             dead; set cluster.downing = split_brain_resolver"
        );
    }
}
