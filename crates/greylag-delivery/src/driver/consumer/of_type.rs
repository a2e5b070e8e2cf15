//! Settings and shared state of the entities of one type on a node that take deliveries.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::answers::Answers;
use super::departures::Departures;
use super::{DeliveryEvents, DeliveryHealth, Shown, Undecodable};
use crate::counters::DeliveryCounters;
use crate::machine::sharding_consumer::{Legacy, ShardingConsumerSettings};
use crate::settings::{DeliverySettings, OnUndecodable, SettingsError};

/// Settings, counters and events of the entities of one type on this node that take deliveries. Clones share their
/// state.
#[derive(Debug, Clone)]
pub struct ConsumerDelivery {
    pub(super) settings: Arc<ShardingConsumerSettings>,
    pub(super) on_undecodable: OnUndecodable,
    pub(super) allow_bypass: bool,
    pub(super) counters: DeliveryCounters,
    shared: Arc<Shared>,
}

/// State that the entities of one type share.
#[derive(Debug, Default)]
struct Shared {
    shown: Shown,
    departures: Arc<Departures>,
    answers: Arc<Answers>,
    /// Attempts at unconfirmed messages of failed entities, by entity id, until the successor starts.
    legacies: Mutex<BTreeMap<Arc<str>, Legacy>>,
}

/// Limit of legacies kept; beyond the limit a legacy is lost, so a message that the failed entity gave up may be
/// delivered again.
const MAX_LEGACIES: usize = 10_000;

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
        self.shared.shown.events()
    }

    /// Degraded while links are blocked by undecodable messages, until an operator acts.
    pub fn health(&self) -> DeliveryHealth {
        self.shared.shown.health()
    }

    /// The undecodable messages that are not confirmed yet, at entities of this type on this node
    /// ([`OnUndecodable::Surface`]).
    pub fn undecodable(&self) -> Vec<Undecodable> {
        self.shared.shown.undecodable()
    }

    /// The number of streams whose marks are kept for ever, and the retention of the other marks.
    #[cfg(feature = "persistence")]
    pub(crate) fn mark_limits(&self) -> greylag_persistence::MarkLimits {
        let (max_streams, retention) = (self.settings.dedupe_streams_max, self.settings.dedupe_retention);
        greylag_persistence::MarkLimits { max_streams, retention }
    }

    pub(super) fn shown(&self) -> &Shown {
        &self.shared.shown
    }

    pub(super) fn departures(&self) -> &Arc<Departures> {
        &self.shared.departures
    }

    pub(super) fn answers(&self) -> &Arc<Answers> {
        &self.shared.answers
    }

    fn legacies(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Legacy>> {
        self.shared.legacies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the legacy of an entity that failed, for its successor.
    pub(super) fn leave(&self, entity: &Arc<str>, legacy: Legacy) {
        let mut legacies = self.legacies();
        if !legacy.is_empty() && legacies.len() < MAX_LEGACIES {
            legacies.insert(entity.clone(), legacy);
        }
    }

    /// Takes the legacy of an entity's predecessor, if there is one.
    pub(super) fn inherit(&self, entity: &str) -> Option<Legacy> {
        self.legacies().remove(entity)
    }
}
