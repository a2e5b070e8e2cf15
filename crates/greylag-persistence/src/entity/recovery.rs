//! From a permit to a complete state: claim, snapshot, checks, replay.
//!
//! Every step has its own deadline, restarted by every answer; the whole recovery has none. The next
//! page is read only after the previous one is applied, so a recovery holds one page at a time.
//! Source: persistence §2.5.

use std::time::{Duration, Instant};

use rand::RngExt;

use super::refills::Refills;
use super::{Action, EntityCore, Failure, FencedBy, Incarnation, Phase, Signal, StoreCall, TrackerInput, guard};
use crate::behavior::{EventMeta, EventSourced, RecoveryFailure, RecoveryStep};
use crate::codec::{EncodedValue, EventSeq, UnreadableRecord};
use crate::error::{AdvanceError, ClaimError, ReadError, SnapshotError};
use crate::event::{SeqNr, StoredEvent, WriterEpoch, WriterUuid};
use crate::journal::{Claim, Head, Page, ReadRange, Under};
use crate::marks::Marks;
use crate::replay_filter::ReplayFilter;
use crate::settings::{OnUnknownEvent, SnapshotFailurePolicy};
use crate::snapshot::{Snapshot, SnapshotCriteria};

/// The answer that the claim phase waits for.
pub(super) enum Claiming {
    Head,
    Claim,
    /// The snapshot is newer than the empty journal, which must continue the snapshot's numbers.
    Advance,
}

pub(super) struct LoadingSnapshot {
    claim: Claim,
    /// Number of snapshots that could not be used.
    attempts: u32,
    criteria: SnapshotCriteria,
    last_error: String,
}

/// A decoded snapshot.
struct DecodedSnapshot<S> {
    state: S,
    marks: Marks,
    refills: Refills,
}

pub(super) struct Replaying {
    /// The number that the next record must have.
    expected: SeqNr,
    /// The last number to apply.
    to: SeqNr,
    /// The number of a snapshot that needs a refill: records up to it only refill the state. Zero: no refill.
    refill_to: SeqNr,
    /// Number of records applied, without those of the refill.
    replayed: u64,
    filter: ReplayFilter,
    /// First number of the page under way.
    page_from: SeqNr,
}

impl<B: EventSourced> EntityCore<B> {
    /// Begins an incarnation: a new writer uuid, an empty state, the stashes unchanged.
    pub(super) fn begin_incarnation(&mut self, _now: Instant, out: &mut Vec<Action<B::Command>>) {
        self.incarnation = Incarnation { restart: self.incarnation.restart + 1, ..self.incarnation };
        self.writer_uuid = WriterUuid::from_u128(self.rng.random::<u128>());
        self.state = B::State::default();
        self.seq_nr = SeqNr::ZERO;
        self.epoch = WriterEpoch::NONE;
        self.marks = Marks::default();
        self.refills = Refills::default();
        self.skipped_events = 0;
        self.partial = false;
        self.phase = Phase::AwaitingPermit;
        out.push(Action::RequestPermit(self.incarnation));
    }

    pub(super) fn on_permit(&mut self, now: Instant, granted: Incarnation, out: &mut Vec<Action<B::Command>>) {
        if granted != self.incarnation || !matches!(self.phase, Phase::AwaitingPermit) {
            // Return a permit that this incarnation no longer waits for, so that it does not leak.
            return out.push(Action::ReturnPermit(granted));
        }
        self.permit_at = Some(now);
        match self.generation {
            Some(generation) if !self.settings.recovery.read_only => {
                self.send_claim(now, Under::Generation(generation), out);
            }
            _ => self.read_head(now, out),
        }
    }

    fn read_head(&mut self, now: Instant, out: &mut Vec<Action<B::Command>>) {
        self.phase = Phase::Claiming(Claiming::Head);
        self.await_step(now, StoreCall::ReadHead { id: self.id.clone() }, out);
    }

    fn send_claim(&mut self, now: Instant, under: Under, out: &mut Vec<Action<B::Command>>) {
        self.phase = Phase::Claiming(Claiming::Claim);
        self.own_writers.insert(self.writer_uuid);
        let (id, writer_uuid) = (self.id.clone(), self.writer_uuid);
        self.await_step(now, StoreCall::Claim { id, writer_uuid, under }, out);
    }

    fn await_step(&mut self, now: Instant, call: StoreCall, out: &mut Vec<Action<B::Command>>) {
        self.step_deadline = Some(now + self.settings.recovery_event_timeout);
        self.call(call, out);
    }

