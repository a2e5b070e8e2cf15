//! Guarded stores: they pass their kits, time out, open each breaker alone, and never answer "not
//! stored" for a write that may be stored.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use greylag_core::CodecId;
use greylag_persistence::tck::{self, Flags};
use greylag_persistence::{
    AdvanceError, Append, AppendError, Appended, BreakerMode, BreakerSettings, Caps, Claim, ClaimError, CloseError,
    DeleteError, EncodedValue, EventKind, FaultyJournal, FaultyOffsets, FaultySnapshots, FaultyStates, Guarded, Head,
    Health, InMemoryJournal, InMemoryOffsets, InMemorySnapshots, InMemoryStates, Journal, JournalOp, NewEvent,
    OffsetError, OffsetOp, OffsetStore, Page, PersistenceId, ReadError, ReadRange, RejectReason, Revision, SeqNr,
    SnapshotCriteria, SnapshotError, SnapshotOp, SnapshotStore, StateOp, StateStore, StateWrite, StateWriteError,
    StoreFault, StoreReturns, Under, WriterEpoch, WriterUuid,
};

type GuardedJournal = Guarded<FaultyJournal>;

fn id() -> PersistenceId {
    "Counter|1".parse().unwrap()
}

fn guarded() -> (Arc<FaultyJournal>, GuardedJournal) {
    let faulty = Arc::new(FaultyJournal::new(Arc::new(InMemoryJournal::default())));
    (faulty.clone(), Guarded::new(faulty, "journal", BreakerSettings::default()).unwrap())
}

fn append(epoch: WriterEpoch, first: u32) -> Append {
    let event = NewEvent {
        codec_id: CodecId::JSON,
        manifest: "counter.event".into(),
        schema_version: 1,
        kind: EventKind::Event,
        payload: "1".into(),
        metadata: Default::default(),
        tags: Default::default(),
    };
    let writer_uuid = WriterUuid::from_u128(1);
    Append { id: id(), epoch, writer_uuid, first: SeqNr::from(first), events: vec![event] }
}

async fn claim(journal: &impl Journal) -> WriterEpoch {
    let head: Head = journal.head(&id()).await.unwrap();
    journal.claim(&id(), WriterUuid::from_u128(1), Under::Seen(head.epoch)).await.unwrap().epoch
}

/// Every backend is used behind a guard, so the guard must keep the contract.
#[tokio::test]
async fn guarded_stores_conform() {
    let few = || Flags { concurrent_ids: 50, largest: false, ..Flags::default() };
    let settings = BreakerSettings::default;
    let open = || async {
        Arc::new(Guarded::new(Arc::new(InMemoryJournal::default()), "journal", settings()).unwrap()) as Arc<dyn Journal>
    };
    tck::journal(&open, few()).await.assert_conforms();
    let open = || async {
        let inner: Arc<dyn SnapshotStore> = Arc::new(InMemorySnapshots::default());
        Arc::new(Guarded::new(inner, "snapshots", BreakerSettings::snapshots()).unwrap()) as Arc<dyn SnapshotStore>
    };
    tck::snapshots(&open, few()).await.assert_conforms();
    let open = || async {
        Arc::new(Guarded::new(Arc::new(InMemoryStates::default()), "states", settings()).unwrap())
            as Arc<dyn StateStore>
    };
    tck::states(&open, few()).await.assert_conforms();
    let open = || async {
        let inner = Arc::new(InMemoryOffsets::default());
        Arc::new(Guarded::new(inner, "offsets", settings()).unwrap()) as Arc<dyn OffsetStore>
    };
    tck::offsets(&open, few()).await.assert_conforms();
}

