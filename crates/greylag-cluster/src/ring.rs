//! The ring on which members watch each other.
//!
//! All members by uid and then address, so that neighbours are no neighbours on the network; each
//! watches those that follow it. Source: cluster F2.

use std::sync::Arc;

use greylag_core::{NodeAddress, Uid, UniqueAddress};

/// Members in the order of the ring. Clones are one list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ring(Arc<[UniqueAddress]>);

fn key(address: &UniqueAddress) -> (Uid, &NodeAddress) {
    (address.uid(), address.address())
}

impl Ring {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is nobody.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it is on the ring.
    pub fn contains(&self, address: &UniqueAddress) -> bool {
        self.0.binary_search_by(|other| key(other).cmp(&key(address))).is_ok()
    }

    /// All others, once around, beginning after `node`.
    pub fn after<'a>(&'a self, node: &'a UniqueAddress) -> impl Iterator<Item = &'a UniqueAddress> {
        let begin = self.0.partition_point(|other| key(other) <= key(node));
        self.0[begin..].iter().chain(&self.0[..begin]).filter(move |other| *other != node)
    }

    /// Whether both are the same list in memory.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl FromIterator<UniqueAddress> for Ring {
    fn from_iter<I: IntoIterator<Item = UniqueAddress>>(members: I) -> Self {
        let mut members: Vec<UniqueAddress> = members.into_iter().collect();
        members.sort_by(|a, b| key(a).cmp(&key(b)));
        members.dedup();
        Self(members.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// cluster F2.
    #[test]
    fn it_goes_around_by_uid_and_leaves_the_node_itself_out() {
        let node = |text: &str| text.parse::<UniqueAddress>().unwrap();
        let (a, b, c) = (node("a:1#3"), node("b:1#1"), node("c:1#2"));
        let ring: Ring = [a.clone(), b.clone(), c.clone()].into_iter().collect();
        assert_eq!(ring.after(&c).collect::<Vec<_>>(), [&a, &b]);
        assert_eq!(ring.after(&a).collect::<Vec<_>>(), [&b, &c]);
        assert!(ring.contains(&b) && !ring.contains(&node("b:1#9")));
    }
}
