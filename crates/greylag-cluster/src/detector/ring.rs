//! The ring on which members watch each other.
//!
//! The ring holds all members by uid and then address, so that neighbours on it are no neighbours on the network; each
//! member watches those that follow it. Source: cluster F2.

use std::sync::Arc;

use greylag_core::UniqueAddress;

use crate::membership::places::Places;

/// Members in the order of the ring. Clones share the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ring(Arc<Places>);

impl Ring {
    /// The ring of the members in `places`.
    pub(crate) fn of(places: &Arc<Places>) -> Self {
        Self(places.clone())
    }

    /// How many members the ring has.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the ring is empty.
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Whether this address is on the ring.
    pub fn contains(&self, address: &UniqueAddress) -> bool {
        self.0.find(address).is_some()
    }

    /// All others, once around, beginning after `node`.
    pub fn after<'a>(&'a self, node: &'a UniqueAddress) -> impl Iterator<Item = &'a UniqueAddress> {
        self.0.after(node)
    }

    /// Whether both are the same list in memory.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl FromIterator<UniqueAddress> for Ring {
    fn from_iter<I: IntoIterator<Item = UniqueAddress>>(members: I) -> Self {
        Self(Arc::new(members.into_iter().collect()))
    }
}
