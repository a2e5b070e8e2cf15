//! Drives an event-sourced behaviour without a runtime, and makes checks that tests tend to forget.
//!
//! The effects of a command are in its [`CommandOutcome`], the new state in [`EntityTestKit::state`], the answer in the
//! result of [`EntityTestKit::ask`]. After every command the history is replayed from its stored bytes into a fresh
//! state, twice, and compared with the live state as its snapshot codec writes it: an event that does not survive its
//! codec, or a handler that is not a function of its events, fails the test at once.
//! Source: persistence §4.6, §10.4.

pub(crate) mod steps;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use greylag_core::{Codec, EntityError, ReplyTo};

use self::steps::{Asks, Settled, advance, append_value, seed, settle, survive, ticking_clock};
use super::behavior::event_sourced::{EventMeta, EventSourced};
use super::behavior::failure::Failure;
use super::behavior::persisted::{EventCodecs, Persisted};
use super::driver::stores::Stores;
use super::entity::{EntityCore, EntityInit, PhaseName};
use super::lifecycle::input::{Action, Input, StoreCall, Withheld};
use super::settings::EventSourcedSettings;
use crate::contract::driver::memory::{InMemoryJournal, InMemorySnapshots};
use crate::contract::journal::Caps;
use crate::contract::records::codec::{EncodedValue, EventSeq, StoredCodec};
use crate::contract::records::event::{Metadata, SeqNr, StoredEvent};
use crate::contract::records::snapshot::{NewSnapshot, SnapshotCaps};
use crate::contract::scope::Scope;

/// The effects of one command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutcome<E> {
    /// The events that the command stored, read back from their bytes.
    pub events: Vec<E>,
    /// Whether the command was put aside, for a later unstash-all.
    pub stashed: bool,
    /// Writes that were not sent to a store, because they cannot be encoded or break a limit: events, or the snapshot
    /// of a new state. The behaviour gets the reason by a signal, an asker by its answer.
    pub withheld: Vec<Withheld>,
    /// Whether the behaviour had no answer to the command.
    pub unhandled: bool,
    /// Whether the entity asked to be passivated.
    pub passivate: bool,
    /// Whether the entity has ended.
    pub stopped: bool,
    /// The failure of the entity by this command, if any.
    pub failure: Option<Failure>,
}

/// One behaviour over stores in memory; the kit's clock moves only over waits of the machine.
pub struct EntityTestKit<B: EventSourced> {
    factory: Factory<B>,
    journal: InMemoryJournal,
    snapshots: InMemorySnapshots,
    stores: Stores,
    core: EntityCore<B>,
    now: Instant,
    starts: u64,
    asks: Asks,
    /// Codec to write commands with, if set.
    commands: Option<Box<dyn Codec<B::Command>>>,
}

/// Makes the entity, at first and after each restart.
type Factory<B> = Box<dyn FnMut() -> Persisted<B, EventCodecs<B>>>;

impl<B: EventSourced> EntityTestKit<B> {
    /// Starts the entity that `factory` makes, over empty stores. `now` is only a base: the kit's own clock
    /// advances by itself over the waits of the machine.
    ///
    /// # Panics
    /// If the behaviour does not start.
    pub fn new(now: Instant, factory: impl FnMut() -> Persisted<B, EventCodecs<B>> + 'static) -> Self {
        let clock = ticking_clock();
        let journal = InMemoryJournal::new(Scope::Process, clock.clone());
        let snapshots = InMemorySnapshots::new(SnapshotCaps::full(Scope::Process), clock);
        let stores = Stores::new(Arc::new(journal.clone()), Arc::new(snapshots.clone()));
        let mut factory: Factory<B> = Box::new(factory);
        let mut out = Vec::new();
        let core = start(&mut factory, 1, now, &mut out);
        let mut kit =
            Self { factory, journal, snapshots, stores, core, now, starts: 1, asks: Asks::default(), commands: None };
        let outcome = kit.settle(out);
        assert_eq!(outcome.failure, None, "the entity must start");
        kit
    }

