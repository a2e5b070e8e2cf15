//! The contents that the workers write, which tell what they belong to.

use crate::contract::records::event::SeqNr;
use crate::contract::records::revision::Revision;

/// The content of an event: its writer, the append's attempt, the event's place in the append, and the append's length.
pub(super) struct Content {
    pub(super) attempt: u64,
    pub(super) place: u64,
    pub(super) count: u64,
}

impl Content {
    pub(super) fn text(&self, worker: u32) -> String {
        format!("{worker}:{}:{}:{}", self.attempt, self.place, self.count)
    }

    pub(super) fn read(text: &str) -> Option<Self> {
        let mut numbers = text.split(':').skip(1).map(|number| number.parse().ok());
        Some(Self { attempt: numbers.next()??, place: numbers.next()??, count: numbers.next()?? })
    }
}

/// The byte that fills the snapshot of this number.
pub(super) fn fill(seq_nr: SeqNr) -> u8 {
    u8::try_from(seq_nr.as_u64() % 251).expect("less than 251")
}

/// Whether the write of this revision deletes the state.
pub(super) fn is_deletion(revision: Revision) -> bool {
    revision.as_u64().is_multiple_of(7)
}
