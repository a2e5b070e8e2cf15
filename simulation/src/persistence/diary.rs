//! The orders to entities, and the diaries that entities write while their machines handle them.
//!
//! One diary for each machine; the world reads it after every input, before anything else happens, so
//! its lines can be compared with the stores' content at that very moment.

use std::sync::{Arc, Mutex, PoisonError};

use greylag_core::{EntityError, ReplyAddress, ReplyOutcome, ReplyPort, ReplyTo};

use super::book::Pages;
use super::slate::Lines;

/// What a user wants of an entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// As many entries, all or none.
    Write(u64),
    /// An entry, once the entity is open; until then it is put aside.
    Gated,
    /// A delivery, until it is confirmed; an entry in durable states.
    Send,
    /// A delivery arrived.
    Confirm(u64),
    /// Takes the orders that were put aside.
    Open,
    Close,
    /// How many entries there are.
    Look,
    /// The same, of an entity that proves that it is no zombie.
    LookOwned,
    /// An entry, then the end.
    Last,
    /// Deletes events, up to a snapshot; or the durable state.
    Clear,
    Panic,
    /// An entry that cannot be encoded: refused before it is applied.
    Mute,
    /// An entry with tags that no store takes: refused after it is applied.
    Overtagged,
}

impl Wish {
    /// How many entries it writes if it is answered; a delivery only if there is room.
    pub(super) fn entries(self) -> u64 {
        match self {
            Self::Write(count) => count,
            Self::Gated | Self::Last | Self::Open | Self::Close => 1,
            _ => 0,
        }
    }
}

/// Entries of one order are numbered from its own number times this.
pub(super) const NUMBERS: u64 = 4;

/// A wish with its number, and where its answer goes.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) number: u64,
    pub(super) wish: Wish,
    pub(super) to: ReplyTo<u64>,
}

/// Something that an entity did.
#[derive(Debug, Clone)]
pub(super) enum Line {
    /// Its state is complete, and of so many events or writes.
    Recovered { state: State, count: u64 },
    /// Its handler was given this order, and puts it aside or not.
    Handled { number: u64, aside: bool },
    /// The machine takes the orders that it had put aside.
    Unstashes,
    /// A delivery left, with the number of its entry.
    Sent { delivery: u64, entry: u64 },
    /// A user was answered.
    Answered { number: u64, heard: Heard },
}

/// A state as it was recovered.
#[derive(Debug, Clone)]
pub(super) enum State {
    Book(Pages),
    Slate(Lines),
}

/// What the user who gave an order was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Heard {
    Value(u64),
    /// The order is not stored and never will be.
    NotStored(String),
    /// The order may be stored.
    Unknown,
}

/// See the module's description. Clones share their lines.
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
            // A command that was dropped was never handled.
            ReplyOutcome::Failed(error @ (EntityError::NotStored(_) | EntityError::StashFull)) => {
                Heard::NotStored(error.to_string())
            }
            ReplyOutcome::Dropped(reason) => Heard::NotStored(reason.to_string()),
            ReplyOutcome::Failed(_) => Heard::Unknown,
        };
        self.write(Line::Answered { number: to.ask_id, heard });
    }
}
