//! The coordinator of a node without a cluster: gives every shard to the only region.
//!
//! For tests of entities and for programs that never grow beyond one process. Nothing is stored, so the epoch is the
//! wall clock's seconds: generations keep rising from start to start. Remembered shards are hosted at once; a new shard
//! of a type that remembers its entities is remembered before it is hosted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use greylag_core::{Generation, UniqueAddress};
use tokio::runtime::Handle;

use crate::driver::region::any_region::AnyRegion;
use crate::driver::region::type_services::Coordination;
use crate::driver::remember::Memory;
use crate::ids::{RegionId, ShardId};
use crate::machine::message::{
    AgreementOutcome, Attempt, CoordinatorId, CoordinatorMessage, Epoch, FromCoordinator, Home, RegionMessage,
};
use crate::machine::region::Input;

/// See the module's description.
pub(crate) struct LocalCoordinator(Arc<Inner>);

struct Inner {
    epoch: Epoch,
    region: Weak<dyn AnyRegion>,
    homes: Mutex<Homes>,
    /// `Some` if the type remembers its entities.
    memory: Option<Arc<Memory>>,
    runtime: Handle,
}

#[derive(Default)]
struct Homes {
    known: BTreeMap<ShardId, Generation>,
    last: u64,
    /// Shards that are to stop, and the requests that wait for them.
    stopping: BTreeMap<ShardId, BTreeSet<u64>>,
    attempts: u64,
}

impl LocalCoordinator {
    pub(crate) fn new(
        epoch: Epoch,
        region: &Arc<dyn AnyRegion>,
        memory: Option<Arc<Memory>>,
        runtime: &Handle,
    ) -> Self {
        let (region, homes, runtime) = (Arc::downgrade(region), Mutex::default(), runtime.clone());
        Self(Arc::new(Inner { epoch, region, homes, memory, runtime }))
    }
}

impl Inner {
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
        Home::new(shard, region.clone(), generation)
    }

    fn lock(&self) -> MutexGuard<'_, Homes> {
        self.homes.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn host(&self, node: UniqueAddress, region: &RegionId, shards: impl IntoIterator<Item = ShardId>) {
        let homes: Vec<_> = shards.into_iter().map(|shard| self.home(region, shard)).collect();
        if !homes.is_empty() {
            self.answer(node, region, CoordinatorMessage::HostShard(homes));
        }
    }

    /// Hosts the shards that are remembered already.
    async fn host_remembered(self: Arc<Self>, node: UniqueAddress, region: RegionId, memory: Arc<Memory>) {
        match memory.shards().read().await {
            Ok(shards) => self.host(node, &region, shards),
            Err(error) => {
                tracing::error!(
                    %error, "remembered shards could not be read; their entities start with their first message only"
                );
            }
        }
    }

    /// Hosts shards once they are remembered. If the store fails, the region asks again.
    async fn remember(
        self: Arc<Self>,
        node: UniqueAddress,
        region: RegionId,
        memory: Arc<Memory>,
        shards: Vec<ShardId>,
    ) {
        let set = memory.shards();
        let added = match set.read().await {
            Ok(known) => set.add(shards.iter().filter(|shard| !known.contains(shard)).cloned().collect()).await,
            Err(error) => Err(error),
        };
        match added {
            Ok(()) => self.host(node, &region, shards),
            Err(error) => {
                tracing::warn!(%error, "the store of remembered shards failed; shards are not hosted until the retry");
            }
        }
    }

    /// Orders running shards to stop, and reports the others as stopped at once.
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
    /// The order to stop a running shard. A repeated order has no further effect.
    fn stop(&mut self, shard: ShardId, request: u64, epoch: Epoch) -> CoordinatorMessage {
        self.stopping.entry(shard.clone()).or_default().insert(request);
        self.attempts += 1;
        let attempt = Attempt((epoch << Generation::SEQ_BITS) | self.attempts);
        let generation = self.known[&shard];
        CoordinatorMessage::HandOff { shard, generation, attempt, flush_from: Vec::new() }
    }
}

impl Coordination for LocalCoordinator {
    fn tell(&self, node: UniqueAddress, message: RegionMessage) {
        let inner = &self.0;
        match message {
            RegionMessage::Register(register) => {
                let ack = CoordinatorMessage::RegisterAck { serial: register.serial };
                inner.answer(node.clone(), &register.region, ack);
                if let Some(memory) = inner.memory.clone() {
                    inner.runtime.spawn(inner.clone().host_remembered(node, register.region, memory));
                }
            }
            RegionMessage::GetShardHome { region, shards } => match inner.memory.clone() {
                None => inner.host(node, &region, shards),
                Some(memory) => drop(inner.runtime.spawn(inner.clone().remember(node, region, memory, shards))),
            },
            RegionMessage::ShardStopped { region, shard, generation, .. } => {
                inner.on_shard_stopped(&node, &region, shard, generation);
            }
            RegionMessage::StopShards { region, request, shards } => {
                inner.on_stop_shards(&node, &region, request, shards);
            }
            RegionMessage::GetCurrentRegions { region, request } => {
                let regions = vec![region.clone()];
                inner.answer(node, &region, CoordinatorMessage::CurrentRegions { request, regions });
            }
            RegionMessage::GracefulShutdownReq { region } => inner.answer(node, &region, CoordinatorMessage::StopHere),
            RegionMessage::RegionStopped { region } => {
                inner.answer(node, &region, CoordinatorMessage::RegionStoppedAck);
            }
            RegionMessage::ShardStarted { .. }
            | RegionMessage::BeginHandOffAck { .. }
            | RegionMessage::StaleEpoch { .. }
            | RegionMessage::NoRegion { .. } => {}
        }
    }

    fn on_agreement(&self, _: Option<u64>, _: AgreementOutcome) {}
}
