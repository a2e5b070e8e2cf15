//! A journal in place of the replicated store: reading claims, claims fence, and an append has to continue what was read.
//!
//! It keeps bytes, and every reader is strict: what coordinators write must never contradict itself. Every node reaches it
//! whatever becomes of the links, and an append goes on when its writer stands still or is gone: that is what the fence is
//! for. Source: sharding §2.14; persistence J3, J4, J13.

use std::collections::BTreeMap;

use greylag_sharding::fingerprint::Fingerprint;
use greylag_sharding::horizon::Horizon;
use greylag_sharding::machine::coordinator::replay::{HistoryEvent, Replay};
use greylag_sharding::machine::coordinator::{StateEvent, StoredState};
use greylag_sharding::wire::history;

/// What is drawn for one append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The journal looks at it.
    Taken,
    /// A breaker is open.
    NotStored,
    /// The journal looks at it, and its answer is lost.
    AnswerLost,
}

/// What the writer hears.
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
    /// By incarnation: the epoch of its claim, and how many events it knows of.
    writers: BTreeMap<u64, (u64, usize)>,
    /// Without the fence, whoever claimed once may write for ever: a journal that is none.
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
