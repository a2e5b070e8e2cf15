//! Drives an event-sourced behaviour without a runtime, and checks what tests forget.
//!
//! After every command the history is replayed from its stored bytes into a fresh state, twice, and
//! compared with the live one as its snapshot codec writes it: an event that does not survive its
//! codec, or a handler that is not a function of its events, fails the test that brought it up.
//! Source: persistence §4.6, §10.4.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use greylag_core::{EntityError, ReplyAddress, ReplyOutcome, ReplyPort, ReplyTo};

use crate::behavior::{EventMeta, EventSourced, Failure};
use crate::codec::{EncodedValue, EventSeq, StoredCodec};
use crate::driver::stores::{Journal, Stores};
use crate::driver::{InMemoryJournal, InMemorySnapshots};
use crate::entity::{Action, EntityCore, EntityInit, Input, PhaseName};
use crate::event::{EventKind, Metadata, NewEvent, SeqNr, StoredEvent, Tags, Timestamp, WriterUuid};
use crate::journal::{Append, Caps, Scope, Under};
use crate::snapshot::{NewSnapshot, SnapshotCaps};

/// What one command did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutcome<E> {
    /// The events stored by it, read back from their bytes.
    pub events: Vec<E>,
    /// Whether the behaviour had no answer to it.
    pub unhandled: bool,
    /// Whether the entity asked to be passivated.
    pub passivate: bool,
    /// Whether the entity has ended.
    pub stopped: bool,
    /// How the entity failed by it, if it did.
    pub failure: Option<Failure>,
}

/// One behaviour over stores in memory, its clock standing still but for waits that it asks for.
pub struct EntityTestKit<B: EventSourced> {
    factory: Box<dyn FnMut() -> B>,
    journal: InMemoryJournal,
    snapshots: InMemorySnapshots,
    stores: Stores,
    core: EntityCore<B>,
    now: Instant,
    starts: u64,
    asks: u64,
}

/// Far more steps than any command takes; only a behaviour that talks to itself for ever gets here.
const MAX_STEPS: usize = 1_000_000;

impl<B: EventSourced> EntityTestKit<B> {
    /// Starts what `factory` makes, over empty stores. `now` is only a base: the kit's own clock
    /// advances by itself over the waits of the machine.
    ///
    /// # Panics
    /// If the behaviour does not start.
    pub fn new(now: Instant, factory: impl FnMut() -> B + 'static) -> Self {
        let tick = Arc::new(Mutex::new(0));
        let clock = move || {
            let mut tick = tick.lock().unwrap_or_else(PoisonError::into_inner);
            *tick += 1;
            Timestamp::from_micros(*tick)
        };
        let journal = InMemoryJournal::new(Scope::Process, clock.clone());
        let snapshots = InMemorySnapshots::new(SnapshotCaps::full(Scope::Process), clock);
        let stores = Stores::new(Arc::new(journal.clone()), Arc::new(snapshots.clone()));
        let mut factory: Box<dyn FnMut() -> B> = Box::new(factory);
        let mut out = Vec::new();
        let core = start(&mut factory, 1, now, &mut out);
        let mut kit = Self { factory, journal, snapshots, stores, core, now, starts: 1, asks: 0 };
        let outcome = kit.settle(out);
        assert_eq!(outcome.failure, None, "the entity must start");
        kit
    }

    /// Handles one command to its end: append, side effects, snapshot, and a restart if it failed.
    ///
    /// # Panics
    /// If the state that the stored events give differs from the live one.
    pub fn run(&mut self, command: B::Command) -> CommandOutcome<B::Event> {
        let before = self.core.seq_nr();
        let mut out = Vec::new();
        self.core.handle(self.now, Input::Command(command), &mut out);
        let outcome = self.settle(out);
        let codec = (self.factory)().event_codec();
        let live = self.journal.events(self.core.persistence_id());
        let events = live.into_iter().filter(|record| record.seq_nr > before).flat_map(|record| decode(&codec, record));
        let outcome = CommandOutcome { events: events.collect(), ..outcome };
        self.check_replay();
        outcome
    }

