//! From events to durable events: encode, apply, append once, and handle success and the five failures.
//!
//! Events are applied before they are appended, so an event that the handler cannot accept is never
//! stored. At most one append is under way. Source: persistence §2.3, §2.6.

use std::time::Instant;

use bytes::Bytes;
use greylag_core::{CodecId, EntityError, NotStoredReason};

use super::core::{EntityCore, Out};
use super::pending_append::{DueBy, PendingAppend};
use crate::contract::error::{AppendError, ReadError, RejectReason};
use crate::contract::head::Head;
use crate::contract::journal::{Append, Appended};
use crate::contract::records::event::{EventKind, Metadata, NewEvent, SeqNr, Tags};
use crate::entities::behavior::chain::{Chain, guard};
use crate::entities::behavior::event_sourced::EventSourced;
use crate::entities::behavior::failure::{Failure, FencedBy};
use crate::entities::behavior::signal::Signal;
use crate::entities::lifecycle::input::{Action, StoreCall, Withheld};
use crate::entities::lifecycle::turns::Lifecycle;
use crate::entities::lifecycle::writers::Owner;
use crate::entities::marks::{MARK_NAME, Mark};
use crate::entities::tracker::TrackerInput;

/// Prefix of Greylag's own metadata names. Source: persistence §1.
const OWN_NAMES: &str = "gl.";

impl<B: EventSourced> EntityCore<B> {
    pub(super) fn persist(
        &mut self,
        now: Instant,
        events: Vec<B::Event>,
        mut metadata: Metadata,
        mark: Option<Mark>,
        chain: Chain<B::State>,
        out: &mut Out<B>,
    ) {
        if self.settings.recovery.read_only {
            return chain.refuse(EntityError::ReadOnly);
        }
        if let Some(name) = metadata.keys().find(|name| name.starts_with(OWN_NAMES)) {
            let reason =
                RejectReason::Other(format!("metadata {name:?}: names that start with {OWN_NAMES:?} are reserved"));
            return self.withhold(reason, chain, out);
        }
        metadata.extend(mark.as_ref().map(|mark| (MARK_NAME.to_owned(), mark.encode())));
        let mut encoded = match guard(|| self.encode(&events, &metadata)) {
            Ok(Ok(encoded)) => encoded,
            // The state is untouched, so the entity goes on without this command.
            Ok(Err(reason)) => return self.withhold(reason, chain, out),
            Err(message) => return self.handler_panicked("event codec", message, chain, out),
        };
        let first = self.history.seq_nr().next().expect("encode checked that the numbers suffice");
        let copy = match guard(|| self.behavior.rollback_copy(self.history.state())) {
            Ok(copy) => copy,
            Err(message) => return self.handler_panicked("rollback_copy", message, chain, out),
        };
        let wanted = match self.history.apply_all(&self.behavior, first, &events, &metadata, &mut encoded) {
            Ok(wanted) => wanted,
            Err(message) => return self.handler_panicked("apply", message, chain, out),
        };
        let (epoch, writer_uuid) = (self.fence.epoch(), self.fence.writer_uuid());
        let append = Append { id: self.id.clone(), epoch, writer_uuid, first, events: encoded };
        let last = append.last().expect("encode checked that the numbers suffice");
        let snapshot = DueBy::of(self.settings.snapshot_every, self.history.seq_nr(), last, wanted);
        let checked = append.check(&self.caps);
        let pending = PendingAppend { last, mark, chain, snapshot, copy };
        match checked {
            Ok(()) => {
                self.phases.begin_write(Box::new(pending));
                self.call(StoreCall::Append(append), out);
            }
            // `encode` checked all but the tags, so only tags are refused here, without asking the store.
            Err(reason) => {
                out.push(Action::Withheld(Withheld::Write));
                self.on_rejected(now, pending, reason, out);
            }
        }
    }

    /// Refuses events that cannot be stored, while the state is untouched.
    fn withhold(&mut self, reason: RejectReason, chain: Chain<B::State>, out: &mut Out<B>) {
        out.push(Action::Withheld(Withheld::Write));
        chain.refuse(not_stored(&reason));
        self.signal_running(Signal::PersistRejected(reason), out);
    }

