//! The processes of each address as membership named them last: members that hold it, or processes that were removed.

use std::collections::BTreeMap;
use std::sync::Mutex;

use greylag_core::NodeAddress;

/// Entries by address; mostly one each.
pub(crate) struct ByAddress<T>(Mutex<BTreeMap<NodeAddress, Vec<T>>>);

impl<T> Default for ByAddress<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone + PartialEq> ByAddress<T> {
    /// Replaces all entries; returns the addresses whose entries changed, with their new ones.
    pub(crate) fn replace(&self, entries: impl Iterator<Item = (NodeAddress, T)>) -> Vec<(NodeAddress, Vec<T>)> {
        let mut by_address: BTreeMap<NodeAddress, Vec<T>> = BTreeMap::new();
        for (address, entry) in entries {
            by_address.entry(address).or_default().push(entry);
        }
        let mut known = self.0.lock().expect(NO_PANIC);
        let freed = known.keys().filter(|address| !by_address.contains_key(*address));
        let freed: Vec<_> = freed.map(|address| (address.clone(), Vec::new())).collect();
        let differs = by_address.iter().filter(|(address, entries)| known.get(*address) != Some(*entries));
        let changed = differs.map(|(address, entries)| (address.clone(), entries.clone())).chain(freed).collect();
        *known = by_address;
        changed
    }

    pub(crate) fn of(&self, address: &NodeAddress) -> Vec<T> {
        self.0.lock().expect(NO_PANIC).get(address).cloned().unwrap_or_default()
    }
}

const NO_PANIC: &str = "nothing under this lock panics";