    /// Handles a command that asks, and returns what it was answered.
    ///
    /// # Panics
    /// If it was not answered at all: the behaviour put it aside, or kept the token; and as
    /// [`EntityTestKit::run`].
    pub fn ask<R: Send + 'static>(&mut self, command: impl FnOnce(ReplyTo<R>) -> B::Command) -> Result<R, EntityError> {
        self.asks += 1;
        let answers = Arc::new(Answers::default());
        let node = "testkit:1#1".parse().expect("a fixed address parses");
        let token = ReplyTo::new(ReplyAddress { node, ask_id: self.asks }, answers.clone());
        self.run(command(token));
        let answer = answers.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        match answer.expect("the command was not answered") {
            ReplyOutcome::Value { value, .. } => Ok(*value.downcast::<R>().expect("the token answers its own type")),
            ReplyOutcome::Failed(error) => Err(error),
        }
    }

    /// Stops the entity and starts it again from its stored history.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        let mut out = Vec::new();
        self.core.handle(self.now, Input::StopNow, &mut out);
        self.settle(out);
        self.starts += 1;
        let mut out = Vec::new();
        self.core = start(&mut self.factory, self.starts, self.now, &mut out);
        let outcome = self.settle(out);
        assert_eq!(outcome.failure, None, "the entity must start");
    }

    /// Starts over with a history that these events made.
    ///
    /// # Panics
    /// If an event cannot be stored, or the entity does not start from them.
    pub fn initialize(&mut self, events: &[B::Event]) {
        self.clear_stores();
        let codec = (self.factory)().event_codec();
        for event in events {
            let value = codec.encode(event).unwrap_or_else(|error| panic!("an event cannot be encoded: {error}"));
            self.store(value);
        }
        self.restart();
    }

    /// Starts over from a state as of event `seq_nr`, without the events before it.
    ///
    /// # Panics
    /// If the behaviour has no snapshot codec, or does not start from the state.
    pub fn initialize_state(&mut self, state: &B::State, seq_nr: SeqNr) {
        self.clear_stores();
        let codec = (self.factory)().snapshot_codec().expect("a state is stored by the snapshot codec");
        let value = codec.encode(state).unwrap_or_else(|error| panic!("the state cannot be encoded: {error}"));
        let snapshot = NewSnapshot {
            id: self.core.persistence_id().clone(),
            seq_nr,
            codec_id: value.codec_id,
            manifest: value.manifest,
            schema_version: value.schema_version,
            payload: value.payload,
            metadata: Metadata::new(),
        };
        let saved = self.stores.snapshots.save(snapshot).now_or_never().expect("memory never waits");
        saved.unwrap_or_else(|error| panic!("the state cannot be stored: {error}"));
        self.restart();
    }

    /// Starts over with an empty history.
    ///
    /// # Panics
    /// If the entity does not start.
    pub fn clear(&mut self) {
        self.clear_stores();
        self.restart();
    }

    /// The state, if the entity runs.
    pub fn state(&self) -> Option<&B::State> {
        self.core.state()
    }

    /// The machine itself.
    pub fn core(&self) -> &EntityCore<B> {
        &self.core
    }

    /// The journal, for looking at it, and for scripting what goes wrong.
    pub fn journal(&self) -> &InMemoryJournal {
        &self.journal
    }

    /// The snapshot store.
    pub fn snapshots(&self) -> &InMemorySnapshots {
        &self.snapshots
    }

    fn clear_stores(&mut self) {
        self.journal.clear();
        self.snapshots.clear();
    }

    fn store(&mut self, value: EncodedValue) {
        let id = self.core.persistence_id().clone();
        let writer_uuid = WriterUuid::from_u128(1);
        let head = self.journal.head(&id).now_or_never().expect("memory never waits").unwrap_or_default();
        let under = Under::Seen(head.epoch);
        let claim = self.journal.claim(&id, writer_uuid, under).now_or_never().expect("memory never waits");
        let claim = claim.expect("nobody else claims");
        let event = NewEvent {
            codec_id: value.codec_id,
            manifest: value.manifest,
            schema_version: value.schema_version,
            kind: EventKind::Event,
            payload: value.payload,
            metadata: Metadata::new(),
            tags: Tags::new(),
        };
        let first = claim.highest.next().expect("a test has few events");
        let append = Append { id, epoch: claim.epoch, writer_uuid, first, events: vec![event] };
        let appended = self.journal.append(append).now_or_never().expect("memory never waits");
        appended.unwrap_or_else(|error| panic!("an event cannot be stored: {error}"));
    }

    /// Performs actions until the machine waits for nothing but commands.
    fn settle(&mut self, mut out: Vec<Action<B::Command>>) -> CommandOutcome<B::Event> {
        let mut outcome =
            CommandOutcome { events: Vec::new(), unhandled: false, passivate: false, stopped: false, failure: None };
        for _ in 0..MAX_STEPS {
            let mut inputs = Vec::new();
            for action in out.drain(..) {
                match action {
                    Action::RequestPermit(incarnation) => inputs.push(Input::PermitGranted(incarnation)),
                    Action::Store { incarnation, call } => {
                        let answer = call.perform(&self.stores).now_or_never().expect("memory never waits");
                        inputs.push(Input::Answer { incarnation, answer });
                    }
                    Action::DeadLetter(dropped) => dropped.discard(),
                    Action::Restarting(failure) | Action::Failed(failure) => outcome.failure = Some(failure),
                    Action::Unhandled => outcome.unhandled = true,
                    Action::Passivate => outcome.passivate = true,
                    Action::Stopped | Action::Fenced(_) => outcome.stopped = true,
                    Action::ReturnPermit(_) | Action::Recovered(_) => {}
                }
            }
            if inputs.is_empty() {
                match self.core.next_deadline() {
                    Some(deadline) => {
                        self.now = self.now.max(deadline);
                        inputs.push(Input::Tick);
                    }
                    None => return outcome,
                }
            }
            for input in inputs {
                self.now += Duration::from_micros(1);
                self.core.handle(self.now, input, &mut out);
            }
        }
        panic!("the entity does not come to rest");
    }

    /// Folds the stored events twice and compares both states with the live one.
    fn check_replay(&mut self) {
        let behavior = (self.factory)();
        let (Some(codec), Some(live)) = (behavior.snapshot_codec(), self.core.state()) else { return };
        let records = self.journal.events(self.core.persistence_id());
        // Without its beginning a history says nothing about the whole state.
        if records.first().is_some_and(|record| record.seq_nr != SeqNr::FIRST)
            || self.core.phase() != PhaseName::Running
        {
            return;
        }
        if records.is_empty() && !self.core.seq_nr().is_zero() {
            return;
        }
        let live = encode_state(&codec, live);
        let events = behavior.event_codec();
        for replay in ["first", "second"] {
            let mut state = B::State::default();
            for record in &records {
                let (seq_nr, metadata) = (record.seq_nr, record.metadata.clone());
                for event in decode(&events, record.clone()) {
                    behavior.apply(&mut state, &event, &EventMeta { seq_nr, metadata: &metadata });
                }
            }
            assert_eq!(encode_state(&codec, &state), live, "the {replay} replay must give the live state");
        }
    }
}

