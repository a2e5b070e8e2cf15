//! The driver's state of one singleton: its manager, its lease, and its instance.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

use super::instance::{SingletonContext, Stop, StopToken};
use super::order::StartSingleton;
use crate::driver::input::DriverInput;
use crate::driver::lease::in_use::{LeaseEvent, LeaseInUse};
use crate::singleton::manager::SingletonManager;
use crate::singleton::manager::signals::ManagerInput;

/// Converts lease events into inputs of the manager.
pub(crate) fn lease_input(name: Arc<str>) -> impl Fn(LeaseEvent) -> Option<DriverInput> + Send + Sync {
    move |event| {
        let input = match event {
            LeaseEvent::Result(outcome) => ManagerInput::LeaseResult(outcome),
            LeaseEvent::Released => ManagerInput::LeaseReleased,
            LeaseEvent::Lost => ManagerInput::LeaseLost,
        };
        Some(DriverInput::Manager { name: name.clone(), input })
    }
}

/// The driver's state of one singleton: its manager, and the instance while there is one.
pub(crate) struct Slot {
    pub(crate) manager: SingletonManager,
    /// `None` if no lease is used.
    pub(crate) lease: Option<LeaseInUse>,
    start: Box<StartSingleton>,
    instance_id: u64,
    stop: Option<watch::Sender<Option<Stop>>>,
}

impl Slot {
    pub(crate) fn new(start: Box<StartSingleton>, manager: SingletonManager, lease: Option<LeaseInUse>) -> Self {
        Self { manager, lease, start, instance_id: 0, stop: None }
    }

    /// Starts an instance on the runtime of the user, since user code must not delay the cluster's own tasks. A panic
    /// ends the instance like a return.
    pub(crate) fn start_instance(&mut self, up_number: u32, user: &Handle, inbox: &mpsc::Sender<DriverInput>) {
        let (stop, token) = watch::channel(None);
        self.instance_id = rand::random::<u64>().max(1);
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

    pub(crate) fn stop_instance(&self, how: Stop) {
        if let Some(stop) = &self.stop {
            stop.send_modify(|told| *told = (*told).max(Some(how)));
        }
    }

    /// Whether the lease that the instance relies on is not certainly held any more.
    pub(crate) fn has_lost_its_lease(&self) -> bool {
        self.manager.rests_on_lease() && self.lease.as_ref().is_some_and(|lease| !lease.is_certainly_held())
    }

    /// Notes the end of an instance. True if it was the present one.
    pub(crate) fn instance_ended(&mut self, instance_id: u64) -> bool {
        let present = self.stop.is_some() && self.instance_id == instance_id;
        if present {
            self.stop = None;
            self.start.running.send_replace(false);
        }
        present
    }
}
