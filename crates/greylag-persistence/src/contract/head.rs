//! The stored facts about an id besides its events, and the right under which a writer claims them.

use greylag_core::Generation;

use super::records::event::{SeqNr, WriterEpoch, WriterUuid};

/// The right that a claim names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Under {
    /// The ownership generation of the claimer's shard. Refused if a greater one was ever claimed
    /// for the id; an equal or greater one passes and is recorded.
    Generation(Generation),
    /// The epoch that the claimer read from the head before ([`WriterEpoch::NONE`] if the id had no
    /// head). Refused if another epoch is stored, unless the claimer itself made the stored claim.
    Seen(WriterEpoch),
}

/// A granted claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The epoch that every append of this writer must carry.
    pub epoch: WriterEpoch,
    /// The last number stored; it survives the deletion of its event (J7).
    pub highest: SeqNr,
    /// All events up to here are deleted.
    pub deleted_to: SeqNr,
}

/// The stored facts about an id besides its events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Head {
    /// Epoch of the last claim; [`WriterEpoch::NONE`] if the id was never claimed.
    pub epoch: WriterEpoch,
    /// Writer of the last claim.
    pub writer_uuid: WriterUuid,
    /// The greatest generation ever claimed with, if any.
    pub generation: Option<Generation>,
    /// The last number stored.
    pub highest: SeqNr,
    /// All events up to here are deleted.
    pub deleted_to: SeqNr,
}

impl Head {
    /// Whether this head lets `writer_uuid` claim under `under`: the rule of J4, for all journals.
    pub fn admits(&self, writer_uuid: WriterUuid, under: Under) -> bool {
        match under {
            Under::Generation(generation) => self.generation.is_none_or(|greatest| greatest <= generation),
            Under::Seen(epoch) => self.epoch == epoch || self.is_held_by(writer_uuid),
        }
    }

    /// Whether the last claim was `writer_uuid`'s.
    pub fn is_held_by(&self, writer_uuid: WriterUuid) -> bool {
        self.epoch != WriterEpoch::NONE && self.writer_uuid == writer_uuid
    }

    /// The head after a claim that [`Head::admits`] lets pass.
    #[must_use]
    pub fn claimed(self, writer_uuid: WriterUuid, under: Under) -> Self {
        let epoch = if self.is_held_by(writer_uuid) { self.epoch } else { self.epoch.raised() };
        let generation = match under {
            Under::Generation(generation) => self.generation.max(Some(generation)),
            Under::Seen(_) => self.generation,
        };
        Self { epoch, writer_uuid, generation, ..self }
    }

    /// Whether an append up to `last`, if it was stored, still has its events under this head. Only then does
    /// the absence of the events prove that it was never stored. Source: persistence J10.
    pub fn retains(&self, last: SeqNr) -> bool {
        last > self.deleted_to
    }

    /// The claim that the journal answers.
    pub fn as_claim(&self) -> Claim {
        Claim { epoch: self.epoch, highest: self.highest, deleted_to: self.deleted_to }
    }
}
