//! The history of an event-sourced entity as far as the machine has folded it: the state, its number, and what the
//! fold lacks.
//!
//! Source: persistence §2.3, §2.5, §2.8.

use crate::contract::records::codec::{EncodedValue, EventSeq, UnreadableRecord};
use crate::contract::records::event::{Metadata, NewEvent, SeqNr, StoredEvent, Timestamp};
use crate::contract::records::persistence_id::PersistenceId;
use crate::entities::behavior::chain::guard;
use crate::entities::behavior::event_sourced::{EventMeta, EventSourced};
use crate::entities::behavior::failure::RecoveryFailure;
use crate::entities::behavior::persisted::EventCodecs;
use crate::entities::marks::{Mark, Marks};
use crate::entities::settings::OnUnknownEvent;

/// The state and number that a behaviour is shown at the end of an incarnation.
pub(crate) struct Last<S> {
    state: S,
    seq_nr: SeqNr,
}

impl<S: Default> Default for Last<S> {
    fn default() -> Self {
        Self { state: S::default(), seq_nr: SeqNr::ZERO }
    }
}

/// The fold of one incarnation.
#[derive(Default)]
pub(super) struct History<S> {
    state: S,
    /// The number of the last event known to be stored.
    seq_nr: SeqNr,
    marks: Marks,
    skipped_events: u64,
    /// Whether the beginning of the history was deleted and no snapshot replaced it.
    partial: bool,
}

impl<S: Default> History<S> {
    pub(super) fn state(&self) -> &S {
        &self.state
    }

    /// The state, for the behaviour's tracker inside it.
    pub(super) fn state_mut(&mut self) -> &mut S {
        &mut self.state
    }

    pub(super) fn seq_nr(&self) -> SeqNr {
        self.seq_nr
    }

    pub(super) fn marks(&self) -> &Marks {
        &self.marks
    }

    /// How many events of the replay were skipped.
    pub(super) fn skipped_events(&self) -> u64 {
        self.skipped_events
    }

    /// Whether no event is missing in the fold.
    pub(super) fn is_whole(&self) -> bool {
        !self.partial && self.skipped_events == 0
    }

    // ---- Recovery -------------------------------------------------------------------------------

    /// Begins with a snapshot.
    pub(super) fn begin_at(&mut self, snapshot: SeqNr, state: S, marks: Marks) {
        self.state = state;
        self.marks = marks;
        self.seq_nr = snapshot;
    }

    /// Begins after the deleted events, without a snapshot.
    pub(super) fn begin_after(&mut self, deleted_to: SeqNr) {
        self.partial = !deleted_to.is_zero();
        self.seq_nr = deleted_to;
    }

    /// Takes over the number of the journal without its events.
    pub(super) fn skip_to(&mut self, highest: SeqNr) {
        self.seq_nr = highest;
    }

    /// Counts the numbers up to `to` as used.
    pub(super) fn use_numbers(&mut self, to: SeqNr) {
        self.seq_nr = self.seq_nr.max(to);
    }

    /// Folds a stored record; a refill changes the state alone.
    pub(super) fn replay<B: EventSourced<State = S>>(
        &mut self,
        (behavior, codecs): (&B, &EventCodecs<B>),
        id: &PersistenceId,
        on_unknown_event: OnUnknownEvent,
        record: StoredEvent,
        refill: bool,
    ) -> Result<(), RecoveryFailure> {
        let seq_nr = record.seq_nr;
        if !refill {
            // Fold the marks first, even if the event is skipped below: its delivery was applied all the same.
            self.marks.fold(&record.metadata, record.timestamp).map_err(|_| RecoveryFailure::Marks(seq_nr))?;
            self.seq_nr = seq_nr;
        }
        let StoredEvent { codec_id, manifest, schema_version, kind, payload, metadata, .. } = record;
        let stored = EncodedValue { codec_id, manifest, schema_version, payload };
        let panicked = |handler| move |message| RecoveryFailure::Panicked { handler, seq_nr, message };
        let events = match guard(|| codecs.events.decode(kind, stored)).map_err(panicked("event codec"))? {
            Ok(events) => events,
            // Skip only events that this code does not know yet, never damaged ones.
            Err(error) if error.is_unknown() && on_unknown_event == OnUnknownEvent::Skip => {
                self.skipped_events += 1;
                tracing::warn!(%id, %seq_nr, %error, "unknown event skipped");
                return Ok(());
            }
            Err(error) => {
                let unreadable = UnreadableRecord { id: id.clone(), seq_nr, error };
                return Err(RecoveryFailure::Unreadable(unreadable));
            }
        };
        let meta = EventMeta { seq_nr, metadata: &metadata, refill };
        let state = &mut self.state;
        guard(|| match events {
            EventSeq::Filtered => {}
            EventSeq::One(event) => behavior.apply_with(state, &event, &meta),
            EventSeq::Many(events) => events.iter().for_each(|event| behavior.apply_with(state, event, &meta)),
        })
        .map_err(panicked("apply"))
    }

    // ---- Appends --------------------------------------------------------------------------------

    /// Applies events that are about to be appended, in order, and fills in their tags; returns whether the behaviour
    /// wants a snapshot.
    pub(super) fn apply_all<B: EventSourced<State = S>>(
        &mut self,
        behavior: &B,
        first: SeqNr,
        events: &[B::Event],
        metadata: &Metadata,
        encoded: &mut [NewEvent],
    ) -> Result<bool, String> {
        let state = &mut self.state;
        guard(|| {
            let mut wanted = false;
            for ((number, event), encoded) in (first.as_u64()..).zip(events).zip(encoded) {
                let meta = EventMeta { seq_nr: SeqNr::saturating(number), metadata, refill: false };
                behavior.apply_with(state, event, &meta);
                encoded.tags = behavior.tags(state, event, &meta);
                wanted |= behavior.snapshot_when(state, event, meta.seq_nr);
            }
            wanted
        })
    }

    /// Takes over what the store has acknowledged: the events up to `last`, with the mark of their delivery.
    ///
    /// # Errors
    /// The behaviour panicked; the events and the mark are stored all the same.
    pub(super) fn on_stored<B: EventSourced<State = S>>(
        &mut self,
        behavior: &B,
        last: SeqNr,
        mark: Option<&Mark>,
        timestamp: Timestamp,
    ) -> Result<(), String> {
        self.seq_nr = last;
        if let Some(mark) = mark {
            let known = self.marks.len();
            self.marks.advance_by(mark, timestamp);
            if self.marks.len() > known {
                return guard(|| behavior.prune_marks(&mut self.marks, timestamp));
            }
        }
        Ok(())
    }

    /// Returns to a copy of the state from before the events, which are not stored.
    pub(super) fn roll_back(&mut self, copy: S) {
        self.state = copy;
    }

    // ---- Ends -----------------------------------------------------------------------------------

    /// Drops the state: no handler must see one that is half built, not stored, or lost.
    pub(super) fn drop_state(&mut self) {
        self.state = S::default();
    }

    /// Takes the state for the end of the incarnation.
    pub(super) fn take_last(&mut self) -> Last<S> {
        Last { state: std::mem::take(&mut self.state), seq_nr: self.seq_nr }
    }

    /// Shows the state and number of the end; returns the number to [`hide`](Self::hide) it with.
    pub(super) fn show(&mut self, last: Last<S>) -> SeqNr {
        self.state = last.state;
        std::mem::replace(&mut self.seq_nr, last.seq_nr)
    }

    /// Drops the state of the end; the number is known again.
    pub(super) fn hide(&mut self, known: SeqNr) {
        self.drop_state();
        self.seq_nr = known;
    }
}
