//! The singletons of the node's task: the managers of those that may run here, the names of the others, and the wait of
//! the shutdown until none keeps the node.
//!
//! Source: cluster P1, M26.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use crate::driver::input::DriverInput;
use crate::driver::singleton::instance::Stop;
use crate::driver::singleton::slot::Slot;
use crate::singleton::manager::signals::{ManagerEffect, ManagerInput};

/// The singletons of one node.
#[derive(Default)]
pub(super) struct Hosted {
    slots: BTreeMap<Arc<str>, Slot>,
    /// Singletons that never run here.
    elsewhere: Vec<Arc<str>>,
    /// Singletons that still keep the node from exiting, and the reply that waits for them.
    exiting: Option<(Vec<Arc<str>>, oneshot::Sender<()>)>,
    /// Instances of singletons that run here.
    instances: usize,
}

impl Hosted {
    /// The names of all singletons, those that never run here at the end.
    pub(super) fn all_names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.slots.keys().chain(&self.elsewhere)
    }

    /// The names of the singletons that may run here.
    pub(super) fn names(&self) -> Vec<Arc<str>> {
        self.slots.keys().cloned().collect()
    }

    pub(super) fn may_run(&self, name: &Arc<str>) -> bool {
        self.slots.contains_key(name)
    }

    /// Whether any instance runs here.
    pub(super) fn anything_runs(&self) -> bool {
        self.instances > 0
    }

    /// When a manager next has work to do.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.slots.values().filter_map(|slot| slot.manager.next_deadline()).min()
    }

    pub(super) fn add(&mut self, name: Arc<str>, slot: Slot) {
        self.slots.insert(name, slot);
    }

    /// Adds a singleton that never runs here.
    pub(super) fn add_elsewhere(&mut self, name: Arc<str>) {
        self.elsewhere.push(name);
    }

    /// Gives the manager of a singleton an input; the node carries out the effects.
    pub(super) fn handle(&mut self, now: Instant, name: &Arc<str>, input: ManagerInput) -> Vec<ManagerEffect> {
        let mut effects = Vec::new();
        if let Some(slot) = self.slots.get_mut(name) {
            slot.manager.handle(now, input, &mut effects);
        }
        effects
    }

    /// Starts an instance on the runtime `user`.
    pub(super) fn start_instance(
        &mut self,
        name: &Arc<str>,
        up_number: u32,
        user: &Handle,
        inbox: &mpsc::Sender<DriverInput>,
    ) {
        if let Some(slot) = self.slots.get_mut(name) {
            self.instances += 1;
            slot.start_instance(up_number, user, inbox);
        }
    }

    pub(super) fn stop_instance(&self, name: &Arc<str>, how: Stop) {
        if let Some(slot) = self.slots.get(name) {
            slot.stop_instance(how);
        }
    }

    /// Stops all instances at once, without their managers.
    pub(super) fn stop_all(&self) {
        self.slots.values().for_each(|slot| slot.stop_instance(Stop::AtOnce));
    }

    /// Notes the end of an instance. True if it was the present one of its singleton.
    pub(super) fn on_instance_ended(&mut self, name: &Arc<str>, instance_id: u64) -> bool {
        let present = self.slots.get_mut(name).is_some_and(|slot| slot.instance_ended(instance_id));
        if present {
            self.instances = self.instances.saturating_sub(1);
        }
        present
    }

    /// Requests the lease of a singleton.
    pub(super) fn acquire_lease(&self, name: &Arc<str>) {
        if let Some(lease) = self.slots.get(name).and_then(|slot| slot.lease.as_ref()) {
            lease.acquire();
        }
    }

    /// Gives the lease of a singleton back.
    pub(super) fn release_lease(&self, name: &Arc<str>) {
        if let Some(lease) = self.slots.get(name).and_then(|slot| slot.lease.as_ref()) {
            lease.release();
        }
    }

    /// The singletons whose instance relies on a lease that is not certainly held any more.
    pub(super) fn without_their_lease(&self) -> Vec<Arc<str>> {
        let lost = self.slots.iter().filter(|(_, slot)| slot.has_lost_its_lease());
        lost.map(|(name, _)| name.clone()).collect()
    }

    /// Begins the phase of the shutdown in which singletons are handed over; `reply` waits for its end.
    pub(super) fn begin_exiting_phase(&mut self, reply: oneshot::Sender<()>) {
        self.exiting = Some((self.names(), reply));
    }

    /// Notes that a singleton keeps the node no more.
    pub(super) fn on_exiting_done(&mut self, name: &Arc<str>) {
        if let Some((waiting, _)) = &mut self.exiting {
            waiting.retain(|other| other != name);
        }
        self.finish_exiting_phase();
    }

    /// Answers the shutdown if no singleton keeps the node.
    pub(super) fn finish_exiting_phase(&mut self) {
        if let Some((_, reply)) = self.exiting.take_if(|(waiting, _)| waiting.is_empty()) {
            let _shutdown_went_on = reply.send(());
        }
    }
}
