//! The processes that called this node and were never reached at the address they name.
//!
//! Such an address is only a claim, and one process can claim any number of them. So each of these processes takes a
//! slot, and slots are limited per network and in all. A slot is held while a stream of the process is open, and then
//! until this node drops everything it kept of the process: a while later, because the process's numbered messages
//! continue where they were if it calls again soon, or at once when another process needs the slot. Members and
//! processes that this node has reached need no slot. Source: cluster T21, T28.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

use greylag_core::NodeAddress;

/// Slots of callers from one network: one IPv4 address, or the /64 of an IPv6 address.
pub(crate) const SLOTS_PER_NETWORK: usize = 64;
/// Slots of callers from all networks.
pub(crate) const SLOTS: usize = 1024;

/// Why a caller gets no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    #[error(
        "{SLOTS_PER_NETWORK} processes of {0} have called this node, which has not reached them at the addresses \
         they name; members are let in always"
    )]
    Network(IpAddr),
    #[error(
        "{SLOTS} processes have called this node, which has not reached them at the addresses they name; members \
         are let in always"
    )]
    Node,
}

/// The slots of one node.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    slots: HashMap<NodeAddress, Slot>,
    networks: HashMap<IpAddr, usize>,
}

#[derive(Debug)]
struct Slot {
    network: IpAddr,
    /// Open streams of the process.
    streams: usize,
    /// When the last of them ended.
    idle_since: Option<Instant>,
}

impl Callers {
    /// Counts one more stream of the process that says it runs at `address`, and gives the process a slot if it has
    /// none.
    pub(crate) fn enter(&mut self, address: &NodeAddress, ip: IpAddr) -> Result<(), Full> {
        if let Some(slot) = self.slots.get_mut(address) {
            slot.streams += 1;
            slot.idle_since = None;
            return Ok(());
        }
        let network = network(ip);
        let taken = self.networks.get(&network).copied().unwrap_or(0);
        if taken >= SLOTS_PER_NETWORK {
            return Err(Full::Network(network));
        }
        if self.slots.len() >= SLOTS {
            return Err(Full::Node);
        }
        self.networks.insert(network, taken + 1);
        self.slots.insert(address.clone(), Slot { network, streams: 1, idle_since: None });
        self.check_invariants();
        Ok(())
    }

    /// Source: cluster T21, T28.
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        assert!(self.slots.len() <= SLOTS, "the slots of all networks are bounded");
        assert_eq!(self.networks.values().sum::<usize>(), self.slots.len(), "each slot counts for its network");
        assert!(self.networks.values().all(|taken| (1..=SLOTS_PER_NETWORK).contains(taken)), "a network has few slots");
    }

    /// Counts one stream fewer; returns true if that was the last one. The slot is kept until [`Callers::vacate`].
    pub(crate) fn leave(&mut self, now: Instant, address: &NodeAddress) -> bool {
        let Some(slot) = self.slots.get_mut(address) else { return false };
        slot.streams = slot.streams.saturating_sub(1);
        slot.idle_since = (slot.streams == 0).then_some(now);
        slot.streams == 0
    }

    /// Whether the process has a slot.
    pub(crate) fn holds(&self, address: &NodeAddress) -> bool {
        self.slots.contains_key(address)
    }

    /// Addresses whose slots have had no stream since `moment` or longer.
    pub(crate) fn idle_since(&self, moment: Instant) -> Vec<NodeAddress> {
        let is_idle = |slot: &Slot| slot.idle_since.is_some_and(|at| at <= moment);
        self.slots.iter().filter(|(_, slot)| is_idle(slot)).map(|(address, _)| address.clone()).collect()
    }

    /// Whether any slot is held without a stream.
    pub(crate) fn any_idle(&self) -> bool {
        self.slots.values().any(|slot| slot.idle_since.is_some())
    }

    /// Frees the slot of a process that needs none any more: it was reached, is a member, or is dropped.
    pub(crate) fn vacate(&mut self, address: &NodeAddress) {
        let Some(Slot { network, .. }) = self.slots.remove(address) else { return };
        if let Some(taken) = self.networks.get_mut(&network) {
            *taken -= 1;
            if *taken == 0 {
                self.networks.remove(&network);
            }
        }
        self.check_invariants();
    }
}

/// The network of an address, which counts as one caller: an IPv4 address is one host's, but an IPv6 host has a whole
/// /64.
pub(crate) fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX))),
        ip @ IpAddr::V4(_) => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: usize) -> NodeAddress {
        NodeAddress::new(&format!("h{n}"), 1).unwrap()
    }

    fn v4(n: usize) -> IpAddr {
        IpAddr::from((0x0a00_0000 + n as u32).to_be_bytes())
    }

    /// Cluster T21: 64 slots per remote IP; the slot of a process whose streams ended is free only once the process is
    /// dropped.
    #[test]
    fn slots_are_few_per_network() {
        let mut callers = Callers::default();
        for n in 0..SLOTS_PER_NETWORK {
            assert_eq!(callers.enter(&address(n), v4(1)), Ok(()));
        }
        assert_eq!(callers.enter(&address(64), v4(1)), Err(Full::Network(v4(1))));
        assert_eq!(callers.enter(&address(64), v4(2)), Ok(()), "another network");
        assert_eq!(callers.enter(&address(0), v4(1)), Ok(()), "a second stream of the same process");
        let now = Instant::now();
        assert!(!callers.leave(now, &address(0)) && !callers.any_idle());
        assert!(callers.leave(now, &address(0)));
        assert_eq!(callers.idle_since(now), [address(0)]);
        assert_eq!(callers.idle_since(now - std::time::Duration::from_secs(1)), []);
        assert!(callers.enter(&address(65), v4(1)).is_err());
        callers.vacate(&address(0));
        assert_eq!(callers.enter(&address(65), v4(1)), Ok(()));
    }

    /// Cluster T21: 1,024 slots in all.
    #[test]
    fn slots_are_few_in_all() {
        let mut callers = Callers::default();
        for n in 0..SLOTS {
            callers.enter(&address(n), v4(n)).unwrap();
        }
        assert_eq!(callers.enter(&address(SLOTS), v4(SLOTS)), Err(Full::Node));
        for n in 0..SLOTS {
            callers.vacate(&address(n));
        }
        assert_eq!((callers.slots.len(), callers.networks.len()), (0, 0));
    }

    /// Cluster T21: a host with one IPv6 address has 2^64 of them, which count as one caller.
    #[test]
    fn ipv6_addresses_of_one_network_are_one_caller() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(network(ip("2001:db8:1:2:3:4:5:6")), network(ip("2001:db8:1:2::9")));
        assert_ne!(network(ip("2001:db8:1:2::1")), network(ip("2001:db8:1:3::1")));
        assert_eq!(network(ip("::ffff:192.0.2.1")), ip("192.0.2.1"));
    }
}
