//! What a durable producer promises, and what became of each message that was handed to it.

use std::collections::BTreeMap;

use greylag_delivery::SeqNr;
use greylag_delivery::machine::sharding_producer::Effect;

use super::store::{Store, Writer};

/// What a sender was told of its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
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
pub(crate) struct Durable {
    pub(crate) store: Store,
    /// By the number of the producer.
    pub(crate) writers: BTreeMap<u64, Writer>,
    /// By message.
    told: Vec<Told>,
}

impl Durable {
    pub(crate) fn new() -> Self {
        Self { store: Store::default(), writers: BTreeMap::new(), told: Vec::new() }
    }

    /// The next message is handed to a producer.
    pub(crate) fn submit(&mut self, producer: u64) {
        self.told.push(Told::Nothing(producer));
    }

    /// The producer dies: what it has not answered is unknown.
    pub(crate) fn kill(&mut self) {
        for told in &mut self.told {
            if matches!(told, Told::Nothing(_)) {
                *told = Told::Unknown;
            }
        }
    }

    /// Looks at an effect of the producer.
    pub(crate) fn see(&mut self, effect: &Effect<u64>) -> Result<(), String> {
        match effect {
            Effect::Admitted { ticket, total } => {
                if !self.store.ever().contains_key(&total.get()) {
                    return Err(format!("message {total} was accepted and is not stored"));
                }
                self.tell(*ticket, Told::Accepted(total.get()))
            }
            Effect::StoreUnknown { ticket, .. } => self.tell(*ticket, Told::Unknown),
            Effect::Unavailable { ticket, .. } | Effect::Refused { ticket, .. } => self.tell(*ticket, Told::NotStored),
            Effect::Transmit { message, .. } if !self.is_stored(message.frame.total) => {
                Err(format!("I10: message {} was transmitted and is not stored", message.frame.total))
            }
            Effect::Fenced { .. } | Effect::QueueEnded(_) => Err(format!("the only producer ended: {effect:?}")),
            _ => Ok(()),
        }
    }

    fn is_stored(&self, total: SeqNr) -> bool {
        self.store.ever().contains_key(&total.get())
    }

    fn tell(&mut self, ticket: u64, told: Told) -> Result<(), String> {
        let before = &mut self.told[ticket as usize - 1];
        match before {
            Told::Nothing(_) => *before = told,
            _ => return Err(format!("I8: the sender of ticket {ticket} was told {before:?}, and then {told:?}")),
        }
        Ok(())
    }

    /// Whether every sender was told something.
    pub(crate) fn is_settled(&self) -> bool {
        self.store.is_settled() && !self.told.iter().any(|told| matches!(told, Told::Nothing(_)))
    }

    /// Messages of an entity that were stored, in the order of totals.
    pub(crate) fn stored(&self, entity: usize) -> Vec<u64> {
        self.store.ever().values().filter(|(of, _)| *of == entity).map(|(_, value)| *value).collect()
    }

    /// What senders were told is true of the store.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut by_value: BTreeMap<u64, u64> = BTreeMap::new();
        for (total, (_, value)) in self.store.ever() {
            if let Some(other) = by_value.insert(*value, *total) {
                return Err(format!("message {value} is stored twice, as {other} and as {total}"));
            }
        }
        for (value, told) in self.told.iter().enumerate() {
            let stored = by_value.get(&(value as u64)).copied();
            let is_true = match told {
                Told::Accepted(total) => stored == Some(*total),
                Told::NotStored => stored.is_none(),
                Told::Unknown => true,
                Told::Nothing(_) => false,
            };
            if !is_true {
                return Err(format!("the sender of {value} was told {told:?}, and it is stored as {stored:?}"));
            }
        }
        Ok(())
    }
}
