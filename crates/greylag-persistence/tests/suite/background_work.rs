//! Work that entities begin (timers, futures, blocking work, messages to themselves), and the state that their
//! last signal gets.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use greylag_codec::json;
use greylag_core::{EntityError, ReplyAddress, ReplyOutcome, ReplyPort, ReplyTo};
use greylag_persistence::driver::{self, EntityHandle};
use greylag_persistence::{
    Action, AppendError, Ctx, DurableState, DurableStateSettings, Effect, EntityCore, EntityInit, EntityTestKit,
    EventCodecs, EventSourced, EventSourcedSettings, FaultyJournal, InMemoryJournal, Incarnation, Input, JournalOp,
    NotInfluence, Persisted, PersistenceId, PhaseName, RecoveryPermits, Revision, Signal, StateAnswer, StateCall,
    StateCodec, StateEffect, StateEntityCore, StateEntityInit, StatePhase, StateSignal, StateTestKit, StateWrite,
    StateWriteError, StoreAnswer, StoreCall, StoreFailure, StoreFault, Stores, Under, Work, WorkNo, WriterUuid,
};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl ReplyPort for Log {
    fn reply(&self, _: &ReplyAddress, outcome: ReplyOutcome) {
        self.push(match outcome {
            ReplyOutcome::Failed(error) => format!("answered: {error}"),
            outcome => format!("answered: {outcome:?}"),
        });
    }
}

