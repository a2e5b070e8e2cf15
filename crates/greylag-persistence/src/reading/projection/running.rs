//! The work of a running projection: envelopes read and not judged, judged and not handled, handled and not saved.

use std::collections::VecDeque;
use std::time::Instant;

use super::progress::Progress;
use crate::contract::journal::Page;
use crate::contract::offset::{Position, Processed};
use crate::contract::records::event::SeqNr;
use crate::reading::query::envelope::{Envelope, EventSource};
use crate::reading::query::follower::Follower;

/// The work of a projection while it reads.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) feed: Follower,
    /// Whether the feed was asked and has not delivered yet.
    pub(super) asked: bool,
    pub(super) progress: Progress,
    /// Delivered envelopes, not judged.
    pub(super) queue: VecDeque<Envelope>,
    /// Judged envelopes, to be handled one by one.
    pub(super) singly: VecDeque<Envelope>,
    pub(super) work: Work,
    pub(super) unsaved: Vec<Processed>,
    pub(super) save_at: Option<Instant>,
    pub(super) saving: bool,
    pub(super) forget_at: Instant,
}

/// The step that must end before the projection goes on with the queue.
#[derive(Debug)]
pub(super) enum Work {
    Idle,
    /// Reads the event of number `at`, to judge an envelope of an unknown id.
    Looking {
        envelope: Envelope,
        at: SeqNr,
    },
    /// Reads an id's events up to the number of the envelope.
    Fetching {
        envelope: Envelope,
        to: SeqNr,
    },
    Handling {
        group: Vec<Envelope>,
        reach: Position,
        tries: u32,
    },
    /// Hands the group over again at this time.
    Retrying {
        group: Vec<Envelope>,
        reach: Position,
        tries: u32,
        at: Instant,
    },
}

impl Running {
    /// Decides by an earlier event of the envelope's id where the id begins for this projection.
    pub(super) fn on_looked(&mut self, envelope: Envelope, at: SeqNr, page: &Page) {
        let found = page.records.first();
        let is_base = found.is_none_or(|found| self.progress.is_before_retention(&envelope.id, found.timestamp));
        let (id, position) = (envelope.id.clone(), envelope.position);
        if is_base {
            self.progress.track(&id, at, position);
            self.queue.push_front(envelope);
        } else if envelope.source != EventSource::Backtracking {
            self.progress.leave(&envelope);
            self.progress.reach(position);
        } else if at <= SeqNr::FIRST {
            self.progress.track(&id, SeqNr::ZERO, position);
            self.queue.push_front(envelope);
        } else {
            self.work = Work::Looking { envelope, at: at.previous() };
        }
    }

    /// Queues the events read in place of the envelope; missing events were deleted.
    pub(super) fn on_fetched(&mut self, envelope: Envelope, to: SeqNr, page: Page) {
        let (id, position) = (&envelope.id, envelope.position);
        let first = page.records.first().map(|record| record.seq_nr).or(page.next);
        let first = first.unwrap_or_else(|| to.next().unwrap_or(SeqNr::MAX));
        self.progress.track(id, first.previous(), position);
        if page.next.is_some() {
            self.queue.push_front(envelope);
        }
        for record in page.records.into_iter().rev() {
            let place = Position::Timestamp(record.timestamp);
            self.queue.push_front(Envelope::of_record(record, place, EventSource::Backtracking));
        }
    }

    /// Source: persistence §5 (projections).
    pub(super) fn check_invariants(&self) {
        let is_idle = matches!(self.work, Work::Idle);
        let is_empty = self.queue.is_empty() && self.singly.is_empty();
        debug_assert!(!self.asked || (is_idle && is_empty), "events are asked for once those before are handled");
        if let Work::Handling { group, .. } | Work::Retrying { group, .. } = &self.work {
            debug_assert!(!group.is_empty(), "a handler gets an event");
        }
        debug_assert_eq!(self.save_at.is_some(), !self.unsaved.is_empty(), "what is handled is saved in time");
    }

    /// Takes the progress to save, with the mark.
    pub(super) fn take_unsaved(&mut self) -> Option<Vec<Processed>> {
        self.save_at = None;
        if self.unsaved.is_empty() {
            return None;
        }
        let mut save = std::mem::take(&mut self.unsaved);
        save.extend(self.progress.mark(None));
        Some(save)
    }
}

/// The row that records the envelope as processed.
pub(super) fn processed(envelope: &Envelope) -> Processed {
    Processed { id: envelope.id.clone(), seq_nr: envelope.seq_nr, position: envelope.position }
}