    /// Writes every command with the codec that its senders use and reads it back before it is handled, as on the way
    /// from another node. The kit does not know that codec by itself, since it belongs to the entity type. Reply tokens
    /// in commands must then come from [`EntityTestKit::ask`].
    #[must_use]
    pub fn with_command_codec(self, codec: impl Codec<B::Command>) -> Self {
        Self { commands: Some(Box::new(codec)), ..self }
    }

    /// Handles one command to its end: append, side effects, snapshot, and a restart if it failed.
    ///
    /// # Panics
    /// If the state that the stored events give differs from the live one, if the state does not survive its snapshot
    /// codec, or the command does not survive the codec set by [`EntityTestKit::with_command_codec`].
    pub fn run(&mut self, command: B::Command) -> CommandOutcome<B::Event> {
        let before = self.core.seq_nr();
        let command = match &self.commands {
            Some(codec) => survive("command", &**codec, &command),
            None => command,
        };
        let waited = self.core.waiting_count();
        let mut out = Vec::new();
        self.core.handle(self.now, Input::Command(command), &mut out);
        let Settled { withheld, unhandled, passivate, stopped, failure } = self.settle(out);
        let stashed = self.core.waiting_count() > waited;
        let codec = (self.factory)().codecs.events;
        let live = self.journal.events(self.core.persistence_id());
        let events = live.into_iter().filter(|record| record.seq_nr > before).flat_map(|record| decode(&codec, record));
        let events = events.collect();
        self.check_replay();
        CommandOutcome { events, stashed, withheld, unhandled, passivate, stopped, failure }
    }

