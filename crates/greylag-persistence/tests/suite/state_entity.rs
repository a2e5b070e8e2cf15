//! The machine of a durable state: transcripts, every phase with every input, its kit and its host.
//!
//! In transcripts store calls are performed at once, in their order, unless `hold KIND` keeps those of
//! a kind back until `answer WHAT` or `release`. Time stands still but for `advance`.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::cell::{Cell, Content};
use crate::support::log::Log;
use crate::support::memory::{failure, now, ticking};
use crate::support::panics::quiet;
use greylag_core::{CodecId, EntityError, Generation};
use greylag_persistence::driver::{self, Ended};
use greylag_persistence::{
    Action, Backoff, DurableStateSettings, EncodedValue, FaultyStates, InMemoryStates, Incarnation, Input, OnFailure,
    Persisted, PersistenceId, ReadError, RecoveryPermits, Revision, Scope, StashOverflow, StateAnswer, StateCall,
    StateCodec, StateEntityCore, StateEntityInit, StateHead, StateOp, StatePhase, StateRejectReason, StateStore,
    StateTestKit, StateWrite, StateWriteError, StoreFault, StoredState, Stores, WriterUuid,
};
use greylag_testkit::transcript::{self, Case};

const ID: &str = "Cell|1";

fn id() -> PersistenceId {
    ID.parse().unwrap()
}

// ---- Transcripts --------------------------------------------------------------------------------

#[test]
fn transcripts() {
    quiet();
    transcript::run_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/state_protocol"), || {
        let mut world = World::new();
        move |case: &Case<'_>| world.run(case)
    });
}

struct World {
    base: Instant,
    now: Instant,
    log: Log,
    states: InMemoryStates,
    core: Option<StateEntityCore<Cell>>,
    settings: DurableStateSettings,
    starts: u64,
    holding: Vec<String>,
    held: VecDeque<(Incarnation, StateCall)>,
    permits_held: VecDeque<Incarnation>,
    others: u128,
}

impl World {
    fn new() -> Self {
        let base = Instant::now();
        Self {
            base,
            now: base,
            log: Log::default(),
            states: InMemoryStates::new(Scope::Shared, ticking()),
            core: None,
            settings: DurableStateSettings::default(),
            starts: 0,
            holding: Vec::new(),
            held: VecDeque::new(),
            permits_held: VecDeque::new(),
            others: 100,
        }
    }

    fn run(&mut self, case: &Case<'_>) -> String {
        match case.command {
            "start" => self.start(case),
            "send" => case.input.lines().for_each(|line| self.input(Input::Command(line.to_owned()))),
            "hold" => self.holding.push(case.positional(0).unwrap().to_owned()),
            "release" => self.release(),
            "answer" => self.answer(case.positional(0).unwrap()),
            "grant" => {
                if let Some(incarnation) = self.permits_held.pop_front() {
                    self.input(Input::PermitGranted(incarnation));
                }
            }
            "advance" => self.advance(transcript::duration(case.positional(0).unwrap()).unwrap()),
            "stop" => self.input(Input::Stop),
            "storeback" => self.input(Input::StoreBack),
            "stopnow" => self.input(Input::StopNow),
            "restart" => {
                let behavior = Cell::new(ID, self.settings.clone(), self.log.clone());
                let mut out = Vec::new();
                self.core.as_mut().unwrap().restart(self.now, behavior, &mut out);
                self.perform(out);
            }
            "waiting" => {
                let waiting = self.core.as_mut().unwrap().take_waiting();
                self.log.push(format!("{waiting:?}"));
            }
            "state" => {
                let core = self.core.as_ref().unwrap();
                let number = core.state().map_or("-".to_owned(), |state| state.number.to_string());
                let (revision, waiting) = (core.revision(), core.waiting_count());
                self.log.push(format!("{:?} number {number} revision {revision} waiting {waiting}", core.phase()));
            }
            "stored" => {
                let row = self.states.row(&id()).unwrap_or_else(|| StoredState::absent(id()));
                let value = row.value.map(|value| String::from_utf8_lossy(&value.payload).into_owned());
                let value = value.unwrap_or_else(|| "nothing".to_owned());
                let generation = row.generation.map(|generation| format!(" generation {generation}"));
                self.log.push(format!("revision {} {value}{}", row.revision, generation.unwrap_or_default()));
            }
            "other" => self.other(case),
            "corrupt" => assert!(self.states.corrupt(&id())),
            other => panic!("no command {other:?}"),
        }
        self.log.take().into_iter().map(|line| line + "\n").collect()
    }