/// The outcome of a hanging append is unknown after `call_timeout`, never sooner and never later.
#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_times_out() {
    let (faulty, journal) = guarded();
    let epoch = claim(&journal).await;
    faulty.plan(None, JournalOp::Append, 0, StoreFault::Hang { done: true });
    let begun = tokio::time::Instant::now();
    let answer = journal.append(append(epoch, 1)).await;
    assert_eq!(begun.elapsed().as_secs(), 10);
    assert!(matches!(&answer, Err(AppendError::Unknown(failure)) if failure.to_string().contains("10s")), "{answer:?}");
    // The append was stored; its repeat is answered Ok (J10).
    assert!(journal.append(append(epoch, 1)).await.is_ok());
    faulty.plan(None, JournalOp::Read, 0, StoreFault::Hang { done: false });
    assert!(journal.read(&id(), ReadRange::new(SeqNr::FIRST, SeqNr::MAX)).await.is_err());
}

/// The breakers of writes and reads open independently, by failures in a row; an open breaker sends no call.
#[tokio::test(start_paused = true)]
async fn writes_and_reads_have_a_breaker_each() {
    let (faulty, journal) = guarded();
    let epoch = claim(&journal).await;
    (0..10).for_each(|_| faulty.plan(None, JournalOp::Append, 0, StoreFault::Unavailable));
    for _ in 0..10 {
        assert!(matches!(journal.append(append(epoch, 1)).await, Err(AppendError::NotStored(_))));
    }
    let BreakerMode::Open { left, .. } = journal.write_breaker() else { panic!("ten failures open it") };
    assert_eq!((left.as_millis(), journal.read_breaker()), (100, BreakerMode::Closed));
    assert!(matches!(journal.health(), Health::Down(reason) if reason.contains("write breaker of journal")));
    // The call is not sent: this append would be stored.
    let refused = journal.append(append(epoch, 1)).await;
    assert!(matches!(&refused, Err(AppendError::NotStored(failure)) if failure.text().contains("out of service")));
    assert!(journal.claim(&id(), WriterUuid::from_u128(2), Under::Seen(epoch)).await.is_err());
    assert_eq!(journal.head(&id()).await.unwrap().highest, SeqNr::ZERO);

    tokio::time::sleep(Duration::from_millis(101)).await;
    assert_eq!((journal.write_breaker(), journal.health()), (BreakerMode::Closed, Health::Up));
    assert!(journal.append(append(epoch, 1)).await.is_ok());
}

