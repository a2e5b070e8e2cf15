//! The members of the world, and each node's view of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greylag_cluster::AppVersion;
use greylag_core::UniqueAddress;
use greylag_sharding::Omissions;
use greylag_sharding::ids::{RegionId, ShardId};
use greylag_sharding::machine::coordinator;
use greylag_sharding::machine::membership::{MemberFacts, MemberPhase, Members};
use greylag_sharding::machine::region::{self, Region, RegionConfig};
use greylag_transport::Lane;

use super::{Application, Node, Timer, World};

impl<A: Application> World<A> {
    pub(super) fn add_node(&mut self) {
        self.add_node_named(None);
    }

    /// `name`: the node whose address the process has; `None`: a new one.
    pub(super) fn add_node_named(&mut self, name: Option<usize>) {
        let net = self.net.add_node();
        let index = net.0;
        for node in self.nodes.iter().filter(|node| node.moved) {
            self.net.cut(net, node.net);
            self.net.cut(node.net, net);
        }
        let address = match name {
            Some(name) => self.nodes[name].address.address().to_string(),
            None => format!("n{index}:1"),
        };
        let address: UniqueAddress = format!("{address}#{}", index + 1).parse().expect("an address");
        let id = RegionId { node: address.clone(), incarnation: 1 };
        let proxy = index == 2 && self.chance(0.3);
        let region = self.new_region(index, id, proxy);
        self.nodes.push(Node {
            net,
            address: address.clone(),
            region,
            coordinator: None,
            seen_epoch: 0,
            view: 0,
            removed_at: BTreeMap::new(),
            routes: BTreeMap::new(),
            admitted: BTreeSet::new(),
            shards: BTreeMap::new(),
            tokens: BTreeMap::new(),
            alive: true,
            suspect: false,
            held: false,
            resumes: None,
            leaving: false,
            moved: false,
            proxy,
        });
        let facts = MemberFacts {
            phase: MemberPhase::Up,
            up_number: index as u32 + 1,
            reachable: true,
            roles: BTreeSet::new(),
            app_version: AppVersion::default(),
        };
        self.change_view(|members| {
            members.members.insert(address, facts);
        });
    }

    pub(super) fn new_region(&self, node: usize, id: RegionId, proxy: bool) -> Region {
        let config = RegionConfig {
            id,
            proxy,
            fingerprint: self.fingerprint.clone(),
            coordinator_role: String::new(),
            settings: Self::settings(),
            lane_of: Arc::new(|shard: &ShardId| Lane::ordinary((shard.index().unwrap_or(0) % 2) as u16)),
            omissions: Omissions::of(self.sabotage.clause),
        };
        let mut region = Region::new(config, self.now());
        // Use small turns, so that a flush takes several, with other events in between.
        region.flush_in_turns_of(1 + node % 3);
        region
    }

    /// Makes the cluster agree on a new view; every node learns of it at its own time.
    pub(super) fn change_view(&mut self, change: impl FnOnce(&mut Members)) {
        let mut members = self.views.last().expect("there is a first").clone();
        change(&mut members);
        self.views.push(members);
        let version = self.views.len() as u64 - 1;
        for node in 0..self.nodes.len() {
            let delay = self.random(0, 300);
            self.after(delay, Timer::View { node, version });
        }
    }

    pub(super) fn on_view(&mut self, node: usize, version: u64) {
        let now = self.now();
        let members = &self.views[version as usize];
        let state = &mut self.nodes[node];
        if !state.alive || state.view >= version || !members.contains(&state.address) {
            return;
        }
        state.view = version;
        let mut own = members.clone();
        for (address, removal) in &mut own.removed {
            removal.at = *state.removed_at.entry(address.clone()).or_insert(now);
        }
        let own = Arc::new(own);
        if let Some((incarnation, _)) = &state.coordinator {
            let (incarnation, input) = (*incarnation, coordinator::Input::Membership(own.clone()));
            self.coordinate(node, incarnation, input);
        }
        let gone: Vec<_> = own.removed.keys().cloned().collect();
        self.tell(node, region::Input::Membership(own));
        for address in gone {
            self.tell(node, region::Input::HandedBack { node: address, frames: Vec::new() });
        }
        if self.is_oldest(node) && self.nodes[node].coordinator.is_none() {
            let delay = self.random(10, 400);
            self.after(delay, Timer::StartCoordinator { node });
        }
    }

    pub(super) fn members_of(&self, node: usize) -> Arc<Members> {
        let state = &self.nodes[node];
        let mut own = self.views[state.view as usize].clone();
        for (address, removal) in &mut own.removed {
            removal.at = state.removed_at.get(address).copied().unwrap_or(removal.at);
        }
        Arc::new(own)
    }

    pub(super) fn is_oldest(&self, node: usize) -> bool {
        let members = &self.views[self.nodes[node].view as usize];
        let staying =
            members.members.iter().filter(|(_, m)| !matches!(m.phase, MemberPhase::Down | MemberPhase::Exiting));
        staying.min_by_key(|(_, m)| m.up_number).is_some_and(|(oldest, _)| *oldest == self.nodes[node].address)
    }

    pub(crate) fn living(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|n| self.nodes[*n].alive).collect()
    }
}