    fn start(&mut self, case: &Case<'_>) {
        let backoff = Backoff { min: Duration::from_secs(1), max: Duration::from_secs(30), jitter: 0.0 };
        let mut settings = DurableStateSettings {
            on_failure: if case.flag("no_restart") { OnFailure::Stop } else { OnFailure::RestartBackoff(backoff) },
            stash_overflow: if case.flag("overflow_fails") { StashOverflow::Fail } else { StashOverflow::Drop },
            ..DurableStateSettings::default()
        };
        if let Some(stash) = case.parse("stash").and_then(NonZeroUsize::new) {
            settings.stash_capacity = stash;
        }
        self.settings = settings;
        self.starts += 1;
        self.held.clear();
        self.permits_held.clear();
        let init = StateEntityInit {
            generation: case.parse("generation").map(|seq| Generation::new(1, seq).unwrap()),
            start: self.starts,
            seed: [u8::try_from(self.starts).unwrap(); 32],
            caps: self.states.caps(),
            settings: DurableStateSettings::default(),
            host: None,
        };
        let mut out = Vec::new();
        let mut behavior = Cell::new(ID, self.settings.clone(), self.log.clone());
        behavior.panics_on = case.arg("panics_on").map(|name| &*name.to_owned().leak());
        self.core = Some(StateEntityCore::start(behavior.stored(), init, self.now, &mut out).unwrap());
        self.perform(out);
    }

    fn input(&mut self, input: Input<String, StateAnswer>) {
        let mut out = Vec::new();
        self.core.as_mut().unwrap().handle(self.now, input, &mut out);
        self.perform(out);
    }

    fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(at) = self.core.as_ref().unwrap().next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.log.push(format!("{:.2}s", (self.now - self.base).as_secs_f64()));
            self.input(Input::Tick);
        }
        self.now = end;
    }

    fn perform(&mut self, actions: Vec<Action<String, StateCall>>) {
        let mut inputs = Vec::new();
        for action in actions {
            match action {
                Action::RequestPermit(incarnation) if self.is_held("permit") => {
                    self.log.push("request permit (held)");
                    self.permits_held.push_back(incarnation);
                }
                Action::RequestPermit(incarnation) => inputs.push(Input::PermitGranted(incarnation)),
                Action::ReturnPermit(_) => self.log.push("return permit"),
                Action::Store { incarnation, call } if self.is_held(kind(&call)) => {
                    self.log.push(format!("{} (held)", show(&call)));
                    self.held.push_back((incarnation, call));
                }
                Action::Store { incarnation, call } => {
                    self.log.push(show(&call));
                    inputs.push(Input::Answer { incarnation, answer: now(call.perform(&self.states)) });
                }
                Action::DeadLetter(dropped) => {
                    self.log.push(format!("dead letter {:?}: {}", dropped.command, dropped.reason));
                    dropped.discard();
                }
                Action::Restarting(failure) => {
                    self.log.push(format!("restarting: {}", without_uuid(&failure.to_string())));
                }
                Action::Failed(failure) => self.log.push(format!("failed: {failure}")),
                Action::Fenced(by) => self.log.push(format!("fenced by generation {:?}", by.generation())),
                Action::Recovered { .. } => self.log.push("recovered"),
                Action::Work { work, .. } => self.log.push(format!("begin {work:?}")),
                Action::ToSelf { incarnation, work } => {
                    inputs.push(Input::Worked { incarnation, work, command: None });
                }
                Action::Passivate => self.log.push("passivate"),
                Action::HostRequests(requests) => unreachable!("no handler asks its host for {requests:?}"),
                Action::Unhandled => self.log.push("unhandled"),
                Action::Withheld(what) => self.log.push(format!("withheld {what:?}").to_lowercase()),
                Action::Stopped => self.log.push("stopped"),
            }
        }
        inputs.into_iter().for_each(|input| self.input(input));
    }

    fn is_held(&self, kind: &str) -> bool {
        self.holding.iter().any(|held| held == kind)
    }

    fn release(&mut self) {
        self.holding.clear();
        for (incarnation, call) in std::mem::take(&mut self.held) {
            let answer = now(call.perform(&self.states));
            self.input(Input::Answer { incarnation, answer });
        }
    }

    fn answer(&mut self, what: &str) {
        let Some((incarnation, call)) = self.held.pop_front() else { return self.log.push("nothing is held") };
        let answer = match what {
            "ok" => now(call.perform(&self.states)),
            // Stored, but the answer is lost.
            "lost" => {
                now(call.perform(&self.states));
                StateAnswer::Written(Err(StateWriteError::Unknown(failure())))
            }
            // Stored after its caller has stopped waiting.
            "late" => {
                now(call.perform(&self.states));
                return;
            }
            "unknown" => StateAnswer::Written(Err(StateWriteError::Unknown(failure()))),
            // Unanswered, and still under way.
            "unknown_yet" => {
                self.held.push_front((incarnation, call));
                StateAnswer::Written(Err(StateWriteError::Unknown(failure())))
            }
            "notstored" => StateAnswer::Written(Err(StateWriteError::NotStored(failure()))),
            "rejected" => {
                let reason = StateRejectReason::StorageLow("0 bytes are free".into());
                StateAnswer::Written(Err(StateWriteError::Rejected(reason)))
            }
            "away" => StateAnswer::Loaded(Err(ReadError::Unavailable(failure()))),
            other => panic!("no answer {other:?}"),
        };
        self.input(Input::Answer { incarnation, answer });
    }

    /// Another writer sets the number.
    fn other(&mut self, case: &Case<'_>) {
        self.others += 1;
        let row = self.states.row(&id()).unwrap_or_else(|| StoredState::absent(id()));
        let write = StateWrite {
            id: id(),
            revision: row.revision.next().unwrap(),
            generation: case.parse("generation").map(|seq| Generation::new(1, seq).unwrap()),
            writer_uuid: WriterUuid::from_u128(self.others),
        };
        let number: i64 = case.parse("set").unwrap();
        now(self.states.upsert(write, content(number), None)).unwrap();
    }
}