/// Rule persistence §4.1 (breaker): an open breaker probes by a call of its own, after 100 ms, then 200, then 400, then
/// every 500; no user's call is a probe. A hanging probe has the call timeout, and calls meanwhile are
/// refused.
#[tokio::test(start_paused = true)]
async fn an_open_breaker_is_probed_without_any_call_of_a_user() {
    let (faulty, journal) = guarded();
    let epoch = claim(&journal).await;
    (0..10).for_each(|_| faulty.plan(None, JournalOp::Append, 0, StoreFault::Unavailable));
    (0..3).for_each(|_| faulty.plan(None, JournalOp::Head, 0, StoreFault::Unavailable));
    faulty.plan(None, JournalOp::Head, 0, StoreFault::Hang { done: false });
    for _ in 0..10 {
        assert!(journal.append(append(epoch, 1)).await.is_err());
    }
    let begun = tokio::time::Instant::now();
    let mut seen = Vec::new();
    while journal.write_breaker() != BreakerMode::Closed {
        let probes = journal.breakers().writes.probes;
        if seen.len() < usize::try_from(probes).unwrap() {
            seen.push(begun.elapsed().as_millis());
        }
        assert!(journal.append(append(epoch, 1)).await.is_err());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Checked every millisecond, so each probe may be seen one late.
    for (seen, expected) in seen.iter().zip([100, 300, 700, 1200]) {
        assert!((expected..=expected + 2).contains(seen), "{seen} ms, not {expected}: {:?}", journal.breakers());
    }
    assert!((11_700..=11_705).contains(&begun.elapsed().as_millis()), "{:?}: the fourth hung", begun.elapsed());
    assert!(journal.append(append(epoch, 1)).await.is_ok(), "no call of a user was needed to close it");
    let stats = journal.breakers().writes;
    assert_eq!((stats.opened, stats.probes, stats.failures), (1, 5, 10));
}

/// A journal that keeps a connection, and counts its reconnections.
struct Linked {
    journal: FaultyJournal,
    reached: StoreReturns,
}

#[async_trait]
impl Journal for Linked {
    fn caps(&self) -> Caps {
        self.journal.caps()
    }

    async fn claim(&self, id: &PersistenceId, writer_uuid: WriterUuid, under: Under) -> Result<Claim, ClaimError> {
        self.journal.claim(id, writer_uuid, under).await
    }

    async fn advance(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<(), AdvanceError> {
        self.journal.advance(id, epoch, to).await
    }

    async fn append(&self, append: Append) -> Result<Appended, AppendError> {
        self.journal.append(append).await
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        self.journal.read(id, range).await
    }

    async fn head(&self, id: &PersistenceId) -> Result<Head, ReadError> {
        self.journal.head(id).await
    }

    async fn delete_to(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<SeqNr, DeleteError> {
        self.journal.delete_to(id, epoch, to).await
    }

    fn health(&self) -> Health {
        self.journal.health()
    }

    fn store_returns(&self) -> Option<&StoreReturns> {
        Some(&self.reached)
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.journal.close().await
    }
}

/// Sharding scenario 114: a store that reports its return is probed at once, not when the next probe is due.
#[tokio::test(start_paused = true)]
async fn a_store_that_says_that_it_is_back_is_probed_at_once() {
    let journal = FaultyJournal::new(Arc::new(InMemoryJournal::default()));
    let linked = Arc::new(Linked { journal, reached: StoreReturns::of_one() });
    let guarded = Guarded::new(linked.clone(), "journal", BreakerSettings::default()).unwrap();
    let back = Journal::store_returns(&guarded).unwrap().clone();
    linked.journal.set_away(true);
    assert!(guarded.head(&id()).await.is_err());
    // Probes follow 0.1, 0.3, 0.7 and 1.2 s after the failure, and then every half second.
    tokio::time::sleep(Duration::from_millis(1250)).await;
    let begun = tokio::time::Instant::now();
    // While the store is still away, a reported return starts one probe, and no more.
    let probes = guarded.breakers().reads.probes;
    linked.reached.note();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(guarded.breakers().reads.probes, probes + 1);
    linked.journal.set_away(false);
    assert_eq!(back.count(), 0);
    linked.reached.note();
    back.beyond(0).await;
    assert!(begun.elapsed() < Duration::from_millis(60), "{:?}", begun.elapsed());
}

/// A store that is closed, or whose last handle was dropped, is not probed.
#[tokio::test(start_paused = true)]
async fn a_closed_or_dropped_store_is_not_probed() {
    let (faulty, journal) = guarded();
    (0..10).for_each(|_| faulty.plan(None, JournalOp::Read, 0, StoreFault::Unavailable));
    for _ in 0..10 {
        assert!(journal.read(&id(), ReadRange::new(SeqNr::FIRST, SeqNr::MAX)).await.is_err());
    }
    journal.close().await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(journal.read(&id(), ReadRange::new(SeqNr::FIRST, SeqNr::MAX)).await.is_err());
    assert_eq!(journal.breakers().reads.probes, 0);
    drop(journal);
    assert_eq!(Arc::strong_count(&faulty), 1, "no task keeps it");
}

/// The probe task may end with its runtime; the next refused call starts another one.
#[test]
fn probing_goes_on_after_the_runtime_that_it_ran_on() {
    let (faulty, journal) = guarded();
    (0..10).for_each(|_| faulty.plan(None, JournalOp::Head, 0, StoreFault::Unavailable));
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime().block_on(async {
        for _ in 0..10 {
            assert!(journal.head(&id()).await.is_err());
        }
        faulty.plan(None, JournalOp::Head, 0, StoreFault::Hang { done: false });
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert!(matches!(journal.read_breaker(), BreakerMode::HalfOpen { .. }));
    });
    assert!(matches!(journal.read_breaker(), BreakerMode::Open { .. }), "the probe ended with its runtime");
    runtime().block_on(async {
        assert!(journal.head(&id()).await.is_err());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(journal.head(&id()).await.is_ok());
    });
}

/// A slow store is awaited until `call_timeout`; then the outcome of its write is unknown, and the write is stored.
#[tokio::test(start_paused = true)]
async fn a_slow_store_is_waited_for() {
    let (faulty, journal) = guarded();
    let epoch = claim(&journal).await;
    for (first, delay, waited) in [(1, 9, 9), (2, 11, 10)] {
        let begun = tokio::time::Instant::now();
        faulty.plan(None, JournalOp::Append, 0, StoreFault::Delay(Duration::from_secs(delay)));
        let answer = journal.append(append(epoch, first)).await;
        assert_eq!(begun.elapsed().as_secs(), waited);
        assert_eq!(matches!(answer, Err(AppendError::Unknown(_))), delay > waited, "{answer:?}");
        assert_eq!(journal.head(&id()).await.unwrap().highest, SeqNr::from(first));
    }
}

/// Persistence kit journal 41: refusals are answers, whatever their number.
#[tokio::test(start_paused = true)]
async fn refusals_never_open_a_breaker() {
    let (faulty, journal) = guarded();
    let epoch = claim(&journal).await;
    for _ in 0..30 {
        faulty.plan(None, JournalOp::Append, 0, StoreFault::Rejected);
        assert!(matches!(journal.append(append(epoch, 1)).await, Err(AppendError::Rejected(RejectReason::Other(_)))));
        assert!(matches!(journal.append(append(epoch, 9)).await, Err(AppendError::Conflict { .. })));
        assert!(matches!(journal.append(append(epoch.raised(), 1)).await, Err(AppendError::Fenced { .. })));
        assert!(journal.claim(&id(), WriterUuid::from_u128(9), Under::Seen(epoch.raised())).await.is_err());
        faulty.plan(None, JournalOp::Read, 0, StoreFault::Corrupt);
        assert!(journal.read(&id(), ReadRange::new(SeqNr::FIRST, SeqNr::MAX)).await.is_err());
    }
    assert_eq!((journal.write_breaker(), journal.read_breaker()), (BreakerMode::Closed, BreakerMode::Closed));
}

/// Rule persistence §4.1 (timeouts and breaker): a failure that the store itself answers counts as an answer, though
/// the operation has no variant for it: callers are not kept from a reachable store.
#[tokio::test(start_paused = true)]
async fn store_answers_never_open_a_breaker() {
    let (faulty, journal) = guarded();
    let epoch = claim(&journal).await;
    let snapshots = Arc::new(FaultySnapshots::new(Arc::new(InMemorySnapshots::default())));
    let guarded_snapshots = Guarded::new(snapshots.clone(), "snapshots", BreakerSettings::snapshots()).unwrap();
    let states = Arc::new(FaultyStates::new(Arc::new(InMemoryStates::default())));
    let guarded_states = Guarded::new(states.clone(), "states", BreakerSettings::default()).unwrap();
    let write = StateWrite { id: id(), revision: Revision::FIRST, generation: None, writer_uuid: WriterUuid::NONE };
    let offsets = Arc::new(FaultyOffsets::new(Arc::new(InMemoryOffsets::default())));
    let guarded_offsets = Guarded::new(offsets.clone(), "offsets", BreakerSettings::default()).unwrap();
    for _ in 0..30 {
        for op in [JournalOp::Claim, JournalOp::Append, JournalOp::Advance, JournalOp::Delete, JournalOp::Head] {
            faulty.plan(None, op, 0, StoreFault::Refused);
        }
        let answer = journal.claim(&id(), WriterUuid::from_u128(2), Under::Seen(epoch)).await;
        assert!(matches!(answer, Err(ClaimError::Unavailable(failure)) if failure.is_answer()));
        assert!(matches!(journal.append(append(epoch, 1)).await, Err(AppendError::NotStored(_))));
        assert!(journal.advance(&id(), epoch, SeqNr::FIRST).await.is_err());
        assert!(journal.delete_to(&id(), epoch, SeqNr::MAX).await.is_err());
        assert!(journal.head(&id()).await.is_err());
        snapshots.plan(None, SnapshotOp::Load, 0, StoreFault::Refused);
        snapshots.plan(None, SnapshotOp::Delete, 0, StoreFault::Refused);
        assert!(guarded_snapshots.load(&id(), SnapshotCriteria::LATEST).await.is_err());
        assert!(guarded_snapshots.delete(&id(), SeqNr::FIRST).await.is_err());
        states.plan(None, StateOp::Get, 0, StoreFault::Refused);
        states.plan(None, StateOp::Delete, 0, StoreFault::Refused);
        assert!(guarded_states.get(&id()).await.is_err());
        assert!(matches!(guarded_states.delete(write.clone()).await, Err(StateWriteError::NotStored(_))));
        offsets.plan(None, OffsetOp::Claim, 0, StoreFault::Refused);
        assert!(guarded_offsets.claim("totals", 0..=3).await.is_err());
    }
    let all = [journal.breakers(), guarded_snapshots.breakers(), guarded_states.breakers(), guarded_offsets.breakers()];
    for breakers in all {
        assert_eq!((breakers.writes.failures, breakers.reads.failures), (0, 0), "{breakers:?}");
    }
    assert!(journal.append(append(epoch, 1)).await.is_ok(), "nothing of it was stored");
}

/// Scenario persistence 61, J10: after a try that went unanswered no refusal means "not stored".
#[tokio::test(start_paused = true)]
async fn after_an_unanswered_try_a_refusal_is_unknown() {
    for next in [StoreFault::Unavailable, StoreFault::Rejected] {
        let (faulty, journal) = guarded();
        let epoch = claim(&journal).await;
        faulty.plan(None, JournalOp::Append, 0, StoreFault::AnswerLost { done: true });
        faulty.plan(None, JournalOp::Append, 1, next);
        for _ in 0..2 {
            let answer = journal.append(append(epoch, 1)).await;
            assert!(matches!(answer, Err(AppendError::Unknown(_))), "{next:?}: {answer:?}");
        }
        assert!(journal.append(append(epoch, 1)).await.is_ok(), "it was stored by the first try");
        // The next append is another write: its refusal is certain again.
        faulty.plan(None, JournalOp::Append, 0, StoreFault::Unavailable);
        assert!(matches!(journal.append(append(epoch, 2)).await, Err(AppendError::NotStored(_))));
    }
}

/// Rule persistence J10: the writer that fenced us may have deleted the events of the first try; then the fence
/// proves nothing. Without a deletion the fence is a proof.
#[tokio::test(start_paused = true)]
async fn a_fence_is_no_proof_once_the_events_may_be_deleted() {
    for deletes in [true, false] {
        let (faulty, journal) = guarded();
        let epoch = claim(&journal).await;
        faulty.plan(None, JournalOp::Append, 0, StoreFault::AnswerLost { done: deletes });
        assert!(matches!(journal.append(append(epoch, 1)).await, Err(AppendError::Unknown(_))));
        let successor = journal.claim(&id(), WriterUuid::from_u128(2), Under::Seen(epoch)).await.unwrap();
        if deletes {
            journal.delete_to(&id(), successor.epoch, SeqNr::MAX).await.unwrap();
        }
        let answer = journal.append(append(epoch, 1)).await;
        let expected = if deletes {
            matches!(answer, Err(AppendError::Unknown(_)))
        } else {
            matches!(answer, Err(AppendError::Fenced { .. }))
        };
        assert!(expected, "deleted {deletes}: {answer:?}");
    }
}

/// The breaker opens between two tries: the outcome of that append is unknown, of others certain.
#[tokio::test(start_paused = true)]
async fn an_open_breaker_does_not_deny_what_may_be_stored() {
    let (faulty, journal) = guarded();
    let epoch = claim(&journal).await;
    (0..10).for_each(|_| faulty.plan(None, JournalOp::Append, 0, StoreFault::AnswerLost { done: true }));
    for _ in 0..10 {
        assert!(matches!(journal.append(append(epoch, 1)).await, Err(AppendError::Unknown(_))));
    }
    assert!(matches!(journal.write_breaker(), BreakerMode::Open { .. }));
    assert!(matches!(journal.append(append(epoch, 1)).await, Err(AppendError::Unknown(_))));
    assert!(matches!(journal.append(append(epoch, 2)).await, Err(AppendError::NotStored(_))));
    let other = Append { writer_uuid: WriterUuid::from_u128(2), ..append(epoch, 1) };
    assert!(matches!(journal.append(other).await, Err(AppendError::NotStored(_))));
}

/// Rules persistence J10 and J13: a write whose caller dropped it goes on. Its repeat under an open breaker
/// may be stored; another write is not.
#[tokio::test(start_paused = true)]
async fn a_dropped_write_may_be_stored() {
    let soon = Duration::from_secs(1);
    let (faulty, journal) = guarded();
    let epoch = claim(&journal).await;
    faulty.plan(None, JournalOp::Append, 0, StoreFault::Hang { done: true });
    assert!(tokio::time::timeout(soon, journal.append(append(epoch, 1))).await.is_err());
    (0..10).for_each(|_| faulty.plan(None, JournalOp::Delete, 0, StoreFault::Unavailable));
    for _ in 0..10 {
        assert!(journal.delete_to(&id(), epoch, SeqNr::MAX).await.is_err());
    }
    assert!(matches!(journal.write_breaker(), BreakerMode::Open { .. }));
    let answer = journal.append(append(epoch, 1)).await;
    assert!(matches!(answer, Err(AppendError::Unknown(_))), "{answer:?}");
    assert!(matches!(journal.append(append(epoch, 2)).await, Err(AppendError::NotStored(_))));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(journal.append(append(epoch, 1)).await.is_ok(), "it was stored by the first try");

    let faulty = Arc::new(FaultyStates::new(Arc::new(InMemoryStates::default())));
    let states = Guarded::new(faulty.clone(), "states", BreakerSettings::default()).unwrap();
    let write = |number: u32| {
        let (revision, writer_uuid) = (Revision::from(number), WriterUuid::from_u128(1));
        StateWrite { id: id(), revision, generation: None, writer_uuid }
    };
    faulty.plan(None, StateOp::Delete, 0, StoreFault::Hang { done: true });
    assert!(tokio::time::timeout(soon, states.delete(write(1))).await.is_err());
    for _ in 0..10 {
        faulty.plan(None, StateOp::Upsert, 0, StoreFault::Unavailable);
        let other = StateWrite { id: "Counter|2".parse().unwrap(), ..write(1) };
        let value = EncodedValue {
            codec_id: CodecId::JSON,
            manifest: "counter".into(),
            schema_version: 1,
            payload: "1".into(),
        };
        assert!(states.upsert(other, value, None).await.is_err());
    }
    assert!(matches!(states.write_breaker(), BreakerMode::Open { .. }));
    let answer = states.delete(write(1)).await;
    assert!(matches!(answer, Err(StateWriteError::Unknown(_))), "{answer:?}");
    assert!(matches!(states.delete(write(2)).await, Err(StateWriteError::NotStored(_))));
}

/// A state write: repeats are Ok, refusals after a lost answer unknown; a mismatch counts as "not stored" only if it
/// proves that.
#[tokio::test(start_paused = true)]
async fn a_state_write_that_may_be_stored_is_not_denied() {
    let inner: Arc<dyn StateStore> = Arc::new(InMemoryStates::default());
    let faulty = Arc::new(FaultyStates::new(inner.clone()));
    let states = Guarded::new(faulty.clone(), "states", BreakerSettings::default()).unwrap();
    let write = |revision: u32, writer: u128| StateWrite {
        id: id(),
        revision: Revision::from(revision),
        generation: None,
        writer_uuid: WriterUuid::from_u128(writer),
    };
    let value =
        || EncodedValue { codec_id: CodecId::JSON, manifest: "counter".into(), schema_version: 1, payload: "1".into() };
    faulty.plan(None, StateOp::Upsert, 0, StoreFault::AnswerLost { done: true });
    faulty.plan(None, StateOp::Upsert, 1, StoreFault::Unavailable);
    faulty.plan(None, StateOp::Upsert, 2, StoreFault::Rejected);
    for _ in 0..3 {
        let answer = states.upsert(write(1, 1), value(), None).await;
        assert!(matches!(answer, Err(StateWriteError::Unknown(_))), "{answer:?}");
    }
    assert_eq!(states.upsert(write(1, 1), value(), None).await, Ok(()));

    // Stored, answer lost, then overwritten: a mismatch beyond our revision proves nothing.
    faulty.plan(None, StateOp::Delete, 0, StoreFault::AnswerLost { done: true });
    assert!(matches!(states.delete(write(2, 1)).await, Err(StateWriteError::Unknown(_))));
    inner.upsert(write(3, 2), value(), None).await.unwrap();
    assert!(matches!(states.delete(write(2, 1)).await, Err(StateWriteError::Unknown(_))));
    // Not stored, answer lost, then another writer made that very revision: ours is not stored.
    faulty.plan(None, StateOp::Upsert, 0, StoreFault::AnswerLost { done: false });
    assert!(matches!(states.upsert(write(4, 1), value(), None).await, Err(StateWriteError::Unknown(_))));
    inner.upsert(write(4, 2), value(), None).await.unwrap();
    let answer = states.upsert(write(4, 1), value(), None).await;
    assert!(matches!(answer, Err(StateWriteError::RevisionMismatch { .. })), "{answer:?}");
    assert_eq!(states.write_breaker(), BreakerMode::Closed);
}

/// Snapshot stores have other settings; offset stores fail as unavailable.
#[tokio::test(start_paused = true)]
async fn snapshots_and_offsets_have_their_breakers_too() {
    let faulty = Arc::new(FaultySnapshots::new(Arc::new(InMemorySnapshots::default())));
    let snapshots = Guarded::new(faulty.clone(), "snapshots", BreakerSettings::snapshots()).unwrap();
    (0..5).for_each(|_| faulty.plan(Some(id()), SnapshotOp::Load, 0, StoreFault::Hang { done: false }));
    let begun = tokio::time::Instant::now();
    for _ in 0..6 {
        let answer = snapshots.load(&id(), SnapshotCriteria::LATEST).await;
        assert!(matches!(answer, Err(SnapshotError::Unavailable(_))), "{answer:?}");
    }
    assert_eq!(begun.elapsed().as_secs(), 100, "five calls of 20 s, and the sixth at once");
    assert!(matches!(snapshots.read_breaker(), BreakerMode::Open { left, .. } if left.as_millis() == 100));
    assert_eq!(snapshots.write_breaker(), BreakerMode::Closed);

    let faulty = Arc::new(FaultyOffsets::new(Arc::new(InMemoryOffsets::default())));
    let offsets = Guarded::new(faulty.clone(), "offsets", BreakerSettings::default()).unwrap();
    let owned = offsets.claim("totals", 0..=3).await.unwrap();
    (0..10).for_each(|_| faulty.plan(None, OffsetOp::Save, 0, StoreFault::Unavailable));
    for _ in 0..11 {
        assert!(matches!(offsets.save(&owned, &[]).await, Err(OffsetError::Unavailable(_))));
    }
    assert!(matches!(offsets.write_breaker(), BreakerMode::Open { .. }));
    assert_eq!(offsets.load("totals", 0..=3).await, Ok(vec![]));
}
