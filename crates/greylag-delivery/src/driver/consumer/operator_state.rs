//! State of consumers as operators see it: events, and undecodable messages that wait for an operator.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::event::EventBus;
use super::undecodable::UndecodableMessages;
use super::{DeliveryEvent, DeliveryEvents, DeliveryHealth, Undecodable};
use crate::ids::MessageId;

/// Interval between warnings of two streams of one producer id: a producer that begins a new stream reaches many
/// entities at once, and one warning is enough for all of them.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct OperatorState {
    event_bus: EventBus,
    waiting: UndecodableMessages,
    /// When the last such warning was logged.
    warned_at: Mutex<Option<Instant>>,
}

impl OperatorState {
    pub(crate) fn events(&self) -> DeliveryEvents {
        self.event_bus.subscribe()
    }

    pub(crate) fn announce(&self, event: DeliveryEvent) {
        self.event_bus.announce(event);
    }

    /// Adds an undecodable message.
    pub(crate) fn wait(&self, undecodable: Undecodable) {
        self.waiting.add(undecodable);
    }

    /// Removes the undecodable message `id` of an entity or a controller.
    pub(crate) fn forget(&self, entity: &Arc<str>, id: &MessageId) {
        self.waiting.remove(entity, id);
    }

    /// The undecodable messages that are not confirmed yet.
    pub(crate) fn undecodable(&self) -> Vec<Undecodable> {
        self.waiting.list()
    }

    pub(crate) fn health(&self) -> DeliveryHealth {
        match self.waiting.count() {
            0 => DeliveryHealth::Healthy,
            undecodable => DeliveryHealth::Degraded { undecodable },
        }
    }

    /// Whether a warning of two streams of one producer id is due, in addition to the event.
    pub(crate) fn is_to_warn(&self, now: Instant) -> bool {
        let mut warned_at = self.warned_at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = warned_at.is_none_or(|at| now.saturating_duration_since(at) >= WARNING_INTERVAL);
        if is_due {
            *warned_at = Some(now);
        }
        is_due
    }
}