    pub(super) fn on_head(&mut self, now: Instant, head: Result<Head, ReadError>, out: &mut Vec<Action<B::Command>>) {
        if !matches!(self.phase, Phase::Claiming(Claiming::Head)) {
            return self.on_proof(now, head, out);
        }
        match head {
            Err(error) => self.recovery_failed(now, RecoveryFailure::Read(error), out),
            Ok(head) if self.settings.recovery.read_only => self.begin_snapshot(now, head.as_claim(), out),
            // A restarted machine that finds another writer's claim must not fence that rightful successor.
            Ok(head) if self.claim_answered && !self.own_writers.contains(&head.writer_uuid) => {
                self.become_fenced(FencedBy::Head(head), out);
            }
            Ok(head) => self.send_claim(now, Under::Seen(head.epoch), out),
        }
    }

    pub(super) fn on_claimed(
        &mut self,
        now: Instant,
        claim: Result<Claim, ClaimError>,
        out: &mut Vec<Action<B::Command>>,
    ) {
        if !matches!(self.phase, Phase::Claiming(Claiming::Claim)) {
            return;
        }
        match claim {
            Ok(claim) => {
                self.claim_answered = true;
                self.epoch = claim.epoch;
                self.begin_snapshot(now, claim, out);
            }
            // Another writer claimed between our read of the head and our claim: read the head again, and decide again.
            Err(ClaimError::Fenced { .. }) if self.generation.is_none() => self.read_head(now, out),
            Err(ClaimError::Fenced { current }) => self.become_fenced(FencedBy::Head(current), out),
            Err(error) => self.recovery_failed(now, RecoveryFailure::Claim(error), out),
        }
    }

    // ---- Snapshot -------------------------------------------------------------------------------

    fn begin_snapshot(&mut self, now: Instant, claim: Claim, out: &mut Vec<Action<B::Command>>) {
        let recovery = self.settings.recovery;
        if recovery.skip_replay {
            self.seq_nr = claim.highest;
            return self.finish_recovery(now, 0, out);
        }
        let Some(criteria) = recovery.snapshots.filter(|_| self.codecs.snapshots.is_some()) else {
            return self.recover_without_snapshot(now, claim, out);
        };
        let criteria = SnapshotCriteria { max_seq_nr: criteria.max_seq_nr.min(recovery.to_seq_nr), ..criteria };
        self.load_snapshot(now, LoadingSnapshot { claim, attempts: 0, criteria, last_error: String::new() }, out);
    }

    fn load_snapshot(&mut self, now: Instant, loading: LoadingSnapshot, out: &mut Vec<Action<B::Command>>) {
        let call = StoreCall::LoadSnapshot { id: self.id.clone(), criteria: loading.criteria };
        self.phase = Phase::LoadingSnapshot(loading);
        self.await_step(now, call, out);
    }

    pub(super) fn on_snapshot(
        &mut self,
        now: Instant,
        found: Result<Option<Snapshot>, SnapshotError>,
        out: &mut Vec<Action<B::Command>>,
    ) {
        let loading = match std::mem::replace(&mut self.phase, Phase::AwaitingPermit) {
            Phase::LoadingSnapshot(loading) => loading,
            other => {
                self.phase = other;
                return;
            }
        };
        match found {
            Ok(None) if loading.attempts == 0 => self.recover_without_snapshot(now, loading.claim, out),
            Ok(None) => self.on_snapshots_unusable(now, loading, out),
            Ok(Some(snapshot)) => {
                let seq_nr = snapshot.seq_nr;
                match self.decode_snapshot(snapshot) {
                    Ok(decoded) => self.use_snapshot(now, loading.claim, seq_nr, decoded, out),
                    Err(reason) => self.try_older_snapshot(now, loading, seq_nr, reason, out),
                }
            }
            Err(SnapshotError::Corrupt(corrupt)) => {
                self.try_older_snapshot(now, loading, corrupt.seq_nr, corrupt.to_string(), out);
            }
            Err(error) => self.recovery_failed(now, RecoveryFailure::Snapshot(error), out),
        }
    }

