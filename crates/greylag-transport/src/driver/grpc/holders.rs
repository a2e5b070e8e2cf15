//! Which members hold which addresses, as membership told last.

use std::collections::BTreeMap;
use std::sync::Mutex;

use greylag_core::NodeAddress;

use crate::holder::Holder;

/// By address; mostly one member each.
#[derive(Default)]
pub(super) struct Holders(Mutex<BTreeMap<NodeAddress, Vec<Holder>>>);

impl Holders {
    /// Replaces what was known; returns the addresses for which it differs, with what holds now.
    pub(super) fn replace(&self, holders: Vec<Holder>) -> Vec<(NodeAddress, Vec<Holder>)> {
        let mut by_address: BTreeMap<NodeAddress, Vec<Holder>> = BTreeMap::new();
        for holder in holders {
            by_address.entry(holder.member.address().clone()).or_default().push(holder);
        }
        let mut known = self.0.lock().expect(NO_PANIC);
        let freed = known.keys().filter(|address| !by_address.contains_key(*address));
        let freed: Vec<_> = freed.map(|address| (address.clone(), Vec::new())).collect();
        let differs = by_address.iter().filter(|(address, holders)| known.get(*address) != Some(*holders));
        let changed = differs.map(|(address, holders)| (address.clone(), holders.clone())).chain(freed).collect();
        *known = by_address;
        changed
    }

    pub(super) fn of(&self, address: &NodeAddress) -> Vec<Holder> {
        self.0.lock().expect(NO_PANIC).get(address).cloned().unwrap_or_default()
    }
}

const NO_PANIC: &str = "nothing under this lock panics";