impl<B: EventSourced> std::fmt::Debug for EntityTestKit<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EntityTestKit({} at {})", self.core.persistence_id(), self.core.seq_nr())
    }
}

fn start<B: EventSourced>(
    factory: &mut dyn FnMut() -> B,
    start: u64,
    now: Instant,
    out: &mut Vec<Action<B::Command>>,
) -> EntityCore<B> {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&start.to_le_bytes());
    let (caps, snapshot_caps) = (Caps::full(Scope::Process), SnapshotCaps::full(Scope::Process));
    let init = EntityInit { generation: None, start, seed, caps, snapshot_caps };
    EntityCore::start(factory(), init, now, out).unwrap_or_else(|error| panic!("the settings cannot work: {error}"))
}

fn decode<E: 'static>(codec: &StoredCodec<E>, record: StoredEvent) -> Vec<E> {
    let StoredEvent { seq_nr, codec_id, manifest, schema_version, kind, payload, .. } = record;
    let value = EncodedValue { codec_id, manifest, schema_version, payload };
    match codec.decode(kind, value) {
        Ok(EventSeq::Filtered) => Vec::new(),
        Ok(EventSeq::One(event)) => vec![event],
        Ok(EventSeq::Many(events)) => events,
        Err(error) => panic!("event {seq_nr} does not survive its codec: {error}"),
    }
}

/// Writes the state, reads it back and writes it again: what a snapshot does to it.
fn encode_state<S: 'static>(codec: &StoredCodec<S>, state: &S) -> EncodedValue {
    let once = codec.encode(state).unwrap_or_else(|error| panic!("the state cannot be encoded: {error}"));
    let read = codec.decode_one(once.clone());
    let read = read.unwrap_or_else(|error| panic!("the state does not survive its codec: {error}"));
    let twice = codec.encode(&read).unwrap_or_else(|error| panic!("the state cannot be encoded: {error}"));
    assert_eq!(twice, once, "the state must survive its codec");
    once
}

#[derive(Default)]
struct Answers(Mutex<Option<ReplyOutcome>>);

impl ReplyPort for Answers {
    fn reply(&self, _: &ReplyAddress, outcome: ReplyOutcome) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    }
}
