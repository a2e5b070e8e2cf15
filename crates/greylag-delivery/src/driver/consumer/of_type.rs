//! How entities of one type take deliveries on a node.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::answers::Answers;
use super::departures::Departures;
use super::{DeliveryEvents, DeliveryHealth, Shown, Undecodable};
use crate::counters::DeliveryCounters;
use crate::machine::sharding_consumer::{Legacy, ShardingConsumerSettings};
use crate::settings::{DeliverySettings, OnUndecodable, SettingsError};

/// How entities of one type take deliveries on this node, with the counters of that. Clones are the same.
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
    /// Legacies of entities that failed, by entity, until their successors start.
    legacies: Mutex<BTreeMap<Arc<str>, Legacy>>,
}

/// Legacies that are kept at most; of one more nothing is kept, so a message that its entity gave up may come again.
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

    /// Counters of the deliveries at entities of this type on this node.
    pub fn counters(&self) -> &DeliveryCounters {
        &self.counters
    }

    /// Events of deliveries from this call on, for operators: messages that failed or cannot be read, and producers that
    /// were replaced.
    pub fn events(&self) -> DeliveryEvents {
        self.shared.shown.events()
    }

    /// Degraded while links wait for a person, because of messages that cannot be read.
    pub fn health(&self) -> DeliveryHealth {
        self.shared.shown.health()
    }

    /// The messages that cannot be read and wait to be confirmed, at entities of this type on this node
    /// ([`OnUndecodable::Surface`]).
    pub fn undecodable(&self) -> Vec<Undecodable> {
        self.shared.shown.undecodable()
    }

    /// How many streams are remembered for ever, and each of the others for how long.
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

    /// Keeps the legacy of an entity that failed, for its successor.
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
