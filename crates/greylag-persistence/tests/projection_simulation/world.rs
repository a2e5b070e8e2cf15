//! Clock, random choices and the mail between the machines; performs the effects as a driver would.
//!
//! Everything happens in [`World::step`]: the next message arrives, or a machine's deadline comes.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use greylag_persistence::{
    ConsumerId, EventPage, HandleError, OffsetError, OffsetKind, OwnedSlices, PageQuery, PersistenceId,
    ProjectionAnswer, ProjectionEffect, ProjectionInput, QueryCaps, QueryError, QuerySettings, ReadError, Scope,
    SharedAnswer, SharedReader, SharedReaderEffect, SharedReaderInput, SharingSettings, StoreFailure, Timestamp,
};
use greylag_testkit::deadlines::assert_moved;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::instance::{Instance, Place};
use super::store::Store;
use crate::{PROJECTIONS, Profile};

/// Timestamp of the first instant, large enough for backtracking to begin before it.
const EPOCH: u64 = 1_000_000_000;
/// During the fault phase a random event may happen after this time even if no machine has anything to do.
const RANDOM_EVENT_AFTER: Duration = Duration::from_millis(50);
/// Longest delays of answers.
const QUICK: Duration = Duration::from_millis(60);
const SLOW: Duration = Duration::from_millis(200);
/// Longest time to a commit; less than `behind`, since later commits may be lost by contract.
const LATEST_COMMIT: Duration = Duration::from_secs(8);
/// Bound on steps at one instant, above which a machine counts as looping.
const MOST_STEPS: u32 = 5_000;

pub(crate) struct World {
    profile: Profile,
    rng: ChaCha8Rng,
    injects_faults: bool,
    start: Instant,
    now: Instant,
    steps_now: u32,
    queries: u64,
    store: Store,
    instances: Vec<Instance>,
    /// The shared reader, if there is one, with its number.
    reader: Option<(u64, SharedReader)>,
    /// Letters by time of arrival, then in the order in which they were sent.
    mail: BTreeMap<(Instant, u64), Message>,
    /// Numbers messages, readers and consumers.
    last_number: u64,
}

/// A message, with its recipient.
#[derive(Debug)]
enum Message {
    Projection(usize, ProjectionInput),
    Reader(u64, SharedReaderInput),
    Consumer(ConsumerId, SharedAnswer),
}

/// The kind of the next step.
enum Due {
    Message,
    Projection(usize),
    Reader,
}

/// The outcome of an operation on a store or a handler.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    Refused,
    /// The operation is carried out, and the answer is a failure.
    Lost,
}

impl World {
    pub(crate) fn new(profile: Profile, rng: ChaCha8Rng) -> Self {
        let start = Instant::now();
        let mut world = Self {
            profile,
            rng,
            injects_faults: true,
            start,
            now: start,
            steps_now: 0,
            queries: 0,
            store: Store::new(profile.kind, profile.shows),
            instances: Vec::new(),
            reader: None,
            mail: BTreeMap::new(),
            last_number: 0,
        };
        let caps = QueryCaps { scope: Scope::Shared, kind: profile.kind, shows: profile.shows };
        for (number, group) in profile.groups.into_iter().enumerate() {
            let mut effects = Vec::new();
            world.instances.push(Instance::start(number, group, caps, settings(), &mut effects));
            world.perform_projection(number, effects);
        }
        world
    }

