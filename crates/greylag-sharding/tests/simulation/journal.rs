//! A journal instead of the replicated store: reading claims, claims fence, and an append must continue the events
//! read.
//!
//! It keeps bytes, and every reader is strict: records of coordinators must never be contradictory. Every node reaches
//! it whatever the state of the links, and an append completes even if its writer is paused or gone: the fence exists
//! for these cases. Source: sharding §2.14; persistence J3, J4, J13.

use std::collections::BTreeMap;

use greylag_sharding::fingerprint::Fingerprint;
use greylag_sharding::horizon::Horizon;
use greylag_sharding::machine::coordinator::replay::{HistoryEvent, Replay};
use greylag_sharding::machine::coordinator::{StateEvent, StoredState};
use greylag_sharding::wire::history;

/// The drawn outcome of one append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The journal processes the append.
    Taken,
    /// A breaker is open.
    NotStored,
    /// The journal processes the append, and its answer is lost.
    AnswerLost,
}

/// The answer that the writer gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Stored,
    NotStored,
    /// Fenced, or without an answer.
    Lost,
}

#[derive(Debug, Default)]
pub(crate) struct FakeJournal {
    events: Vec<Vec<u8>>,
    epoch: u64,
    /// By incarnation: the epoch of its claim, and the number of events that it knows.
    writers: BTreeMap<u64, (u64, usize)>,
    /// Whether the fence is off: every incarnation that claimed once may write for ever.
    unfenced: bool,
}

impl FakeJournal {
    pub(crate) fn new(unfenced: bool) -> Self {
        Self { unfenced, ..Self::default() }
    }

    /// Claims the history for an incarnation, and reads it.
    pub(crate) fn read(&mut self, incarnation: u64, own: &Fingerprint) -> Result<StoredState, String> {
        self.epoch += 1;
        self.writers.insert(incarnation, (self.epoch, self.events.len()));
        let mut replay = Replay::new(true);
        for bytes in &self.events {
            let event = history::decode_event(bytes, Horizon::after(10_000)).map_err(|error| error.to_string())?;
            replay.apply(event).map_err(|contradiction| format!("{contradiction}, in a history of coordinators"))?;
        }
        replay.state(own).map_err(|contradiction| contradiction.to_string())
    }

    pub(crate) fn append(&mut self, incarnation: u64, events: Vec<StateEvent>, fate: Fate) -> Answer {
        if fate == Fate::NotStored {
            return Answer::NotStored;
        }
        let Some((epoch, known)) = self.writers.get_mut(&incarnation) else { return Answer::Lost };
        if !self.unfenced && (*epoch, *known) != (self.epoch, self.events.len()) {
            return Answer::Lost;
        }
        self.events.extend(events.into_iter().map(|event| history::encode_event(&HistoryEvent::from(event))));
        *known = self.events.len();
        if fate == Fate::AnswerLost { Answer::Lost } else { Answer::Stored }
    }
}
