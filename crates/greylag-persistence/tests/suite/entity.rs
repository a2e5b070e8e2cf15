//! The entity machine beyond its transcripts: every phase with every input, long stashes, the
//! test kit, and the machine as a task.

use crate::support::counter;

use std::num::NonZeroUsize;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::support::counter::Counter;
use crate::support::log::Log;
use crate::support::panics::quiet;
use futures::FutureExt;
use greylag_core::CodecId;
use greylag_persistence::driver::{self, Ended};
use greylag_persistence::{
    Action, Append, AppendError, AppendFault, Caps, Claim, ClaimError, Ctx, Effect, EntityCore, EntityInit,
    EntityTestKit, EventCodecs, EventKind, EventSourced, EventSourcedSettings, Failure, FaultyJournal, Head,
    InMemoryJournal, Incarnation, Input, Journal, JournalOp, NewEvent, OnFailure, OnUnknownEvent, Page, Persisted,
    PersistenceId, PhaseName, ReadError, RecoveryFailure, RecoveryPermits, ReplayFilterMode, ReplayFilterSettings,
    Scope, SeqNr, SettingsError, Signal, SnapshotCaps, SnapshotCriteria, SnapshotError, StashOverflow, StoreAnswer,
    StoreCall, StoreFailure, StoreFault, StoreProbe, StoredEvent, Stores, Timestamp, WriterEpoch, WriterUuid,
};

fn init(start: u64) -> EntityInit {
    let (caps, snapshot_caps) = (Caps::full(Scope::Process), SnapshotCaps::full(Scope::Process));
    EntityInit {
        generation: None,
        start,
        seed: [7; 32],
        caps,
        snapshot_caps,
        settings: EventSourcedSettings::default(),
        host: None,
    }
}

/// A machine over stores in memory, whose calls are answered one by one.
struct Steps {
    core: EntityCore<Counter>,
    now: Instant,
    stores: Stores,
    out: Vec<Action<String>>,
    log: Log,
}

impl Steps {
    fn new(settings: EventSourcedSettings) -> Self {
        let (now, mut out, log) = (Instant::now(), Vec::new(), Log::default());
        let core = EntityCore::start(Counter::new("Counter|1", settings, log.clone()).stored(), init(1), now, &mut out);
        Self { core: core.unwrap(), now, stores: Stores::in_memory(), out, log }
    }

    fn input(&mut self, input: Input<String>) {
        self.core.handle(self.now, input, &mut self.out);
    }

    /// Answers the machine's actions, until it is in `phase` or has none left.
    fn until(mut self, phase: PhaseName) -> Self {
        while self.core.phase() != phase && !self.out.is_empty() {
            for action in std::mem::take(&mut self.out) {
                match action {
                    Action::RequestPermit(incarnation) => self.input(Input::PermitGranted(incarnation)),
                    Action::Store { incarnation, call } => {
                        let answer = call.perform(&self.stores).now_or_never().unwrap();
                        self.input(Input::Answer { incarnation, answer });
                    }
                    _ => {}
                }
            }
        }
        assert_eq!(self.core.phase(), phase);
        self
    }
}

fn failure() -> StoreFailure {
    StoreFailure::new("store", "away")
}

/// A machine in each of the nine phases.
fn in_phase(phase: PhaseName) -> Steps {
    let new = || Steps::new(EventSourcedSettings::default());
    let command = |steps: &mut Steps, text: &str| steps.input(Input::Command(text.to_owned()));
    match phase {
        PhaseName::Replaying => {
            let mut steps = new().until(PhaseName::Running);
            command(&mut steps, "add 1");
            let Some(Action::Store { call: call @ StoreCall::Append(_), .. }) = steps.out.pop() else {
                panic!("appends")
            };
            call.perform(&steps.stores).now_or_never().unwrap();
            let again = new();
            Steps { stores: steps.stores, ..again }.until(PhaseName::Replaying)
        }
        PhaseName::Persisting => {
            let mut steps = new().until(PhaseName::Running);
            command(&mut steps, "add 1");
            steps
        }
        PhaseName::BackingOff => {
            let mut steps = in_phase(PhaseName::Persisting);
            let answer = StoreAnswer::Appended(Err(AppendError::Unknown(failure())));
            steps.input(Input::Answer { incarnation: steps.core.incarnation(), answer });
            steps
        }
        PhaseName::Failed => {
            let mut steps = new().until(PhaseName::Running);
            command(&mut steps, "panic");
            steps
        }
        PhaseName::Stopped => {
            let mut steps = new().until(PhaseName::Running);
            steps.input(Input::StopNow);
            steps
        }
        phase => new().until(phase),
    }
}

