//! Remembers, of addresses whose peer was dropped, which processes must not come back there.

use std::collections::{HashMap, VecDeque};

use greylag_core::NodeAddress;

use crate::association::RetiredUid;

/// Addresses remembered; the one that was dropped first is forgotten first.
const MOST_ADDRESSES: usize = 4096;

/// The processes of dropped addresses that must not come back.
#[derive(Debug, Default)]
pub(crate) struct RetiredUids {
    by_address: HashMap<NodeAddress, Vec<RetiredUid>>,
    /// The oldest first; may still hold addresses whose entries were taken.
    order: VecDeque<NodeAddress>,
}

impl RetiredUids {
    pub(crate) fn keep(&mut self, address: &NodeAddress, retired: Vec<RetiredUid>) {
        if retired.is_empty() {
            return;
        }
        self.order.retain(|other| other != address);
        self.order.push_back(address.clone());
        self.by_address.insert(address.clone(), retired);
        if self.order.len() > MOST_ADDRESSES
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_address.remove(&oldest);
        }
    }

    /// Takes the entries of an address that is in use again.
    pub(crate) fn take(&mut self, address: &NodeAddress) -> Vec<RetiredUid> {
        self.by_address.remove(address).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use greylag_core::Uid;

    use super::*;

    /// Cluster T21: the memory of addresses is bounded, and the oldest is forgotten first.
    #[test]
    fn the_oldest_address_is_forgotten_first() {
        let mut memory = RetiredUids::default();
        let address = |n: usize| NodeAddress::new("host", u16::try_from(n + 1).unwrap()).unwrap();
        let entry = || vec![RetiredUid { uid: Uid::new(7).unwrap(), may_return: false }];
        for n in 0..=MOST_ADDRESSES {
            memory.keep(&address(n), entry());
        }
        assert_eq!((memory.by_address.len(), memory.order.len()), (MOST_ADDRESSES, MOST_ADDRESSES));
        assert_eq!(memory.take(&address(0)), []);
        assert_eq!((memory.take(&address(1)), memory.take(&address(1))), (entry(), Vec::new()));
    }
}
