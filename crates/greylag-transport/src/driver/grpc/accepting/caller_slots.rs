//! The slots of callers that were never reached (see [`crate::admission::callers`]).

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use greylag_core::NodeAddress;
use tokio::sync::Notify;

use crate::admission::callers::{Callers, Full};

/// The slots of one node.
#[derive(Default)]
pub(crate) struct CallerSlots {
    callers: Mutex<Callers>,
    /// Notified when the last stream of a caller with a slot has ended.
    caller_left: Notify,
}

/// One stream of a caller that holds a slot.
pub(crate) struct CallerSlot {
    slots: Arc<CallerSlots>,
    address: NodeAddress,
}

impl Drop for CallerSlot {
    fn drop(&mut self) {
        if self.slots.lock().leave(Instant::now(), &self.address) {
            self.slots.caller_left.notify_one();
        }
    }
}

impl CallerSlots {
    /// Takes a slot for one stream of the process at `address`, which calls from `ip`; `None`: the process needs no
    /// slot. `needs_none` is told whether the address has a slot already. Where no slot is free, `drop_caller` drops
    /// callers whose streams have ended, and says of each whether nothing is left of it.
    ///
    /// The lock is held throughout, so that no stream of the same address begins meanwhile.
    pub(crate) fn take(
        self: &Arc<Self>,
        address: &NodeAddress,
        ip: IpAddr,
        needs_none: impl FnOnce(bool) -> bool,
        drop_caller: impl Fn(&NodeAddress) -> bool,
    ) -> Result<Option<CallerSlot>, Full> {
        let mut callers = self.lock();
        if needs_none(callers.holds(address)) {
            return Ok(None);
        }
        if callers.enter(address, ip).is_err() {
            drop_idle(&mut callers, Instant::now(), drop_caller);
            callers.enter(address, ip)?;
        }
        Ok(Some(CallerSlot { slots: self.clone(), address: address.clone() }))
    }

    /// Frees the slots of callers whose streams have ended by `moment` and that `drop_caller` drops. The lock is held
    /// throughout, so that no stream of the same address begins meanwhile.
    pub(crate) fn drop_idle(&self, moment: Instant, drop_caller: impl Fn(&NodeAddress) -> bool) {
        drop_idle(&mut self.lock(), moment, drop_caller);
    }

    /// Frees the slot of a process that was reached.
    pub(crate) fn vacate(&self, address: &NodeAddress) {
        self.lock().vacate(address);
    }

    /// Whether any slot is held without a stream.
    pub(crate) fn any_idle(&self) -> bool {
        self.lock().any_idle()
    }

    /// Waits until the last stream of a caller has ended.
    pub(crate) async fn caller_left(&self) {
        self.caller_left.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Callers> {
        self.callers.lock().expect("nothing under this lock panics")
    }
}

fn drop_idle(callers: &mut Callers, moment: Instant, drop_caller: impl Fn(&NodeAddress) -> bool) {
    for address in callers.idle_since(moment) {
        if drop_caller(&address) {
            callers.vacate(&address);
        }
    }
}
