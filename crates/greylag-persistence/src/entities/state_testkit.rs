//! Drives a behaviour with a durable state without a runtime, and makes checks that tests tend to forget.
//!
//! After every command the stored row is read back and compared with the live state as its codec
//! writes it, so a state that does not survive its codec fails the test at once. Source:
//! persistence §4.6.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use futures::FutureExt;
use greylag_core::{Codec, EntityError, ReplyTo};

use super::behavior::durable_state::{DurableState, DurableStateSettings};
use super::behavior::failure::Failure;
use super::behavior::persisted::{Persisted, StateCodec};
use super::lifecycle::input::{Action, Input, Withheld};
use super::state_entity::{StateCall, StateEntityCore, StateEntityInit};
use super::testkit::encode_state;
use super::testkit::steps::{Asks, Settled, seed, settle, survive, ticking_clock};
use crate::contract::driver::memory::states::InMemoryStates;
use crate::contract::driver::state_store::StateStore;
use crate::contract::records::event::WriterUuid;
use crate::contract::records::revision::Revision;
use crate::contract::records::state::StateWrite;
use crate::contract::scope::Scope;

/// The effects of one command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateOutcome {
    /// The revision after the command; greater than before if it wrote or deleted.
    pub revision: Revision,
    /// Whether the command was put aside, for a later unstash-all.
    pub stashed: bool,
    /// Writes that were not sent to a store, because the state cannot be encoded or breaks a limit. The
    /// behaviour gets the reason by a signal, an asker by its answer.
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

/// One behaviour over a state store in memory; the kit's clock moves only over waits of the machine.
pub struct StateTestKit<B: DurableState> {
    factory: Factory<B>,
    states: InMemoryStates,
    /// The store as the entity sees it: `states`, or a wrapper of it.
    store: Arc<dyn StateStore>,
    core: StateEntityCore<B>,
    now: Instant,
    starts: u64,
    asks: Asks,
    /// Codec to write commands with, if set.
    commands: Option<Box<dyn Codec<B::Command>>>,
}

/// Makes the entity, at first and after each restart.
type Factory<B> = Box<dyn FnMut() -> Persisted<B, StateCodec<B>>>;

impl<B: DurableState> StateTestKit<B> {
    /// Starts the entity that `factory` makes, over an empty store. `now` is only a base.
    ///
    /// # Panics
    /// If the behaviour does not start.
    pub fn new(now: Instant, factory: impl FnMut() -> Persisted<B, StateCodec<B>> + 'static) -> Self {
        Self::over(now, factory, |states| states)
    }

    /// As [`StateTestKit::new`], with a store that `wrap` puts around the one in memory, such as
    /// [`FaultyStates`](crate::FaultyStates). The wrapper must never wait.
    ///
    /// # Panics
    /// If the behaviour does not start.
    pub fn over(
        now: Instant,
        factory: impl FnMut() -> Persisted<B, StateCodec<B>> + 'static,
        wrap: impl FnOnce(Arc<dyn StateStore>) -> Arc<dyn StateStore>,
    ) -> Self {
        let states = InMemoryStates::new(Scope::Process, ticking_clock());
        let store = wrap(Arc::new(states.clone()));
        let mut factory: Factory<B> = Box::new(factory);
        let mut out = Vec::new();
        let core = start(&mut factory, &*store, 1, now, &mut out);
        let mut kit = Self { factory, states, store, core, now, starts: 1, asks: Asks::default(), commands: None };
        kit.settle_start(out);
        kit
    }

    /// Writes every command with the codec that its senders use and reads it back before it is handled, as on the way
    /// from another node. The kit does not know that codec by itself, since it belongs to the entity type. Reply tokens
    /// in commands must then come from [`StateTestKit::ask`].
    #[must_use]
    pub fn with_command_codec(self, codec: impl Codec<B::Command>) -> Self {
        Self { commands: Some(Box::new(codec)), ..self }
    }

    /// Handles one command to its end: write, side effects, and a restart if it failed.
    ///
    /// # Panics
    /// If the stored state is not the live one, or the command does not survive the codec set by
    /// [`StateTestKit::with_command_codec`].
    pub fn run(&mut self, command: B::Command) -> StateOutcome {
        let command = match &self.commands {
            Some(codec) => survive("command", &**codec, &command),
            None => command,
        };
        let waited = self.core.waiting_count();
        let mut out = Vec::new();
        self.core.handle(self.now, Input::Command(command), &mut out);
        let Settled { withheld, unhandled, passivate, stopped, failure } = self.settle(out);
        let stashed = self.core.waiting_count() > waited;
        self.check_stored();
        let revision = self.core.revision();
        StateOutcome { revision, stashed, withheld, unhandled, passivate, stopped, failure }
    }

