//! A minimal model of the contract for one id; it shares no code with the stores.

use std::collections::BTreeMap;

use crate::contract::head::{Head, Under};
use crate::contract::journal::Append;
use crate::contract::records::event::{SeqNr, WriterEpoch, WriterUuid};

/// One event that was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ModelEvent {
    pub(super) text: String,
    pub(super) writer: WriterUuid,
}

/// The answer that an append must get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpectedAnswer {
    Ok,
    Fenced,
    Conflict,
    /// The append was stored and is deleted. A journal that still finds it (deleted events may be removed later, J9)
    /// answers Ok, since it was stored (J10); another journal cannot tell. No journal stores it again.
    StoredAndDeleted,
}

#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) head: Head,
    /// Every event ever stored, deleted or not.
    pub(super) events: Vec<ModelEvent>,
    pub(super) snapshots: BTreeMap<u64, String>,
}

impl Model {
    /// Whether the claim is granted.
    pub(super) fn claim(&mut self, writer: WriterUuid, under: Under) -> bool {
        let held = self.head.epoch.as_u64() > 0 && self.head.writer_uuid == writer;
        let granted = match under {
            Under::Generation(generation) => self.head.generation.is_none() || self.head.generation <= Some(generation),
            Under::Seen(epoch) => held || epoch == self.head.epoch,
        };
        if granted {
            if !held {
                self.head.epoch = WriterEpoch::from_u64(self.head.epoch.as_u64() + 1);
                self.head.writer_uuid = writer;
            }
            if let Under::Generation(generation) = under {
                self.head.generation = Some(generation);
            }
        }
        granted
    }

    pub(super) fn append(&mut self, append: &Append, texts: &[String]) -> ExpectedAnswer {
        let (first, last) = (append.first.as_u64(), append.first.as_u64() + texts.len() as u64 - 1);
        let before = |number: u64| self.events.get(number as usize - 1);
        let is_repeat = (first..).zip(texts).all(|(number, text)| {
            before(number).is_some_and(|event| event.writer == append.writer_uuid && event.text == *text)
        });
        if is_repeat {
            return if last > self.head.deleted_to.as_u64() {
                ExpectedAnswer::Ok
            } else {
                ExpectedAnswer::StoredAndDeleted
            };
        }
        if (append.epoch, append.writer_uuid) != (self.head.epoch, self.head.writer_uuid) {
            return ExpectedAnswer::Fenced;
        }
        if first != self.head.highest.as_u64() + 1 {
            return ExpectedAnswer::Conflict;
        }
        self.events.extend(texts.iter().map(|text| ModelEvent { text: text.clone(), writer: append.writer_uuid }));
        self.head.highest = SeqNr::saturating(last);
        ExpectedAnswer::Ok
    }

    /// The answer to a deletion, if its epoch is the stored one.
    pub(super) fn delete(&mut self, epoch: WriterEpoch, to: SeqNr) -> Option<SeqNr> {
        if epoch != self.head.epoch {
            return None;
        }
        self.head.deleted_to = self.head.deleted_to.max(to.min(self.head.highest));
        Some(self.head.deleted_to)
    }

    /// The events up to `highest`, as a snapshot has them.
    pub(super) fn text_to(&self, highest: u64) -> String {
        let texts: Vec<&str> = self.events.iter().take(highest as usize).map(|event| event.text.as_str()).collect();
        texts.join(" ")
    }

    /// The events that are not deleted.
    pub(super) fn live(&self) -> impl Iterator<Item = (u64, &ModelEvent)> {
        (1..).zip(&self.events).skip(self.head.deleted_to.as_u64() as usize)
    }
}
