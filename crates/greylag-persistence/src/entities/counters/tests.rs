//! The counts of each action and outcome.

use greylag_core::EntityError;

use crate::contract::error::{RejectReason, StateRejectReason, StoreFailure};
use crate::contract::head::Head;
use crate::contract::records::event::{SeqNr, Timestamp};
use crate::contract::records::revision::StateHead;
use crate::contract::records::snapshot::{NewSnapshot, SnapshotCriteria};
use crate::entities::behavior::failure::RecoveryFailure;
use crate::entities::counters::*;
use crate::entities::lifecycle::input::{DroppedCommand, Incarnation, StoreCall};

const INCARNATION: Incarnation = Incarnation { start: 1, restart: 1 };

fn id() -> PersistenceId {
    "Counter|1".parse().unwrap()
}

fn away() -> StoreFailure {
    StoreFailure::new("journal", "away")
}

/// The counts of these actions in one turn of 60 ms, with this number of commands waiting.
fn counted(actions: &[Action<(), StoreCall>], waiting_count: usize) -> EntityStats {
    let counters = EntityCounters::default();
    let mut tally = EntityTally::new(counters.clone());
    tally.turn(&id(), actions, waiting_count, || Duration::from_millis(60));
    counters.stats()
}

fn dead_letter(reason: DeadLetterReason) -> Action<(), StoreCall> {
    Action::DeadLetter(DroppedCommand { command: (), reason, answer: EntityError::StashFull })
}

fn store(call: StoreCall) -> Action<(), StoreCall> {
    Action::Store { incarnation: INCARNATION, call }
}

fn save_snapshot() -> StoreCall {
    StoreCall::SaveSnapshot(NewSnapshot {
        id: id(),
        seq_nr: SeqNr::FIRST,
        codec_id: greylag_core::CodecId::JSON,
        manifest: "state".into(),
        schema_version: 1,
        payload: "1".into(),
        metadata: Default::default(),
    })
}

#[test]
fn each_action_counts_as_what_it_tells() {
    let none = EntityStats::default();
    let recovery = || Failure::Recovery(RecoveryFailure::Marks(SeqNr::FIRST));
    let other = || Failure::Persist(AppendError::Unknown(away()));
    let criteria = SnapshotCriteria::up_to(SeqNr::FIRST);
    for (action, expected) in [
        (Action::Unhandled, EntityStats { unhandled: 1, ..none }),
        (Action::Restarting(recovery()), EntityStats { failed_recoveries: 1, ..none }),
        (Action::Failed(recovery()), EntityStats { failed_recoveries: 1, ..none }),
        (Action::Restarting(other()), none),
        (Action::Failed(other()), none),
        (Action::Withheld(Withheld::Write), EntityStats { rejected: 1, ..none }),
        (Action::Withheld(Withheld::Snapshot), EntityStats { failed_snapshots: 1, slow_encodings: 1, ..none }),
        (store(save_snapshot()), EntityStats { slow_encodings: 1, ..none }),
        (store(StoreCall::DeleteSnapshots { id: id(), criteria }), none),
        (dead_letter(DeadLetterReason::StashFull), EntityStats { stash_drops: 1, ..none }),
        (dead_letter(DeadLetterReason::EntityStopped), none),
        (Action::Passivate, none),
    ] {
        assert_eq!(counted(std::slice::from_ref(&action), 0), expected, "{action:?}");
    }
}

#[test]
fn recoveries_are_summed_and_the_longest_is_kept() {
    let recovered = |replayed, seconds| Action::Recovered {
        incarnation: INCARNATION,
        replayed,
        skipped: replayed / 10,
        took: Duration::from_secs(seconds),
    };
    let stats = counted(&[recovered(10, 1), recovered(30, 4), recovered(0, 1)], 0);
    assert_eq!((stats.recoveries, stats.replayed_events, stats.skipped_events), (3, 40, 4));
    assert_eq!((stats.recovery_time, stats.longest_recovery), (Duration::from_secs(6), Duration::from_secs(4)));
    assert_eq!(
        (stats.mean_recovery(), EntityStats::default().mean_recovery()),
        (Duration::from_secs(2), Duration::ZERO)
    );
}

