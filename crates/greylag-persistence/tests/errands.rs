//! What entities begin beside their commands (timers, futures, blocking work, messages to themselves), and what their
//! last signal sees.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use greylag_codec::json;
use greylag_core::{EntityError, ReplyTo};
use greylag_persistence::driver::{self, EntityHandle};
use greylag_persistence::{
    Action, AppendError, CommandContext, DurableState, Effect, EntityCore, EntityInit, EntityTestKit, EventMeta,
    EventSourced, EventSourcedSettings, Incarnation, Input, PersistenceId, PhaseName, RecoveryPermits, Revision,
    Signal, StateContext, StateEffect, StateSignal, StateTestKit, StoreAnswer, StoreCall, StoreFailure, StoredCodec,
    Stores, Work, WorkNo,
};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn push(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

#[derive(Debug)]
enum Command {
    Add,
    /// Says its word.
    Say(&'static str),
    Once(&'static str, Duration),
    Rate(&'static str, Duration),
    Delay(&'static str, Duration),
    Cancel(&'static str),
    Spawn,
    Block,
    ToItself,
    Answer(ReplyTo<u64>),
    /// Never answers.
    Never(ReplyTo<u64>),
    Sum(ReplyTo<u64>),
    Panic,
}

/// The timers of these tests say their own name; `Command` is no clone.
#[derive(Debug, Clone, Copy)]
struct Word(&'static str);

impl From<Word> for Command {
    fn from(Word(word): Word) -> Self {
        Self::Say(word)
    }
}

struct Worker {
    log: Log,
    /// What it begins on every signal.
    on_signal: bool,
}

impl Worker {
    fn new(log: &Log) -> Self {
        Self { log: log.clone(), on_signal: false }
    }
}

impl Clone for Command {
    fn clone(&self) -> Self {
        match self {
            Self::Say(word) => Self::Say(word),
            other => panic!("{other:?} is never repeated"),
        }
    }
}

macro_rules! begin {
    ($cx:ident, $command:ident) => {
        match $command {
            Command::Once(word, after) => $cx.once(word, after, Command::Say(word)),
            Command::Rate(word, period) => $cx.fixed_rate(word, period, Command::Say(word)),
            Command::Delay(word, delay) => $cx.fixed_delay(word, delay, Command::Say(word)),
            Command::Cancel(word) => $cx.cancel(word),
            Command::Spawn => $cx.spawn(async { Word("spawned") }, Command::from),
            Command::Block => $cx.blocking(|| Word("blocked"), Command::from),
            Command::ToItself => $cx.tell_self(Command::Say("to itself")),
            Command::Answer(to) => $cx.reply_when(to, async { 7 }),
            Command::Never(to) => $cx.reply_when(to, std::future::pending()),
            other => panic!("{other:?}"),
        }
    };
}

impl EventSourced for Worker {
    type Command = Command;
    type Event = u64;
    type State = u64;

    fn persistence_id(&self) -> PersistenceId {
        PersistenceId::of("Worker", "1").unwrap()
    }

    fn event_codec(&self) -> StoredCodec<u64> {
        StoredCodec::new(json("worker.added"))
    }

    fn on_command(&mut self, cx: &mut CommandContext<'_, Command>, sum: &u64, command: Command) -> Effect<Self> {
        match command {
            Command::Add => return Effect::persist(1),
            Command::Say(word) => self.log.push(format!("{word} at {sum}")),
            Command::Sum(to) => return Effect::reply(to, *sum),
            Command::Panic => panic!("on purpose"),
            other => begin!(cx, other),
        }
        Effect::none()
    }

    fn apply(&self, sum: &mut u64, added: &u64, _: &EventMeta<'_>) {
        *sum += added;
    }

    fn on_signal(&mut self, cx: &mut CommandContext<'_, Command>, sum: &u64, signal: &Signal) {
        let seq_nr = cx.seq_nr();
        match signal {
            Signal::PersistFailed(_) => self.log.push("PersistFailed"),
            Signal::RecoveryFailed(_) => self.log.push("RecoveryFailed"),
            signal => self.log.push(format!("{signal:?} with {sum} at {seq_nr}")),
        }
        if self.on_signal {
            cx.once("signal", Duration::ZERO, Command::Say("of a signal"));
            cx.tell_self(Command::Say("to itself, of a signal"));
            cx.spawn(async { Word("spawned by a signal") }, Command::from);
        }
    }
}

/// A machine whose appends the test answers.
struct Bench {
    core: EntityCore<Worker>,
    stores: Stores,
    log: Log,
    now: Instant,
    append: Option<(Incarnation, StoreCall)>,
    work: Vec<(Incarnation, WorkNo)>,
}

impl Bench {
    fn start(on_signal: bool) -> Self {
        let (log, stores, now) = (Log::default(), Stores::in_memory(), Instant::now());
        let init = EntityInit {
            generation: None,
            start: 1,
            seed: [7; 32],
            caps: stores.journal.caps(),
            snapshot_caps: stores.snapshots.caps(),
            settings: EventSourcedSettings::test(),
        };
        let mut out = Vec::new();
        let core = EntityCore::start(Worker { log: log.clone(), on_signal }, init, now, &mut out).unwrap();
        let mut bench = Self { core, stores, log, now, append: None, work: Vec::new() };
        bench.perform(out);
        bench
    }

    /// Recovered, with two events.
    fn running() -> Self {
        let mut bench = Self::start(false);
        for _ in 0..2 {
            bench.command(Command::Add);
            bench.answer_append(None);
        }
        bench.log.take();
        bench
    }

    fn perform(&mut self, out: Vec<Action<Command>>) {
        let mut inputs = Vec::new();
        for action in out {
            match action {
                Action::RequestPermit(incarnation) => inputs.push(Input::PermitGranted(incarnation)),
                Action::Store { incarnation, call: call @ StoreCall::Append(_) } => {
                    self.append = Some((incarnation, call));
                }
                Action::Store { incarnation, call } => {
                    let answer = call.perform(&self.stores).now_or_never().unwrap();
                    inputs.push(Input::Answer { incarnation, answer });
                }
                Action::Work { incarnation, work } => self.work.push((incarnation, work)),
                Action::ToSelf(command) => inputs.push(Input::Command(command)),
                Action::DeadLetter(dropped) => dropped.discard(),
                _ => {}
            }
        }
        inputs.into_iter().for_each(|input| self.input(input));
    }

    fn input(&mut self, input: Input<Command>) {
        let mut out = Vec::new();
        self.core.handle(self.now, input, &mut out);
        self.perform(out);
    }

    fn command(&mut self, command: Command) {
        self.input(Input::Command(command));
    }

    fn answer_append(&mut self, failure: Option<AppendError>) {
        let (incarnation, call) = self.append.take().unwrap();
        let answer = match failure {
            Some(error) => StoreAnswer::Appended(Err(error)),
            None => call.perform(&self.stores).now_or_never().unwrap(),
        };
        self.input(Input::Answer { incarnation, answer });
    }

    fn pass(&mut self, by: Duration) {
        self.now += by;
        self.input(Input::Tick);
    }

    /// Does the oldest work, and tells the machine.
    fn work(&mut self) {
        let (incarnation, work) = self.work.remove(0);
        let command = match self.core.take_work(work).unwrap() {
            Work::Future(future) => future.now_or_never().unwrap(),
            Work::Blocking(run) => run(),
        };
        self.input(Input::Worked { incarnation, work, command });
    }

    fn fence(&mut self) {
        let id = PersistenceId::of("Worker", "1").unwrap();
        let other = greylag_persistence::WriterUuid::from_u128(99);
        let seen = self.stores.journal.head(&id).now_or_never().unwrap().unwrap().epoch;
        let under = greylag_persistence::Under::Seen(seen);
        self.stores.journal.claim(&id, other, under).now_or_never().unwrap().unwrap();
    }
}

#[test]
fn scenario_76_after_a_graceful_stop_the_signal_sees_the_last_state() {
    let mut bench = Bench::running();
    bench.input(Input::Stop);
    assert_eq!(bench.log.take(), ["PostStop with 2 at 2"]);
    // A stop that waits for an append sees what that stored.
    let mut bench = Bench::running();
    bench.command(Command::Add);
    bench.input(Input::Stop);
    bench.answer_append(None);
    assert_eq!(bench.log.take(), ["PostStop with 3 at 3"]);
    // The host makes the entity anew.
    let mut bench = Bench::running();
    bench.core.give_way(&mut Vec::new());
    assert_eq!(bench.log.take(), ["PreRestart with 2 at 2"]);
}

#[test]
fn scenario_76_a_state_that_is_not_whole_is_seen_by_no_signal() {
    // What an append that is not answered would store.
    let mut bench = Bench::running();
    bench.command(Command::Add);
    bench.input(Input::StopNow);
    assert_eq!(bench.log.take(), ["PostStop with 0 at 0"]);
    let mut bench = Bench::running();
    bench.command(Command::Add);
    bench.answer_append(Some(AppendError::NotStored(StoreFailure::new("store", "away"))));
    bench.pass(SECOND);
    assert_eq!(bench.log.take()[..2], ["PersistFailed", "PreRestart with 0 at 0"]);
    // After a panic.
    let mut bench = Bench::running();
    bench.command(Command::Panic);
    bench.core.give_way(&mut Vec::new());
    assert_eq!(bench.log.take(), ["PreRestart with 0 at 0"]);
    // Somebody else writes.
    let mut bench = Bench::running();
    bench.fence();
    bench.command(Command::Add);
    bench.answer_append(None);
    assert_eq!(bench.log.take().last().unwrap(), "PostStop with 0 at 0");
    // Before it ran.
    let (log, stores) = (Log::default(), Stores::in_memory());
    let init = EntityInit {
        generation: None,
        start: 1,
        seed: [7; 32],
        caps: stores.journal.caps(),
        snapshot_caps: stores.snapshots.caps(),
        settings: EventSourcedSettings::test(),
    };
    let mut core = EntityCore::start(Worker::new(&log), init, Instant::now(), &mut Vec::new()).unwrap();
    core.handle(Instant::now(), Input::Stop, &mut Vec::new());
    assert_eq!(log.take(), ["PostStop with 0 at 0"]);
}

#[test]
fn scenario_77_what_comes_while_an_append_is_under_way_waits_in_its_turn() {
    let mut bench = Bench::running();
    bench.command(Command::Once("timer", SECOND));
    bench.command(Command::Spawn);
    bench.command(Command::Block);
    assert_eq!(bench.core.next_deadline(), Some(bench.now + SECOND));
    bench.command(Command::Add);
    assert_eq!(bench.core.next_deadline(), None, "no timer of an entity that could not take it");
    bench.pass(SECOND);
    bench.work();
    bench.command(Command::Say("asked meanwhile"));
    bench.work();
    assert_eq!(bench.log.take(), [""; 0]);
    bench.answer_append(None);
    assert_eq!(bench.log.take(), ["spawned at 3", "asked meanwhile at 3", "blocked at 3"]);
    let due = bench.core.next_deadline().unwrap();
    assert!(due <= bench.now);
    bench.pass(Duration::ZERO);
    assert_eq!(bench.log.take(), ["timer at 3"]);
    assert_eq!(bench.core.next_deadline(), None);
}

#[test]
fn scenario_77_a_timer_that_is_cancelled_or_replaced_says_nothing_even_from_the_stash() {
    let mut bench = Bench::running();
    bench.command(Command::Once("add", SECOND));
    bench.command(Command::Once("later", SECOND));
    bench.command(Command::Once("later", 2 * SECOND));
    bench.command(Command::Rate("rate", SECOND));
    bench.command(Command::Cancel("add"));
    bench.pass(SECOND);
    assert_eq!(bench.log.take(), ["rate at 2"]);
    bench.pass(3 * SECOND);
    assert_eq!(bench.log.take(), ["later at 2", "rate at 2"], "what was missed is one");
    bench.command(Command::Cancel("rate"));
    bench.command(Command::Delay("delay", SECOND));
    bench.pass(3 * SECOND);
    assert_eq!(bench.core.next_deadline(), Some(bench.now + SECOND), "counted from its handling");
    assert_eq!(bench.log.take(), ["delay at 2"]);
}

#[test]
fn scenario_77_nothing_comes_before_recovery_is_completed_and_ending_signals_begin_nothing() {
    let mut bench = Bench::start(true);
    assert_eq!(
        bench.log.take(),
        ["RecoveryCompleted with 0 at 0", "to itself, of a signal at 0"],
        "the machine of this bench tells itself at once"
    );
    bench.pass(Duration::ZERO);
    bench.work();
    assert_eq!(bench.log.take(), ["of a signal at 0", "spawned by a signal at 0"]);
    // A failed append, a wait, a new incarnation: only the last of these signals begins something.
    bench.command(Command::Add);
    bench.answer_append(Some(AppendError::NotStored(StoreFailure::new("store", "away"))));
    assert_eq!(bench.core.phase(), PhaseName::BackingOff);
    assert!(bench.work.is_empty());
    bench.pass(SECOND);
    assert_eq!(bench.work.len(), 1);
    let seen = ["PersistFailed", "PreRestart with 0 at 0", "RecoveryCompleted with 0 at 0"];
    assert_eq!(bench.log.take()[..3], seen);
    bench.input(Input::Stop);
    assert_eq!((bench.work.len(), bench.core.next_deadline()), (1, None));
}

#[test]
fn scenario_77_all_ends_at_stop_restart_and_fencing() {
    let ends: [(&str, fn(&mut Bench)); 4] = [
        ("stop", |bench| bench.input(Input::StopNow)),
        ("restart", |bench| {
            bench.answer_append(Some(AppendError::NotStored(StoreFailure::new("store", "away"))));
            bench.pass(SECOND);
        }),
        ("fencing", |bench| {
            bench.fence();
            bench.answer_append(None);
        }),
        ("a new entity", |bench| drop(bench.core.give_way(&mut Vec::new()))),
    ];
    for (what, end) in ends {
        let mut bench = Bench::running();
        for command in [Command::Rate("rate", SECOND / 2), Command::Spawn, Command::Spawn, Command::Spawn] {
            bench.command(command);
        }
        let (incarnation, late) = bench.work[1];
        let [Some(Work::Future(never_done)), Some(Work::Future(done_late))] =
            [bench.work[2].1, late].map(|work| bench.core.take_work(work))
        else {
            panic!("work")
        };
        let command = done_late.now_or_never().unwrap();
        bench.command(Command::Add);
        // The first is done, and waits in the stash of an entity that persists.
        bench.work();
        end(&mut bench);
        bench.input(Input::Worked { incarnation, work: late, command });
        assert!(never_done.now_or_never().unwrap().is_none(), "{what}: the future is ended");
        bench.pass(10 * SECOND);
        let said = bench.log.take();
        assert!(!said.iter().any(|line| line.starts_with("spawned") || line.starts_with("rate")), "{what}: {said:?}");
        assert_eq!(bench.core.next_deadline(), None, "{what}");
    }
}

async fn until(log: &Log, lines: &[&str]) {
    let mut seen = Vec::new();
    while !lines.iter().all(|line| seen.iter().any(|seen| seen == line)) {
        seen.extend(log.take());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn begins_all(entity: &EntityHandle<Command>, log: &Log) {
    for command in [
        Command::Once("once", SECOND),
        Command::Rate("rate", SECOND),
        Command::Delay("delay", SECOND),
        Command::Spawn,
        Command::Block,
        Command::ToItself,
    ] {
        entity.tell(command).await.unwrap();
    }
    until(log, &["once at 0", "rate at 0", "delay at 0", "spawned at 0", "blocked at 0", "to itself at 0"]).await;
    until(log, &["rate at 0", "delay at 0"]).await;
    assert_eq!(entity.ask(Command::Answer).await, Ok(7));
    let (never, stopped) = futures::join!(entity.ask(Command::Never), async {
        entity.tell(Command::Add).await.unwrap();
        entity.stop().await;
    });
    assert!(matches!(never, Err(EntityError::NoReply | EntityError::Stopped)), "{never:?}");
    let () = stopped;
}

#[tokio::test(start_paused = true)]
async fn scenario_77_an_entity_alone_begins_what_an_entity_of_a_shard_does() {
    let log = Log::default();
    let (entity, end) = driver::spawn(Worker::new(&log), Stores::in_memory(), RecoveryPermits::default()).unwrap();
    begins_all(&entity, &log).await;
    assert_eq!(end.await, Ok(driver::Ended::Stopped));
    until(&log, &["PostStop with 1 at 1"]).await;
}

/// The same with a durable state.
struct Kept(Log);

impl DurableState for Kept {
    type Command = Command;
    type State = u64;

    fn persistence_id(&self) -> PersistenceId {
        PersistenceId::of("Kept", "1").unwrap()
    }

    fn state_codec(&self) -> StoredCodec<u64> {
        StoredCodec::new(json("kept"))
    }

    fn on_command(&mut self, cx: &mut StateContext<'_, Command>, sum: &u64, command: Command) -> StateEffect<Self> {
        match command {
            Command::Add => return StateEffect::persist(sum + 1),
            Command::Say(word) => self.0.push(format!("{word} at {sum}")),
            Command::Sum(to) => return StateEffect::reply(to, *sum),
            Command::Panic => panic!("on purpose"),
            other => begin!(cx, other),
        }
        StateEffect::none()
    }

    fn on_signal(&mut self, cx: &mut StateContext<'_, Command>, sum: &u64, signal: &StateSignal) {
        let revision: Revision = cx.revision();
        self.0.push(format!("{signal:?} with {sum} at {revision}"));
    }
}

#[tokio::test(start_paused = true)]
async fn scenario_77_an_entity_with_a_durable_state_begins_the_same() {
    let log = Log::default();
    let (entity, end) =
        driver::spawn_state(Kept(log.clone()), Stores::in_memory(), RecoveryPermits::default()).unwrap();
    begins_all(&entity, &log).await;
    assert_eq!(end.await, Ok(driver::Ended::Stopped));
    until(&log, &["PostStop with 1 at 1"]).await;
}

#[test]
fn scenario_77_test_kits_run_what_a_behaviour_begins() {
    let log = Log::default();
    let made = log.clone();
    let mut kit = EntityTestKit::new(Instant::now(), move || Worker::new(&made));
    kit.run(Command::Spawn);
    kit.run(Command::Block);
    kit.run(Command::ToItself);
    kit.run(Command::Once("timer", SECOND));
    assert_eq!(kit.ask(Command::Answer), Ok(7));
    assert_eq!(kit.ask(Command::Sum), Ok(0));
    let lines = log.take();
    assert_eq!(lines[1..], ["spawned at 0", "blocked at 0", "to itself at 0"], "{lines:?}");
    kit.advance(SECOND);
    assert_eq!(log.take(), ["timer at 0"]);
    let made = log.clone();
    let mut kit = StateTestKit::new(Instant::now(), move || Kept(made.clone()));
    kit.run(Command::Spawn);
    assert_eq!(log.take()[1..], ["spawned at 0"]);
}
