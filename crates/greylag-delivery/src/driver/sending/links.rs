//! The engine of producers without entities: point to point and work pulling.

use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt;
use futures::stream::BoxStream;

use super::command::{Address, Granted, PublishedState};
use super::encoding::Encoding;
use super::lanes::Outgoing;
use super::now;
use super::running::{Base, Engine, Input, Outcome};
use crate::delivery::payload::Payload;
use crate::error::ProducerError;
use crate::ids::{ControllerRef, ProducerId, SeqNr};
use crate::machine::controller::{self, Controller, ControllerStats, Effect};
use crate::machine::storing::StoringState;
use crate::machine::work_pulling::{ListedWorker, WorkerStats};

/// The target of producers without entities: the engine chooses the consumer.
impl Address for () {
    type State = PublishedLinks;
    type Demand = ();
}

/// The state of a producer without entities as its handles see it.
#[derive(Debug)]
pub(crate) struct PublishedLinks {
    pub(crate) stats: ControllerStats,
    pub(crate) store: StoringState,
    /// When the oldest unconfirmed message was accepted.
    pub(crate) oldest_unconfirmed: Option<Instant>,
    /// Counts of workers; for work pulling only.
    pub(crate) workers: Option<WorkerStats>,
    /// The registered consumer controller; for point to point only.
    pub(crate) consumer: Option<ControllerRef>,
}

impl Default for PublishedLinks {
    fn default() -> Self {
        let (stats, store) = (ControllerStats::default(), StoringState::InMemory);
        Self { stats, store, oldest_unconfirmed: None, workers: None, consumer: None }
    }
}

impl PublishedState for PublishedLinks {
    fn undelivered(&self) -> u64 {
        self.stats.unconfirmed + self.stats.waiting
    }
}

/// See the module's documentation.
pub(crate) struct Links<T, C> {
    machine: C,
    encoding: Arc<Encoding<T>>,
    producer_id: ProducerId,
    outgoing: Outgoing<T>,
    effects: Vec<Effect<Payload<T>>>,
    /// Listings of workers, for work pulling; a new one at each change.
    listings: Option<BoxStream<'static, Vec<ListedWorker>>>,
}

impl<T, C> Links<T, C>
where
    T: Send + Sync + 'static,
    C: Controller<Payload<T>> + Send + 'static,
{
    /// An engine around a machine whose first effects are `effects`.
    pub(crate) fn new(base: &Base<T>, machine: C, effects: Vec<Effect<Payload<T>>>) -> Self {
        let (encoding, producer_id) = (base.encoding.clone(), base.producer_id.clone());
        Self { machine, encoding, producer_id, outgoing: Outgoing::new(base.remoting.clone()), effects, listings: None }
    }

    /// Adds listings of workers.
    pub(crate) fn with_workers(self, listings: BoxStream<'static, Vec<ListedWorker>>) -> Self {
        Self { listings: Some(listings), ..self }
    }

    fn handle(&mut self, input: controller::Input<Payload<T>>) {
        self.machine.handle(now(), input, &mut self.effects);
    }

    /// Sends frames; returns any other effect as an outcome for the task.
    fn apply_effect(&mut self, effect: Effect<Payload<T>>) -> Option<Outcome<T, ()>> {
        Some(match effect {
            Effect::Transmit { to, header, message } => {
                self.outgoing.push(to, header, message);
                return None;
            }
            Effect::Stop { to, message } => {
                self.outgoing.stopped(&to, &message);
                return None;
            }
            Effect::Permitted { ticket: permit, current_seq_nr, confirmed_seq_nr } => {
                Outcome::Permitted(Granted { permit, current_seq_nr, confirmed_seq_nr, demand: () })
            }
            Effect::Accepted { ticket, total } => Outcome::Accepted { ticket, total },
            Effect::Confirmed { ticket, total } => Outcome::Confirmed { ticket, total },
            Effect::Call { id, call } => Outcome::Call { id, call: call.map(|frames| frames.encoded()) },
            Effect::Refused { ticket, frames, why } => Outcome::Refused { ticket, frames, why },
            Effect::Unknown { ticket, total } => Outcome::Unknown { ticket, total },
            Effect::Undelivered { ticket, .. } => Outcome::Undelivered { ticket, to: self.producer_id.as_str().into() },
            Effect::Failed(failure) => Outcome::Failed(ProducerError::from(failure)),
            Effect::Closed => Outcome::Closed,
        })
    }
}

impl<T, C> Engine<T> for Links<T, C>
where
    T: Send + Sync + 'static,
    C: Controller<Payload<T>> + Send + 'static,
{
    type To = ();

    fn handle_input(&mut self, input: Input<T, ()>) {
        self.handle(match input {
            Input::Start { session } => controller::Input::Start { session },
            Input::Register(consumer) => controller::Input::RegisterConsumer(consumer),
            Input::Admit { ticket, message, permit: Some(permit), .. } => {
                controller::Input::Use { permit, ticket, message }
            }
            Input::Admit { session, ticket, message, permit: None, .. } => {
                controller::Input::Admit { session, ticket, message, waits: true }
            }
            Input::Withdraw { ticket, .. } => controller::Input::Withdraw { ticket },
            Input::Reserve { session, permit } => controller::Input::Reserve { session, ticket: permit },
            Input::Release { permit } => controller::Input::Withdraw { ticket: permit },
            Input::Received(message) => controller::Input::Received(message),
            Input::Answered { call, answer } => {
                let answer = answer.try_map(|sent| Ok(sent.map(|encoded| self.encoding.frames_of(encoded))));
                controller::Input::Answered { call, answer }
            }
            Input::Close => controller::Input::Close,
            Input::Tick => controller::Input::Tick,
        });
    }

    fn apply_effects(&mut self, out: &mut Vec<Outcome<T, ()>>) {
        for effect in std::mem::take(&mut self.effects) {
            out.extend(self.apply_effect(effect));
        }
        self.outgoing.flush();
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.machine.next_deadline()
    }

    /// Waits for room in a lane, or for the next listing of workers.
    async fn next_event(&mut self) {
        let listing = tokio::select! {
            () = self.outgoing.room() => return,
            listing = listing_of(&mut self.listings) => listing,
        };
        match listing {
            Some(workers) => self.handle(controller::Input::Workers(workers)),
            // An ended directory sends nothing more; the last listed workers stay.
            None => self.listings = None,
        }
    }

    fn room(&self) -> u64 {
        self.machine.room()
    }

    fn confirmed(&self) -> SeqNr {
        self.machine.confirmed()
    }

    fn storing_state(&self) -> StoringState {
        self.machine.storing_state()
    }

    fn has_unconfirmed_recovered(&self) -> bool {
        self.machine.has_unconfirmed_recovered()
    }

    fn publish(&self, published: &mut PublishedLinks) {
        published.stats = self.machine.stats();
        published.store = self.machine.storing_state();
        published.oldest_unconfirmed = self.machine.oldest_unconfirmed();
        published.workers = self.machine.worker_stats();
        if published.consumer.as_ref() != self.machine.consumer() {
            published.consumer = self.machine.consumer().cloned();
        }
    }
}

/// The next listing of workers; `None` after the last.
async fn listing_of(listings: &mut Option<BoxStream<'static, Vec<ListedWorker>>>) -> Option<Vec<ListedWorker>> {
    match listings {
        Some(listings) => listings.next().await,
        None => std::future::pending().await,
    }
}