fn inputs(incarnation: Incarnation) -> Vec<Input<String>> {
    let answers = [
        StoreAnswer::Head(Ok(Head::default())),
        StoreAnswer::Head(Err(ReadError::Unavailable(failure()))),
        StoreAnswer::Claimed(Ok(Claim { epoch: WriterEpoch::NONE, highest: SeqNr::ZERO, deleted_to: SeqNr::ZERO })),
        StoreAnswer::Claimed(Err(ClaimError::Unavailable(failure()))),
        StoreAnswer::Advanced(Ok(())),
        StoreAnswer::Snapshot(Ok(None)),
        StoreAnswer::Snapshot(Err(SnapshotError::Unavailable(failure()))),
        StoreAnswer::Page(Ok(Page::default())),
        StoreAnswer::Page(Err(ReadError::Unavailable(failure()))),
        StoreAnswer::Appended(Ok(greylag_persistence::Appended { timestamp: Timestamp::default() })),
        StoreAnswer::Appended(Err(AppendError::NotStored(failure()))),
        StoreAnswer::Appended(Err(AppendError::Conflict { highest: SeqNr::FIRST })),
        StoreAnswer::SnapshotSaved(SeqNr::FIRST, Ok(Timestamp::default())),
        StoreAnswer::EventsDeleted(SeqNr::FIRST, greylag_persistence::DeletedBy::Retention, Ok(SeqNr::FIRST)),
        StoreAnswer::SnapshotsDeleted(SnapshotCriteria::LATEST, Ok(())),
    ];
    let mut inputs: Vec<_> = answers.into_iter().map(|answer| Input::Answer { incarnation, answer }).collect();
    inputs.extend(["none", "add 5", "stash", "panic"].map(|text| Input::Command(text.to_owned())));
    inputs.extend([Input::PermitGranted(incarnation), Input::Tick, Input::StoreBack, Input::Stop, Input::StopNow]);
    inputs
}

const PHASES: [PhaseName; 9] = [
    PhaseName::AwaitingPermit,
    PhaseName::Claiming,
    PhaseName::LoadingSnapshot,
    PhaseName::Replaying,
    PhaseName::Running,
    PhaseName::Persisting,
    PhaseName::BackingOff,
    PhaseName::Failed,
    PhaseName::Stopped,
];

#[test]
fn every_phase_takes_every_input_and_can_still_be_stopped() {
    quiet();
    for phase in PHASES {
        let count = inputs(in_phase(phase).core.incarnation()).len();
        for at in 0..count {
            let mut steps = in_phase(phase);
            assert_eq!(steps.core.phase(), phase);
            let input = inputs(steps.core.incarnation()).swap_remove(at);
            let shown = format!("{phase:?} and {input:?}");
            steps.input(input);
            steps.input(Input::StopNow);
            assert_eq!(steps.core.phase(), PhaseName::Stopped, "{shown}");
            assert_eq!(steps.core.next_deadline(), None, "{shown}");
            // Every requested permit is returned, or no longer requested.
            let asked = steps.out.iter().filter(|action| matches!(action, Action::RequestPermit(_))).count();
            let returned = steps.out.iter().filter(|action| matches!(action, Action::ReturnPermit(_))).count();
            assert!(returned >= asked, "{shown}: {asked} asked, {returned} returned");
        }
    }
}

#[test]
fn answers_of_another_incarnation_change_nothing() {
    quiet();
    for phase in PHASES {
        let steps = in_phase(phase);
        let other = Incarnation { start: 1, restart: 99 };
        let answers = inputs(other).into_iter().filter(|input| matches!(input, Input::Answer { .. }));
        let mut steps = Steps { out: Vec::new(), ..steps };
        for answer in answers {
            steps.input(answer);
        }
        assert_eq!((steps.core.phase(), steps.out), (phase, vec![]));
    }
}

/// Record `number` of writer `writer`, whose event adds `writer * 100 + number`.
fn record(writer: u32, number: u32) -> StoredEvent {
    let event = NewEvent {
        codec_id: CodecId::JSON,
        manifest: "counter.event".into(),
        schema_version: 1,
        kind: EventKind::Event,
        payload: format!("\"{}\"", writer * 100 + number).into(),
        metadata: Default::default(),
        tags: Default::default(),
    };
    let (id, epoch) = ("Counter|1".parse().unwrap(), WriterEpoch::NONE);
    let writer_uuid = WriterUuid::from_u128(writer.into());
    let append = Append { id, epoch, writer_uuid, first: SeqNr::from(number), events: vec![event] };
    append.records(Timestamp::default()).remove(0)
}

type Records<'a> = &'a [(u32, u32)];

