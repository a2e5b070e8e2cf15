//! The coordinator of a node without a cluster: it gives every shard to the one region there is.
//!
//! For tests of entities and for programs that never grow beyond one process. Nothing is stored, so
//! its epoch is the wall clock's seconds: generations keep rising from start to start.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use greylag_core::{Generation, UniqueAddress};

use super::region::AnyRegion;
use super::shared::Coordination;
use crate::ids::{RegionId, ShardId};
use crate::message::{CoordinatorId, CoordinatorMessage, Epoch, FromCoordinator, Home, RegionMessage, Standing};
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
        let mut homes = self.homes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let generation = homes.known.get(&shard).copied().unwrap_or_else(|| {
            homes.last += 1;
            let next = Generation::new(self.epoch, homes.last).expect("fewer than 2^28 allocations by one process");
            homes.known.insert(shard.clone(), next);
            next
        });
        Home { shard, region: region.clone(), generation, flushed: None, previous: None, leftovers_from: None }
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
            RegionMessage::ShardStopped { shard, generation, .. } => {
                let mut homes = self.homes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                if homes.known.get(&shard) == Some(&generation) {
                    homes.known.remove(&shard);
                }
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