fn content(number: i64) -> EncodedValue {
    EncodedValue {
        codec_id: CodecId::JSON,
        manifest: "cell.content".into(),
        schema_version: 1,
        payload: format!("{{\"number\":{number},\"active\":false}}").into(),
    }
}

fn kind(call: &StateCall) -> &'static str {
    match call {
        StateCall::Get { .. } => "get",
        StateCall::Upsert { .. } | StateCall::Delete { .. } => "write",
    }
}

fn show(call: &StateCall) -> String {
    match call {
        StateCall::Get { .. } => "get".to_owned(),
        StateCall::Upsert { write, value, .. } => {
            format!("upsert {} {}", write.revision, String::from_utf8_lossy(&value.payload))
        }
        StateCall::Delete { write } => format!("delete {}", write.revision),
    }
}

/// Without the random uuid.
fn without_uuid(text: &str) -> String {
    text.split_once(" of writer ").map_or(text, |(head, _)| head).to_owned()
}

// ---- Every phase, every input -------------------------------------------------------------------

/// A machine whose store calls are answered by the test.
struct Steps {
    core: StateEntityCore<Cell>,
    now: Instant,
    out: Vec<Action<String, StateCall>>,
}

impl Steps {
    fn new() -> Self {
        let now = Instant::now();
        let caps = InMemoryStates::default().caps();
        let init = StateEntityInit {
            generation: None,
            start: 1,
            seed: [7; 32],
            caps,
            settings: DurableStateSettings::default(),
            host: None,
        };
        let mut out = Vec::new();
        let behavior = Cell::new(ID, DurableStateSettings::default(), Log::default());
        let core = StateEntityCore::start(behavior.stored(), init, now, &mut out).unwrap();
        Self { core, now, out }
    }

    fn input(&mut self, input: Input<String, StateAnswer>) {
        self.core.handle(self.now, input, &mut self.out);
    }

    fn answer(&mut self, answer: StateAnswer) {
        self.input(Input::Answer { incarnation: self.core.incarnation(), answer });
    }
}