    /// Handles a command that asks, and returns its answer.
    ///
    /// # Errors
    /// The asker's error if the behaviour did not answer.
    ///
    /// # Panics
    /// If the command was not answered at all: the behaviour put it aside, or kept the token; and as
    /// [`StateTestKit::run`].
    pub fn ask<R: Send + 'static>(&mut self, command: impl FnOnce(ReplyTo<R>) -> B::Command) -> Result<R, EntityError> {
        let (command, question) = self.asks.put(command);
        self.run(command);
        question.answer()
    }

    /// As [`StateTestKit::ask`], and writes the answer with its codec and reads it back, as on the way to an asker on
    /// another node.
    ///
    /// # Errors
    /// The asker's error if the behaviour did not answer.
    ///
    /// # Panics
    /// If the answer does not survive its codec, and as [`StateTestKit::ask`].
    pub fn ask_coded<R: Send + 'static>(
        &mut self,
        codec: &dyn Codec<R>,
        command: impl FnOnce(ReplyTo<R>) -> B::Command,
    ) -> Result<R, EntityError> {
        self.ask(command).map(|answer| survive("answer", codec, &answer))
    }

    /// Stops the entity and starts it again from its stored state.
    ///
    /// # Panics
    /// If the entity does not start.
    pub fn restart(&mut self) {
        let mut out = Vec::new();
        self.core.handle(self.now, Input::StopNow, &mut out);
        self.settle(out);
        self.starts += 1;
        let mut out = Vec::new();
        self.core = start(&mut self.factory, &*self.store, self.starts, self.now, &mut out);
        self.settle_start(out);
    }

    /// Starts over from `state` at revision 1.
    ///
    /// # Panics
    /// If the state cannot be stored, or the entity does not start from it.
    pub fn initialize(&mut self, state: &B::State) {
        self.states.clear();
        let codec = (self.factory)().codecs.0;
        let value = codec.encode(state).unwrap_or_else(|error| panic!("the state cannot be encoded: {error}"));
        let (id, writer_uuid) = (self.core.persistence_id().clone(), WriterUuid::from_u128(1));
        let write = StateWrite { id, revision: Revision::FIRST, generation: None, writer_uuid };
        let stored = self.states.upsert(write, value, None).now_or_never().expect("memory never waits");
        stored.unwrap_or_else(|error| panic!("the state cannot be stored: {error}"));
        self.restart();
    }

    /// Starts over with an empty store.
    ///
    /// # Panics
    /// If the entity does not start.
    pub fn clear(&mut self) {
        self.states.clear();
        self.restart();
    }

    /// The state, if the entity runs.
    pub fn state(&self) -> Option<&B::State> {
        self.core.state()
    }

    /// The machine itself.
    pub fn core(&self) -> &StateEntityCore<B> {
        &self.core
    }

    /// The store, to inspect it and to write to it behind the entity's back.
    pub fn states(&self) -> &InMemoryStates {
        &self.states
    }

    fn settle_start(&mut self, out: Vec<Action<B::Command, StateCall>>) {
        let failure = self.settle(out).failure;
        assert_eq!(failure, None, "the entity must start");
    }

    fn settle(&mut self, out: Vec<Action<B::Command, StateCall>>) -> Settled {
        let store = &self.store;
        let perform = |call: StateCall| call.perform(&**store).now_or_never().expect("the store must not wait");
        settle(&mut self.core, &mut self.now, out, perform)
    }

    /// Compares the stored row with the live state.
    fn check_stored(&mut self) {
        let (codec, Some(live)) = ((self.factory)().codecs.0, self.core.state()) else { return };
        let Some(row) = self.states.row(self.core.persistence_id()) else { return };
        if row.revision != self.core.revision() {
            return;
        }
        let live = encode_state(&codec, live);
        let stored = row.value.unwrap_or_else(|| encode_state(&codec, &B::State::default()));
        assert_eq!(stored, live, "what is stored must be the live state");
    }
}

impl<B: DurableState> fmt::Debug for StateTestKit<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StateTestKit({} at {})", self.core.persistence_id(), self.core.revision())
    }
}

fn start<B: DurableState>(
    factory: &mut Factory<B>,
    store: &dyn StateStore,
    start: u64,
    now: Instant,
    out: &mut Vec<Action<B::Command, StateCall>>,
) -> StateEntityCore<B> {
    let init = StateEntityInit {
        generation: None,
        start,
        seed: seed(start),
        caps: store.caps(),
        settings: DurableStateSettings::default(),
        host: None,
    };
    StateEntityCore::start(factory(), init, now, out)
        .unwrap_or_else(|error| panic!("the settings cannot work: {error}"))
}