    /// Encodes the events for the append, without tags, which come from the new state. No events: encodes a record that
    /// holds the mark alone.
    fn encode(&self, events: &[B::Event], metadata: &Metadata) -> Result<Vec<NewEvent>, RejectReason> {
        let (count, max) = (events.len(), self.caps.max_atomic_events);
        if count > max {
            return Err(RejectReason::TooManyEvents { count, max });
        }
        let mut seq_nr = self.history.seq_nr();
        let encode = |event| {
            seq_nr = seq_nr.next().filter(|next| *next <= SeqNr::LAST).ok_or(RejectReason::SeqNrOverflow)?;
            let value = self.codecs.events.encode(event).map_err(|error| RejectReason::Other(error.to_string()))?;
            let event = NewEvent {
                codec_id: value.codec_id,
                manifest: value.manifest,
                schema_version: value.schema_version,
                kind: EventKind::Event,
                payload: value.payload,
                metadata: metadata.clone(),
                tags: Tags::new(),
            };
            event.check(seq_nr, &self.caps).map(|()| event)
        };
        if events.is_empty() {
            let seq_nr =
                self.history.seq_nr().next().filter(|next| *next <= SeqNr::LAST).ok_or(RejectReason::SeqNrOverflow)?;
            let marker = marker(metadata);
            return marker.check(seq_nr, &self.caps).map(|()| vec![marker]);
        }
        events.iter().map(encode).collect()
    }

    fn handler_panicked(&mut self, handler: &'static str, message: String, chain: Chain<B::State>, out: &mut Out<B>) {
        let failure = Failure::Handler { handler, message };
        chain.refuse(EntityError::Failed(failure.to_string()));
        self.fail(failure, out);
    }

    pub(super) fn on_appended(&mut self, now: Instant, appended: Result<Appended, AppendError>, out: &mut Out<B>) {
        let Some(pending) = self.phases.end_write() else { return };
        match appended {
            Ok(appended) => self.on_stored(now, *pending, appended, out),
            Err(AppendError::Rejected(reason)) => {
                self.on_rejected(now, *pending, reason, out);
                self.finish_command(now, out);
            }
            Err(error) => self.on_append_failed(now, *pending, error, out),
        }
    }

    fn on_stored(&mut self, now: Instant, pending: PendingAppend<B::State>, appended: Appended, out: &mut Out<B>) {
        let PendingAppend { last, mark, chain, snapshot, .. } = pending;
        let pruned = self.history.on_stored(&self.behavior, last, mark.as_ref(), appended.timestamp);
        self.phases.note_stored();
        if let Err(message) = pruned {
            return self.handler_panicked("prune_marks", message, chain, out);
        }
        if let Err(failure) = self.track(now, TrackerInput::Stored) {
            chain.refuse(EntityError::Failed(failure.to_string()));
            return self.fail(failure, out);
        }
        // No command was handled while the append was under way, so it came after every held chain and proves them all.
        if let Err(error) = self.run_owned(u64::MAX, out) {
            return chain.refuse(error);
        }
        if self.run_chain(chain, out).is_err() {
            return;
        }
        if let Some(due) = snapshot {
            self.take_snapshot(due == DueBy::Count, out);
        }
        self.deliver_queued(out);
        self.finish_command(now, out);
    }

    /// Nothing is stored, but the state has the events: returns to the copy, or recovers at once.
    fn on_rejected(&mut self, now: Instant, pending: PendingAppend<B::State>, reason: RejectReason, out: &mut Out<B>) {
        pending.chain.refuse(not_stored(&reason));
        let signal = Signal::PersistRejected(reason.clone());
        if let Some(copy) = pending.copy {
            self.history.roll_back(copy);
            self.signal_running(signal, out);
            self.deliver_queued(out);
            return self.prove_held(out);
        }
        self.signal_without_state(signal, out);
        let failure = Failure::Persist(AppendError::Rejected(reason));
        if !self.phases.allow_rejected(now, self.settings.max_reject_restarts) {
            return self.fail(failure, out);
        }
        self.restart_at_once(now, failure, out);
    }

