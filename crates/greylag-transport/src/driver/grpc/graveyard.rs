//! Remembers, of addresses whose peer was dropped, which processes must not come back there.

use std::collections::{HashMap, VecDeque};

use greylag_core::NodeAddress;

use crate::association::Grave;

/// Addresses remembered; the one that was dropped first is forgotten first.
const MOST_ADDRESSES: usize = 4096;

/// The dead processes of dropped addresses.
#[derive(Debug, Default)]
pub(super) struct Graveyard {
    graves: HashMap<NodeAddress, Vec<Grave>>,
    /// The oldest first; may still hold addresses whose entries were taken.
    order: VecDeque<NodeAddress>,
}

impl Graveyard {
    pub(super) fn keep(&mut self, address: &NodeAddress, graves: Vec<Grave>) {
        if graves.is_empty() {
            return;
        }
        self.order.retain(|other| other != address);
        self.order.push_back(address.clone());
        self.graves.insert(address.clone(), graves);
        if self.order.len() > MOST_ADDRESSES
            && let Some(oldest) = self.order.pop_front()
        {
            self.graves.remove(&oldest);
        }
    }

    /// Takes the entries of an address that is in use again.
    pub(super) fn take(&mut self, address: &NodeAddress) -> Vec<Grave> {
        self.graves.remove(address).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use greylag_core::Uid;

    use super::*;

    /// Cluster T21: the memory of addresses is bounded, and the oldest is forgotten first.
    #[test]
    fn of_the_addresses_the_oldest_is_forgotten_first() {
        let mut graveyard = Graveyard::default();
        let address = |n: usize| NodeAddress::new("host", u16::try_from(n + 1).unwrap()).unwrap();
        let grave = || vec![Grave { uid: Uid::new(7).unwrap(), may_return: false }];
        for n in 0..=MOST_ADDRESSES {
            graveyard.keep(&address(n), grave());
        }
        assert_eq!((graveyard.graves.len(), graveyard.order.len()), (MOST_ADDRESSES, MOST_ADDRESSES));
        assert_eq!(graveyard.take(&address(0)), []);
        assert_eq!((graveyard.take(&address(1)), graveyard.take(&address(1))), (grave(), Vec::new()));
    }
}