    pub(crate) fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end {
            self.step();
        }
    }

    pub(crate) fn run_within(&mut self, longest: Duration) {
        let duration = self.within(longest);
        self.run_for(duration);
    }

    /// Ends the fault phase: nothing fails from now on, and only one projection stays paused.
    pub(crate) fn stop_faults(&mut self) {
        self.injects_faults = false;
        for number in 0..PROJECTIONS {
            let is_paused = self.profile.stays_paused == Some(number);
            self.tell(number, if is_paused { ProjectionInput::Pause } else { ProjectionInput::Resume });
            // Reset some, so that they catch up and join while others are fed.
            if self.rng.random() {
                self.tell(number, ProjectionInput::Reset);
            }
        }
    }

    /// Writes a few events of a few carts.
    pub(crate) fn write_up_to(&mut self, most: u32) {
        for _ in 0..self.rng.random_range(1..=most) {
            let id = PersistenceId::of("Cart", &self.rng.random_range(0..12).to_string()).unwrap();
            let is_late = self.store.kind == OffsetKind::Timestamp && self.rng.random_bool(0.2);
            let commit = if is_late { self.within(LATEST_COMMIT) } else { Duration::ZERO };
            self.store.write(id, self.timestamp(), commit);
        }
    }

    /// Hints the reader that new events were written.
    pub(crate) fn hint_reader(&mut self) {
        self.tell_reader(SharedReaderInput::Hint);
    }

    /// Number of queries to the store.
    pub(crate) fn queries(&self) -> u64 {
        self.queries
    }

    pub(crate) fn assert_all_is_seen(&self) {
        for (number, instance) in self.instances.iter().enumerate() {
            if self.profile.stays_paused != Some(number) {
                let written = self.store.heads(&instance.id.slices);
                assert_eq!(instance.seen.highest, written, "projection {number} has not seen what was written");
            }
        }
    }

    // ---- Time ----------------------------------------------------------------------------------

    fn timestamp(&self) -> Timestamp {
        let since = u64::try_from((self.now - self.start).as_micros()).expect("a run is short");
        Timestamp::from_micros(EPOCH + since)
    }

    fn within(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.rng.random())
    }

    /// Performs the next step, and in the fault phase from time to time a random event.
    fn step(&mut self) {
        let random_event_at = self.now + RANDOM_EVENT_AFTER;
        let is_random_event = match self.next_due() {
            Some((at, due)) if at <= random_event_at => {
                self.advance_to(at);
                self.perform(due);
                self.rng.random_bool(0.02)
            }
            _ => {
                self.advance_to(random_event_at);
                true
            }
        };
        if is_random_event && self.injects_faults {
            self.inject_random_event();
        }
    }

    /// Of steps due at one instant, those of projections come first, then the reader's, then the mail.
    fn next_due(&self) -> Option<(Instant, Due)> {
        let instances = self.instances.iter().enumerate();
        let projections =
            instances.filter_map(|(number, it)| Some((it.machine.next_deadline()?, Due::Projection(number))));
        let reader = self.reader.iter().filter_map(|(_, reader)| Some((reader.next_deadline()?, Due::Reader)));
        let message = self.mail.keys().next().map(|(at, _)| (*at, Due::Message));
        projections.chain(reader).chain(message).min_by_key(|(at, _)| *at)
    }

    fn advance_to(&mut self, at: Instant) {
        self.steps_now = if at > self.now { 0 } else { self.steps_now + 1 };
        assert!(self.steps_now < MOST_STEPS, "a machine spins");
        self.now = self.now.max(at);
    }

    fn perform(&mut self, due: Due) {
        match due {
            Due::Projection(number) => self.tell(number, ProjectionInput::Tick),
            Due::Reader => self.tell_reader(SharedReaderInput::Tick),
            Due::Message => {
                if let Some((_, message)) = self.mail.pop_first() {
                    self.deliver(message);
                }
            }
        }
    }

    // ---- Faults ---------------------------------------------------------------------------------

    fn inject_random_event(&mut self) {
        let number = self.rng.random_range(0..PROJECTIONS);
        match self.rng.random_range(0..100) {
            0..6 => self.write_up_to(5),
            12..16 => self.tell(number, ProjectionInput::Pause),
            16..22 => self.tell(number, ProjectionInput::Resume),
            22 => self.tell(number, ProjectionInput::Reset),
            // A hint goes to the reader, not to the projections that share it.
            23..32 if self.instances[number].place.is_none() => self.tell(number, ProjectionInput::Hint),
            32..37 => self.hint_reader(),
            _ => {}
        }
    }

    fn fails_now(&mut self) -> bool {
        self.injects_faults && self.profile.fails && self.rng.random_bool(0.05)
    }

    fn outcome(&mut self) -> Outcome {
        match (self.fails_now(), self.rng.random()) {
            (false, _) => Outcome::Done,
            (true, false) => Outcome::Refused,
            (true, true) => Outcome::Lost,
        }
    }

    // ---- The mail ------------------------------------------------------------------------------

    fn send(&mut self, message: Message) {
        self.send_within(Duration::ZERO, message);
    }

    /// Often without delay, so that many messages arrive at one instant.
    fn send_within(&mut self, longest: Duration, message: Message) {
        let takes = if self.rng.random_bool(0.3) { Duration::ZERO } else { self.within(longest) };
        let number = self.next_number();
        self.mail.insert((self.now + takes, number), message);
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn deliver(&mut self, message: Message) {
        match message {
            Message::Projection(number, input) => self.tell(number, input),
            Message::Reader(to, input) if self.reader_number() == Some(to) => self.tell_reader(input),
            // The reader ended meanwhile.
            Message::Reader(_, SharedReaderInput::Join(consumer, _)) => {
                self.send(Message::Consumer(consumer, SharedAnswer::Dismissed(None)));
            }
            Message::Reader(..) => {}
            Message::Consumer(consumer, answer) => self.tell_consumer(consumer, answer),
        }
    }

    fn tell(&mut self, number: usize, input: ProjectionInput) {
        let mut effects = Vec::new();
        let ticks = matches!(input, ProjectionInput::Tick);
        self.instances[number].machine.handle(self.now, input, &mut effects);
        if ticks {
            assert_moved("projection", self.now, self.instances[number].machine.next_deadline());
        }
        self.perform_projection(number, effects);
    }

    /// Gives an answer to the consumer; drops it if the consumer has left.
    fn tell_consumer(&mut self, consumer: ConsumerId, answer: SharedAnswer) {
        let is_meant = |place: &Place| place.consumer == consumer;
        let Some(number) = self.instances.iter().position(|it| it.place.as_ref().is_some_and(is_meant)) else { return };
        let instance = &mut self.instances[number];
        let Some(Place { run, .. }) = instance.place else { return };
        if matches!(answer, SharedAnswer::Dismissed(_)) {
            instance.place = None;
        }
        self.tell(number, ProjectionInput::Answer(run, ProjectionAnswer::Shared(answer)));
    }

    fn tell_reader(&mut self, input: SharedReaderInput) {
        let Some((number, reader)) = &mut self.reader else { return };
        let (number, mut effects) = (*number, Vec::new());
        let ticks = matches!(input, SharedReaderInput::Tick);
        reader.handle(self.now, input, &mut effects);
        if ticks {
            assert_moved("shared reader", self.now, reader.next_deadline());
        }
        self.perform_reader(number, effects);
    }

    // ---- The shared reader ---------------------------------------------------------------------

    fn reader_number(&self) -> Option<u64> {
        self.reader.as_ref().map(|(number, _)| *number)
    }

    /// The present reader, or a new one.
    fn ensure_reader(&mut self) -> u64 {
        if let Some(number) = self.reader_number() {
            return number;
        }
        let (number, mut effects) = (self.next_number(), Vec::new());
        let reader = SharedReader::start("Cart", self.profile.kind, settings(), self.now, &mut effects);
        self.reader = Some((number, reader));
        self.perform_reader(number, effects);
        number
    }

    fn perform_reader(&mut self, number: u64, effects: Vec<SharedReaderEffect>) {
        for effect in effects {
            match effect {
                SharedReaderEffect::AskNewest => {
                    let newest = self.ask(Store::newest).map_err(ReadError::Unavailable);
                    self.send_within(SLOW, Message::Reader(number, SharedReaderInput::Newest(newest)));
                }
                SharedReaderEffect::Query(query) => {
                    let page = self.page(&query);
                    self.send_within(SLOW, Message::Reader(number, SharedReaderInput::Page(page)));
                }
                SharedReaderEffect::Tell(consumer, answer) => self.send(Message::Consumer(consumer, answer)),
                SharedReaderEffect::Trouble(_) => {}
                SharedReaderEffect::Idle if self.has_pending_join(number) => {}
                SharedReaderEffect::Idle | SharedReaderEffect::Broken(_) => return self.end_reader(number),
            }
        }
    }

    fn has_pending_join(&self, number: u64) -> bool {
        let joins =
            |message: &Message| matches!(message, Message::Reader(to, SharedReaderInput::Join(..)) if *to == number);
        self.mail.values().any(joins)
    }

    fn end_reader(&mut self, number: u64) {
        self.reader = None;
        let places = self.instances.iter().filter_map(|it| it.place).filter(|place| place.reader == number);
        for Place { consumer, .. } in places.collect::<Vec<_>>() {
            self.send(Message::Consumer(consumer, SharedAnswer::Dismissed(None)));
        }
    }

    // ---- The projections -----------------------------------------------------------------------

    fn perform_projection(&mut self, number: usize, effects: Vec<ProjectionEffect>) {
        for effect in effects {
            match effect {
                ProjectionEffect::Join(run) => self.join(number, run),
                ProjectionEffect::Pull => {
                    if let Some(Place { reader, consumer, .. }) = self.instances[number].place {
                        self.send(Message::Reader(reader, SharedReaderInput::Demand(consumer)));
                    }
                }
                ProjectionEffect::Leave => {
                    if let Some(Place { reader, consumer, .. }) = self.instances[number].place.take() {
                        self.send(Message::Reader(reader, SharedReaderInput::Leave(consumer)));
                    }
                }
                ProjectionEffect::Forget(..) | ProjectionEffect::Skipped(..) | ProjectionEffect::Trouble(_) => {}
                ProjectionEffect::Ended(end) => panic!("projection {number} ended: {end}"),
                question => {
                    let handles = matches!(question, ProjectionEffect::Handle(..) | ProjectionEffect::Commit(..));
                    let longest = if handles { self.profile.handling[number] } else { QUICK };
                    let (run, answer) = self.answer(number, question);
                    self.send_within(longest, Message::Projection(number, ProjectionInput::Answer(run, answer)));
                }
            }
        }
    }

    fn join(&mut self, number: usize, run: u64) {
        let reader = self.ensure_reader();
        let consumer = ConsumerId(self.next_number());
        let instance = &mut self.instances[number];
        instance.place = Some(Place { reader, consumer, run });
        let slices = instance.id.slices.clone();
        self.send(Message::Reader(reader, SharedReaderInput::Join(consumer, slices)));
    }

    /// Carries out an operation at once; only its answer is delayed.
    fn answer(&mut self, number: usize, question: ProjectionEffect) -> (u64, ProjectionAnswer) {
        use ProjectionEffect as Ask;
        match question {
            Ask::Query(run, query) => (run, ProjectionAnswer::Page(self.page(&query))),
            Ask::Read(run, id, range) => {
                let page = self.ask(|store, now| store.read(&id, range, now));
                (run, ProjectionAnswer::Read(page.map_err(ReadError::Unavailable)))
            }
            Ask::Claim(run) => {
                let projection = self.instances[number].id.name.clone();
                // No other instance claims, so no epochs are needed.
                let owned = self.ask(|_, _| OwnedSlices { projection, epochs: BTreeMap::new() });
                (run, ProjectionAnswer::Claimed(owned.map_err(OffsetError::Unavailable)))
            }
            Ask::Load(run) if self.fails_now() => {
                (run, ProjectionAnswer::Loaded(Err(OffsetError::Unavailable(away()))))
            }
            Ask::Load(run) => (run, ProjectionAnswer::Loaded(Ok(self.instances[number].load()))),
            Ask::Save(run, _, rows) => {
                let saved = self.change(number, |instance| instance.save(rows));
                (run, ProjectionAnswer::Saved(saved))
            }
            Ask::Reset(run, _) => (run, ProjectionAnswer::WasReset(self.change(number, Instance::reset))),
            Ask::Handle(run, envelopes) => {
                let outcome = self.outcome();
                if outcome != Outcome::Refused {
                    self.instances[number].handle(&envelopes, outcome == Outcome::Done);
                }
                (run, ProjectionAnswer::Handled(if outcome == Outcome::Done { Ok(()) } else { Err(failed()) }))
            }
            Ask::Commit(run, envelopes, _, rows) => {
                let outcome = self.outcome();
                if outcome != Outcome::Refused {
                    self.instances[number].commit(&envelopes, rows);
                }
                let refused = if self.rng.random() { failed() } else { unknown() };
                let handled = match outcome {
                    Outcome::Done => Ok(()),
                    Outcome::Refused => Err(refused),
                    Outcome::Lost => Err(unknown()),
                };
                (run, ProjectionAnswer::Handled(handled))
            }
            told => unreachable!("the world has no answer to {told:?}"),
        }
    }

    /// Changes offset rows.
    fn change(&mut self, number: usize, change: impl FnOnce(&mut Instance)) -> Result<(), OffsetError> {
        let outcome = self.outcome();
        if outcome != Outcome::Refused {
            change(&mut self.instances[number]);
        }
        if outcome == Outcome::Done { Ok(()) } else { Err(OffsetError::Unavailable(away())) }
    }

    // ---- The store -----------------------------------------------------------------------------

    fn ask<T>(&mut self, answer: impl FnOnce(&Store, Timestamp) -> T) -> Result<T, StoreFailure> {
        self.queries += 1;
        if self.fails_now() { Err(away()) } else { Ok(answer(&self.store, self.timestamp())) }
    }

    fn page(&mut self, query: &PageQuery) -> Result<EventPage, QueryError> {
        let page = self.ask(|store, now| store.page(query, now));
        page.map_err(|away| QueryError::Read(ReadError::Unavailable(away)))
    }
}