    fn on_append_failed(
        &mut self,
        now: Instant,
        pending: PendingAppend<B::State>,
        error: AppendError,
        out: &mut Out<B>,
    ) {
        let fenced = || EntityError::NotStored(NotStoredReason::Fenced);
        match error {
            AppendError::Fenced { current } => {
                pending.chain.refuse(fenced());
                if self.fence.owner_after_refusal(&current) == Owner::Own {
                    // A late duplicate of our own claim: there is no other writer, so recover again.
                    self.deliver_queued_without_state(out);
                    return self.restart_at_once(now, Failure::Persist(AppendError::Fenced { current }), out);
                }
                self.become_fenced(FencedBy::Head(current), out);
            }
            AppendError::Conflict { highest } => {
                pending.chain.refuse(fenced());
                self.become_fenced(FencedBy::Conflict { highest }, out);
            }
            AppendError::Unknown(_) | AppendError::NotStored(_) | AppendError::Rejected(_) => {
                pending.chain.refuse(match &error {
                    AppendError::NotStored(failure) => {
                        EntityError::NotStored(NotStoredReason::Unavailable(failure.to_string()))
                    }
                    _ => EntityError::OutcomeUnknown,
                });
                self.signal_without_state(Signal::PersistFailed(error.clone()), out);
                self.restart_or_fail(now, Failure::Persist(error), out);
            }
        }
    }

    /// Delivers a signal with the default state: the real one holds events that are not stored.
    fn signal_without_state(&mut self, signal: Signal, out: &mut Out<B>) {
        self.history.drop_state();
        self.signal(signal, out);
        self.deliver_queued_without_state(out);
    }

    /// Delivers the queued signals with the default state, since the state that they waited for will not become
    /// durable.
    fn deliver_queued_without_state(&mut self, out: &mut Out<B>) {
        self.history.drop_state();
        for queued in std::mem::take(&mut self.queued_signals) {
            self.signal(queued, out);
        }
    }

    // ---- Proof of ownership ---------------------------------------------------------------------

    /// Holds a chain until an append or a read of the head proves that the state was still ours
    /// when its command was handled. Source: persistence §10.5, delivery §7.
    pub(super) fn hold_until_owned(&mut self, chain: Chain<B::State>, out: &mut Out<B>) {
        if self.settings.recovery.read_only {
            return chain.refuse(EntityError::ReadOnly);
        }
        self.ownership.hold(chain);
        self.prove_held(out);
    }

    fn prove_held(&mut self, out: &mut Out<B>) {
        if self.ownership.begin_check() {
            self.call(StoreCall::ReadHead { id: self.id.clone() }, out);
        }
    }

    pub(super) fn on_proof(&mut self, now: Instant, head: Result<Head, ReadError>, out: &mut Out<B>) {
        let Some(through) = self.ownership.end_check() else { return };
        if !self.phases.is_running() {
            // The append under way proves at least as much.
            return;
        }
        let Ok(head) = head else {
            self.ownership.retry_later(now);
            return self.stop_if_asked(out);
        };
        match self.fence.owner_of(&head) {
            Owner::Current => {
                if self.run_owned(through, out).is_ok() {
                    self.prove_held(out);
                    self.deliver_queued(out);
                    self.finish_command(now, out);
                }
            }
            Owner::Own => self.restart_at_once(now, Failure::Persist(AppendError::Fenced { current: head }), out),
            Owner::Other => self.become_fenced(FencedBy::Head(head), out),
        }
    }

    pub(super) fn retry_proof(&mut self, now: Instant, out: &mut Out<B>) {
        if self.ownership.retry_is_due(now) && self.phases.is_running() {
            self.prove_held(out);
        }
    }
}

fn not_stored(reason: &RejectReason) -> EntityError {
    EntityError::NotStored(NotStoredReason::Rejected(reason.to_string()))
}

/// A record that holds a mark and no event: readers treat it as an event that was filtered out.
fn marker(metadata: &Metadata) -> NewEvent {
    NewEvent {
        codec_id: CodecId::INTERNAL,
        manifest: MARK_NAME.to_owned(),
        schema_version: 1,
        kind: EventKind::Filtered,
        payload: Bytes::new(),
        metadata: metadata.clone(),
        tags: Tags::new(),
    }
}