/// A machine with this replay filter that got the pages of a history whose highest number is `highest`.
fn replayed(mode: Option<ReplayFilterMode>, highest: u32, pages: &[(Records<'_>, Option<u32>)]) -> Steps {
    let replay_filter = ReplayFilterSettings { mode, ..ReplayFilterSettings::default() };
    let mut steps = Steps::new(EventSourcedSettings { replay_filter, ..EventSourcedSettings::default() });
    let claim = Claim { epoch: WriterEpoch::from_u64(1), highest: SeqNr::from(highest), deleted_to: SeqNr::ZERO };
    let incarnation = steps.core.incarnation();
    steps.input(Input::PermitGranted(incarnation));
    for answer in
        [StoreAnswer::Head(Ok(Head::default())), StoreAnswer::Claimed(Ok(claim)), StoreAnswer::Snapshot(Ok(None))]
    {
        steps.input(Input::Answer { incarnation, answer });
    }
    for (records, next) in pages {
        let records = records.iter().map(|(writer, number)| record(*writer, *number)).collect();
        let page = Page { records, next: next.map(SeqNr::from) };
        steps.input(Input::Answer { incarnation, answer: StoreAnswer::Page(Ok(page)) });
    }
    steps
}

/// Scenario persistence 50 in the machine: the window survives the ends of pages, and the check that
/// numbers are contiguous comes after the filter.
#[test]
fn scenario_50_overlapping_writers_are_repaired_across_pages() {
    // Writer 1 wrote 1 to 3, writer 2 began at 3, and writer 1 went on.
    let pages: [(Records<'_>, _); 2] = [(&[(1, 1), (1, 2), (1, 3)], Some(4)), (&[(2, 3), (1, 4), (2, 4)], None)];
    let run = |mode| replayed(mode, 4, &pages);
    let repaired = run(Some(ReplayFilterMode::RepairByDiscardOld));
    assert_eq!(repaired.core.state().map(|state| state.sum), Some(101 + 102 + 203 + 204));
    assert_eq!(repaired.core.seq_nr(), SeqNr::from(4));
    // The journal of the test fences, so the default is to fail; in other modes the check for contiguous numbers fails.
    let failed = |mode| match run(mode).out.into_iter().find(|action| matches!(action, Action::Restarting(_))) {
        Some(Action::Restarting(Failure::Recovery(failure))) => failure,
        _ => panic!("recovery fails"),
    };
    assert!(matches!(failed(None), RecoveryFailure::Overlap(overlap) if overlap.seq_nr == SeqNr::from(3)));
    for mode in [ReplayFilterMode::Warn, ReplayFilterMode::Off] {
        assert!(matches!(failed(Some(mode)), RecoveryFailure::CorruptHistory { .. }));
    }
}

/// Scenario persistence 50, §2.5.5: the final number is the journal's highest even if the last records were dropped;
/// and a dropped number is no gap, at the end of a history or in its middle.
#[test]
fn scenario_50_an_old_writers_last_record_does_not_make_a_history_unreadable() {
    let repair = Some(ReplayFilterMode::RepairByDiscardOld);
    let pages: [(Records<'_>, _); 2] =
        [(&[(1, 1), (1, 2), (1, 3)], Some(4)), (&[(2, 3), (1, 4), (2, 4), (1, 5)], None)];
    let mut steps = replayed(repair, 5, &pages);
    let sum = |steps: &Steps| steps.core.state().map(|state| state.sum);
    assert_eq!((sum(&steps), steps.core.seq_nr()), (Some(101 + 102 + 203 + 204), SeqNr::from(5)));
    steps.input(Input::Command("add 306".into()));
    let Some(Action::Store { call: StoreCall::Append(append), .. }) = steps.out.last() else { panic!("it appends") };
    assert_eq!(append.first, SeqNr::from(6), "a number is never used twice");
    // The next replay reads an event appended after the dropped number.
    let later: [(Records<'_>, _); 2] =
        [(&[(1, 1), (1, 2), (1, 3)], Some(4)), (&[(2, 3), (1, 4), (2, 4), (1, 5), (3, 6)], None)];
    let steps = replayed(repair, 6, &later);
    assert_eq!((sum(&steps), steps.core.seq_nr()), (Some(101 + 102 + 203 + 204 + 306), SeqNr::from(6)));
    // A missing number without a dropped record is a gap even so.
    let hole: [(Records<'_>, _); 1] = [(&[(1, 1), (1, 2), (1, 3), (2, 3), (1, 4), (2, 5)], None)];
    let steps = replayed(repair, 6, &hole);
    assert_eq!(sum(&steps), None);
    let corrupt = RecoveryFailure::CorruptHistory { expected: SeqNr::from(6), got: None };
    assert!(steps.out.contains(&Action::Restarting(Failure::Recovery(corrupt))), "{:?}", steps.out);
}

/// Whatever pages a journal returns, a state is never built over a gap, a repeat or a missing end.
#[test]
fn a_history_that_is_not_contiguous_is_no_state() {
    let page = |numbers: &[u32], next: Option<u32>| Page {
        records: numbers.iter().map(|number| record(1, *number)).collect(),
        next: next.map(SeqNr::from),
    };
    let corrupt = |expected: u32, got: Option<u32>| {
        let (expected, got) = (SeqNr::from(expected), got.map(SeqNr::from));
        Action::Restarting(Failure::Recovery(RecoveryFailure::CorruptHistory { expected, got }))
    };
    for (what, page, verdict) in [
        ("a hole at the beginning", page(&[2], None), corrupt(1, Some(2))),
        ("a record below", page(&[0], None), corrupt(1, Some(0))),
        ("no record, and no more", page(&[], None), corrupt(1, None)),
        ("no record, and back", page(&[], Some(0)), corrupt(1, None)),
    ] {
        let mut steps = in_phase(PhaseName::Replaying);
        let answer = StoreAnswer::Page(Ok(page));
        steps.input(Input::Answer { incarnation: steps.core.incarnation(), answer });
        assert!(steps.out.contains(&verdict), "{what}: {:?}", steps.out);
        assert_eq!(steps.core.phase(), PhaseName::BackingOff, "{what}");
    }
}

/// Scenario persistence 45, §2.5: a page without records neither ends a replay nor proves that numbers are unused:
/// replay reads on at the page's `next` with a new deadline; numbers that the page skipped are missing unless they were
/// deleted, and a replay begins after deleted numbers.
#[test]
fn scenario_45_an_empty_page_leads_on_and_what_it_leads_past_is_missed() {
    let asked = |steps: &Steps| match steps.out.last() {
        Some(Action::Store { call: StoreCall::ReadPage { range, .. }, .. }) => range.from,
        other => panic!("{other:?}"),
    };
    let mut steps = replayed(None, 5, &[(&[(1, 1)], Some(2))]);
    let timeout = steps.core.next_deadline().unwrap() - steps.now;
    steps.now += timeout / 2;
    let page = |steps: &mut Steps, records: Records<'_>, next: Option<u32>| {
        let records = records.iter().map(|(writer, number)| record(*writer, *number)).collect();
        let answer = StoreAnswer::Page(Ok(Page { records, next: next.map(SeqNr::from) }));
        steps.input(Input::Answer { incarnation: steps.core.incarnation(), answer });
    };
    page(&mut steps, &[], Some(4));
    assert_eq!(asked(&steps), SeqNr::from(4));
    assert_eq!(steps.core.next_deadline(), Some(steps.now + timeout), "its time begins anew");
    page(&mut steps, &[(1, 4), (1, 5)], None);
    let corrupt = RecoveryFailure::CorruptHistory { expected: SeqNr::from(2), got: Some(SeqNr::from(4)) };
    assert!(steps.out.contains(&Action::Restarting(Failure::Recovery(corrupt))), "{:?}", steps.out);
}

/// Scenario persistence 21.
#[test]
fn a_hundred_thousand_stashed_commands_neither_recurse_nor_hog_the_executor() {
    let capacity = NonZeroUsize::new(100_000).unwrap();
    let settings = EventSourcedSettings { stash_capacity: capacity, ..EventSourcedSettings::default() };
    let mut steps = Steps::new(settings).until(PhaseName::Running);
    steps.input(Input::Command("add 1".into()));
    for _ in 0..100_000 {
        steps.input(Input::Command("none".into()));
    }
    assert_eq!(steps.core.waiting_count(), 100_000);
    let mut steps = steps.until(PhaseName::Running);
    let mut turns = 1; // the turn of the last answer
    while steps.core.next_deadline().is_some_and(|deadline| deadline <= steps.now) {
        let before = steps.core.waiting_count();
        steps.input(Input::Tick);
        assert!(before - steps.core.waiting_count() <= 64);
        turns += 1;
    }
    assert_eq!((steps.core.waiting_count(), turns), (0, 100_000_usize.div_ceil(64)));
    assert_eq!(steps.log.take().iter().filter(|line| line.contains("handle \"none\"")).count(), 100_000);
}

/// Scenario persistence 22: a stop that comes while an unstash-all runs, over several turns, waits for it.
#[test]
fn scenario_22_a_stop_during_an_unstash_all_waits_for_it() {
    let unstash_budget = NonZeroUsize::new(2).unwrap();
    let settings = EventSourcedSettings { unstash_budget, ..EventSourcedSettings::default() };
    let mut steps = Steps::new(settings).until(PhaseName::Running);
    for command in ["stash", "stash", "stash", "stash", "stash", "none | unstash"] {
        steps.input(Input::Command(command.into()));
    }
    let handled = |steps: &Steps| steps.log.take().iter().filter(|line| line.contains("run with")).count();
    let before = handled(&steps);
    steps.input(Input::Stop);
    assert_eq!(steps.core.phase(), PhaseName::Running);
    let mut after = handled(&steps);
    assert!(before < 5 && before + after < 5, "the stop comes in between: {before} + {after}");
    while steps.core.phase() == PhaseName::Running {
        assert!(steps.core.next_deadline().is_some_and(|deadline| deadline <= steps.now), "it goes on at once");
        steps.input(Input::Tick);
        after += handled(&steps);
    }
    assert_eq!(before + after, 5);
    assert_eq!(steps.out.last(), Some(&Action::Stopped));
}

// ---- Test kit (scenario persistence 55) -----------------------------------------------------------

fn kit(settings: EventSourcedSettings) -> EntityTestKit<Counter> {
    EntityTestKit::new(Instant::now(), move || Counter::new("Counter|1", settings.clone(), Log::default()).stored())
}

#[test]
fn the_test_kit_tells_what_a_command_did() {
    let mut kit = kit(EventSourcedSettings::test());
    let outcome = kit.run("add 1 2 | passivate".into());
    assert_eq!(outcome.events, ["1", "2"]);
    assert!(outcome.passivate && !outcome.stopped && !outcome.unhandled && outcome.failure.is_none());
    assert!(kit.run("unhandled".into()).unhandled);
    assert_eq!(kit.state().unwrap().sum, 3);
    kit.restart();
    assert_eq!(kit.state().unwrap().sum, 3);
    kit.initialize(&["5".into(), "6".into()]);
    assert_eq!((kit.state().unwrap().sum, kit.core().seq_nr()), (11, SeqNr::from(2)));
    kit.initialize_state(&counter::Count { sum: 40, active: true }, SeqNr::from(9));
    assert_eq!(kit.run("add 2".into()).events, ["2"]);
    assert_eq!((kit.state().unwrap().sum, kit.core().seq_nr()), (42, SeqNr::from(10)));
    kit.initialize_with(&counter::Count { sum: 40, active: true }, SeqNr::from(9), &["5".into(), "6".into()]);
    assert_eq!((kit.state().unwrap().sum, kit.core().seq_nr()), (51, SeqNr::from(11)));
    assert_eq!(kit.run("active? 2".into()).events, ["2"], "active, as the state was");
    kit.restart();
    assert_eq!((kit.state().unwrap().sum, kit.core().seq_nr()), (53, SeqNr::from(12)));
    kit.clear();
    assert_eq!((kit.state().unwrap().sum, kit.core().seq_nr()), (0, SeqNr::ZERO));
    assert!(kit.run("add 1 | stop".into()).stopped);
}

#[test]
fn a_failing_store_is_reported_and_the_kit_continues() {
    let mut kit = kit(EventSourcedSettings::test());
    let id = kit.core().persistence_id().clone();
    kit.journal().script_append(&id, [AppendFault::Unavailable]);
    let outcome = kit.run("add 1".into());
    assert!(matches!(outcome.failure, Some(Failure::Persist(AppendError::NotStored(_)))));
    assert_eq!((outcome.events.len(), kit.state().unwrap().sum), (0, 0));
    // Scenario persistence 61: stored, but the answer is lost; then the disk is full. Recovery finds the event once.
    kit.journal().script_append(&id, [AppendFault::LoseAnswer { stored: true }, AppendFault::StorageLow]);
    kit.run("add 5".into());
    assert_eq!((kit.state().unwrap().sum, kit.core().seq_nr()), (5, SeqNr::FIRST));
    assert_eq!(kit.run("add 1".into()).events, ["1"]);
}

/// A behaviour whose handler adds a global count, so that a replay gives another state.
mod impure {
    use super::*;
    use greylag_codec::json;
    use greylag_persistence::{Ctx, Effect, EventMeta, EventSourced};
    use std::sync::atomic::{AtomicU64, Ordering};

    pub(super) struct Impure(pub(super) Arc<AtomicU64>);

    impl EventSourced for Impure {
        type Command = ();
        type Event = ();
        type State = u64;

        fn on_command(&mut self, _: &mut Ctx<'_, Self::Command>, _: &u64, (): ()) -> Effect<Self> {
            Effect::persist(())
        }

        fn apply(_: &mut u64, (): &()) {
            unreachable!("what it adds is no function of its events")
        }

        fn apply_with(&self, state: &mut u64, (): &(), _: &EventMeta<'_>) {
            *state += self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Impure {
        /// The entity with its id and its codecs.
        pub(super) fn stored(self) -> Persisted<Self, EventCodecs<Self>> {
            let id = "Impure|1".parse().unwrap();
            EventCodecs::new(json("impure.event")).snapshots(json("impure.state")).of(id, self)
        }
    }
}

#[test]
#[should_panic(expected = "replay must give the live state")]
fn the_test_kit_finds_a_handler_that_is_no_function_of_its_events() {
    let count = Arc::default();
    EntityTestKit::new(Instant::now(), move || impure::Impure(Arc::clone(&count)).stored()).run(());
}

// ---- As a task ------------------------------------------------------------------------------------

#[tokio::test]
async fn an_entity_runs_as_a_task_until_its_handles_are_gone() {
    let (stores, log) = (Stores::in_memory(), Log::default());
    let counter = || Counter::new("Counter|1", EventSourcedSettings::test(), log.clone());
    let (handle, end) = driver::spawn(counter().stored(), stores.clone(), RecoveryPermits::new(1)).unwrap();
    handle.tell("add 1 | reply".into()).await.unwrap();
    handle.tell("add 2 | reply".into()).await.unwrap();
    drop(handle);
    assert_eq!(end.await, Ok(Ended::Stopped));
    let (handle, end) = driver::spawn(counter().stored(), stores, RecoveryPermits::new(1)).unwrap();
    handle.tell("add 3 | reply".into()).await.unwrap();
    handle.stop().await;
    assert_eq!(end.await, Ok(Ended::Stopped));
    assert!(handle.tell("add 3".into()).await.is_err());
    let replies: Vec<_> = log.take().into_iter().filter(|line| line.contains("reply")).collect();
    assert_eq!(replies, ["  reply to 1: 1", "  reply to 2: 3", "  reply to 1: 6"]);
}

#[tokio::test]
async fn a_task_that_was_superseded_ends_fenced() {
    let stores = Stores::in_memory();
    let counter = || Counter::new("Counter|1", EventSourcedSettings::test(), Log::default());
    let (old, old_end) = driver::spawn(counter().stored(), stores.clone(), RecoveryPermits::default()).unwrap();
    old.tell("add 1".into()).await.unwrap();
    while stores.journal.head(&"Counter|1".parse().unwrap()).await.unwrap().highest.is_zero() {
        tokio::task::yield_now().await;
    }
    let (new, new_end) = driver::spawn(counter().stored(), stores.clone(), RecoveryPermits::default()).unwrap();
    new.tell("add 2 | stop".into()).await.unwrap();
    assert_eq!(new_end.await, Ok(Ended::Stopped));
    old.tell("add 4".into()).await.unwrap();
    assert!(matches!(old_end.await, Ok(Ended::Fenced(_))));
}

/// Scenario persistence 15: increments, activations, updates and unhandled commands, 300 of them. Stashed
/// commands come right after the activation that unstashes them, in their order; none is lost or repeated.
#[test]
fn scenario_15_a_mix_of_commands_keeps_its_order() {
    let log = Log::default();
    let capacity = NonZeroUsize::new(400).unwrap();
    let settings = EventSourcedSettings { stash_capacity: capacity, ..EventSourcedSettings::default() };
    let kept = log.clone();
    let mut kit =
        EntityTestKit::new(Instant::now(), move || Counter::new("Counter|1", settings.clone(), kept.clone()).stored());
    let (mut expected, mut waiting, mut unhandled, mut active) = (Vec::new(), Vec::new(), 0, false);
    for number in 0..300 {
        let command = match number % 7 {
            0 if number == 210 => "activate 1000 | unstash".to_owned(),
            3 => "unhandled".to_owned(),
            5 => format!("add {}", 2 * number),
            _ => format!("active? {number}"),
        };
        unhandled += u32::from(kit.run(command.clone()).unhandled);
        if command.starts_with("activate") {
            active = true;
            expected.push("1000".to_owned());
            expected.append(&mut waiting);
        } else if let Some(number) = command.strip_prefix("active? ") {
            if active { &mut expected } else { &mut waiting }.push(number.to_owned());
        } else if let Some(number) = command.strip_prefix("add ") {
            expected.push(number.to_owned());
        }
    }
    let stored = kit.journal().events(&"Counter|1".parse().unwrap());
    let stored: Vec<String> =
        stored.iter().map(|record| String::from_utf8_lossy(&record.payload).replace('"', "")).collect();
    expected.insert(expected.iter().position(|number| number == "1000").unwrap(), "on".to_owned());
    assert_eq!(stored, expected);
    assert_eq!((unhandled, waiting.len(), kit.core().waiting_count()), (43, 0, 0));
}

/// Schema evolution: skipped events are counted, anew at each replay.
#[test]
fn skipped_events_are_counted() {
    let on_unknown_event = OnUnknownEvent::Skip;
    let settings = EventSourcedSettings { on_unknown_event, ..EventSourcedSettings::default() };
    let log = Log::default();
    let mut kit =
        EntityTestKit::new(Instant::now(), move || Counter::new("Counter|1", settings.clone(), log.clone()).stored());
    kit.run("add 1".to_owned());
    assert_eq!(kit.core().skipped_events(), 0);
    let id: PersistenceId = "Counter|1".parse().unwrap();
    let head = kit.journal().head(&id).now_or_never().unwrap().unwrap();
    let future = NewEvent {
        codec_id: CodecId::JSON,
        manifest: "counter.future".into(),
        schema_version: 1,
        kind: EventKind::Event,
        payload: "{}".into(),
        metadata: Default::default(),
        tags: Default::default(),
    };
    let events = vec![future.clone(), future];
    let (epoch, writer_uuid, first) = (head.epoch, head.writer_uuid, SeqNr::from(2));
    kit.journal().append(Append { id, epoch, writer_uuid, first, events }).now_or_never().unwrap().unwrap();
    for _ in 0..2 {
        kit.restart();
        assert_eq!((kit.core().skipped_events(), kit.core().seq_nr()), (2, SeqNr::from(3)));
        assert_eq!(kit.state().map(|state| state.sum), Some(1));
    }
}

/// Scenario persistence 49: a hundred entities recover three at a time over a slow journal, and
/// unrelated work goes on between any two of the steps.
#[tokio::test(start_paused = true)]
async fn scenario_49_many_recoveries_starve_no_entity() {
    let permits = RecoveryPermits::new(3);
    let journal = Arc::new(FaultyJournal::new(Arc::new(InMemoryJournal::default())));
    // The first three never get an answer to their first claim and keep their permits until it times out.
    (0..3).for_each(|_| journal.plan(None, JournalOp::Claim, 0, StoreFault::Hang { done: false }));
    let stores = Stores::new(journal, Arc::new(greylag_persistence::InMemorySnapshots::default()));
    let mut ends = Vec::new();
    for number in 0..100 {
        let counter = Counter::new(&format!("Counter|{number}"), EventSourcedSettings::test(), Log::default());
        let (handle, end) = driver::spawn(counter.stored(), stores.clone(), permits.clone()).unwrap();
        handle.tell("add 1 | stop".into()).await.unwrap();
        ends.push((handle, end));
    }
    // Unrelated work on the same thread finishes while a hanging journal holds every permit.
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(permits.available(), 0);
    let begun = tokio::time::Instant::now();
    for (_handle, end) in ends {
        assert_eq!(end.await, Ok(Ended::Stopped));
    }
    // Three entities waited for the time-out of one claim, all others only for a permit.
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert_eq!(permits.available(), 3);
}

/// An entity whose first handler blocks its thread until the gate opens.
struct Blocker(usize, Arc<Gate>);

#[derive(Default)]
struct Gate {
    /// Number of handlers that block now, the greatest number so far, and whether they may go on.
    blocked: Mutex<(usize, usize, bool)>,
    opened: Condvar,
}

impl Gate {
    fn block(&self) {
        let mut blocked = self.blocked.lock().unwrap();
        blocked.0 += 1;
        blocked.1 = blocked.1.max(blocked.0);
        blocked = self.opened.wait_while(blocked, |blocked| !blocked.2).unwrap();
        blocked.0 -= 1;
    }

    fn open(&self) {
        self.blocked.lock().unwrap().2 = true;
        self.opened.notify_all();
    }

    fn blocked_now(&self) -> usize {
        self.blocked.lock().unwrap().0
    }
}

impl EventSourced for Blocker {
    type Command = ();
    type Event = String;
    type State = ();

    fn on_command(&mut self, _: &mut Ctx<'_, ()>, (): &(), (): ()) -> Effect<Self> {
        Effect::stop()
    }

    fn apply((): &mut (), _: &String) {}

    fn on_signal(&mut self, _: &mut Ctx<'_, ()>, (): &(), signal: &Signal) {
        if matches!(signal, Signal::RecoveryCompleted) {
            self.1.block();
        }
    }
}

impl Blocker {
    /// The entity with its id and its codecs.
    fn stored(self) -> Persisted<Self, EventCodecs<Self>> {
        let id = PersistenceId::of("Blocker", &self.0.to_string()).unwrap();
        EventCodecs::new(greylag_codec::json("blocker.event")).of(id, self)
    }
}

/// Scenario persistence 49: blocking handlers of recovering entities take as many threads as there are permits; on the
/// others unrelated work goes on, and ends before any of those handlers does. The test's thread does not belong to the
/// runtime and waits by its own clock, since the runtime's clock stands still once handlers block all its threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn scenario_49_handlers_that_block_take_no_more_threads_than_there_are_permits() {
    let (gate, permits, stores) = (Arc::new(Gate::default()), RecoveryPermits::new(3), Stores::in_memory());
    let mut entities = Vec::new();
    for number in 0..100 {
        let blocker = Blocker(number, gate.clone());
        let (handle, end) = driver::spawn(blocker.stored(), stores.clone(), permits.clone()).unwrap();
        handle.tell(()).await.unwrap();
        entities.push((handle, end));
    }
    const PATIENCE: Duration = Duration::from_secs(30);
    let began = Instant::now();
    while gate.blocked_now() < 3 && began.elapsed() < PATIENCE {
        tokio::task::yield_now().await;
    }
    let (done, is_done) = std::sync::mpsc::channel();
    tokio::spawn(async move {
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        done.send(()).unwrap();
    });
    let done = is_done.recv_timeout(PATIENCE);
    let (now, at_a_time, _) = *gate.blocked.lock().unwrap();
    gate.open();
    assert_eq!((done, now), (Ok(()), 3), "{at_a_time} handlers blocked at a time");
    for (_handle, end) in entities {
        let end = tokio::time::timeout(PATIENCE, end).await.expect("a permit comes back from each");
        assert_eq!(end, Ok(Ended::Stopped));
    }
    let (_, at_a_time, _) = *gate.blocked.lock().unwrap();
    assert_eq!((at_a_time, permits.available()), (3, 3));
}

/// Persistence §4.6: a test sees the events of entities that run as tasks, and makes their stores fail.
#[tokio::test(start_paused = true)]
async fn a_probe_sees_what_is_persisted_and_makes_stores_fail() {
    let id: PersistenceId = "Counter|1".parse().unwrap();
    let counter = |log: &Log| Counter::new("Counter|1", EventSourcedSettings::test(), log.clone());
    let log = Log::default();
    let mut probe = StoreProbe::new(counter::event_codec());
    probe.persist_for_recovery(&id, &["40".to_owned()]);
    let (handle, _end) = driver::spawn(counter(&log).stored(), probe.stores(), RecoveryPermits::default()).unwrap();
    handle.tell("add 2 | reply".into()).await.unwrap();
    probe.expect_next(&id, &"2".to_owned()).await;
    probe.expect_nothing(&id, Duration::from_secs(1)).await;
    probe.reject_next(Some(&id), 1);
    probe.fail_next(None, 1, StoreFault::Unavailable);
    for number in ["3", "4", "5"] {
        handle.tell(format!("add {number} | reply")).await.unwrap();
    }
    probe.expect_next(&id, &"5".to_owned()).await;
    assert_eq!(probe.persisted(&id), ["40", "2", "5"]);
    let replies: Vec<_> = log.take().into_iter().filter(|line| line.contains("reply")).collect();
    assert!(
        replies[0].ends_with(": 42") && replies[1].contains("rejected") && replies[2].contains("unavailable"),
        "{replies:?}"
    );
    probe.clear(true);
    handle.tell("add 6".into()).await.unwrap();
    probe.expect_next(&id, &"6".to_owned()).await;
    assert_eq!(probe.journal().events(&id)[0].seq_nr, SeqNr::from(4));
    probe.clear(false);
    assert_eq!(probe.persisted(&id), Vec::<String>::new());
}

/// Scenario persistence 48.
#[tokio::test]
async fn permits_are_few_and_never_leak() {
    let permits = RecoveryPermits::new(3);
    let held: Vec<_> = futures::future::join_all((0..3).map(|_| permits.acquire())).await;
    assert!(permits.acquire().now_or_never().is_none(), "the fourth waits");
    drop(held);
    let stores = Stores::in_memory();
    let mut ends = Vec::new();
    for number in 0..5 {
        let mut counter = Counter::new(&format!("Counter|{number}"), EventSourcedSettings::test(), Log::default());
        counter.panics_on = (number == 4).then_some("RecoveryCompleted");
        let (handle, end) = driver::spawn(counter.stored(), stores.clone(), permits.clone()).unwrap();
        handle.tell(if number == 3 { "panic".into() } else { "add 1".into() }).await.unwrap();
        drop(handle);
        ends.push(end);
    }
    for end in ends {
        tokio::time::timeout(Duration::from_secs(30), end).await.unwrap().unwrap();
    }
    assert_eq!(permits.available(), 3);
}

#[test]
fn a_full_stash_that_fails_the_entity_leaves_nothing_unanswered() {
    let capacity = NonZeroUsize::new(1).unwrap();
    let settings = EventSourcedSettings {
        stash_capacity: capacity,
        stash_overflow: StashOverflow::Fail,
        ..EventSourcedSettings::default()
    };
    let mut steps = Steps::new(settings).until(PhaseName::Claiming);
    steps.input(Input::Command("none".into()));
    steps.input(Input::Command("none".into()));
    assert_eq!(steps.core.phase(), PhaseName::Failed);
    assert!(steps.out.contains(&Action::Failed(Failure::StashFull)));
    assert_eq!(steps.core.waiting_count(), 1);
}

/// Scenario persistence 23, §2.6: an entity whose recovery fails at the first call of its journal, and that is not
/// started again, gets a signal with the reason, and then one of its end.
#[tokio::test(start_paused = true)]
async fn scenario_23_a_failed_recovery_is_signalled_before_the_end() {
    let journal = FaultyJournal::new(Arc::new(InMemoryJournal::default()));
    journal.plan(Some("Counter|1".parse().unwrap()), JournalOp::Head, 0, StoreFault::Unavailable);
    let stores = Stores::new(Arc::new(journal), Stores::in_memory().snapshots);
    let settings = EventSourcedSettings { on_failure: OnFailure::Stop, ..EventSourcedSettings::test() };
    let log = Log::default();
    let counter = Counter::new("Counter|1", settings, log.clone());
    let (_handle, end) = driver::spawn(counter.stored(), stores, RecoveryPermits::default()).unwrap();
    let ended = end.await.unwrap();
    assert!(matches!(ended, Ended::Failed(Failure::Recovery(RecoveryFailure::Read(_)))), "{ended:?}");
    let told = log.take();
    let [failed, stopped] = &told[..] else { panic!("{told:?}") };
    assert!(failed.starts_with("  signal RecoveryFailed(Read(Unavailable("), "{failed}");
    assert_eq!(stopped, "  signal PostStop with 0");
}

/// Scenario persistence 23 and 26, over a journal with scripted faults.
#[tokio::test(start_paused = true)]
async fn a_task_recovers_from_every_planned_fault() {
    let id: PersistenceId = "Counter|1".parse().unwrap();
    for (op, fault) in [
        (JournalOp::Claim, StoreFault::Unavailable),
        (JournalOp::Claim, StoreFault::AnswerLost { done: true }),
        (JournalOp::Head, StoreFault::Unavailable),
        (JournalOp::Read, StoreFault::Corrupt),
        (JournalOp::Read, StoreFault::Hang { done: false }),
        (JournalOp::Append, StoreFault::Unavailable),
        (JournalOp::Append, StoreFault::Rejected),
        (JournalOp::Append, StoreFault::AnswerLost { done: true }),
        (JournalOp::Append, StoreFault::AnswerLost { done: false }),
    ] {
        let faulty = Arc::new(FaultyJournal::new(Arc::new(InMemoryJournal::default())));
        let stores = Stores::new(faulty.clone(), Stores::in_memory().snapshots);
        let log = Log::default();
        let counter = || Counter::new("Counter|1", EventSourcedSettings::test(), log.clone());
        let run = async |command: &str| {
            let (handle, end) = driver::spawn(counter().stored(), stores.clone(), RecoveryPermits::default()).unwrap();
            handle.tell(command.into()).await.unwrap();
            handle.tell("add 2 | reply".into()).await.unwrap();
            drop(handle);
            assert_eq!(end.await, Ok(Ended::Stopped), "{op:?} {fault:?}");
        };
        run("add 1 | reply").await;
        faulty.plan(Some(id.clone()), op, 0, fault);
        log.take();
        run("add 4 | reply").await;
        let replies: Vec<_> = log.take().into_iter().filter(|line| line.contains("reply")).collect();
        let expected = match (op, fault) {
            (JournalOp::Append, StoreFault::AnswerLost { done }) => [
                "  reply to 1: it is unknown whether the effect was stored".to_owned(),
                format!("  reply to 2: {}", if done { 9 } else { 5 }),
            ],
            (JournalOp::Append, _) => {
                assert!(replies[0].contains("the effect was not stored"), "{replies:?}");
                [replies[0].clone(), "  reply to 2: 5".to_owned()]
            }
            _ => ["  reply to 1: 7".to_owned(), "  reply to 2: 9".to_owned()],
        };
        assert_eq!(replies, expected, "{op:?} {fault:?}");
    }
}

#[test]
fn a_claim_alone_shows_nowhere() {
    let journal = InMemoryJournal::default();
    let stores = Stores::new(Arc::new(journal.clone()), Stores::in_memory().snapshots);
    let steps = Steps::new(EventSourcedSettings::default());
    let steps = Steps { stores, ..steps }.until(PhaseName::Running);
    let head = journal.head(steps.core.persistence_id()).now_or_never().unwrap().unwrap();
    assert!(head.epoch > WriterEpoch::NONE);
    assert!(journal.persistence_ids().is_empty());
}

/// Source: persistence §7: an idle entity costs at most 2 KiB besides its state.
#[test]
fn an_idle_machine_is_small() {
    assert!(size_of::<EntityCore<Counter>>() <= 1536, "{} bytes", size_of::<EntityCore<Counter>>());
}

#[test]
fn delivery_needs_a_journal_that_keeps_marks() {
    let settings = EventSourcedSettings { under_delivery: true, ..EventSourcedSettings::default() };
    let counter = Counter::new("Counter|1", settings, Log::default());
    let init = EntityInit { caps: Caps { metadata: false, ..Caps::full(Scope::Process) }, ..init(1) };
    let refused = EntityCore::start(counter.stored(), init, Instant::now(), &mut Vec::new()).err();
    assert_eq!(refused, Some(SettingsError::MetadataMissing));
}
