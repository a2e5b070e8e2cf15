//! The table of peers by address, with what this node knows of each address beside its peer.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use greylag_core::{NodeAddress, Uid, UniqueAddress};

use super::address_hash::RandomAddressHash;
use super::by_address::ByAddress;
use super::peer::{DropOutcome, Peer, Remembered};
use super::retired_uids::RetiredUids;
use crate::association::{Input, RetiredUid};
use crate::driver::grpc::local::LocalNode;
use crate::holder::Holder;

/// The peers of one node.
#[derive(Default)]
pub(crate) struct Peers {
    table: ArcSwap<HashMap<NodeAddress, Arc<Peer>, RandomAddressHash>>,
    /// Locked while the table changes.
    changing: Mutex<()>,
    /// The members that hold each address.
    holders: ByAddress<Holder>,
    /// The processes of each address that were removed from the cluster.
    tombstones: ByAddress<Uid>,
    /// The dead processes of addresses whose peer was dropped.
    retired_uids: Mutex<RetiredUids>,
}

impl Peers {
    /// The peer at an address; made on first use, and then given to `start` before any other thread finds it.
    pub(crate) fn find_or_start(
        &self,
        node: &LocalNode,
        address: &NodeAddress,
        start: impl FnOnce(&Arc<Peer>),
    ) -> Arc<Peer> {
        if let Some(peer) = self.table.load().get(address) {
            return peer.clone();
        }
        let _changing = self.changing.lock().expect(NO_PANIC);
        let table = self.table.load_full();
        if let Some(peer) = table.get(address) {
            return peer.clone();
        }
        let remembered = Remembered {
            retired: self.retired_uids.lock().expect(NO_PANIC).take(address),
            holders: self.holders.of(address),
            tombstones: self.tombstones.of(address),
        };
        let peer = Arc::new(Peer::new(node, address.clone(), remembered));
        start(&peer);
        let mut table = HashMap::clone(&table);
        table.insert(address.clone(), peer.clone());
        self.table.store(Arc::new(table));
        peer
    }

    /// Calls `act` with the peer at an address, without counting a reference, since every message does this.
    pub(crate) fn with<T>(&self, address: &NodeAddress, act: impl FnOnce(Option<&Arc<Peer>>) -> T) -> T {
        act(self.table.load().get(address))
    }

    /// Waits until a dropped peer is out of the table.
    pub(crate) fn await_drop(&self) {
        drop(self.changing.lock().expect(NO_PANIC));
    }

    /// Drops a peer that has been of no use for long from the table. Messages to its address make a new peer, which
    /// remembers the old one's retired uids.
    pub(crate) fn drop_idle(&self, node: &LocalNode, peer: &Peer) {
        let _changing = self.changing.lock().expect(NO_PANIC);
        if let Some(retired) = peer.close_if_idle() {
            self.forget(node, peer, retired);
        }
    }

    /// Drops the peer of a process that called and was never reached; returns true if nothing of it is left in the
    /// table.
    pub(crate) fn drop_caller(&self, node: &LocalNode, address: &NodeAddress) -> bool {
        let _changing = self.changing.lock().expect(NO_PANIC);
        let Some(peer) = self.find(address) else { return true };
        match peer.close_caller() {
            Some(DropOutcome::Dropped { retired, blocked }) => {
                blocked.iter().for_each(|process| node.unblock(process));
                self.forget(node, &peer, retired);
                true
            }
            // Keep the peer: this node has business of its own with the process.
            Some(DropOutcome::Kept) => true,
            None => false,
        }
    }

    fn forget(&self, node: &LocalNode, peer: &Peer, retired: Vec<RetiredUid>) {
        self.retired_uids.lock().expect(NO_PANIC).keep(&peer.address, retired);
        let mut table = HashMap::clone(&self.table.load_full());
        table.remove(&peer.address);
        self.table.store(Arc::new(table));
        node.endpoint.forget_peer(&peer.address);
    }

    /// Replaces the members that hold addresses; returns the peers at addresses whose holders changed, each with its
    /// input.
    pub(crate) fn set_holders(&self, holders: Vec<Holder>) -> impl Iterator<Item = (Arc<Peer>, Input)> {
        let changed = {
            // Locked against new peers: a peer that is made meanwhile starts with the old holders and is told the
            // difference by its input, or starts with the new ones.
            let _changing = self.changing.lock().expect(NO_PANIC);
            self.holders.replace(holders.into_iter().map(|holder| (holder.member.address().clone(), holder)))
        };
        let input = |(address, holders)| Some((self.find(&address)?, Input::Holders { holders }));
        changed.into_iter().filter_map(input)
    }

    /// Replaces the processes that were removed from the cluster; returns the peers at addresses whose removed
    /// processes changed, each with its input.
    pub(crate) fn set_tombstones(
        &self,
        tombstones: &BTreeSet<UniqueAddress>,
    ) -> impl Iterator<Item = (Arc<Peer>, Input)> {
        let changed = {
            // Locked against new peers, as for the holders: a peer that is made meanwhile misses nothing.
            let _changing = self.changing.lock().expect(NO_PANIC);
            self.tombstones.replace(tombstones.iter().map(|gone| (gone.address().clone(), gone.uid())))
        };
        let input = |(address, uids): (NodeAddress, Vec<Uid>)| {
            Some((self.find(&address)?, Input::Tombstones { uids: uids.into_iter().collect() }))
        };
        changed.into_iter().filter_map(input)
    }

    /// Whether there is a peer at the address.
    pub(crate) fn knows(&self, address: &NodeAddress) -> bool {
        self.table.load().contains_key(address)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Peer>> {
        self.table.load().values().cloned().collect()
    }

    fn find(&self, address: &NodeAddress) -> Option<Arc<Peer>> {
        self.table.load().get(address).cloned()
    }
}

const NO_PANIC: &str = "nothing under this lock panics";
