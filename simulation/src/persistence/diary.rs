//! The orders to entities, and the diaries that entities write while their machines handle them.
//!
//! The world reads the diary after every input to a machine, before anything else happens, so its lines can be compared
//! with the stores' content at that very moment.

use std::sync::{Arc, Mutex, PoisonError};

use greylag_core::{EntityError, ReplyAddress, ReplyOutcome, ReplyPort, ReplyTo};

use super::book::Pages;
use super::slate::Lines;

/// A user's request to an entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
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
    Look,
    /// The same, from an entity that first proves that it still owns its history.
    LookOwned,
    /// Writes an entry, then stops the entity.
    Last,
    /// Deletes events, up to a snapshot; or the durable state.
    Clear,
    Panic,
    /// Writes an entry that cannot be encoded: refused before it is applied.
    Mute,
    /// Writes an entry with tags that no store takes: refused after it is applied.
    Overtagged,
}

impl Wish {
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
    pub(super) wish: Wish,
    pub(super) to: ReplyTo<u64>,
}

/// An action of an entity.
#[derive(Debug, Clone)]
pub(super) enum Line {
    /// Recovery has ended with this state, which `count` events or writes led to.
    Recovered { state: State, count: u64 },
    /// The handler was given this order, and stashed it or not.
    Handled { number: u64, aside: bool },
    /// The machine unstashes all stashed orders.
    Unstashes,
    /// A delivery left, with the number of its entry.
    Sent { delivery: u64, entry: u64 },
    /// A user got an answer.
    Answered { number: u64, heard: Heard },
}

/// A recovered state.
#[derive(Debug, Clone)]
pub(super) enum State {
    Book(Pages),
    Slate(Lines),
}

/// The answer to an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Heard {
    Value(u64),
    /// The order is not stored and never will be.
    NotStored(String),
    /// The order may be stored.
    Unknown,
}

/// The diary of a machine. Clones share their lines.
#[derive(Debug, Clone, Default)]
pub(super) struct Diary(Arc<Mutex<Vec<Line>>>);

impl Diary {
    pub(super) fn write(&self, line: Line) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    pub(super) fn take(&self) -> Vec<Line> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn order(&self, number: u64, wish: Wish) -> Order {
        let node = "asker:1#1".parse().expect("a valid address");
        Order { number, wish, to: ReplyTo::new(ReplyAddress { node, ask_id: number }, Arc::new(self.clone())) }
    }
}

impl ReplyPort for Diary {
    fn reply(&self, to: &ReplyAddress, outcome: ReplyOutcome) {
        let heard = match outcome {
            ReplyOutcome::Value { value, .. } => Heard::Value(*value.downcast().expect("entities answer numbers")),
            // A dropped command was never handled.
            ReplyOutcome::Failed(error @ (EntityError::NotStored(_) | EntityError::StashFull)) => {
                Heard::NotStored(error.to_string())
            }
            ReplyOutcome::Dropped(reason) => Heard::NotStored(reason.to_string()),
            ReplyOutcome::Failed(_) => Heard::Unknown,
        };
        self.write(Line::Answered { number: to.ask_id, heard });
    }
}
