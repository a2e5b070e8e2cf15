//! From a permit to a complete state: claim, snapshot, checks, replay.
//!
//! Every step has its own deadline, restarted by every answer; the whole recovery has none. The next
//! page is read only after the previous one is applied, so a recovery holds one page at a time.
//! Source: persistence §2.5.

use std::time::{Duration, Instant};

use super::fence::Fence;
use super::history::History;
use super::refills::Refills;
use super::replay_filter::ReplayFilter;
use super::snapshots::Snapshots;
use crate::contract::error::{AdvanceError, ClaimError, ReadError, SnapshotError};
use crate::contract::head::{Claim, Head, Under};
use crate::contract::journal::{Caps, Page, ReadRange};
use crate::contract::records::codec::EncodedValue;
use crate::contract::records::event::{SeqNr, StoredEvent};
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::snapshot::{Snapshot, SnapshotCriteria};
use crate::entities::behavior::chain::guard;
use crate::entities::behavior::event_sourced::EventSourced;
use crate::entities::behavior::failure::{FencedBy, RecoveryFailure, RecoveryStep};
use crate::entities::behavior::persisted::EventCodecs;
use crate::entities::lifecycle::input::{StoreAnswer, StoreCall};
use crate::entities::marks::Marks;
use crate::entities::settings::{EventSourcedSettings, SnapshotFailurePolicy};

/// The answer that a recovery waits for.
enum Step {
    Head,
    Claim,
    Snapshot(LoadingSnapshot),
    /// The snapshot is newer than the empty journal, which must continue the snapshot's numbers.
    Advance,
    Replay(Replaying),
    /// It has ended, and waits for nothing.
    Ended,
}

struct LoadingSnapshot {
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

struct Replaying {
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

/// What a recovery works on: the entity, and the parts of its machine that recovery fills.
pub(super) struct Ground<'a, B: EventSourced> {
    pub(super) behavior: &'a B,
    pub(super) id: &'a PersistenceId,
    pub(super) settings: &'a EventSourcedSettings,
    pub(super) codecs: &'a EventCodecs<B>,
    pub(super) caps: &'a Caps,
    pub(super) fence: &'a mut Fence,
    pub(super) history: &'a mut History<B::State>,
    pub(super) snapshots: &'a mut Snapshots,
}

/// What follows an answer.
#[derive(Debug)]
pub(super) enum Next {
    /// Nothing: the recovery does not wait for this answer.
    Ignored,
    /// The next step.
    Call(StoreCall),
    /// The history is complete; so many events of it were replayed.
    Finished { replayed: u64 },
    /// Another writer owns the history.
    Fenced(FencedBy),
    /// The state cannot be built.
    Failed(RecoveryFailure),
}

/// One recovery of an entity.
pub(crate) struct Recovery {
    /// When the permit was granted.
    permit_at: Instant,
    step: Step,
    /// Deadline of the step.
    deadline: Instant,
}

impl Recovery {
    /// Begins with the claim, if the entity has a right to it, else with a look at the head.
    pub(super) fn begin<B: EventSourced>(now: Instant, ground: &mut Ground<'_, B>) -> (Self, StoreCall) {
        let mut recovery = Self { permit_at: now, step: Step::Head, deadline: now };
        let call = match ground.fence.right() {
            Some(right) if !ground.settings.recovery.read_only => recovery.claim(right, ground),
            _ => recovery.read_head(ground),
        };
        recovery.restart_deadline(now, ground.settings);
        (recovery, call)
    }

    fn restart_deadline(&mut self, now: Instant, settings: &EventSourcedSettings) {
        self.deadline = now + settings.recovery_event_timeout;
    }

    /// When the step under way has taken too long.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Source: persistence §2.5.
    pub(super) fn check_invariants(&self) {
        match &self.step {
            Step::Ended => debug_assert!(false, "a recovery under way waits for an answer"),
            Step::Replay(replaying) => {
                debug_assert!(replaying.expected <= replaying.to, "a page is read while records are missing");
                debug_assert!(replaying.refill_to <= replaying.to, "a refill ends with the history");
            }
            Step::Head | Step::Claim | Step::Snapshot(_) | Step::Advance => {}
        }
    }

    /// Time since the permit was granted.
    pub(super) fn took(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.permit_at)
    }

    /// The step under way.
    pub(super) fn step(&self) -> RecoveryStep {
        match self.step {
            Step::Head | Step::Claim | Step::Advance => RecoveryStep::Claim,
            Step::Snapshot(_) => RecoveryStep::Snapshot,
            Step::Replay(_) | Step::Ended => RecoveryStep::Replay,
        }
    }