/// Small pages and buffers, so that runs meet their ends.
fn settings() -> QuerySettings {
    let sharing = SharingSettings {
        fanout_buffer: NonZeroUsize::new(8).expect("not zero"),
        catchup_overlap: Duration::from_secs(8),
        ..SharingSettings::default()
    };
    QuerySettings {
        page: NonZeroUsize::new(5).expect("not zero"),
        refresh_interval: Duration::from_secs(1),
        sharing,
        ..QuerySettings::default()
    }
}

fn away() -> StoreFailure {
    StoreFailure::new("store", "away")
}

fn failed() -> HandleError {
    HandleError::Handler("failed".to_owned())
}

fn unknown() -> HandleError {
    HandleError::Unknown("no answer".to_owned())
}

/// Shows the state of a run.
impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = if self.injects_faults { "with faults" } else { "without faults" };
        writeln!(f, "{:?} after {:?}, {phase}", self.profile, self.now - self.start)?;
        for (number, instance) in self.instances.iter().enumerate() {
            let due = instance.machine.next_deadline().map(|at| at.saturating_duration_since(self.now));
            writeln!(
                f,
                "projection {number}: due in {due:?}, at {:?}, {:?}",
                instance.place,
                instance.machine.stats()
            )?;
        }
        if let Some((number, reader)) = &self.reader {
            let due = reader.next_deadline().map(|at| at.saturating_duration_since(self.now));
            writeln!(f, "reader {number}: due in {due:?}")?;
        }
        for ((at, _), message) in self.mail.iter().take(5) {
            writeln!(f, "in {:?}: {message:?}", at.saturating_duration_since(self.now))?;
        }
        Ok(())
    }
}

/// Prints the seed and the state of the run if the test fails.
impl Drop for World {
    #[expect(clippy::print_stderr, reason = "a panic cannot be given more to say")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{self}run it alone with GREYLAG_SEED={}", self.profile.seed);
        }
    }
}