    fn decode_snapshot(&self, snapshot: Snapshot) -> Result<DecodedSnapshot<B::State>, String> {
        let Snapshot { codec_id, manifest, schema_version, payload, metadata, .. } = snapshot;
        let codec = self.codecs.snapshots.as_ref().ok_or("there is no snapshot codec")?;
        let mut marks = Marks::default();
        marks.fold_snapshot(&metadata).map_err(|error| error.to_string())?;
        let refills = Refills::read(&metadata)?;
        let stored = EncodedValue { codec_id, manifest, schema_version, payload };
        let state = guard(|| codec.decode_one(stored))?.map_err(|error| error.to_string())?;
        Ok(DecodedSnapshot { state, marks, refills })
    }

    fn try_older_snapshot(
        &mut self,
        now: Instant,
        mut loading: LoadingSnapshot,
        damaged: SeqNr,
        reason: String,
        out: &mut Vec<Action<B::Command>>,
    ) {
        tracing::warn!(id = %self.id, seq_nr = %damaged, reason, "snapshot unusable");
        loading.attempts += 1;
        loading.last_error = reason;
        let older = damaged.previous();
        let none_left = damaged.is_zero() || older < loading.criteria.min_seq_nr;
        if none_left || loading.attempts >= self.settings.snapshot_load_attempts.get() {
            return self.on_snapshots_unusable(now, loading, out);
        }
        loading.criteria.max_seq_nr = older;
        self.load_snapshot(now, loading, out);
    }

    fn on_snapshots_unusable(&mut self, now: Instant, loading: LoadingSnapshot, out: &mut Vec<Action<B::Command>>) {
        let LoadingSnapshot { claim, attempts, last_error: last, .. } = loading;
        if claim.deleted_to.is_zero() && self.settings.snapshot_failure == SnapshotFailurePolicy::ReplayIfComplete {
            return self.begin_replay(now, SeqNr::FIRST, SeqNr::ZERO, claim, out);
        }
        self.recovery_failed(now, RecoveryFailure::SnapshotsUnusable { attempts, last }, out);
    }

    /// Makes the checks of persistence §2.5.4: a state must never lack its first events.
    fn use_snapshot(
        &mut self,
        now: Instant,
        claim: Claim,
        snapshot: SeqNr,
        decoded: DecodedSnapshot<B::State>,
        out: &mut Vec<Action<B::Command>>,
    ) {
        let Claim { highest, deleted_to, epoch } = claim;
        let DecodedSnapshot { state, marks, refills } = decoded;
        let refill_from = refills.of(snapshot);
        if snapshot < deleted_to {
            let failure = RecoveryFailure::EventsDeletedBeyondSnapshot { snapshot, deleted_to };
            return self.recovery_failed(now, failure, out);
        }
        if snapshot > highest && !highest.is_zero() {
            return self.recovery_failed(now, RecoveryFailure::SnapshotAheadOfJournal { snapshot, highest }, out);
        }
        if let Some(replay_from) = refill_from.filter(|from| *from <= deleted_to || snapshot > highest) {
            let failure = RecoveryFailure::RefillMissing { snapshot, replay_from, deleted_to };
            return self.recovery_failed(now, failure, out);
        }
        self.state = state;
        self.marks = marks;
        self.refills = refills;
        self.seq_nr = snapshot;
        if snapshot > highest && !self.settings.recovery.read_only {
            self.phase = Phase::Claiming(Claiming::Advance);
            let call = StoreCall::Advance { id: self.id.clone(), epoch, to: snapshot };
            return self.await_step(now, call, out);
        }
        match refill_from.or(snapshot.next()) {
            Some(from) => self.begin_replay(now, from, snapshot, claim, out),
            None => self.finish_recovery(now, 0, out),
        }
    }

    pub(super) fn on_advanced(
        &mut self,
        now: Instant,
        advanced: Result<(), AdvanceError>,
        out: &mut Vec<Action<B::Command>>,
    ) {
        let Phase::Claiming(Claiming::Advance) = self.phase else { return };
        match advanced {
            Ok(()) => self.finish_recovery(now, 0, out),
            Err(AdvanceError::Fenced { current }) => self.become_fenced(FencedBy::Head(current), out),
            Err(error) => self.recovery_failed(now, RecoveryFailure::Advance(error), out),
        }
    }

    fn recover_without_snapshot(&mut self, now: Instant, claim: Claim, out: &mut Vec<Action<B::Command>>) {
        let deleted_to = claim.deleted_to;
        if !deleted_to.is_zero() && !self.settings.allow_partial_history {
            return self.recovery_failed(now, RecoveryFailure::MissingSnapshot { deleted_to }, out);
        }
        self.partial = !deleted_to.is_zero();
        self.seq_nr = deleted_to;
        match deleted_to.next() {
            Some(from) => self.begin_replay(now, from, SeqNr::ZERO, claim, out),
            None => self.finish_recovery(now, 0, out),
        }
    }