    /// Takes a store's answer.
    pub(super) fn on_answer<B: EventSourced>(
        &mut self,
        now: Instant,
        answer: StoreAnswer,
        ground: &mut Ground<'_, B>,
    ) -> Next {
        let next = match (std::mem::replace(&mut self.step, Step::Ended), answer) {
            (Step::Head, StoreAnswer::Head(head)) => self.on_head(head, ground),
            (Step::Claim, StoreAnswer::Claimed(claim)) => self.on_claimed(claim, ground),
            (Step::Snapshot(loading), StoreAnswer::Snapshot(found)) => self.on_snapshot(loading, found, ground),
            (Step::Advance, StoreAnswer::Advanced(advanced)) => Self::on_advanced(advanced),
            (Step::Replay(replaying), StoreAnswer::Page(page)) => self.on_page(replaying, page, ground),
            (step, _) => {
                self.step = step;
                return Next::Ignored;
            }
        };
        if matches!(next, Next::Call(_)) {
            self.restart_deadline(now, ground.settings);
        }
        next
    }

    // ---- Claim ----------------------------------------------------------------------------------

    fn read_head<B: EventSourced>(&mut self, ground: &Ground<'_, B>) -> StoreCall {
        self.step = Step::Head;
        StoreCall::ReadHead { id: ground.id.clone() }
    }

    fn claim<B: EventSourced>(&mut self, under: Under, ground: &mut Ground<'_, B>) -> StoreCall {
        self.step = Step::Claim;
        StoreCall::Claim { id: ground.id.clone(), writer_uuid: ground.fence.on_claim_sent(), under }
    }

    fn on_head<B: EventSourced>(&mut self, head: Result<Head, ReadError>, ground: &mut Ground<'_, B>) -> Next {
        match head {
            Err(error) => Next::Failed(RecoveryFailure::Read(error)),
            Ok(head) if ground.settings.recovery.read_only => self.begin_snapshot(head.as_claim(), ground),
            Ok(head) => match ground.fence.right_over(head) {
                Ok(right) => Next::Call(self.claim(right, ground)),
                Err(by) => Next::Fenced(by),
            },
        }
    }

    fn on_claimed<B: EventSourced>(&mut self, claim: Result<Claim, ClaimError>, ground: &mut Ground<'_, B>) -> Next {
        match claim {
            Ok(claim) => {
                ground.fence.on_claimed(&claim);
                self.begin_snapshot(claim, ground)
            }
            Err(ClaimError::Fenced { current }) => match ground.fence.on_claim_refused(current) {
                Ok(()) => Next::Call(self.read_head(ground)),
                Err(by) => Next::Fenced(by),
            },
            Err(error) => Next::Failed(RecoveryFailure::Claim(error)),
        }
    }

    // ---- Snapshot -------------------------------------------------------------------------------

    fn begin_snapshot<B: EventSourced>(&mut self, claim: Claim, ground: &mut Ground<'_, B>) -> Next {
        let recovery = ground.settings.recovery;
        if recovery.skip_replay {
            ground.history.skip_to(claim.highest);
            return Next::Finished { replayed: 0 };
        }
        let Some(criteria) = recovery.snapshots.filter(|_| ground.codecs.snapshots.is_some()) else {
            return self.recover_without_snapshot(claim, ground);
        };
        let criteria = SnapshotCriteria { max_seq_nr: criteria.max_seq_nr.min(recovery.to_seq_nr), ..criteria };
        self.load_snapshot(LoadingSnapshot { claim, attempts: 0, criteria, last_error: String::new() }, ground)
    }

    fn load_snapshot<B: EventSourced>(&mut self, loading: LoadingSnapshot, ground: &Ground<'_, B>) -> Next {
        let call = StoreCall::LoadSnapshot { id: ground.id.clone(), criteria: loading.criteria };
        self.step = Step::Snapshot(loading);
        Next::Call(call)
    }

    fn on_snapshot<B: EventSourced>(
        &mut self,
        loading: LoadingSnapshot,
        found: Result<Option<Snapshot>, SnapshotError>,
        ground: &mut Ground<'_, B>,
    ) -> Next {
        match found {
            Ok(None) if loading.attempts == 0 => self.recover_without_snapshot(loading.claim, ground),
            Ok(None) => self.on_snapshots_unusable(loading, ground),
            Ok(Some(snapshot)) => {
                let seq_nr = snapshot.seq_nr;
                match decode_snapshot(ground.codecs, snapshot) {
                    Ok(decoded) => self.use_snapshot(loading.claim, seq_nr, decoded, ground),
                    Err(reason) => self.try_older_snapshot(loading, seq_nr, reason, ground),
                }
            }
            Err(SnapshotError::Corrupt(corrupt)) => {
                self.try_older_snapshot(loading, corrupt.seq_nr, corrupt.to_string(), ground)
            }
            Err(error) => Next::Failed(RecoveryFailure::Snapshot(error)),
        }
    }

