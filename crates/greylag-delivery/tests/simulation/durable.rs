//! Invariants of durable producers, and the outcome of each message.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use greylag_delivery::SeqNr;
use greylag_delivery::machine::storing::{Answer, Call};

use super::store::{CallOutcome, QueuedMessage, Store, Writer};
use super::world::World;

/// The outcome of a message, as its sender was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SenderOutcome {
    /// No answer yet from the producer of this number.
    Pending(u64),
    /// Accepted under this total.
    Accepted(u64),
    /// Certainly not stored.
    NotStored,
    /// Possibly stored.
    Unknown,
}

/// The store of the producer's queue, its writers, and the senders' answers.
pub(crate) struct Durable<M> {
    pub(crate) store: Store<M>,
    /// Writers by the number of the producer.
    pub(crate) writers: BTreeMap<u64, Writer>,
    /// Answers by ticket, which equals the content.
    outcomes: BTreeMap<u64, SenderOutcome>,
    /// Tickets of senders that went away without an answer.
    withdrawn: BTreeSet<u64>,
}

impl<M: QueuedMessage> Durable<M> {
    pub(crate) fn new(store: Store<M>) -> Self {
        Self { store, writers: BTreeMap::new(), outcomes: BTreeMap::new(), withdrawn: BTreeSet::new() }
    }

    /// Makes a call of a producer's queue: returns when it is carried out, and its outcome.
    pub(crate) fn call<E: Clone>(&mut self, world: &mut World<E>, faults: bool) -> (Instant, CallOutcome) {
        let outcome = if faults { CallOutcome::drawn(world.pick(1 << 20)) } else { CallOutcome::GOOD };
        let takes = world.upto(Duration::from_millis(if faults { 60 } else { 10 }));
        (self.store.done_at(world.now, takes), outcome)
    }

    /// Carries out a call of a producer, which may have died meanwhile. Returns the answer if it reaches a living
    /// producer.
    pub(crate) fn run_call(
        &mut self,
        producer: u64,
        is_alive: bool,
        call: Call<M>,
        outcome: CallOutcome,
    ) -> Option<Answer<M>> {
        if !is_alive && matches!(call, Call::Load) {
            // A dead process cannot take over.
            return None;
        }
        let writer = self.writers.get_mut(&producer)?;
        self.store.call(writer, call, outcome).filter(|_| is_alive)
    }

    /// Gives a message to a producer.
    pub(crate) fn submit(&mut self, ticket: u64, producer: u64) {
        self.outcomes.insert(ticket, SenderOutcome::Pending(producer));
    }

    /// The producer dies: messages without an answer have an unknown outcome.
    pub(crate) fn kill(&mut self, producer: u64) {
        for outcome in self.outcomes.values_mut().filter(|outcome| **outcome == SenderOutcome::Pending(producer)) {
            *outcome = SenderOutcome::Unknown;
        }
    }

    /// Checks that an accepted message is stored.
    pub(crate) fn accepted(&mut self, ticket: u64, total: SeqNr) -> Result<(), String> {
        if !self.is_stored(total) {
            return Err(format!("I8, I10: message {total} was accepted and is not stored"));
        }
        self.record(ticket, SenderOutcome::Accepted(total.get()))
    }

    /// The sender goes away if it has no answer yet. Returns whether it does.
    pub(crate) fn withdraw(&mut self, ticket: u64) -> bool {
        let outcome = self.outcomes.get_mut(&ticket).filter(|outcome| matches!(outcome, SenderOutcome::Pending(_)));
        let goes = outcome.map(|outcome| *outcome = SenderOutcome::Unknown).is_some();
        if goes {
            self.withdrawn.insert(ticket);
        }
        goes
    }

    /// Checks that a transmitted message is stored.
    pub(crate) fn transmitted(&self, total: SeqNr) -> Result<(), String> {
        if self.is_stored(total) {
            return Ok(());
        }
        Err(format!("I10: message {total} was transmitted and is not stored"))
    }

    fn is_stored(&self, total: SeqNr) -> bool {
        self.store.ever().contains_key(&total.get())
    }

    /// Records the answer to a sender, which must be its first.
    pub(crate) fn record(&mut self, ticket: u64, outcome: SenderOutcome) -> Result<(), String> {
        match self.outcomes.get_mut(&ticket) {
            _ if self.withdrawn.contains(&ticket) => {}
            Some(before @ SenderOutcome::Pending(_)) => *before = outcome,
            before => {
                return Err(format!("I8: the sender of ticket {ticket} was told {before:?}, and then {outcome:?}"));
            }
        }
        Ok(())
    }

    /// Whether every sender has an answer.
    pub(crate) fn is_settled(&self) -> bool {
        self.store.is_settled() && !self.outcomes.values().any(|outcome| matches!(outcome, SenderOutcome::Pending(_)))
    }

    /// The stored messages of a qualifier, in the order of totals.
    pub(crate) fn stored(&self, qualifier: &str) -> Vec<u64> {
        self.store.ever().values().filter(|(of, _)| **of == *qualifier).map(|(_, content)| *content).collect()
    }

    /// Checks the senders' answers against the store.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut totals: BTreeMap<u64, u64> = BTreeMap::new();
        for (total, (_, content)) in self.store.ever() {
            if let Some(other) = totals.insert(*content, *total) {
                return Err(format!("I3, I5: message {content} is stored twice, as {other} and as {total}"));
            }
        }
        for (ticket, outcome) in &self.outcomes {
            let stored = totals.get(ticket).copied();
            let is_true = match outcome {
                SenderOutcome::Accepted(total) => stored == Some(*total),
                SenderOutcome::NotStored => stored.is_none(),
                SenderOutcome::Unknown => true,
                SenderOutcome::Pending(_) => false,
            };
            if !is_true {
                return Err(format!("I8: the sender of {ticket} was told {outcome:?}, and it is stored as {stored:?}"));
            }
        }
        Ok(())
    }
}
