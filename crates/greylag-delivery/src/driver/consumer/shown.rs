//! The view of consumers from outside: their events, and the messages that wait for a person.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::event::Announcements;
use super::undecodable::Waiting;
use super::{DeliveryEvent, DeliveryEvents, DeliveryHealth, Undecodable};
use crate::ids::MessageId;

/// A producer that begins anew reaches many entities at once; one warning for all of them is enough.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    announcements: Announcements,
    waiting: Waiting,
    /// When the last warning of two producers of one name was logged.
    warned_at: Mutex<Option<Instant>>,
}

impl Shown {
    pub(crate) fn events(&self) -> DeliveryEvents {
        self.announcements.subscribe()
    }

    pub(crate) fn announce(&self, event: DeliveryEvent) {
        self.announcements.announce(event);
    }

    /// A message that cannot be read waits from now on.
    pub(crate) fn wait(&self, undecodable: Undecodable) {
        self.waiting.add(undecodable);
    }

    /// The message of an entity or a controller waits no more.
    pub(crate) fn forget(&self, entity: &Arc<str>, id: &MessageId) {
        self.waiting.remove(entity, id);
    }

    /// The messages that wait.
    pub(crate) fn undecodable(&self) -> Vec<Undecodable> {
        self.waiting.list()
    }

    pub(crate) fn health(&self) -> DeliveryHealth {
        match self.waiting.count() {
            0 => DeliveryHealth::Healthy,
            undecodable => DeliveryHealth::Degraded { undecodable },
        }
    }

    /// Whether a warning of two producers of one name is to be logged now, beside the event.
    pub(crate) fn is_to_warn(&self, now: Instant) -> bool {
        let mut warned_at = self.warned_at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = warned_at.is_none_or(|at| now.saturating_duration_since(at) >= WARNING_INTERVAL);
        if is_due {
            *warned_at = Some(now);
        }
        is_due
    }
}
