//! The coordination of one entity type on this node, and the memory of its remembered entities. Both are set right after
//! the region was made.

use std::sync::{Arc, OnceLock};

use greylag_core::UniqueAddress;
use tokio::sync::mpsc::UnboundedSender;

use crate::driver::coordinator::coordinated::CoordinatorMetrics;
use crate::driver::remember::Memory;
use crate::machine::message::{AgreementOutcome, RegionMessage};
use crate::remember::starter::Input as StarterInput;

/// The part of this node that may coordinate an entity type: takes the messages of regions to the coordinator, even
/// while none runs here (sharding §2.13). Never waits.
pub(crate) trait Coordination: Send + Sync {
    /// Takes a region's message, from the node at the other end of the link.
    fn tell(&self, node: UniqueAddress, message: RegionMessage);
    /// Takes the outcome of comparing the type's role with other members, for one incarnation of the coordinator.
    fn on_agreement(&self, incarnation: Option<u64>, outcome: AgreementOutcome);
    /// Counters of the type's coordinators on this node; `None` if nothing is counted.
    fn metrics(&self) -> Option<CoordinatorMetrics> {
        None
    }
}

/// The memory of a type's remembered entities, and the task that starts them again.
pub(crate) struct Remember {
    pub(crate) memory: Arc<Memory>,
    pub(crate) starter: UnboundedSender<StarterInput>,
}

/// See the module's description.
#[derive(Default)]
pub(crate) struct TypeServices {
    coordination: OnceLock<Arc<dyn Coordination>>,
    /// `Some` if the type remembers its entities.
    remember: OnceLock<Remember>,
}

impl TypeServices {
    /// Connects the region with the coordination of its type.
    pub(in crate::driver) fn coordinate(&self, coordination: Arc<dyn Coordination>) {
        self.coordination.set(coordination).ok();
    }

    /// Makes the region remember its entities.
    pub(in crate::driver) fn remember(&self, remember: Remember) {
        self.remember.set(remember).ok();
    }

    /// Passes a message on to the coordinator on this node, as if it came from `node`.
    pub(in crate::driver) fn tell_coordinator(&self, node: UniqueAddress, message: RegionMessage) {
        if let Some(coordination) = self.coordination.get() {
            coordination.tell(node, message);
        }
    }

    /// Passes the outcome of comparing the type on to an incarnation of the coordinator on this node.
    pub(in crate::driver) fn on_agreement(&self, incarnation: Option<u64>, outcome: AgreementOutcome) {
        if let Some(coordination) = self.coordination.get() {
            coordination.on_agreement(incarnation, outcome);
        }
    }

    /// Counters of the type's coordinators on this node.
    pub(in crate::driver) fn coordinator_metrics(&self) -> CoordinatorMetrics {
        self.coordination.get().and_then(|coordination| coordination.metrics()).unwrap_or_default()
    }

    /// The memory of remembered entities, if the type remembers them.
    pub(in crate::driver) fn memory(&self) -> Option<&Arc<Memory>> {
        self.remember.get().map(|remember| &remember.memory)
    }

    /// Sends an input to the starter of remembered entities, if the type remembers them.
    pub(in crate::driver) fn send_to_starter(&self, input: StarterInput) {
        if let Some(remember) = self.remember.get() {
            remember.starter.send(input).ok();
        }
    }
}