impl Log {
    /// A reply token whose answer is logged.
    fn ask(&self) -> ReplyTo<u64> {
        ReplyTo::new(ReplyAddress { node: "node:1#1".parse().unwrap(), ask_id: 1 }, Arc::new(self.clone()))
    }

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
    /// Logs its word.
    Say(&'static str),
    Once(&'static str, Duration),
    Rate(&'static str, Duration),
    Delay(&'static str, Duration),
    Cancel(&'static str),
    /// A timer that does not influence the receive timeout.
    Quiet(&'static str, Duration),
    /// Sets the receive timeout; its message has this word.
    Listen(&'static str, Duration),
    Deaf,
    Spawn,
    Block,
    ToItself,
    Answer(ReplyTo<u64>),
    /// Keeps the token and never answers.
    Never(ReplyTo<u64>),
    Sum(ReplyTo<u64>),
    /// Answered by way of a command that the entity tells itself.
    SumInTurn(ReplyTo<u64>),
    /// Answered by way of a command that is the result of blocking work.
    SumWhenDone(ReplyTo<u64>),
    /// Sets a timer that panics when it makes its message.
    Explode,
    Panic,
}

/// The message of a repeating timer, with the timer's name; `Command` is not `Clone`.
#[derive(Debug, Clone, Copy)]
struct Word(&'static str);

impl From<Word> for Command {
    fn from(Word(word): Word) -> Self {
        Self::Say(word)
    }
}

struct Worker {
    log: Log,
    /// Whether it begins work on every signal.
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
            Command::Rate(word, period) => $cx.fixed_rate(word, period, move || Command::Say(word)),
            Command::Delay(word, delay) => $cx.fixed_delay(word, delay, move || Command::Say(word)),
            Command::Explode => $cx.fixed_rate("boom", SECOND, || panic!("on purpose")),
            Command::Cancel(word) => $cx.cancel(word),
            Command::Quiet(word, after) => $cx.once(NotInfluence(word), after, Command::Say(word)),
            Command::Listen(word, after) => $cx.set_receive_timeout(after, move || Command::Say(word)),
            Command::Deaf => $cx.cancel_receive_timeout(),
            Command::Spawn => $cx.spawn(async { Word("spawned") }, Command::from),
            Command::Block => $cx.blocking(|| Word("blocked"), Command::from).expect("no bound outside of a shard"),
            Command::ToItself => $cx.tell_self(Command::Say("to itself")),
            Command::Answer(to) => $cx.reply_when(to, async { 7 }),
            Command::Never(to) => $cx.reply_when(to, std::future::pending()),
            Command::SumInTurn(to) => $cx.tell_self(Command::Sum(to)),
            Command::SumWhenDone(to) => {
                $cx.blocking(|| (), move |()| Command::Sum(to)).expect("no bound outside of a shard");
            }
            other => panic!("{other:?}"),
        }
    };
}

impl EventSourced for Worker {
    type Command = Command;
    type Event = u64;
    type State = u64;

    fn on_command(&mut self, cx: &mut Ctx<'_, Command>, sum: &u64, command: Command) -> Effect<Self> {
        match command {
            Command::Add => return Effect::persist(1),
            Command::Say(word) => self.log.push(format!("{word} at {sum}")),
            Command::Sum(to) => return Effect::reply(to, *sum),
            Command::Panic => panic!("on purpose"),
            other => begin!(cx, other),
        }
        Effect::none()
    }

    fn apply(sum: &mut u64, added: &u64) {
        *sum += added;
    }

    fn on_signal(&mut self, cx: &mut Ctx<'_, Command>, sum: &u64, signal: &Signal) {
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

impl Worker {
    /// The entity with its id and its codecs.
    fn stored(self) -> Persisted<Self, EventCodecs<Self>> {
        let id = PersistenceId::of("Worker", "1").unwrap();
        EventCodecs::new(json("worker.added")).of(id, self)
    }
}

/// The methods of a machine that a bench needs.
trait Core: Sized {
    type Call;
    type Answer;

    fn begin(log: &Log, on_signal: bool, stores: &Stores, now: Instant, out: &mut Actions<Self>) -> Self;
    fn take(&mut self, now: Instant, input: Input<Command, Self::Answer>, out: &mut Actions<Self>);
    fn deadline(&self) -> Option<Instant>;
    fn work(&mut self, no: WorkNo) -> Option<Work<Command>>;
    fn stop_for_restart(&mut self);
    fn is_backing_off(&self) -> bool;
    fn is_write(call: &Self::Call) -> bool;
    fn perform(call: Self::Call, stores: &Stores) -> Self::Answer;
    /// The answer to a write that was not stored.
    fn not_stored() -> Self::Answer;
    /// Makes another writer claim or write.
    fn fence(stores: &Stores);
}

type Actions<C> = Vec<Action<Command, <C as Core>::Call>>;

/// The methods that both machines have under the same names. They share no public trait.
macro_rules! forward_to_the_machine {
    ($phase:ident) => {
        fn take(&mut self, now: Instant, input: Input<Command, Self::Answer>, out: &mut Actions<Self>) {
            self.handle(now, input, out);
        }

        fn deadline(&self) -> Option<Instant> {
            self.next_deadline()
        }

        fn work(&mut self, no: WorkNo) -> Option<Work<Command>> {
            self.take_work(no)
        }

        fn stop_for_restart(&mut self) {
            self.stop_for_restart(&mut Vec::new());
        }

        fn is_backing_off(&self) -> bool {
            self.phase() == $phase::BackingOff
        }
    };
}

fn away() -> StoreFailure {
    StoreFailure::new("store", "away")
}

impl Core for EntityCore<Worker> {
    type Call = StoreCall;
    type Answer = StoreAnswer;

    fn begin(log: &Log, on_signal: bool, stores: &Stores, now: Instant, out: &mut Actions<Self>) -> Self {
        let init = EntityInit {
            generation: None,
            start: 1,
            seed: [7; 32],
            caps: stores.journal.caps(),
            snapshot_caps: stores.snapshots.caps(),
            settings: EventSourcedSettings::test(),
            host: None,
        };
        EntityCore::start(Worker { log: log.clone(), on_signal }.stored(), init, now, out).unwrap()
    }

    forward_to_the_machine!(PhaseName);

    fn is_write(call: &StoreCall) -> bool {
        matches!(call, StoreCall::Append(_))
    }

    fn perform(call: StoreCall, stores: &Stores) -> StoreAnswer {
        call.perform(stores).now_or_never().unwrap()
    }

    fn not_stored() -> StoreAnswer {
        StoreAnswer::Appended(Err(AppendError::NotStored(away())))
    }

    fn fence(stores: &Stores) {
        let (id, other) = (PersistenceId::of("Worker", "1").unwrap(), WriterUuid::from_u128(99));
        let seen = stores.journal.head(&id).now_or_never().unwrap().unwrap().epoch;
        stores.journal.claim(&id, other, Under::Seen(seen)).now_or_never().unwrap().unwrap();
    }
}

impl Core for StateEntityCore<StateWorker> {
    type Call = StateCall;
    type Answer = StateAnswer;

    fn begin(log: &Log, on_signal: bool, stores: &Stores, now: Instant, out: &mut Actions<Self>) -> Self {
        let caps = stores.states.as_ref().unwrap().caps();
        let on_failure = EventSourcedSettings::test().on_failure;
        let settings = DurableStateSettings { on_failure, ..DurableStateSettings::default() };
        let init = StateEntityInit { generation: None, start: 1, seed: [7; 32], caps, settings, host: None };
        StateEntityCore::start(StateWorker { log: log.clone(), on_signal }.stored(), init, now, out).unwrap()
    }

    forward_to_the_machine!(StatePhase);

    fn is_write(call: &StateCall) -> bool {
        !matches!(call, StateCall::Get { .. })
    }

    fn perform(call: StateCall, stores: &Stores) -> StateAnswer {
        call.perform(&**stores.states.as_ref().unwrap()).now_or_never().unwrap()
    }

    fn not_stored() -> StateAnswer {
        StateAnswer::Written(Err(StateWriteError::NotStored(away())))
    }

    fn fence(stores: &Stores) {
        let (states, id) = (stores.states.as_ref().unwrap(), PersistenceId::of("StateWorker", "1").unwrap());
        let revision = states.get(&id).now_or_never().unwrap().unwrap().revision.next().unwrap();
        let write = StateWrite { id, revision, generation: None, writer_uuid: WriterUuid::from_u128(99) };
        states.delete(write).now_or_never().unwrap().unwrap();
    }
}

/// A machine whose writes are answered by the test.
struct Bench<C: Core> {
    core: C,
    stores: Stores,
    log: Log,
    now: Instant,
    write: Option<(Incarnation, C::Call)>,
    work: Vec<(Incarnation, WorkNo)>,
    /// Turns of commands that the entity told itself, until `turn` takes them.
    turns: VecDeque<(Incarnation, WorkNo)>,
}

impl<C: Core> Bench<C> {
    fn start(on_signal: bool) -> Self {
        let (log, stores, now) = (Log::default(), Stores::in_memory(), Instant::now());
        let mut out = Vec::new();
        let core = C::begin(&log, on_signal, &stores, now, &mut out);
        let mut bench = Self { core, stores, log, now, write: None, work: Vec::new(), turns: VecDeque::new() };
        bench.perform(out);
        bench
    }

    /// A recovered machine with two stored writes.
    fn running() -> Self {
        let mut bench = Self::start(false);
        for _ in 0..2 {
            bench.command(Command::Add);
            bench.answer_write(Outcome::Stored);
        }
        bench.log.take();
        bench
    }

    fn perform(&mut self, out: Actions<C>) {
        let mut inputs = Vec::new();
        for action in out {
            match action {
                Action::RequestPermit(incarnation) => inputs.push(Input::PermitGranted(incarnation)),
                Action::Store { incarnation, call } if C::is_write(&call) => self.write = Some((incarnation, call)),
                Action::Store { incarnation, call } => {
                    inputs.push(Input::Answer { incarnation, answer: C::perform(call, &self.stores) });
                }
                Action::Work { incarnation, work } => self.work.push((incarnation, work)),
                Action::ToSelf { incarnation, work } => self.turns.push_back((incarnation, work)),
                Action::DeadLetter(dropped) => dropped.discard(),
                _ => {}
            }
        }
        inputs.into_iter().for_each(|input| self.input(input));
    }

    fn input(&mut self, input: Input<Command, C::Answer>) {
        let mut out = Vec::new();
        self.core.take(self.now, input, &mut out);
        self.perform(out);
    }

    /// Takes the entity's oldest own turn.
    fn turn(&mut self) {
        let (incarnation, work) = self.turns.pop_front().expect("it told itself something");
        self.input(Input::Worked { incarnation, work, command: None });
    }

    fn command(&mut self, command: Command) {
        self.input(Input::Command(command));
    }

    fn answer_write(&mut self, outcome: Outcome) {
        let (incarnation, call) = self.write.take().unwrap();
        let answer = match outcome {
            Outcome::Stored => C::perform(call, &self.stores),
            Outcome::NotStored => C::not_stored(),
        };
        self.input(Input::Answer { incarnation, answer });
    }

    fn pass(&mut self, by: Duration) {
        self.now += by;
        self.input(Input::Tick);
    }

    /// Runs the oldest work, and gives its result to the machine.
    fn work(&mut self) {
        let (incarnation, work) = self.work.remove(0);
        let command = match self.core.work(work).unwrap() {
            Work::Future(future) => future.now_or_never().unwrap(),
            Work::Blocking(run) => run(),
        };
        self.input(Input::Worked { incarnation, work, command });
    }
}

/// The outcome of a write; a write that meets another owner is fenced.
enum Outcome {
    Stored,
    NotStored,
}

/// Makes two tests of a generic one: for an event-sourced entity, and for an entity with a durable state.
macro_rules! for_both {
    ($($name:ident)*) => {
        mod event_sourced {
            $(#[test] fn $name() { super::$name::<greylag_persistence::EntityCore<super::Worker>>(); })*
        }

        mod durable_state {
            $(#[test] fn $name() { super::$name::<greylag_persistence::StateEntityCore<super::StateWorker>>(); })*
        }
    };
}

for_both! {
    scenario_76_after_a_graceful_stop_the_signal_sees_the_last_state
    scenario_76_a_state_that_is_not_whole_is_seen_by_no_signal
    scenario_77_results_during_a_write_wait_their_turn
    scenario_77_a_cancelled_or_replaced_timer_sends_nothing_even_from_the_stash
    scenario_77_nothing_comes_before_recovery_is_completed_and_ending_signals_begin_nothing
    scenario_77_all_ends_at_stop_restart_and_fencing
    scenario_77_the_receive_timeout_fires_and_pauses_during_writes
    scenario_113_an_asker_whose_command_ended_with_its_incarnation_may_ask_again
    a_graceful_stop_waits_for_what_the_entity_told_itself_before
    a_timer_that_panics_fails_its_entity_and_not_the_host
}

fn scenario_76_after_a_graceful_stop_the_signal_sees_the_last_state<C: Core>() {
    let mut bench = Bench::<C>::running();
    bench.input(Input::Stop);
    assert_eq!(bench.log.take(), ["PostStop with 2 at 2"]);
    // A stop that waits for an append: the signal gets the state with the append's events.
    let mut bench = Bench::<C>::running();
    bench.command(Command::Add);
    bench.input(Input::Stop);
    bench.answer_write(Outcome::Stored);
    assert_eq!(bench.log.take(), ["PostStop with 3 at 3"]);
    // The host replaces the machine.
    let mut bench = Bench::<C>::running();
    bench.core.stop_for_restart();
    assert_eq!(bench.log.take(), ["PreRestart with 2 at 2"]);
}

fn scenario_76_a_state_that_is_not_whole_is_seen_by_no_signal<C: Core>() {
    // An append under way: its events must not show.
    let mut bench = Bench::<C>::running();
    bench.command(Command::Add);
    bench.input(Input::StopNow);
    assert_eq!(bench.log.take(), ["PostStop with 0 at 0"]);
    let mut bench = Bench::<C>::running();
    bench.command(Command::Add);
    bench.answer_write(Outcome::NotStored);
    bench.pass(SECOND);
    assert_eq!(bench.log.take()[..2], ["PersistFailed", "PreRestart with 0 at 0"]);
    // After a panic.
    let mut bench = Bench::<C>::running();
    bench.command(Command::Panic);
    bench.core.stop_for_restart();
    assert_eq!(bench.log.take(), ["PreRestart with 0 at 0"]);
    // Another writer has written.
    let mut bench = Bench::<C>::running();
    C::fence(&bench.stores);
    bench.command(Command::Add);
    bench.answer_write(Outcome::Stored);
    assert_eq!(bench.log.take().last().unwrap(), "PostStop with 0 at 0");
    // The entity never ran.
    let (log, stores) = (Log::default(), Stores::in_memory());
    let mut core = C::begin(&log, false, &stores, Instant::now(), &mut Vec::new());
    core.take(Instant::now(), Input::Stop, &mut Vec::new());
    assert_eq!(log.take(), ["PostStop with 0 at 0"]);
}

fn scenario_77_results_during_a_write_wait_their_turn<C: Core>() {
    let mut bench = Bench::<C>::running();
    bench.command(Command::Once("timer", SECOND));
    bench.command(Command::Spawn);
    bench.command(Command::Block);
    assert_eq!(bench.core.deadline(), Some(bench.now + SECOND));
    bench.command(Command::Add);
    assert_eq!(bench.core.deadline(), None, "no timer of an entity that could not take it");
    bench.pass(SECOND);
    bench.work();
    bench.command(Command::Say("asked meanwhile"));
    bench.work();
    assert_eq!(bench.log.take(), [""; 0]);
    bench.answer_write(Outcome::Stored);
    assert_eq!(bench.log.take(), ["spawned at 3", "asked meanwhile at 3", "blocked at 3"]);
    let due = bench.core.deadline().unwrap();
    assert!(due <= bench.now);
    bench.pass(Duration::ZERO);
    assert_eq!(bench.log.take(), ["timer at 3"]);
    assert_eq!(bench.core.deadline(), None);
}

fn scenario_77_a_cancelled_or_replaced_timer_sends_nothing_even_from_the_stash<C: Core>() {
    let mut bench = Bench::<C>::running();
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
    assert_eq!(bench.core.deadline(), Some(bench.now + SECOND), "counted from its handling");
    assert_eq!(bench.log.take(), ["delay at 2"]);
}

/// sharding §4.4 for entities that persist.
fn scenario_77_the_receive_timeout_fires_and_pauses_during_writes<C: Core>() {
    let mut bench = Bench::<C>::running();
    bench.command(Command::Listen("silence", SECOND * 10));
    bench.pass(SECOND * 9);
    bench.command(Command::Say("command"));
    assert_eq!(bench.core.deadline(), Some(bench.now + SECOND * 10), "a command puts it off");
    bench.pass(SECOND * 9);
    assert_eq!(bench.log.take(), ["command at 2"]);
    bench.pass(SECOND);
    bench.pass(SECOND * 10);
    assert_eq!(bench.log.take(), ["silence at 2", "silence at 2"], "again and again");
    bench.command(Command::Add);
    bench.pass(SECOND * 60);
    assert_eq!(bench.core.deadline(), None, "it waits for its write");
    bench.answer_write(Outcome::Stored);
    assert_eq!(bench.core.deadline(), Some(bench.now + SECOND * 10));
    bench.command(Command::Quiet("quiet", SECOND * 3));
    bench.command(Command::Spawn);
    bench.command(Command::ToItself);
    bench.pass(SECOND * 3);
    bench.work();
    bench.turn();
    assert_eq!(bench.log.take(), ["quiet at 3", "spawned at 3", "to itself at 3"]);
    assert_eq!(bench.core.deadline(), Some(bench.now + SECOND * 7), "what comes of itself does not");
    bench.pass(SECOND * 7);
    assert_eq!(bench.log.take(), ["silence at 3"]);
    bench.command(Command::Deaf);
    assert_eq!(bench.core.deadline(), None);
    bench.command(Command::Listen("never", SECOND));
    bench.core.stop_for_restart();
    assert_eq!(bench.core.deadline(), None, "it ends with its incarnation");
}

fn scenario_77_nothing_comes_before_recovery_is_completed_and_ending_signals_begin_nothing<C: Core>() {
    let mut bench = Bench::<C>::start(true);
    assert_eq!(bench.log.take(), ["RecoveryCompleted with 0 at 0"]);
    bench.turn();
    assert_eq!(bench.log.take(), ["to itself, of a signal at 0"]);
    bench.pass(Duration::ZERO);
    bench.work();
    assert_eq!(bench.log.take(), ["of a signal at 0", "spawned by a signal at 0"]);
    // A failed append, a wait, a new incarnation: only the last of these signals begins work.
    bench.command(Command::Add);
    bench.answer_write(Outcome::NotStored);
    assert!(bench.core.is_backing_off());
    assert!(bench.work.is_empty());
    bench.pass(SECOND);
    assert_eq!(bench.work.len(), 1);
    let seen = ["PersistFailed", "PreRestart with 0 at 0", "RecoveryCompleted with 0 at 0"];
    assert_eq!(bench.log.take()[..3], seen);
    bench.input(Input::Stop);
    assert_eq!((bench.work.len(), bench.core.deadline()), (1, None));
}

fn scenario_77_all_ends_at_stop_restart_and_fencing<C: Core>() {
    let ends: [(&str, fn(&mut Bench<C>)); 4] = [
        ("stop", |bench| bench.input(Input::StopNow)),
        ("restart", |bench| {
            bench.answer_write(Outcome::NotStored);
            bench.pass(SECOND);
        }),
        ("fencing", |bench| {
            C::fence(&bench.stores);
            bench.answer_write(Outcome::Stored);
        }),
        ("a new entity", |bench| bench.core.stop_for_restart()),
    ];
    for (what, end) in ends {
        let mut bench = Bench::<C>::running();
        for command in [Command::Rate("rate", SECOND / 2), Command::Spawn, Command::Spawn, Command::Spawn] {
            bench.command(command);
        }
        bench.command(Command::ToItself);
        bench.command(Command::ToItself);
        let (incarnation, late) = bench.work[1];
        let [Some(Work::Future(never_done)), Some(Work::Future(done_late))] =
            [bench.work[2].1, late].map(|work| bench.core.work(work))
        else {
            panic!("work")
        };
        let command = done_late.now_or_never().unwrap();
        bench.command(Command::Add);
        // The first work is done, and its result waits in the stash of a persisting entity.
        bench.work();
        bench.turn();
        end(&mut bench);
        bench.turn();
        bench.input(Input::Worked { incarnation, work: late, command });
        assert!(never_done.now_or_never().unwrap().is_none(), "{what}: the future is ended");
        bench.pass(10 * SECOND);
        let said = bench.log.take();
        let late = ["spawned", "rate", "to itself"];
        assert!(!said.iter().any(|line| late.iter().any(|late| line.starts_with(late))), "{what}: {said:?}");
        assert_eq!(bench.core.deadline(), None, "{what}");
    }
}

fn a_timer_that_panics_fails_its_entity_and_not_the_host<C: Core>() {
    let mut bench = Bench::<C>::running();
    bench.command(Command::Explode);
    bench.pass(SECOND);
    bench.command(Command::Say("to a failed entity"));
    assert_eq!(bench.core.deadline(), None, "the timer ended with its incarnation");
    bench.core.stop_for_restart();
    assert_eq!(bench.log.take(), ["PreRestart with 0 at 0"]);
}

/// The command that began the work for the asker may have stored something itself.
fn scenario_113_an_asker_whose_command_ended_with_its_incarnation_may_ask_again<C: Core>() {
    let mut bench = Bench::<C>::running();
    bench.command(Command::SumWhenDone(bench.log.ask()));
    bench.command(Command::SumInTurn(bench.log.ask()));
    let (incarnation, no) = bench.work.remove(0);
    let Some(Work::Blocking(run)) = bench.core.work(no) else { panic!("blocking work") };
    bench.command(Command::Add);
    bench.answer_write(Outcome::NotStored);
    let unknown = format!("answered: {}", EntityError::OutcomeUnknown);
    assert_eq!(bench.log.take(), ["PersistFailed", unknown.as_str()]);
    // Blocking work cannot be aborted, and its result comes too late.
    let command = run();
    bench.input(Input::Worked { incarnation, work: no, command });
    assert_eq!(bench.log.take(), [unknown]);
}

/// Commands that an entity told itself before a stop are handled before it, once; their turns then find nothing.
fn a_graceful_stop_waits_for_what_the_entity_told_itself_before<C: Core>() {
    let mut bench = Bench::<C>::running();
    bench.command(Command::ToItself);
    bench.input(Input::Stop);
    assert_eq!(bench.log.take(), ["to itself at 2", "PostStop with 2 at 2"]);
    bench.turn();
    assert_eq!(bench.log.take(), [""; 0]);
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
    assert_eq!(never, Err(EntityError::Stopped));
    let () = stopped;
}

/// Sharding scenario 113: an asker that waits for work that ends with its incarnation may ask again, and is not told
/// that the entity had no answer; the command that began the work may have stored something.
#[tokio::test(start_paused = true)]
async fn scenario_113_an_asker_of_failed_work_may_ask_again() {
    let journal = Arc::new(FaultyJournal::new(Arc::new(InMemoryJournal::default())));
    let stores = Stores::new(journal.clone(), Stores::in_memory().snapshots);
    let (entity, _end) =
        driver::spawn(Worker::new(&Log::default()).stored(), stores, RecoveryPermits::default()).unwrap();
    journal.plan(None, JournalOp::Append, 0, StoreFault::Unavailable);
    let (never, told) = futures::join!(entity.ask(Command::Never), entity.tell(Command::Add));
    assert_eq!((never, told), (Err(EntityError::OutcomeUnknown), Ok(())));
    assert_eq!(entity.ask(Command::Sum).await, Ok(0), "the entity goes on");
    let (never, told) = futures::join!(entity.ask(Command::Never), entity.tell(Command::Panic));
    assert_eq!((never, told), (Err(EntityError::Stopped), Ok(())), "it was no fault of its command");
}

#[tokio::test(start_paused = true)]
async fn scenario_77_an_entity_alone_begins_what_an_entity_of_a_shard_does() {
    let log = Log::default();
    let (entity, end) =
        driver::spawn(Worker::new(&log).stored(), Stores::in_memory(), RecoveryPermits::default()).unwrap();
    begins_all(&entity, &log).await;
    assert_eq!(end.await, Ok(driver::Ended::Stopped));
    until(&log, &["PostStop with 1 at 1"]).await;
}

/// The same with a durable state.
struct StateWorker {
    log: Log,
    /// Whether it begins work on every signal.
    on_signal: bool,
}

impl StateWorker {
    fn new(log: &Log) -> Self {
        Self { log: log.clone(), on_signal: false }
    }
}

impl DurableState for StateWorker {
    type Command = Command;
    type State = u64;

    fn on_command(&mut self, cx: &mut Ctx<'_, Command>, sum: &u64, command: Command) -> StateEffect<Self> {
        match command {
            Command::Add => return StateEffect::persist(sum + 1),
            Command::Say(word) => self.log.push(format!("{word} at {sum}")),
            Command::Sum(to) => return StateEffect::reply(to, *sum),
            Command::Panic => panic!("on purpose"),
            other => begin!(cx, other),
        }
        StateEffect::none()
    }

    fn on_signal(&mut self, cx: &mut Ctx<'_, Command>, sum: &u64, signal: &StateSignal) {
        let revision: Revision = cx.revision();
        match signal {
            StateSignal::PersistFailed(_) => self.log.push("PersistFailed"),
            signal => self.log.push(format!("{signal:?} with {sum} at {revision}")),
        }
        if self.on_signal {
            cx.once("signal", Duration::ZERO, Command::Say("of a signal"));
            cx.tell_self(Command::Say("to itself, of a signal"));
            cx.spawn(async { Word("spawned by a signal") }, Command::from);
        }
    }
}

impl StateWorker {
    /// The entity with its id and its codecs.
    fn stored(self) -> Persisted<Self, StateCodec<Self>> {
        let id = PersistenceId::of("StateWorker", "1").unwrap();
        StateCodec::new(json("kept")).of(id, self)
    }
}

#[tokio::test(start_paused = true)]
async fn scenario_77_an_entity_with_a_durable_state_begins_the_same() {
    let log = Log::default();
    let (entity, end) =
        driver::spawn_state(StateWorker::new(&log).stored(), Stores::in_memory(), RecoveryPermits::default()).unwrap();
    begins_all(&entity, &log).await;
    assert_eq!(end.await, Ok(driver::Ended::Stopped));
    until(&log, &["PostStop with 1 at 1"]).await;
}

#[test]
fn scenario_77_test_kits_run_what_a_behaviour_begins() {
    let log = Log::default();
    let made = log.clone();
    let mut kit = EntityTestKit::new(Instant::now(), move || Worker::new(&made).stored());
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
    let mut kit = StateTestKit::new(Instant::now(), move || StateWorker::new(&made).stored());
    kit.run(Command::Spawn);
    assert_eq!(log.take()[1..], ["spawned at 0"]);
}