    /// Handles a command that asks, and returns its answer.
    ///
    /// # Panics
    /// If the command was not answered at all: the behaviour put it aside, or kept the token; and as
    /// [`EntityTestKit::run`].
    pub fn ask<R: Send + 'static>(&mut self, command: impl FnOnce(ReplyTo<R>) -> B::Command) -> Result<R, EntityError> {
        let (command, question) = self.asks.put(command);
        self.run(command);
        question.answer()
    }

    /// As [`EntityTestKit::ask`], and writes the answer with its codec and reads it back, as on the way to an asker on
    /// another node.
    ///
    /// # Errors
    /// The asker's error if the behaviour did not answer.
    ///
    /// # Panics
    /// If the answer does not survive its codec, and as [`EntityTestKit::ask`].
    pub fn ask_coded<R: Send + 'static>(
        &mut self,
        codec: &dyn Codec<R>,
        command: impl FnOnce(ReplyTo<R>) -> B::Command,
    ) -> Result<R, EntityError> {
        self.ask(command).map(|answer| survive("answer", codec, &answer))
    }

    /// Lets time pass, so that unconfirmed deliveries are sent again.
    pub fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(deadline) = self.core.next_deadline().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            let mut out = Vec::new();
            self.core.handle(self.now, Input::Tick, &mut out);
            self.settle(out);
        }
        self.now = self.now.max(end);
    }

    /// Stops the entity and starts it again from its stored history.
    ///
    /// # Panics
    /// If the entity does not start.
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

    /// Starts over from a history of these events.
    ///
    /// # Panics
    /// If an event cannot be stored, or the entity does not start from them.
    pub fn initialize(&mut self, events: &[B::Event]) {
        self.clear_stores();
        self.store_events(events);
        self.restart();
    }

    /// Starts over from a state as of event `seq_nr`, without the events before it.
    ///
    /// # Panics
    /// If the behaviour has no snapshot codec, or does not start from the state.
    pub fn initialize_state(&mut self, state: &B::State, seq_nr: SeqNr) {
        self.clear_stores();
        self.store_state(state, seq_nr);
        self.restart();
    }

    /// Starts over from a state as of event `seq_nr`, without the events before it, and from these events,
    /// which follow it.
    ///
    /// # Panics
    /// If the behaviour has no snapshot codec, an event cannot be stored, or the entity does not start from them.
    pub fn initialize_with(&mut self, state: &B::State, seq_nr: SeqNr, events: &[B::Event]) {
        self.clear_stores();
        self.store_state(state, seq_nr);
        if !seq_nr.is_zero() {
            advance(&self.journal, self.core.persistence_id(), seq_nr);
        }
        self.store_events(events);
        self.restart();
    }

    fn store_events(&mut self, events: &[B::Event]) {
        let codec = (self.factory)().codecs.events;
        for event in events {
            let value = codec.encode(event).unwrap_or_else(|error| panic!("an event cannot be encoded: {error}"));
            append_value(&self.journal, self.core.persistence_id(), value);
        }
    }

    fn store_state(&mut self, state: &B::State, seq_nr: SeqNr) {
        let codec = (self.factory)().codecs.snapshots.expect("a state is stored by the snapshot codec");
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

    /// The journal, to inspect it and to script its failures.
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

    fn settle(&mut self, out: Vec<Action<B::Command>>) -> Settled {
        let stores = &self.stores;
        let perform = |call: StoreCall| call.perform(stores).now_or_never().expect("memory never waits");
        settle(&mut self.core, &mut self.now, out, perform)
    }

    /// Folds the stored events twice and compares both states with the live one.
    fn check_replay(&mut self) {
        let Persisted { behavior, codecs, .. } = (self.factory)();
        let (Some(codec), Some(live)) = (codecs.snapshots, self.core.state()) else { return };
        let live = encode_state(&codec, live);
        let records = self.journal.events(self.core.persistence_id());
        // A history without its beginning does not give the whole state, so skip the comparison.
        if records.first().is_some_and(|record| record.seq_nr != SeqNr::FIRST)
            || self.core.phase() != PhaseName::Running
        {
            return;
        }
        if records.is_empty() && !self.core.seq_nr().is_zero() {
            return;
        }
        for replay in ["first", "second"] {
            let mut state = B::State::default();
            for record in &records {
                let (seq_nr, metadata) = (record.seq_nr, record.metadata.clone());
                for event in decode(&codecs.events, record.clone()) {
                    behavior.apply_with(&mut state, &event, &EventMeta { seq_nr, metadata: &metadata, refill: false });
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
    factory: &mut Factory<B>,
    start: u64,
    now: Instant,
    out: &mut Vec<Action<B::Command>>,
) -> EntityCore<B> {
    let (caps, snapshot_caps) = (Caps::full(Scope::Process), SnapshotCaps::full(Scope::Process));
    let init = EntityInit {
        generation: None,
        start,
        seed: seed(start),
        caps,
        snapshot_caps,
        settings: EventSourcedSettings::default(),
        host: None,
    };
    EntityCore::start(factory(), init, now, out).unwrap_or_else(|error| panic!("the settings cannot work: {error}"))
}

pub(crate) fn decode<E: 'static>(codec: &StoredCodec<E>, record: StoredEvent) -> Vec<E> {
    let StoredEvent { seq_nr, codec_id, manifest, schema_version, kind, payload, .. } = record;
    let value = EncodedValue { codec_id, manifest, schema_version, payload };
    match codec.decode(kind, value) {
        Ok(EventSeq::Filtered) => Vec::new(),
        Ok(EventSeq::One(event)) => vec![event],
        Ok(EventSeq::Many(events)) => events,
        Err(error) => panic!("event {seq_nr} does not survive its codec: {error}"),
    }
}

/// Writes the state, reads it back and writes it again, as a snapshot does.
pub(crate) fn encode_state<S: 'static>(codec: &StoredCodec<S>, state: &S) -> EncodedValue {
    let once = codec.encode(state).unwrap_or_else(|error| panic!("the state cannot be encoded: {error}"));
    let read = codec.decode_one(once.clone());
    let read = read.unwrap_or_else(|error| panic!("the state does not survive its codec: {error}"));
    let twice = codec.encode(&read).unwrap_or_else(|error| panic!("the state cannot be encoded: {error}"));
    assert_eq!(twice, once, "the state must survive its codec");
    once
}