fn in_phase(phase: StatePhase) -> Steps {
    let before = |phase| in_phase(phase);
    let steps = match phase {
        StatePhase::AwaitingPermit => Steps::new(),
        StatePhase::Loading => {
            let mut steps = before(StatePhase::AwaitingPermit);
            steps.input(Input::PermitGranted(steps.core.incarnation()));
            steps
        }
        StatePhase::Running => {
            let mut steps = before(StatePhase::Loading);
            steps.answer(StateAnswer::Loaded(Ok(StoredState::absent(id()))));
            steps
        }
        StatePhase::Persisting => {
            let mut steps = before(StatePhase::Running);
            steps.input(Input::Command("set 1".to_owned()));
            steps
        }
        StatePhase::BackingOff => {
            let mut steps = before(StatePhase::Persisting);
            steps.answer(StateAnswer::Written(Err(StateWriteError::Unknown(failure()))));
            steps
        }
        StatePhase::Failed => {
            let mut steps = before(StatePhase::Running);
            steps.input(Input::Command("panic".to_owned()));
            steps
        }
        StatePhase::Stopped => {
            let mut steps = before(StatePhase::Running);
            steps.input(Input::StopNow);
            steps
        }
    };
    assert_eq!(steps.core.phase(), phase);
    steps
}

const PHASES: [StatePhase; 7] = [
    StatePhase::AwaitingPermit,
    StatePhase::Loading,
    StatePhase::Running,
    StatePhase::Persisting,
    StatePhase::BackingOff,
    StatePhase::Failed,
    StatePhase::Stopped,
];

fn inputs(incarnation: Incarnation) -> Vec<Input<String, StateAnswer>> {
    let damaged = EncodedValue { manifest: "cell.future".into(), ..content(1) };
    let stored = StoredState { revision: Revision::FIRST, value: Some(damaged), ..StoredState::absent(id()) };
    let answers = [
        StateAnswer::Loaded(Ok(StoredState::absent(id()))),
        StateAnswer::Loaded(Ok(stored)),
        StateAnswer::Loaded(Err(ReadError::Unavailable(failure()))),
        StateAnswer::Written(Ok(())),
        StateAnswer::Written(Err(StateWriteError::Rejected(StateRejectReason::InvalidTag))),
        StateAnswer::Written(Err(StateWriteError::NotStored(failure()))),
        StateAnswer::Written(Err(StateWriteError::Unknown(failure()))),
        StateAnswer::Written(Err(StateWriteError::RevisionMismatch { current: StateHead::default() })),
    ];
    let mut inputs: Vec<_> = answers.into_iter().map(|answer| Input::Answer { incarnation, answer }).collect();
    let commands = ["none", "set 5", "delete", "active? 1", "unhandled", "panic", "none | stop"];
    inputs.extend(commands.map(|text| Input::Command(text.to_owned())));
    inputs.extend([Input::PermitGranted(incarnation), Input::Tick, Input::StoreBack, Input::Stop, Input::StopNow]);
    inputs
}

#[test]
fn every_phase_takes_every_input_and_can_still_be_stopped() {
    quiet();
    for phase in PHASES {
        for at in 0..inputs(in_phase(phase).core.incarnation()).len() {
            let mut steps = in_phase(phase);
            let input = inputs(steps.core.incarnation()).swap_remove(at);
            let shown = format!("{phase:?} and {input:?}");
            steps.input(input);
            if let Some(deadline) = steps.core.next_deadline() {
                steps.now = steps.now.max(deadline);
                steps.input(Input::Tick);
            }
            steps.input(Input::StopNow);
            assert_eq!(steps.core.phase(), StatePhase::Stopped, "{shown}");
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
        let mut steps = Steps { out: Vec::new(), ..in_phase(phase) };
        let other = Incarnation { start: 1, restart: 99 };
        inputs(other)
            .into_iter()
            .filter(|input| matches!(input, Input::Answer { .. }))
            .for_each(|input| steps.input(input));
        assert_eq!((steps.core.phase(), steps.out), (phase, vec![]));
    }
}

/// The state does not show a write that is still under way.
#[test]
fn a_state_is_seen_only_after_it_is_stored() {
    let mut steps = in_phase(StatePhase::Persisting);
    assert_eq!(steps.core.state(), Some(&Content::default()));
    steps.answer(StateAnswer::Written(Ok(())));
    assert_eq!(steps.core.state().map(|state| state.number), Some(1));
    assert_eq!(steps.core.revision(), Revision::FIRST);
}

/// A waiting command is a reason to read the state before the entity stops; a command put aside is not,
/// since only another command can unstash it.
#[test]
fn an_entity_is_idle_while_no_command_waits_to_be_handled() {
    let mut steps = in_phase(StatePhase::Loading);
    assert!(steps.core.is_idle(), "nothing came yet");
    steps.input(Input::Command("active? 1".to_owned()));
    assert!(!steps.core.is_idle(), "a command waits for the state");
    steps.answer(StateAnswer::Loaded(Ok(StoredState::absent(id()))));
    assert_eq!((steps.core.is_idle(), steps.core.waiting_count()), (true, 1), "the command was put aside");
}

// ---- Kit and host -------------------------------------------------------------------------------

fn cell(log: &Log) -> impl FnMut() -> Persisted<Cell, StateCodec<Cell>> + 'static {
    let log = log.clone();
    let settings = DurableStateSettings::default();
    move || Cell::new(ID, settings.clone(), log.clone()).stored()
}

