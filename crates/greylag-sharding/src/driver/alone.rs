//! The coordinator of a node without a cluster: it gives every shard to the one region there is.
//!
//! For tests of entities and for programs that never grow beyond one process. Nothing is stored, so
//! its epoch is the wall clock's seconds: generations keep rising from start to start.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use greylag_core::{Generation, UniqueAddress};

use super::region::AnyRegion;
use super::shared::Coordination;
use crate::ids::{RegionId, ShardId};
use crate::message::{
    Attempt, CoordinatorId, CoordinatorMessage, Epoch, FromCoordinator, Home, RegionMessage, Standing,
};
use crate::region::Input;

/// See the module's description.
pub(crate) struct Alone {
    epoch: Epoch,
    region: Weak<dyn AnyRegion>,
    homes: Mutex<Homes>,
}

#[derive(Default)]
struct Homes {
    known: BTreeMap<ShardId, Generation>,
    last: u64,
    /// Shards that are to stop, and the requests that wait for them.
    stopping: BTreeMap<ShardId, BTreeSet<u64>>,
    attempts: u64,
}

impl Alone {
    pub(crate) fn new(epoch: Epoch, region: &Arc<dyn AnyRegion>) -> Self {
        Self { epoch, region: Arc::downgrade(region), homes: Mutex::default() }
    }

    fn answer(&self, node: UniqueAddress, to: &RegionId, message: CoordinatorMessage) {
        let coordinator = CoordinatorId { node: node.clone(), incarnation: 1 };
        let message = FromCoordinator { coordinator, epoch: self.epoch, to: Some(to.clone()), message };
        if let Some(region) = self.region.upgrade() {
            region.tell(Input::FromCoordinator { node, message });
        }
    }

    fn home(&self, region: &RegionId, shard: ShardId) -> Home {
        let mut homes = self.lock();
        let generation = homes.known.get(&shard).copied().unwrap_or_else(|| {
            homes.last += 1;
            let next = Generation::new(self.epoch, homes.last).expect("fewer than 2^28 allocations by one process");
            homes.known.insert(shard.clone(), next);
            next
        });
        Home { shard, region: region.clone(), generation, flushed: None, previous: None, leftovers_from: None }
    }

    fn lock(&self) -> MutexGuard<'_, Homes> {
        self.homes.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Orders the shards that run to stop, and tells at once of those that do not.
    fn on_stop_shards(&self, node: &UniqueAddress, region: &RegionId, request: u64, shards: Vec<ShardId>) {
        let mut homes = self.lock();
        let (running, stopped): (Vec<_>, Vec<_>) =
            shards.into_iter().partition(|shard| homes.known.contains_key(shard));
        let orders: Vec<_> = running.into_iter().map(|shard| homes.stop(shard, request, self.epoch)).collect();
        drop(homes);
        for order in orders {
            self.answer(node.clone(), region, order);
        }
        if !stopped.is_empty() {
            self.answer(node.clone(), region, CoordinatorMessage::ShardsStopped { request, shards: stopped });
        }
    }

    fn on_shard_stopped(&self, node: &UniqueAddress, region: &RegionId, shard: ShardId, generation: Generation) {
        let mut homes = self.lock();
        if homes.known.get(&shard) != Some(&generation) {
            return;
        }
        homes.known.remove(&shard);
        let requests = homes.stopping.remove(&shard).unwrap_or_default();
        drop(homes);
        for request in requests {
            let shards = vec![shard.clone()];
            self.answer(node.clone(), region, CoordinatorMessage::ShardsStopped { request, shards });
        }
    }
}

impl Homes {
    /// The order to stop a shard that runs. An order that is repeated costs nothing.
    fn stop(&mut self, shard: ShardId, request: u64, epoch: Epoch) -> CoordinatorMessage {
        self.stopping.entry(shard.clone()).or_default().insert(request);
        self.attempts += 1;
        let attempt = Attempt((epoch << Generation::SEQ_BITS) | self.attempts);
        let generation = self.known[&shard];
        CoordinatorMessage::HandOff { shard, generation, attempt, flush_from: Vec::new() }
    }
}

impl Coordination for Alone {
    fn tell(&self, node: UniqueAddress, message: RegionMessage) {
        match message {
            RegionMessage::Register(register) => {
                let ack = CoordinatorMessage::RegisterAck { serial: register.serial };
                self.answer(node, &register.region, ack);
            }
            RegionMessage::GetShardHome { region, shards } => {
                let homes = shards.into_iter().map(|shard| self.home(&region, shard)).collect();
                self.answer(node, &region, CoordinatorMessage::HostShard(homes));
            }
            RegionMessage::ShardStopped { region, shard, generation, .. } => {
                self.on_shard_stopped(&node, &region, shard, generation);
            }
            RegionMessage::StopShards { region, request, shards } => {
                self.on_stop_shards(&node, &region, request, shards);
            }
            RegionMessage::GetCurrentRegions { region, request } => {
                let regions = vec![region.clone()];
                self.answer(node, &region, CoordinatorMessage::CurrentRegions { request, regions });
            }
            RegionMessage::GracefulShutdownReq { region } => self.answer(node, &region, CoordinatorMessage::StopHere),
            RegionMessage::RegionStopped { region } => {
                self.answer(node, &region, CoordinatorMessage::RegionStoppedAck);
            }
            RegionMessage::ShardStarted { .. }
            | RegionMessage::BeginHandOffAck { .. }
            | RegionMessage::StaleEpoch { .. }
            | RegionMessage::NoRegion { .. } => {}
        }
    }

    fn stand(&self, _: Option<u64>, _: Standing) {}
}
