//! The part of a producer that differs between the kinds of producer.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use greylag_core::Encoded;

use super::{Address, Granted};
use crate::error::ProducerError;
use crate::ids::{ControllerRef, SeqNr};
use crate::machine::controller::{Message, Refusal};
use crate::machine::portable::UnsendableError;
use crate::machine::producer_link::Frames;
use crate::machine::storing::{Answer, Call, StoringState};
use crate::message::UpstreamMessage;
use crate::payload::Payload;

/// A producer's machine, and the way that its frames take. The task does the rest, for all kinds of producer.
pub(crate) trait Engine<T>: Send + 'static {
    /// Where messages go.
    type To: Address;

    /// Gives the machine an input.
    fn tell(&mut self, input: Input<T, Self::To>);

    /// Sends the frames that the machine has asked for since, and says what else it asks for, in its order. This may lead to
    /// inputs that ask for more; nothing is left when nothing is said.
    fn carry_out(&mut self, out: &mut Vec<Outcome<T, Self::To>>);

    /// When a tick next has work to do.
    fn next_deadline(&self) -> Option<Instant>;

    /// Waits for events that are the engine's own business, such as room in a lane. May be dropped without losing anything;
    /// pending where nothing can happen.
    fn happens(&mut self) -> impl Future<Output = ()> + Send;

    /// Takes in an event that [`happens`](Self::happens) set aside, once the engine was told all messages of consumers that
    /// arrived before it.
    fn take_in(&mut self) {}

    /// How many messages more are taken that do not wait.
    fn room(&self) -> u64;

    /// The last of the contiguously confirmed numbers.
    fn confirmed(&self) -> SeqNr;

    /// How its store fares.
    fn storing_state(&self) -> StoringState;

    /// Whether messages of the queue are not confirmed, or not known yet.
    fn owes_recovered(&self) -> bool;

    /// Lets handles see how it fares.
    fn show(&self, seen: &mut <Self::To as Address>::Seen);
}

/// An input of the task to an engine.
pub(crate) enum Input<T, A> {
    /// The handles of this session take over.
    Start {
        session: u64,
    },
    /// Attach this consumer controller.
    Register(ControllerRef),
    /// A message is to be sent, with the room of a permit if it has one.
    Admit {
        session: u64,
        ticket: u64,
        to: A,
        message: Message<Payload<T>>,
        permit: Option<u64>,
    },
    /// A sender gave up while it waited for room.
    Withdraw {
        ticket: u64,
        to: A,
    },
    /// A permit is wanted, under a number of one sequence with tickets.
    Reserve {
        session: u64,
        permit: u64,
    },
    /// A permit is given back, or its request is withdrawn.
    Release {
        permit: u64,
    },
    /// A consumer controller spoke.
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
    /// There is room for a permit.
    Permitted(Granted<A>),
    /// A message was accepted, and stored if there is a queue.
    Accepted { ticket: u64, total: SeqNr },
    /// A message was confirmed by its consumer.
    Confirmed { ticket: u64, total: SeqNr },
    /// A message was not accepted.
    Refused { ticket: u64, frames: Option<Frames<Payload<T>>>, why: Refusal },
    /// It cannot be known whether a message is stored.
    Unknown { ticket: u64, total: SeqNr },
    /// The producer ended with a message for `to` unconfirmed and kept nowhere.
    Undelivered { ticket: Option<u64>, to: Arc<str> },
    /// A message that was accepted cannot follow its entity to another node: it is given up alone.
    Unsendable { ticket: Option<u64>, to: Arc<str>, total: SeqNr, error: UnsendableError },
    /// Call the queue.
    Call { id: u64, call: Call<Encoded> },
    /// The producer has failed; `Closed` follows.
    Failed(ProducerError),
    /// The producer has ended, and everything it had to store is stored.
    Closed,
}
