//! What a durable producer promises, and what became of each message that was handed to it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use greylag_delivery::SeqNr;
use greylag_delivery::machine::storing::{Answer, Call};

use super::store::{Fate, Kept, Store, Writer};
use super::world::World;

/// What a sender was told of its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// Nothing yet, by this producer.
    Nothing(u64),
    /// It is accepted under this total.
    Accepted(u64),
    /// It is certainly not stored.
    NotStored,
    /// It may be stored.
    Unknown,
}

/// The store of the producer's queue, the producers that write it, and what senders were told.
pub(crate) struct Durable<M> {
    pub(crate) store: Store<M>,
    /// By the number of the producer.
    pub(crate) writers: BTreeMap<u64, Writer>,
    /// By ticket, which is the content.
    told: BTreeMap<u64, Told>,
    /// Tickets whose sender went away before it was told anything.
    withdrawn: BTreeSet<u64>,
}

impl<M: Kept> Durable<M> {
    pub(crate) fn new(store: Store<M>) -> Self {
        Self { store, writers: BTreeMap::new(), told: BTreeMap::new(), withdrawn: BTreeSet::new() }
    }

    /// A producer calls its queue: when the call is carried out, and what becomes of it.
    pub(crate) fn call<E: Clone>(&mut self, world: &mut World<E>, faults: bool) -> (Instant, Fate) {
        let fate = if faults { Fate::drawn(world.pick(1 << 20)) } else { Fate::GOOD };
        let takes = world.upto(Duration::from_millis(if faults { 60 } else { 10 }));
        (self.store.done_at(world.now, takes), fate)
    }

    /// Carries out the call of a producer, which may have died meanwhile. Returns the answer, if it reaches a living producer.
    pub(crate) fn carry_out(&mut self, producer: u64, is_alive: bool, call: Call<M>, fate: Fate) -> Option<Answer<M>> {
        if !is_alive && matches!(call, Call::Load) {
            // A dead process takes over from nothing.
            return None;
        }
        let writer = self.writers.get_mut(&producer)?;
        self.store.call(writer, call, fate).filter(|_| is_alive)
    }

    /// A message is handed to a producer.
    pub(crate) fn submit(&mut self, ticket: u64, producer: u64) {
        self.told.insert(ticket, Told::Nothing(producer));
    }

    /// The producer dies: what it has not answered is unknown.
    pub(crate) fn kill(&mut self, producer: u64) {
        for told in self.told.values_mut().filter(|told| **told == Told::Nothing(producer)) {
            *told = Told::Unknown;
        }
    }

    /// The producer accepted a message.
    pub(crate) fn accepted(&mut self, ticket: u64, total: SeqNr) -> Result<(), String> {
        if !self.is_stored(total) {
            return Err(format!("I8, I10: message {total} was accepted and is not stored"));
        }
        self.tell(ticket, Told::Accepted(total.get()))
    }

    /// The sender goes away, if it was not told anything yet. Whether it does.
    pub(crate) fn withdraw(&mut self, ticket: u64) -> bool {
        let told = self.told.get_mut(&ticket).filter(|told| matches!(told, Told::Nothing(_)));
        let goes = told.map(|told| *told = Told::Unknown).is_some();
        if goes {
            self.withdrawn.insert(ticket);
        }
        goes
    }

    /// A frame of this message leaves.
    pub(crate) fn transmitted(&self, total: SeqNr) -> Result<(), String> {
        if self.is_stored(total) {
            return Ok(());
        }
        Err(format!("I10: message {total} was transmitted and is not stored"))
    }

    fn is_stored(&self, total: SeqNr) -> bool {
        self.store.ever().contains_key(&total.get())
    }

    /// The sender of this ticket gets its first and only answer.
    pub(crate) fn tell(&mut self, ticket: u64, told: Told) -> Result<(), String> {
        match self.told.get_mut(&ticket) {
            _ if self.withdrawn.contains(&ticket) => {}
            Some(before @ Told::Nothing(_)) => *before = told,
            before => return Err(format!("I8: the sender of ticket {ticket} was told {before:?}, and then {told:?}")),
        }
        Ok(())
    }

    /// Whether every sender was told something.
    pub(crate) fn is_settled(&self) -> bool {
        self.store.is_settled() && !self.told.values().any(|told| matches!(told, Told::Nothing(_)))
    }

    /// Messages of a qualifier that were stored, in the order of totals.
    pub(crate) fn stored(&self, qualifier: &str) -> Vec<u64> {
        self.store.ever().values().filter(|(of, _)| **of == *qualifier).map(|(_, content)| *content).collect()
    }

    /// What senders were told is true of the store.
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