    fn try_older_snapshot<B: EventSourced>(
        &mut self,
        mut loading: LoadingSnapshot,
        damaged: SeqNr,
        reason: String,
        ground: &mut Ground<'_, B>,
    ) -> Next {
        tracing::warn!(id = %ground.id, seq_nr = %damaged, reason, "snapshot unusable");
        loading.attempts += 1;
        loading.last_error = reason;
        let older = damaged.previous();
        let none_left = damaged.is_zero() || older < loading.criteria.min_seq_nr;
        if none_left || loading.attempts >= ground.settings.snapshot_load_attempts.get() {
            return self.on_snapshots_unusable(loading, ground);
        }
        loading.criteria.max_seq_nr = older;
        self.load_snapshot(loading, ground)
    }

    fn on_snapshots_unusable<B: EventSourced>(&mut self, loading: LoadingSnapshot, ground: &mut Ground<'_, B>) -> Next {
        let LoadingSnapshot { claim, attempts, last_error: last, .. } = loading;
        let policy = ground.settings.snapshot_failure;
        if claim.deleted_to.is_zero() && policy == SnapshotFailurePolicy::ReplayIfComplete {
            return self.begin_replay(SeqNr::FIRST, SeqNr::ZERO, claim, ground);
        }
        Next::Failed(RecoveryFailure::SnapshotsUnusable { attempts, last })
    }

    /// Makes the checks of persistence §2.5.4: a state must never lack its first events.
    fn use_snapshot<B: EventSourced>(
        &mut self,
        claim: Claim,
        snapshot: SeqNr,
        decoded: DecodedSnapshot<B::State>,
        ground: &mut Ground<'_, B>,
    ) -> Next {
        let Claim { highest, deleted_to, epoch } = claim;
        let DecodedSnapshot { state, marks, refills } = decoded;
        let refill_from = refills.of(snapshot);
        if snapshot < deleted_to {
            return Next::Failed(RecoveryFailure::EventsDeletedBeyondSnapshot { snapshot, deleted_to });
        }
        if snapshot > highest && !highest.is_zero() {
            return Next::Failed(RecoveryFailure::SnapshotAheadOfJournal { snapshot, highest });
        }
        if let Some(replay_from) = refill_from.filter(|from| *from <= deleted_to || snapshot > highest) {
            return Next::Failed(RecoveryFailure::RefillMissing { snapshot, replay_from, deleted_to });
        }
        ground.history.begin_at(snapshot, state, marks);
        ground.snapshots.on_recovered(refills);
        if snapshot > highest && !ground.settings.recovery.read_only {
            self.step = Step::Advance;
            return Next::Call(StoreCall::Advance { id: ground.id.clone(), epoch, to: snapshot });
        }
        match refill_from.or(snapshot.next()) {
            Some(from) => self.begin_replay(from, snapshot, claim, ground),
            None => Next::Finished { replayed: 0 },
        }
    }

    fn on_advanced(advanced: Result<(), AdvanceError>) -> Next {
        match advanced {
            Ok(()) => Next::Finished { replayed: 0 },
            Err(AdvanceError::Fenced { current }) => Next::Fenced(FencedBy::Head(current)),
            Err(error) => Next::Failed(RecoveryFailure::Advance(error)),
        }
    }

    fn recover_without_snapshot<B: EventSourced>(&mut self, claim: Claim, ground: &mut Ground<'_, B>) -> Next {
        let deleted_to = claim.deleted_to;
        if !deleted_to.is_zero() && !ground.settings.allow_partial_history {
            return Next::Failed(RecoveryFailure::MissingSnapshot { deleted_to });
        }
        ground.history.begin_after(deleted_to);
        match deleted_to.next() {
            Some(from) => self.begin_replay(from, SeqNr::ZERO, claim, ground),
            None => Next::Finished { replayed: 0 },
        }
    }

    // ---- Replay ---------------------------------------------------------------------------------

    fn begin_replay<B: EventSourced>(
        &mut self,
        from: SeqNr,
        refill_to: SeqNr,
        claim: Claim,
        ground: &Ground<'_, B>,
    ) -> Next {
        let recovery = ground.settings.recovery;
        let to = claim.highest.min(recovery.to_seq_nr);
        if from > to || (recovery.max_events == 0 && from > refill_to) {
            return Next::Finished { replayed: 0 };
        }
        let filter = ReplayFilter::new(ground.settings.replay_filter, ground.caps.fencing);
        let replaying = Replaying { expected: from, to, refill_to, replayed: 0, filter, page_from: from };
        self.read_page(from, replaying, ground)
    }