    // ---- Replay ---------------------------------------------------------------------------------

    fn begin_replay(
        &mut self,
        now: Instant,
        from: SeqNr,
        refill_to: SeqNr,
        claim: Claim,
        out: &mut Vec<Action<B::Command>>,
    ) {
        let recovery = self.settings.recovery;
        let to = claim.highest.min(recovery.to_seq_nr);
        if from > to || (recovery.max_events == 0 && from > refill_to) {
            return self.finish_recovery(now, 0, out);
        }
        let filter = ReplayFilter::new(self.settings.replay_filter, self.caps.fencing);
        let replaying = Replaying { expected: from, to, refill_to, replayed: 0, filter, page_from: from };
        self.read_page(now, from, replaying, out);
    }

    fn read_page(&mut self, now: Instant, from: SeqNr, mut replaying: Replaying, out: &mut Vec<Action<B::Command>>) {
        let refill = (replaying.refill_to.as_u64() + 1).saturating_sub(from.as_u64());
        let left = (self.settings.recovery.max_events - replaying.replayed).saturating_add(refill);
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let left = left.saturating_sub(replaying.filter.held_count()).max(1);
        let range = ReadRange {
            from,
            to: replaying.to,
            max_events: self.settings.replay_page_events.get().min(left),
            max_bytes: self.settings.replay_page_bytes.get(),
        };
        replaying.page_from = from;
        self.phase = Phase::Replaying(Box::new(replaying));
        self.await_step(now, StoreCall::ReadPage { id: self.id.clone(), range }, out);
    }

    pub(super) fn on_page(&mut self, now: Instant, page: Result<Page, ReadError>, out: &mut Vec<Action<B::Command>>) {
        let mut replaying = match std::mem::replace(&mut self.phase, Phase::AwaitingPermit) {
            Phase::Replaying(replaying) => *replaying,
            other => {
                self.phase = other;
                return;
            }
        };
        let page = match page {
            Ok(page) => page,
            Err(error) => return self.recovery_failed(now, RecoveryFailure::Read(error), out),
        };
        let mut records = Vec::with_capacity(page.records.len());
        for record in page.records {
            if let Err(overlap) = replaying.filter.push(record, &mut records) {
                return self.recovery_failed(now, RecoveryFailure::Overlap(overlap), out);
            }
        }
        if page.next.is_none() {
            replaying.filter.finish(&mut records);
        }
        match self.replay_all(&mut replaying, records) {
            Ok(false) if page.next.is_none() && self.ends_with_dropped(&replaying) => {
                return self.finish_recovery(now, replaying.replayed, out);
            }
            Ok(false) => {}
            Ok(true) => return self.finish_recovery(now, replaying.replayed, out),
            Err(failure) => return self.recovery_failed(now, failure, out),
        }
        replaying.filter.pass(replaying.expected);
        // An empty page must lead further on, else the loop would not end; the next record's number is checked anyway.
        match page.next.filter(|next| *next >= replaying.expected && *next > replaying.page_from) {
            Some(next) => self.read_page(now, next, replaying, out),
            None => {
                let failure = RecoveryFailure::CorruptHistory { expected: replaying.expected, got: None };
                self.recovery_failed(now, failure, out);
            }
        }
    }

    /// Whether only records that the filter dropped are missing at the end. Their numbers count as used.
    fn ends_with_dropped(&mut self, replaying: &Replaying) -> bool {
        let end = SeqNr::saturating(replaying.to.as_u64() + 1);
        let complete = replaying.filter.after_dropped(replaying.expected, end) == end;
        if complete {
            self.seq_nr = self.seq_nr.max(replaying.to);
        }
        complete
    }

    /// Applies the records that the filter passed, if they are contiguous; returns whether the replay is complete.
    fn replay_all(&mut self, replaying: &mut Replaying, records: Vec<StoredEvent>) -> Result<bool, RecoveryFailure> {
        for record in records {
            replaying.expected = replaying.filter.after_dropped(replaying.expected, record.seq_nr);
            if record.seq_nr != replaying.expected {
                let (expected, got) = (replaying.expected, Some(record.seq_nr));
                return Err(RecoveryFailure::CorruptHistory { expected, got });
            }
            let refill = record.seq_nr <= replaying.refill_to;
            self.replay(record, refill)?;
            replaying.replayed += u64::from(!refill);
            let is_wanted = replaying.replayed < self.settings.recovery.max_events;
            let next = replaying.expected.next().filter(|next| *next <= replaying.to);
            let Some(next) = next.filter(|next| is_wanted || *next <= replaying.refill_to) else {
                return Ok(true);
            };
            replaying.expected = next;
        }
        Ok(false)
    }

