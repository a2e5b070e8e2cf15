//! A minimal model of the contract for one id; it shares no code with the stores.

use std::collections::BTreeMap;

use crate::event::{SeqNr, WriterEpoch, WriterUuid};
use crate::journal::{Append, Head, Under};

/// One event that was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) text: String,
    pub(super) writer: WriterUuid,
}

/// The answer that an append must get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Ok,
    Fenced,
    Conflict,
    /// The append was stored and is deleted. A journal that still finds it (deleted events may be removed later, J9)
    /// answers Ok, since it was stored (J10); another journal cannot tell. No journal stores it again.
    Gone,
}

#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) head: Head,
    /// Every event ever stored, deleted or not.
    pub(super) taken: Vec<Taken>,
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

    pub(super) fn append(&mut self, append: &Append, texts: &[String]) -> Verdict {
        let (first, last) = (append.first.as_u64(), append.first.as_u64() + texts.len() as u64 - 1);
        let before = |number: u64| self.taken.get(number as usize - 1);
        let is_repeat = (first..).zip(texts).all(|(number, text)| {
            before(number).is_some_and(|taken| taken.writer == append.writer_uuid && taken.text == *text)
        });
        if is_repeat {
            return if last > self.head.deleted_to.as_u64() { Verdict::Ok } else { Verdict::Gone };
        }
        if (append.epoch, append.writer_uuid) != (self.head.epoch, self.head.writer_uuid) {
            return Verdict::Fenced;
        }
        if first != self.head.highest.as_u64() + 1 {
            return Verdict::Conflict;
        }
        self.taken.extend(texts.iter().map(|text| Taken { text: text.clone(), writer: append.writer_uuid }));
        self.head.highest = SeqNr::saturating(last);
        Verdict::Ok
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
        let texts: Vec<&str> = self.taken.iter().take(highest as usize).map(|taken| taken.text.as_str()).collect();
        texts.join(" ")
    }

    /// The events that are not deleted.
    pub(super) fn live(&self) -> impl Iterator<Item = (u64, &Taken)> {
        (1..).zip(&self.taken).skip(self.head.deleted_to.as_u64() as usize)
    }
}
