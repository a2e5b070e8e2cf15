//! The singletons that were started on this node, by name.
//!
//! Source: cluster P1.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::definition::{Factory, Runs, Singleton};
use super::instance::JobFactory;
use super::mailbox::Mailbox;
use super::order::StartSingleton;
use super::port::Port;
use crate::driver::handle::site::Site;
use crate::driver::input::DriverInput;
use crate::error::{ConfigError, SingletonError};
use crate::membership::event::{EventKind, InitialState};
use crate::settings::{ClusterSettings, Downing, SingletonSettings};

/// The singletons started on this node, by name. Their tasks end when this is dropped.
#[derive(Default)]
pub(crate) struct Singletons {
    started: Mutex<BTreeMap<Arc<str>, Started>>,
}

/// A singleton that was started, as a reference to it needs it.
pub(crate) struct StartedSingleton<M: Send + 'static> {
    pub(crate) name: Arc<str>,
    pub(crate) settings: Arc<SingletonSettings>,
    /// Whether the instance runs on this node.
    pub(crate) running: watch::Receiver<bool>,
    /// `None` if the singleton takes no messages.
    pub(crate) port: Option<Arc<Port<M>>>,
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
    /// Starts a singleton, unless it is started already. Source: cluster P1.
    pub(crate) fn start<M: Send + 'static>(
        &self,
        site: &Site,
        singleton: Singleton<M>,
    ) -> Result<StartedSingleton<M>, SingletonError> {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        let name: Arc<str> = singleton.name.as_str().into();
        if !started.contains_key(&name) {
            check(&singleton, &site.settings)?;
            started.insert(name.clone(), Started::new(site, &name, singleton));
        } else if started[&name].message_type != TypeId::of::<M>() {
            return Err(SingletonError::OtherMessages { name: name.to_string() });
        } else if singleton.can_host() && !started[&name].can_host {
            return Err(SingletonError::ProxyOnly { name: name.to_string() });
        }
        let known = &started[&name];
        let port = known.port.as_ref().and_then(|port| port.downcast_ref::<Arc<Port<M>>>().cloned());
        let (settings, running) = (known.settings.clone(), known.running.clone());
        Ok(StartedSingleton { name, settings, running, port })
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
    fn new<M: Send + 'static>(site: &Site, name: &Arc<str>, singleton: Singleton<M>) -> Self {
        let (report, running) = watch::channel(false);
        let hosts = hosts(&singleton, &site.settings);
        let settings = Arc::new(singleton.settings.clone());
        let can_host = singleton.can_host();
        // No port for a job: it takes no messages.
        let port = (!matches!(singleton.runs, Runs::Job(_))).then(|| {
            let (remoting, clock) = (site.remoting.clone(), site.settings.clock.clone());
            let (codec, capacity) = (singleton.codec.clone(), singleton.mailbox_capacity);
            Port::new(name.clone(), codec, &settings, capacity, remoting, clock, site.pulse.clone())
        });
        let factory: Option<JobFactory> = match (singleton.runs, &port) {
            (Runs::Job(factory), _) => Some(factory),
            (Runs::Messages(factory), Some((port, _))) => Some(with_mailbox(port.clone(), factory)),
            _ => None,
        };
        let report = if let Some(factory) = factory.filter(|_| hosts) {
            warn_without_downing(site, name);
            let settings = SingletonSettings::clone(&settings);
            let start = StartSingleton { name: name.clone(), settings, factory, running: report };
            site.input(DriverInput::Singleton(Box::new(start)));
            None
        } else {
            site.input(DriverInput::SingletonElsewhere(name.clone()));
            Some(report)
        };
        let (port, task) = port
            .map(|(port, inbox)| {
                let events = site.hub.subscribe([EventKind::Members].into(), InitialState::Snapshot);
                let task = site.threads.user.spawn(port.clone().run(inbox, events)).abort_handle();
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
            let (mailbox, gate) = Mailbox::open(&port, context.instance_id, stop.clone());
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
fn warn_without_downing(site: &Site, name: &str) {
    if site.settings.downing == Downing::None {
        tracing::warn!(
            node = %site.remoting.self_address(),
            singleton = name,
            "downing = none: when a node is lost and its death is not proven, this singleton does not move, joins \
             stop at WeaklyUp and leaves stall, until an operator downs the node and so vouches that its process is \
             dead; set cluster.downing = split_brain_resolver"
        );
    }
}
