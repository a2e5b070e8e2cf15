//! The account of the previous release: whole euros, no currency. This file exists only to write old events;
//! a real program keeps no old code, only the upcaster.

use greylag_codec::json;
use greylag_core::ReplyTo;
use greylag_persistence::{Ctx, Effect, EventCodecs, EventSourced, EventSourcedSettings, OnFailure, StoredCodec};
use serde::{Deserialize, Serialize};

use crate::account::{BALANCE, EVENT, SNAPSHOT_EVERY};

/// An event to store; the answer is the new balance, or `None` if the account would be overdrawn.
pub(crate) struct Command(pub(crate) Event, pub(crate) ReplyTo<Option<u64>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Event {
    Deposited { amount: u64 },
    Withdrawn { amount: u64 },
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Balance {
    amount: u64,
}

impl Balance {
    fn after(self, event: Event) -> Option<Self> {
        let amount = match event {
            Event::Deposited { amount } => self.amount.checked_add(amount),
            Event::Withdrawn { amount } => self.amount.checked_sub(amount),
        };
        amount.map(|amount| Self { amount })
    }
}

/// An account of the previous release.
pub(crate) struct Account;

/// The codecs of the previous release, which write version 1.
pub(crate) fn codecs() -> EventCodecs<Account> {
    EventCodecs::new(json(EVENT)).snapshots(balance_codec())
}

pub(crate) fn balance_codec() -> StoredCodec<Balance> {
    StoredCodec::new(json(BALANCE))
}

impl EventSourced for Account {
    type Command = Command;
    type Event = Event;
    type State = Balance;

    fn settings(&self, node: &EventSourcedSettings) -> EventSourcedSettings {
        EventSourcedSettings { snapshot_every: Some(SNAPSHOT_EVERY), on_failure: OnFailure::Stop, ..node.clone() }
    }

    fn on_command(&mut self, _: &mut Ctx<'_, Command>, balance: &Balance, command: Command) -> Effect<Self> {
        let Command(event, reply_to) = command;
        match balance.after(event) {
            Some(after) => Effect::<Self>::persist(event).then_reply(reply_to, move |_| Some(after.amount)),
            None => Effect::reply(reply_to, None),
        }
    }

    fn apply(balance: &mut Balance, event: &Event) {
        *balance = balance.after(*event).expect("what is refused is not persisted");
    }
}
