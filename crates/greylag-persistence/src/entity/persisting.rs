//! From events to durable events: encode, apply, append once, and handle success and the five failures.
//!
//! Events are applied before they are appended, so an event that the handler cannot accept is never
//! stored. At most one append is under way. Source: persistence §2.3, §2.6.

use std::time::Instant;

use bytes::Bytes;
use greylag_core::{CodecId, EntityError, NotStoredReason};

use super::{Action, EntityCore, Failure, FencedBy, Phase, Signal, StoreCall, TrackerInput, Withheld, guard};
use crate::behavior::{EventMeta, EventSourced};
use crate::effect::Chain;
use crate::error::{AppendError, ReadError, RejectReason};
use crate::event::{EventKind, Metadata, NewEvent, SeqNr, Tags};
use crate::journal::{Append, Appended, Head};
use crate::marks::{MARK_NAME, Mark};

/// An append under way, and the effects that follow it.
pub(super) struct PendingAppend<S> {
    last: SeqNr,
    mark: Option<Mark>,
    pub(super) chain: Chain<S>,
    /// Why a snapshot is due, if it is; only `DueBy::Count` starts retention.
    snapshot: Option<DueBy>,
    /// Copy of the state before the events, if the behaviour gave one.
    copy: Option<S>,
}

/// Why a snapshot is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DueBy {
    Count,
    Predicate,
}

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
        out: &mut Vec<Action<B::Command>>,
    ) {
        if self.settings.recovery.read_only {
            return chain.refuse(EntityError::ReadOnly);
        }
        if let Some(name) = metadata.keys().find(|name| name.starts_with(OWN_NAMES)) {
            let reason =
                RejectReason::Other(format!("metadata {name:?}: names that start with {OWN_NAMES:?} are reserved"));
            return self.withhold(now, reason, chain, out);
        }
        metadata.extend(mark.as_ref().map(|mark| (MARK_NAME.to_owned(), mark.encode())));
        let mut encoded = match guard(|| self.encode(&events, &metadata)) {
            Ok(Ok(encoded)) => encoded,
            // The state is untouched, so the entity goes on without this command.
            Ok(Err(reason)) => return self.withhold(now, reason, chain, out),
            Err(message) => return self.handler_panicked(now, "event codec", message, chain, out),
        };
        let first = self.seq_nr.next().expect("encode checked that the numbers suffice");
        let copy = match guard(|| self.behavior.rollback_copy(&self.state)) {
            Ok(copy) => copy,
            Err(message) => return self.handler_panicked(now, "rollback_copy", message, chain, out),
        };
        let wanted = match self.apply_all(first, &events, &metadata, &mut encoded) {
            Ok(wanted) => wanted,
            Err(message) => return self.handler_panicked(now, "apply", message, chain, out),
        };
        let append =
            Append { id: self.id.clone(), epoch: self.epoch, writer_uuid: self.writer_uuid, first, events: encoded };
        let last = append.last().expect("encode checked that the numbers suffice");
        let by_count = self
            .settings
            .snapshot_every
            .is_some_and(|every| last.as_u64() / every.get() > self.seq_nr.as_u64() / every.get());
        let snapshot = if by_count { Some(DueBy::Count) } else { wanted.then_some(DueBy::Predicate) };
        let checked = append.check(&self.caps);
        let pending = PendingAppend { last, mark, chain, snapshot, copy };
        match checked {
            Ok(()) => {
                self.phase = Phase::Persisting(Box::new(pending));
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
    fn withhold(
        &mut self,
        now: Instant,
        reason: RejectReason,
        chain: Chain<B::State>,
        out: &mut Vec<Action<B::Command>>,
    ) {
        out.push(Action::Withheld(Withheld::Write));
        chain.refuse(not_stored(&reason));
        self.signal_running(now, Signal::PersistRejected(reason), out);
    }

    /// Encodes the events for the append, without tags, which come from the new state. No events: encodes a record that
    /// holds the mark alone.
    fn encode(&self, events: &[B::Event], metadata: &Metadata) -> Result<Vec<NewEvent>, RejectReason> {
        let (count, max) = (events.len(), self.caps.max_atomic_events);
        if count > max {
            return Err(RejectReason::TooManyEvents { count, max });
        }
        let mut seq_nr = self.seq_nr;
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
            let seq_nr = self.seq_nr.next().filter(|next| *next <= SeqNr::LAST).ok_or(RejectReason::SeqNrOverflow)?;
            let marker = marker(metadata);
            return marker.check(seq_nr, &self.caps).map(|()| vec![marker]);
        }
        events.iter().map(encode).collect()
    }

    /// Applies the events in order and fills in the tags; returns whether the behaviour wants a snapshot.
    fn apply_all(
        &mut self,
        first: SeqNr,
        events: &[B::Event],
        metadata: &Metadata,
        encoded: &mut [NewEvent],
    ) -> Result<bool, String> {
        let (behavior, state) = (&self.behavior, &mut self.state);
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

    fn handler_panicked(
        &mut self,
        now: Instant,
        handler: &'static str,
        message: String,
        chain: Chain<B::State>,
        out: &mut Vec<Action<B::Command>>,
    ) {
        let failure = Failure::Handler { handler, message };
        chain.refuse(EntityError::Failed(failure.to_string()));
        self.fail(now, failure, out);
    }

    pub(super) fn on_appended(
        &mut self,
        now: Instant,
        appended: Result<Appended, AppendError>,
        out: &mut Vec<Action<B::Command>>,
    ) {
        let pending = match std::mem::replace(&mut self.phase, Phase::Running) {
            Phase::Persisting(pending) => *pending,
            other => {
                self.phase = other;
                return;
            }
        };
        match appended {
            Ok(appended) => self.on_stored(now, pending, appended, out),
            Err(AppendError::Rejected(reason)) => {
                self.on_rejected(now, pending, reason, out);
                self.finish_command(now, out);
            }
            Err(error) => self.on_append_failed(now, pending, error, out),
        }
    }

    fn on_stored(
        &mut self,
        now: Instant,
        pending: PendingAppend<B::State>,
        appended: Appended,
        out: &mut Vec<Action<B::Command>>,
    ) {
        let PendingAppend { last, mark, chain, snapshot, .. } = pending;
        self.seq_nr = last;
        self.restarts.note_stored();
        if let Some(mark) = mark {
            let known = self.marks.len();
            self.marks.advance_by(&mark, appended.timestamp);
            if self.marks.len() > known {
                self.behavior.prune_marks(&mut self.marks, appended.timestamp);
            }
        }
        if let Err(failure) = self.track(now, TrackerInput::Stored) {
            chain.refuse(EntityError::Failed(failure.to_string()));
            return self.fail(now, failure, out);
        }
        // No command was handled while the append was under way, so it came after every held chain and proves them all.
        if let Err(error) = self.run_owned(now, u64::MAX, out) {
            return chain.refuse(error);
        }
        if self.run_chain(now, chain, out).is_err() {
            return;
        }
        if let Some(due) = snapshot {
            self.take_snapshot(now, due == DueBy::Count, out);
        }
        self.deliver_queued(now, out);
        self.finish_command(now, out);
    }

    /// After a command and all its effects: stops if the chain asked for it, else goes on with the waiting commands.
    pub(super) fn finish_command(&mut self, now: Instant, out: &mut Vec<Action<B::Command>>) {
        if !matches!(self.phase, Phase::Running) {
            return;
        }
        if self.stop_after_chain {
            return self.stop_now(out);
        }
        self.drain(now, out);
    }

    /// Nothing is stored, but the state has the events: returns to the copy, or recovers at once.
    fn on_rejected(
        &mut self,
        now: Instant,
        pending: PendingAppend<B::State>,
        reason: RejectReason,
        out: &mut Vec<Action<B::Command>>,
    ) {
        pending.chain.refuse(not_stored(&reason));
        let signal = Signal::PersistRejected(reason.clone());
        if let Some(copy) = pending.copy {
            self.state = copy;
            self.signal_running(now, signal, out);
            self.deliver_queued(now, out);
            return self.prove_held(out);
        }
        self.signal_without_state(signal, out);
        let failure = Failure::Persist(AppendError::Rejected(reason));
        if !self.restarts.allow_rejected(now, self.settings.max_reject_restarts) {
            return self.fail(now, failure, out);
        }
        self.restart_at_once(now, failure, out);
    }

    fn on_append_failed(
        &mut self,
        now: Instant,
        pending: PendingAppend<B::State>,
        error: AppendError,
        out: &mut Vec<Action<B::Command>>,
    ) {
        let fenced = || EntityError::NotStored(NotStoredReason::Fenced);
        match error {
            AppendError::Fenced { current } => {
                pending.chain.refuse(fenced());
                if self.own_writers.contains(&current.writer_uuid) {
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

    fn restart_at_once(&mut self, now: Instant, failure: Failure, out: &mut Vec<Action<B::Command>>) {
        self.back_off(now, failure, out);
        self.end_back_off(now, out);
    }

    /// Delivers a signal with the default state: the real one holds events that are not stored.
    fn signal_without_state(&mut self, signal: Signal, out: &mut Vec<Action<B::Command>>) {
        self.state = B::State::default();
        self.signal(signal, out);
        self.deliver_queued_without_state(out);
    }

    /// Delivers the queued signals with the default state, since the state that they waited for will not become
    /// durable.
    fn deliver_queued_without_state(&mut self, out: &mut Vec<Action<B::Command>>) {
        self.state = B::State::default();
        for queued in std::mem::take(&mut self.queued_signals) {
            self.signal(queued, out);
        }
    }

    /// Delivers the signals that waited until the state was durable.
    pub(super) fn deliver_queued(&mut self, now: Instant, out: &mut Vec<Action<B::Command>>) {
        for signal in std::mem::take(&mut self.queued_signals) {
            if !matches!(self.phase, Phase::Running) {
                return;
            }
            self.signal_running(now, signal, out);
        }
    }

    // ---- Proof of ownership ---------------------------------------------------------------------

    /// Holds a chain until an append or a read of the head proves that the state was still ours
    /// when its command was handled. Source: persistence §10.5, delivery §7.
    pub(super) fn hold_until_owned(&mut self, chain: Chain<B::State>, out: &mut Vec<Action<B::Command>>) {
        if self.settings.recovery.read_only {
            return chain.refuse(EntityError::ReadOnly);
        }
        self.ownership.hold(chain);
        self.prove_held(out);
    }

    fn prove_held(&mut self, out: &mut Vec<Action<B::Command>>) {
        if self.ownership.begin_check() {
            self.call(StoreCall::ReadHead { id: self.id.clone() }, out);
        }
    }

    pub(super) fn on_proof(&mut self, now: Instant, head: Result<Head, ReadError>, out: &mut Vec<Action<B::Command>>) {
        let Some(through) = self.ownership.end_check() else { return };
        if !matches!(self.phase, Phase::Running) {
            // The append under way proves at least as much.
            return;
        }
        match head {
            Ok(head) if head.epoch == self.epoch && head.writer_uuid == self.writer_uuid => {
                if self.run_owned(now, through, out).is_ok() {
                    self.prove_held(out);
                    self.deliver_queued(now, out);
                    self.finish_command(now, out);
                }
            }
            Ok(head) if self.own_writers.contains(&head.writer_uuid) => {
                let failure = Failure::Persist(AppendError::Fenced { current: head });
                self.restart_at_once(now, failure, out);
            }
            Ok(head) => self.become_fenced(FencedBy::Head(head), out),
            Err(_) => {
                self.ownership.retry_later(now);
                self.stop_if_asked(out);
            }
        }
    }

    pub(super) fn retry_proof(&mut self, now: Instant, out: &mut Vec<Action<B::Command>>) {
        if self.ownership.retry_is_due(now) && matches!(self.phase, Phase::Running) {
            self.prove_held(out);
        }
    }

    /// Runs the held chains up to number `through`; the error is that of `run_chain`.
    fn run_owned(&mut self, now: Instant, through: u64, out: &mut Vec<Action<B::Command>>) -> Result<(), EntityError> {
        while let Some(chain) = self.ownership.pop(through) {
            self.run_chain(now, chain, out)?;
        }
        Ok(())
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
