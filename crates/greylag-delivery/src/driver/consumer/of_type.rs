//! Settings and shared state of the entities of one type on a node that take deliveries.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::answers::Answers;
use super::node_removals::NodeRemovals;
use super::{DeliveryEvents, DeliveryHealth, OperatorState, Undecodable};
use crate::driver::consumer::counters::DeliveryCounters;
use crate::machine::sharding_consumer::{HandoverState, ShardingConsumerSettings};
use crate::settings::{DeliverySettings, OnUndecodable, SettingsError};

/// Settings, counters and events of the entities of one type on this node that take deliveries. Clones share their
/// state.
#[derive(Debug, Clone)]
pub struct ConsumerDelivery {
    pub(super) settings: Arc<ShardingConsumerSettings>,
    pub(super) on_undecodable: OnUndecodable,
    pub(super) allow_bypass: bool,
    pub(super) counters: DeliveryCounters,
    shared: Arc<TypeState>,
}

/// State that the entities of one type share.
#[derive(Debug, Default)]
struct TypeState {
    operator_state: OperatorState,
    node_removals: Arc<NodeRemovals>,
    answers: Arc<Answers>,
    /// Attempts at unconfirmed messages of failed entities, by entity id, until the successor starts.
    handovers: Mutex<BTreeMap<Arc<str>, HandoverState>>,
}

/// Limit of the stored states; beyond the limit a state is lost, so a message that the failed entity gave up may be
/// delivered again.
const MAX_HANDOVERS: usize = 10_000;

impl ConsumerDelivery {
    /// Checks the settings.
    pub(crate) fn new(settings: &DeliverySettings) -> Result<Self, SettingsError> {
        settings.validate()?;
        Ok(Self {
            settings: Arc::new(settings.sharding_consumer()),
            on_undecodable: settings.consumer.on_undecodable,
            allow_bypass: settings.sharding.allow_bypass,
            counters: DeliveryCounters::default(),
            shared: Arc::default(),
        })
    }

    /// Counters of the deliveries to entities of this type on this node.
    pub fn counters(&self) -> &DeliveryCounters {
        &self.counters
    }

    /// Subscribes to events of deliveries, for operators: messages that failed or cannot be decoded, and producers that
    /// were replaced.
    pub fn events(&self) -> DeliveryEvents {
        self.shared.operator_state.events()
    }

    /// Degraded while links are blocked by undecodable messages, until an operator acts.
    pub fn health(&self) -> DeliveryHealth {
        self.shared.operator_state.health()
    }

    /// The undecodable messages that are not confirmed yet, at entities of this type on this node
    /// ([`OnUndecodable::Surface`]).
    pub fn undecodable(&self) -> Vec<Undecodable> {
        self.shared.operator_state.undecodable()
    }

    /// The number of streams whose marks are kept for ever, and the retention of the other marks.
    #[cfg(feature = "persistence")]
    pub(crate) fn mark_limits(&self) -> greylag_persistence::MarkLimits {
        let (max_streams, retention) = (self.settings.dedupe_streams_max, self.settings.dedupe_retention);
        greylag_persistence::MarkLimits { max_streams, retention }
    }

    pub(super) fn operator_state(&self) -> &OperatorState {
        &self.shared.operator_state
    }

    pub(super) fn node_removals(&self) -> &Arc<NodeRemovals> {
        &self.shared.node_removals
    }

    pub(super) fn answers(&self) -> &Arc<Answers> {
        &self.shared.answers
    }

    fn handovers(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, HandoverState>> {
        self.shared.handovers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the state that an entity leaves to its successor after it failed.
    pub(super) fn store_handover(&self, entity: &Arc<str>, handover: HandoverState) {
        let mut handovers = self.handovers();
        if !handover.is_empty() && handovers.len() < MAX_HANDOVERS {
            handovers.insert(entity.clone(), handover);
        }
    }

    /// Takes the state that the entity's predecessor left, if there is one.
    pub(super) fn take_handover(&self, entity: &str) -> Option<HandoverState> {
        self.handovers().remove(entity)
    }
}