#[test]
fn only_more_than_fifty_milliseconds_are_long() {
    let counters = EntityCounters::default();
    counters.encoded(&id(), SLOW_ENCODING);
    assert_eq!(counters.stats().slow_encodings, 0);
    counters.encoded(&id(), SLOW_ENCODING + Duration::from_nanos(1));
    assert_eq!(counters.stats().slow_encodings, 1);
}

/// Waiting commands of all entities together; none after the last entity is dropped.
#[test]
fn waiting_commands_are_counted_until_their_entity_is_dropped() {
    let counters = EntityCounters::default();
    let tally = |waiting_count| {
        let mut tally = EntityTally::new(counters.clone());
        tally.turn::<(), StoreCall>(&id(), &[], waiting_count, || Duration::ZERO);
        tally
    };
    let (mut one, two) = (tally(3), tally(4));
    assert_eq!(counters.stats().stashed, 7);
    one.turn::<(), StoreCall>(&id(), &[], 1, || Duration::ZERO);
    assert_eq!(counters.stats().stashed, 5);
    drop(two);
    assert_eq!(counters.stats().stashed, 1);
    drop(one);
    assert_eq!(counters.stats().stashed, 0);
}

#[test]
fn each_outcome_of_a_write_counts_apart() {
    let none = EntityStats::default();
    let appended = |outcome| {
        let counters = EntityCounters::default();
        counters.appended(3, &outcome);
        counters.stats()
    };
    let rejected = RejectReason::SeqNrOverflow;
    assert_eq!(
        appended(Ok(Appended { timestamp: Timestamp::default() })),
        EntityStats { writes: 1, events: 3, ..none }
    );
    assert_eq!(appended(Err(AppendError::Rejected(rejected))), EntityStats { rejected: 1, ..none });
    let fenced = AppendError::Fenced { current: Head::default() };
    assert_eq!(appended(Err(fenced)), EntityStats { fenced: 1, ..none });
    let conflict = AppendError::Conflict { highest: SeqNr::FIRST };
    assert_eq!(appended(Err(conflict)), EntityStats { conflicts: 1, ..none });
    assert_eq!(appended(Err(AppendError::NotStored(away()))), EntityStats { not_stored: 1, ..none });
    assert_eq!(appended(Err(AppendError::Unknown(away()))), EntityStats { unknown: 1, ..none });

    let written = |outcome| {
        let counters = EntityCounters::default();
        counters.written(&outcome);
        counters.stats()
    };
    assert_eq!(written(Ok(())), EntityStats { writes: 1, ..none });
    let rejected = StateWriteError::Rejected(StateRejectReason::RevisionOverflow);
    assert_eq!(written(Err(rejected)), EntityStats { rejected: 1, ..none });
    let mismatch = StateWriteError::RevisionMismatch { current: StateHead::default() };
    assert_eq!(written(Err(mismatch)), EntityStats { fenced: 1, ..none });
    assert_eq!(written(Err(StateWriteError::NotStored(away()))), EntityStats { not_stored: 1, ..none });
    assert_eq!(written(Err(StateWriteError::Unknown(away()))), EntityStats { unknown: 1, ..none });
}

#[test]
fn snapshots_are_summed_and_the_largest_and_longest_are_kept() {
    let counters = EntityCounters::default();
    let millis = Duration::from_millis;
    assert_eq!(counters.stats().mean_snapshot(), Duration::ZERO);
    counters.snapshot_saved(100, millis(5), &Ok(()));
    counters.snapshot_saved(60, millis(7), &Ok(()));
    counters.snapshot_saved::<()>(500, millis(90), &Err(SnapshotError::Unavailable(away())));
    let stats = counters.stats();
    assert_eq!((stats.snapshots, stats.failed_snapshots, stats.slow_encodings), (2, 1, 0));
    assert_eq!((stats.snapshot_bytes, stats.largest_snapshot_bytes), (160, 100));
    assert_eq!(
        (stats.snapshot_time, stats.longest_snapshot, stats.mean_snapshot()),
        (millis(12), millis(7), millis(6))
    );
}
