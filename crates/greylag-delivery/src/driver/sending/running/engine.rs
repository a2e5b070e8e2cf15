//! The part of a producer's task that differs between the kinds of producer.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use greylag_core::Encoded;

use crate::delivery::payload::Payload;
use crate::driver::sending::command::{Address, Granted};
use crate::error::ProducerError;
use crate::ids::{ControllerRef, SeqNr};
use crate::machine::controller::{Message, Refusal};
use crate::machine::portable::UnsendableError;
use crate::machine::storing::{Answer, Call, StoringState};
use crate::message::{Frames, UpstreamMessage};

/// Runs a producer's machine, and sends its frames. The task does everything else, for all kinds of producer.
pub(crate) trait Engine<T>: Send + 'static {
    /// The targets of messages.
    type To: Address;

    /// Gives the machine an input.
    fn handle_input(&mut self, input: Input<T, Self::To>);

    /// Sends the frames that the machine has asked for since the last call, and appends the other effects to `out`, in
    /// order. Inputs that follow may cause more effects; if `out` stays empty, no effect is left.
    fn apply_effects(&mut self, out: &mut Vec<Outcome<T, Self::To>>);

    /// The next time at which a tick has an effect.
    fn next_deadline(&self) -> Option<Instant>;

    /// Waits for an event of the engine's own, such as room in a lane. Cancel safe; pending if no event can come.
    fn next_event(&mut self) -> impl Future<Output = ()> + Send;

    /// Handles the events that [`next_event`](Self::next_event) set aside; called after the engine was told every consumer
    /// message that had arrived before them.
    fn handle_events(&mut self) {}

    /// Number of messages without waiting for which there is room.
    fn room(&self) -> u64;

    /// The highest number up to which all messages are confirmed.
    fn confirmed(&self) -> SeqNr;

    /// State of the producer's queue.
    fn storing_state(&self) -> StoringState;

    /// Whether messages of the queue are unconfirmed, or not loaded yet.
    fn has_unconfirmed_recovered(&self) -> bool;

    /// Publishes the state to the handles.
    fn publish(&self, published: &mut <Self::To as Address>::State);
}

/// An input from the task to an engine.
pub(crate) enum Input<T, A> {
    /// The handles of this session take over.
    Start {
        session: u64,
    },
    /// Attach this consumer controller.
    Register(ControllerRef),
    /// Send a message, in the room of a permit if it has one.
    Admit {
        session: u64,
        ticket: u64,
        to: A,
        message: Message<Payload<T>>,
        permit: Option<u64>,
    },
    /// A sender gave up waiting for room.
    Withdraw {
        ticket: u64,
        to: A,
    },
    /// A permit is requested; its number is drawn from the same sequence as tickets.
    Reserve {
        session: u64,
        permit: u64,
    },
    /// A permit is given back, or its request is withdrawn.
    Release {
        permit: u64,
    },
    /// A message of a consumer controller arrived.
    Received(UpstreamMessage),
    /// The queue answered.
    Answered {
        call: u64,
        answer: Answer<Encoded>,
    },
    Close,
    Tick,
}

/// An effect of an engine that the task carries out.
pub(crate) enum Outcome<T, A: Address> {
    /// A permit is granted.
    Permitted(Granted<A>),
    /// A message was accepted, and stored if there is a queue.
    Accepted { ticket: u64, total: SeqNr },
    /// A message was confirmed by its consumer.
    Confirmed { ticket: u64, total: SeqNr },
    /// A message was not accepted.
    Refused { ticket: u64, frames: Option<Frames<Payload<T>>>, why: Refusal },
    /// It is unknown whether a message is stored.
    Unknown { ticket: u64, total: SeqNr },
    /// The producer ended with a message for `to` that is unconfirmed and stored nowhere.
    Undelivered { ticket: Option<u64>, to: Arc<str> },
    /// An accepted message cannot be sent to its entity's new node: the message alone is given up.
    Unsendable { ticket: Option<u64>, to: Arc<str>, total: SeqNr, error: UnsendableError },
    /// Call the queue.
    Call { id: u64, call: Call<Encoded> },
    /// The producer has failed; `Closed` follows.
    Failed(ProducerError),
    /// The producer has ended, and everything it had to store is stored.
    Closed,
}
