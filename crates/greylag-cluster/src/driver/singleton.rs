//! Singletons of this node: one task per name that owns its manager, and the instance it runs.

use std::sync::Arc;

use greylag_core::UniqueAddress;
use tokio::sync::watch;

use super::handle::{BoxFuture, Cluster};
use crate::settings::SingletonSettings;

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

/// The singletons started on this node.
pub(crate) struct Singletons {}

impl Singletons {
    pub(crate) fn new() -> Self {
        Self {}
    }

    pub(crate) fn start(
        &self,
        cluster: &Cluster,
        name: &str,
        settings: SingletonSettings,
        _factory: SingletonFactory,
    ) -> SingletonHandle {
        let running = watch::channel(false).1;
        SingletonHandle { name: name.into(), settings, cluster: cluster.clone(), running }
    }
}