#[test]
fn the_test_kit_tells_what_a_command_did() {
    quiet();
    let log = Log::default();
    let mut kit = StateTestKit::new(Instant::now(), cell(&log));
    let outcome = kit.run("set 5".to_owned());
    assert_eq!((outcome.revision, outcome.failure), (Revision::FIRST, None));
    assert!(kit.run("unhandled".to_owned()).unhandled);
    assert!(kit.run("none | passivate".to_owned()).passivate);
    kit.restart();
    assert_eq!(kit.state().map(|state| state.number), Some(5));
    assert_eq!(kit.run("delete".to_owned()).revision, Revision::from(2));
    assert_eq!(kit.state(), Some(&Content::default()));
    kit.initialize(&Content { number: 8, active: true });
    assert_eq!(kit.run("active? 1".to_owned()).revision, Revision::from(2));
    kit.clear();
    assert_eq!(kit.run("none".to_owned()).revision, Revision::NONE);
    assert!(kit.run("none | stop".to_owned()).stopped);
}

/// Scenario persistence 64: the write is stored, its answer lost; the repeat is answered Ok, and there is one change.
#[test]
fn scenario_64_a_lost_answer_does_not_fence_the_entity() {
    let (log, faulty) = (Log::default(), Arc::new(std::sync::OnceLock::new()));
    let kept = faulty.clone();
    let mut kit = StateTestKit::over(Instant::now(), cell(&log), move |inner| {
        let store = Arc::new(FaultyStates::new(inner));
        assert!(kept.set(store.clone()).is_ok());
        store
    });
    let faulty: &Arc<FaultyStates> = faulty.get().unwrap();
    for (number, done) in [(1, true), (2, false), (3, true)] {
        faulty.plan(None, StateOp::Upsert, 0, StoreFault::AnswerLost { done });
        let outcome = kit.run(format!("add {number}"));
        assert!(outcome.failure.is_some() && !outcome.stopped, "{outcome:?}");
    }
    // The first and the third write were stored, and the entity continues from there.
    assert_eq!(kit.run("add 10".to_owned()).revision, Revision::from(3));
    assert_eq!(kit.state().map(|state| state.number), Some(14));
}

#[tokio::test]
async fn an_entity_runs_as_a_task_and_keeps_its_state() {
    let (stores, log) = (Stores::in_memory(), Log::default());
    for (command, line) in [("set 5 | run", "  run with 5 at 1"), ("add 1 | run", "  run with 6 at 2")] {
        let (cell, end) = driver::spawn_state(cell(&log)(), stores.clone(), RecoveryPermits::default()).unwrap();
        cell.tell(command.to_owned()).await.unwrap();
        drop(cell);
        assert_eq!(end.await, Ok(Ended::Stopped));
        assert!(log.take().contains(&line.to_owned()));
    }
    let (first, fenced) = driver::spawn_state(cell(&log)(), stores.clone(), RecoveryPermits::default()).unwrap();
    let (second, end) = driver::spawn_state(cell(&log)(), stores.clone(), RecoveryPermits::default()).unwrap();
    // Both read the same row; the entity that writes second is fenced.
    first.tell("none".to_owned()).await.unwrap();
    while !log.take().iter().any(|line| line.contains("handle \"none\"")) {
        tokio::task::yield_now().await;
    }
    second.tell("set 1 | stop".to_owned()).await.unwrap();
    assert_eq!(end.await, Ok(Ended::Stopped));
    first.tell("set 2 | reply".to_owned()).await.unwrap();
    assert!(matches!(fenced.await, Ok(Ended::Fenced(_))));
    let refused = format!("  reply to 1: {}", EntityError::NotStored(greylag_core::NotStoredReason::Fenced));
    assert!(log.take().contains(&refused));
}
