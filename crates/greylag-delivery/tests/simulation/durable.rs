//! Invariants of durable producers, and the outcome of each message.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use greylag_delivery::SeqNr;
use greylag_delivery::machine::storing::{Answer, Call};

use super::store::{Fate, Kept, Store, Writer};
use super::world::World;

/// What a sender was told about its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// No answer yet from the producer of this number.
    Nothing(u64),
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
    told: BTreeMap<u64, Told>,
    /// Tickets of senders that went away without an answer.
    withdrawn: BTreeSet<u64>,
}

impl<M: Kept> Durable<M> {
    pub(crate) fn new(store: Store<M>) -> Self {
        Self { store, writers: BTreeMap::new(), told: BTreeMap::new(), withdrawn: BTreeSet::new() }
    }

    /// Makes a call of a producer's queue: returns when it is carried out, and its fate.
    pub(crate) fn call<E: Clone>(&mut self, world: &mut World<E>, faults: bool) -> (Instant, Fate) {
        let fate = if faults { Fate::drawn(world.pick(1 << 20)) } else { Fate::GOOD };
        let takes = world.upto(Duration::from_millis(if faults { 60 } else { 10 }));
        (self.store.done_at(world.now, takes), fate)
    }

    /// Carries out a call of a producer, which may have died meanwhile. Returns the answer if it reaches a living
    /// producer.
    pub(crate) fn carry_out(&mut self, producer: u64, is_alive: bool, call: Call<M>, fate: Fate) -> Option<Answer<M>> {
        if !is_alive && matches!(call, Call::Load) {
            // A dead process cannot take over.
            return None;
        }
        let writer = self.writers.get_mut(&producer)?;
        self.store.call(writer, call, fate).filter(|_| is_alive)
    }

    /// Gives a message to a producer.
    pub(crate) fn submit(&mut self, ticket: u64, producer: u64) {
        self.told.insert(ticket, Told::Nothing(producer));
    }

    /// The producer dies: messages without an answer have an unknown outcome.
    pub(crate) fn kill(&mut self, producer: u64) {
        for told in self.told.values_mut().filter(|told| **told == Told::Nothing(producer)) {
            *told = Told::Unknown;
        }
    }

    /// Checks that an accepted message is stored.
    pub(crate) fn accepted(&mut self, ticket: u64, total: SeqNr) -> Result<(), String> {
        if !self.is_stored(total) {
            return Err(format!("I8, I10: message {total} was accepted and is not stored"));
        }
        self.tell(ticket, Told::Accepted(total.get()))
    }

    /// The sender goes away if it has no answer yet. Returns whether it does.
    pub(crate) fn withdraw(&mut self, ticket: u64) -> bool {
        let told = self.told.get_mut(&ticket).filter(|told| matches!(told, Told::Nothing(_)));
        let goes = told.map(|told| *told = Told::Unknown).is_some();
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
    pub(crate) fn tell(&mut self, ticket: u64, told: Told) -> Result<(), String> {
        match self.told.get_mut(&ticket) {
            _ if self.withdrawn.contains(&ticket) => {}
            Some(before @ Told::Nothing(_)) => *before = told,
            before => return Err(format!("I8: the sender of ticket {ticket} was told {before:?}, and then {told:?}")),
        }
        Ok(())
    }

    /// Whether every sender has an answer.
    pub(crate) fn is_settled(&self) -> bool {
        self.store.is_settled() && !self.told.values().any(|told| matches!(told, Told::Nothing(_)))
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
        for (ticket, told) in &self.told {
            let stored = totals.get(ticket).copied();
            let is_true = match told {
                Told::Accepted(total) => stored == Some(*total),
                Told::NotStored => stored.is_none(),
                Told::Unknown => true,
                Told::Nothing(_) => false,
            };
            if !is_true {
                return Err(format!("I8: the sender of {ticket} was told {told:?}, and it is stored as {stored:?}"));
            }
        }
        Ok(())
    }
}