    fn read_page<B: EventSourced>(&mut self, from: SeqNr, mut replaying: Replaying, ground: &Ground<'_, B>) -> Next {
        let settings = ground.settings;
        let refill = (replaying.refill_to.as_u64() + 1).saturating_sub(from.as_u64());
        let left = (settings.recovery.max_events - replaying.replayed).saturating_add(refill);
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let left = left.saturating_sub(replaying.filter.held_count()).max(1);
        let range = ReadRange {
            from,
            to: replaying.to,
            max_events: settings.replay_page_events.get().min(left),
            max_bytes: settings.replay_page_bytes.get(),
        };
        replaying.page_from = from;
        self.step = Step::Replay(replaying);
        Next::Call(StoreCall::ReadPage { id: ground.id.clone(), range })
    }

    fn on_page<B: EventSourced>(
        &mut self,
        mut replaying: Replaying,
        page: Result<Page, ReadError>,
        ground: &mut Ground<'_, B>,
    ) -> Next {
        let page = match page {
            Ok(page) => page,
            Err(error) => return Next::Failed(RecoveryFailure::Read(error)),
        };
        let mut records = Vec::with_capacity(page.records.len());
        for record in page.records {
            if let Err(overlap) = replaying.filter.push(record, &mut records) {
                return Next::Failed(RecoveryFailure::Overlap(overlap));
            }
        }
        if page.next.is_none() {
            replaying.filter.finish(&mut records);
        }
        match replaying.apply(records, ground) {
            Ok(false) if page.next.is_none() && replaying.ends_with_dropped() => {
                // The numbers of the dropped records count as used.
                ground.history.use_numbers(replaying.to);
                return Next::Finished { replayed: replaying.replayed };
            }
            Ok(false) => {}
            Ok(true) => return Next::Finished { replayed: replaying.replayed },
            Err(failure) => return Next::Failed(failure),
        }
        replaying.filter.pass(replaying.expected);
        // An empty page must lead further on, else the loop would not end; the next record's number is checked anyway.
        match page.next.filter(|next| *next >= replaying.expected && *next > replaying.page_from) {
            Some(next) => self.read_page(next, replaying, ground),
            None => Next::Failed(RecoveryFailure::CorruptHistory { expected: replaying.expected, got: None }),
        }
    }
}

impl Replaying {
    /// Whether only records that the filter dropped are missing at the end.
    fn ends_with_dropped(&self) -> bool {
        let end = SeqNr::saturating(self.to.as_u64() + 1);
        self.filter.after_dropped(self.expected, end) == end
    }

    /// Applies the records that the filter passed, if they are contiguous; returns whether the replay is complete.
    fn apply<B: EventSourced>(
        &mut self,
        records: Vec<StoredEvent>,
        ground: &mut Ground<'_, B>,
    ) -> Result<bool, RecoveryFailure> {
        let (fold, settings) = ((ground.behavior, ground.codecs), ground.settings);
        for record in records {
            self.expected = self.filter.after_dropped(self.expected, record.seq_nr);
            if record.seq_nr != self.expected {
                let (expected, got) = (self.expected, Some(record.seq_nr));
                return Err(RecoveryFailure::CorruptHistory { expected, got });
            }
            let refill = record.seq_nr <= self.refill_to;
            ground.history.replay(fold, ground.id, settings.on_unknown_event, record, refill)?;
            self.replayed += u64::from(!refill);
            let is_wanted = self.replayed < settings.recovery.max_events;
            let next = self.expected.next().filter(|next| *next <= self.to);
            let Some(next) = next.filter(|next| is_wanted || *next <= self.refill_to) else {
                return Ok(true);
            };
            self.expected = next;
        }
        Ok(false)
    }
}

fn decode_snapshot<B: EventSourced>(
    codecs: &EventCodecs<B>,
    snapshot: Snapshot,
) -> Result<DecodedSnapshot<B::State>, String> {
    let Snapshot { codec_id, manifest, schema_version, payload, metadata, .. } = snapshot;
    let codec = codecs.snapshots.as_ref().ok_or("there is no snapshot codec")?;
    let mut marks = Marks::default();
    marks.fold_snapshot(&metadata).map_err(|error| error.to_string())?;
    let refills = Refills::read(&metadata)?;
    let stored = EncodedValue { codec_id, manifest, schema_version, payload };
    let state = guard(|| codec.decode_one(stored))?.map_err(|error| error.to_string())?;
    Ok(DecodedSnapshot { state, marks, refills })
}