    fn replay(&mut self, record: StoredEvent, refill: bool) -> Result<(), RecoveryFailure> {
        let seq_nr = record.seq_nr;
        if !refill {
            // Fold the marks first, even if the event is skipped below: its delivery was applied all the same.
            self.marks.fold(&record.metadata, record.timestamp).map_err(|_| RecoveryFailure::Marks(seq_nr))?;
            self.seq_nr = seq_nr;
        }
        let StoredEvent { codec_id, manifest, schema_version, kind, payload, metadata, .. } = record;
        let stored = EncodedValue { codec_id, manifest, schema_version, payload };
        let panicked = |handler| move |message| RecoveryFailure::Panicked { handler, seq_nr, message };
        let events = match guard(|| self.codecs.events.decode(kind, stored)).map_err(panicked("event codec"))? {
            Ok(events) => events,
            // Skip only events that this code does not know yet, never damaged ones.
            Err(error) if error.is_unknown() && self.settings.on_unknown_event == OnUnknownEvent::Skip => {
                self.skipped_events += 1;
                tracing::warn!(id = %self.id, %seq_nr, %error, "unknown event skipped");
                return Ok(());
            }
            Err(error) => {
                let unreadable = UnreadableRecord { id: self.id.clone(), seq_nr, error };
                return Err(RecoveryFailure::Unreadable(unreadable));
            }
        };
        let meta = EventMeta { seq_nr, metadata: &metadata, refill };
        let (behavior, state) = (&self.behavior, &mut self.state);
        guard(|| match events {
            EventSeq::Filtered => {}
            EventSeq::One(event) => behavior.apply_with(state, &event, &meta),
            EventSeq::Many(events) => events.iter().for_each(|event| behavior.apply_with(state, event, &meta)),
        })
        .map_err(panicked("apply"))
    }

    // ---- Ends -----------------------------------------------------------------------------------

    fn finish_recovery(&mut self, now: Instant, replayed: u64, out: &mut Vec<Action<B::Command>>) {
        self.step_deadline = None;
        // The permit is still ours in this phase, so `recovery_failed` after a panic below returns it.
        self.phase = Phase::AwaitingPermit;
        if let Err(message) = self.try_signal(Signal::RecoveryCompleted, out) {
            let (handler, seq_nr) = ("on_signal", self.seq_nr);
            return self.recovery_failed(now, RecoveryFailure::Panicked { handler, seq_nr, message }, out);
        }
        self.phase = Phase::Running;
        out.push(Action::ReturnPermit(self.incarnation));
        out.push(Action::Recovered {
            incarnation: self.incarnation,
            replayed,
            skipped: self.skipped_events,
            took: self.permit_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at)),
        });
        if let Err(failure) = self.track(now, TrackerInput::Recovered(self.settings.delivery_tracker)) {
            return self.fail(now, failure, out);
        }
        if self.settings.snapshot_every.is_some_and(|every| replayed >= every.get()) {
            self.take_snapshot(now, false, out);
        }
        self.deliver_queued(now, out);
        self.drain(now, out);
    }

    pub(super) fn recovery_failed(
        &mut self,
        now: Instant,
        failure: RecoveryFailure,
        out: &mut Vec<Action<B::Command>>,
    ) {
        // The behaviour must not see a half-built state.
        self.state = B::State::default();
        self.signal(Signal::RecoveryFailed(failure.clone()), out);
        if !matches!(self.phase, Phase::Claiming(_) | Phase::LoadingSnapshot(_) | Phase::Replaying(_)) {
            self.phase = Phase::AwaitingPermit;
        }
        self.restart_or_fail(now, Failure::Recovery(failure), out);
    }

    pub(super) fn on_step_timeout(&mut self, now: Instant, out: &mut Vec<Action<B::Command>>) {
        let step = match self.phase {
            Phase::Claiming(_) => RecoveryStep::Claim,
            Phase::LoadingSnapshot(_) => RecoveryStep::Snapshot,
            _ => RecoveryStep::Replay,
        };
        self.recovery_failed(now, RecoveryFailure::Timeout(step), out);
    }
}
