//! How entities of one type take deliveries on a node, and what can be seen of that from outside of them.
//!
//! Source: delivery §3.2, §6 (observability), §9.

mod controller;
mod departures;
mod event;
mod undecodable;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::counters::DeliveryCounters;
use crate::machine::sharding_consumer::{Legacy, ShardingConsumerSettings};
use crate::settings::{DeliverySettings, OnUndecodable, SettingsError};
pub(crate) use controller::{Controller, changed};
use departures::Departures;
use event::Announcements;
pub use event::{DeliveryEvent, DeliveryEvents, DeliveryHealth};
pub use undecodable::Undecodable;
use undecodable::Waiting;

/// How entities of one type take deliveries on this node, with the counters of that. Clones are the same.
#[derive(Debug, Clone)]
pub struct ConsumerDelivery {
    settings: Arc<ShardingConsumerSettings>,
    on_undecodable: OnUndecodable,
    allow_bypass: bool,
    counters: DeliveryCounters,
    shared: Arc<Shared>,
}

/// What the entities of one type have in common.
#[derive(Debug, Default)]
struct Shared {
    announcements: Announcements,
    waiting: Waiting,
    departures: Arc<Departures>,
    /// When two producers of one name were warned of last.
    warned_at: Mutex<Option<Instant>>,
    /// What entities that failed leave to their successors, by entity.
    legacies: Mutex<BTreeMap<Arc<str>, Legacy>>,
}

/// A producer that begins anew reaches many entities at once; one warning for all of them is enough.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Entities that failed and did not start again yet of which something is remembered.
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

    /// What entities of this type have seen on this node.
    pub fn counters(&self) -> &DeliveryCounters {
        &self.counters
    }

    /// What happens to deliveries from now on that somebody should know of.
    pub fn events(&self) -> DeliveryEvents {
        self.shared.announcements.subscribe()
    }

    /// Whether every delivery goes its way.
    pub fn health(&self) -> DeliveryHealth {
        match self.shared.waiting.count() {
            0 => DeliveryHealth::Healthy,
            undecodable => DeliveryHealth::Degraded { undecodable },
        }
    }

    /// The messages that cannot be read and wait to be confirmed, at entities of this type on this node
    /// ([`OnUndecodable::Surface`]).
    pub fn undecodable(&self) -> Vec<Undecodable> {
        self.shared.waiting.list()
    }

    /// How many streams are remembered for ever, and each of the others for how long.
    #[cfg(feature = "persistence")]
    pub(crate) fn mark_limits(&self) -> greylag_persistence::MarkLimits {
        let (max_streams, retention) = (self.settings.dedupe_streams_max, self.settings.dedupe_retention);
        greylag_persistence::MarkLimits { max_streams, retention }
    }

    /// Whether two producers of one name are to be warned of now, and not only told of.
    fn is_to_warn(&self, now: Instant) -> bool {
        let mut warned_at = self.shared.warned_at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = warned_at.is_none_or(|at| now.saturating_duration_since(at) >= WARNING_INTERVAL);
        if is_due {
            *warned_at = Some(now);
        }
        is_due
    }

    fn legacies(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Legacy>> {
        self.shared.legacies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what an entity that failed leaves to its successor.
    fn leave(&self, entity: &Arc<str>, legacy: Legacy) {
        let mut legacies = self.legacies();
        if !legacy.is_empty() && legacies.len() < MAX_LEGACIES {
            legacies.insert(entity.clone(), legacy);
        }
    }

    /// What the predecessor of an entity left; once.
    fn inherit(&self, entity: &str) -> Option<Legacy> {
        self.legacies().remove(entity)
    }
}
