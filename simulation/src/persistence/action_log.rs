//! The orders to entities, and the action logs that entities write while their machines handle them.
//!
//! The world reads the action log after every input to a machine, before anything else happens, so its lines can be compared
//! with the stores' content at that very moment.

use std::sync::{Arc, Mutex, PoisonError};

use greylag_core::{EntityError, ReplyAddress, ReplyOutcome, ReplyPort, ReplyTo};

use super::event_entity::EventEntries;
use super::state_entity::StateEntries;

/// A user's request to an entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OrderKind {
    /// Writes this many entries, all or none.
    Write(u64),
    /// Writes an entry when the entity is open; until then the order is stashed.
    Gated,
    /// Records a delivery, which is repeated until it is confirmed; in durable states, writes an entry.
    Send,
    /// Confirms a delivery.
    Confirm(u64),
    /// Opens the entity, and unstashes all stashed orders.
    Open,
    Close,
    /// Reads the count of entries.
    Read,
    /// The same, from an entity that first proves that it still owns its history.
    ReadOwned,
    /// Writes an entry, then stops the entity.
    Last,
    /// Deletes events, up to a snapshot; or the durable state.
    Clear,
    Panic,
    /// Writes an entry that cannot be encoded: refused before it is applied.
    Unencodable,
    /// Writes an entry with tags that no store takes: refused after it is applied.
    Overtagged,
}

impl OrderKind {
    /// Count of entries that an answered order has written; a delivery only if there is room.
    pub(super) fn entries(self) -> u64 {
        match self {
            Self::Write(count) => count,
            Self::Gated | Self::Last | Self::Open | Self::Close => 1,
            _ => 0,
        }
    }
}

/// The entries of an order are numbered from its own number times this.
pub(super) const NUMBERS: u64 = 4;

/// A request with its number, and its asker.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) number: u64,
    pub(super) kind: OrderKind,
    pub(super) to: ReplyTo<u64>,
}

/// An action of an entity.
#[derive(Debug, Clone)]
pub(super) enum LoggedAction {
    /// Recovery has ended with this state, which `count` events or writes led to.
    Recovered { state: State, count: u64 },
    /// The handler was given this order, and stashed it or not.
    Handled { number: u64, is_stashed: bool },
    /// The machine unstashes all stashed orders.
    Unstashes,
    /// A delivery left, with the number of its entry.
    Sent { delivery: u64, entry: u64 },
    /// A user got an answer.
    Answered { number: u64, answer_of_user: UserAnswer },
}

/// A recovered state.
#[derive(Debug, Clone)]
pub(super) enum State {
    EventEntity(EventEntries),
    StateEntity(StateEntries),
}

/// The answer to an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UserAnswer {
    Value(u64),
    /// The order is not stored and never will be.
    NotStored(String),
    /// The order may be stored.
    Unknown,
}

/// The action log of a machine. Clones share their lines.
#[derive(Debug, Clone, Default)]
pub(super) struct ActionLog(Arc<Mutex<Vec<LoggedAction>>>);

impl ActionLog {
    pub(super) fn write(&self, line: LoggedAction) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    pub(super) fn take(&self) -> Vec<LoggedAction> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn order(&self, number: u64, kind: OrderKind) -> Order {
        let node = "asker:1#1".parse().expect("a valid address");
        Order { number, kind, to: ReplyTo::new(ReplyAddress { node, ask_id: number }, Arc::new(self.clone())) }
    }
}

impl ReplyPort for ActionLog {
    fn reply(&self, to: &ReplyAddress, outcome: ReplyOutcome) {
        let answer_of_user = match outcome {
            ReplyOutcome::Value { value, .. } => UserAnswer::Value(*value.downcast().expect("entities answer numbers")),
            // A dropped command was never handled.
            ReplyOutcome::Failed(error @ (EntityError::NotStored(_) | EntityError::StashFull)) => {
                UserAnswer::NotStored(error.to_string())
            }
            ReplyOutcome::Dropped(reason) => UserAnswer::NotStored(reason.to_string()),
            ReplyOutcome::Failed(_) => UserAnswer::Unknown,
        };
        self.write(LoggedAction::Answered { number: to.ask_id, answer_of_user });
    }
}
