//! The write side: an event-sourced account, which does not know of the table.

use greylag_codec::json;
use greylag_core::ReplyTo;
use greylag_persistence::{Ctx, Effect, EventSourced, StoredCodec};
use serde::{Deserialize, Serialize};

/// The entity type in the accounts' ids, by which the projection finds their events.
pub(crate) const ENTITY_TYPE: &str = "Account";

/// The commands of an account.
pub(crate) enum Command {
    Deposit {
        cents: u64,
        reply_to: ReplyTo<Balance>,
    },
    /// If the account holds less, nothing is withdrawn.
    Withdraw {
        cents: u64,
        reply_to: ReplyTo<Balance>,
    },
    Balance {
        reply_to: ReplyTo<Balance>,
    },
}

/// The events of an account, as they are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    Deposited { cents: u64 },
    Withdrawn { cents: u64 },
}

/// An account's money, and the count of events that led to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Balance {
    pub(crate) cents: u64,
    pub(crate) events: u64,
}

/// The codec of events, for the account that writes and the projection that reads.
pub(crate) fn event_codec() -> StoredCodec<Event> {
    StoredCodec::new(json("account.event"))
}

/// The account's entity; the balance is its state.
pub(crate) struct Account;

impl EventSourced for Account {
    type Command = Command;
    type Event = Event;
    type State = Balance;

    fn on_command(&mut self, _: &mut Ctx<'_, Command>, balance: &Balance, command: Command) -> Effect<Self> {
        let (event, reply_to) = match command {
            Command::Deposit { cents, reply_to } => (Event::Deposited { cents }, reply_to),
            Command::Withdraw { cents, reply_to } if cents <= balance.cents => (Event::Withdrawn { cents }, reply_to),
            Command::Withdraw { reply_to, .. } | Command::Balance { reply_to } => {
                return Effect::reply(reply_to, *balance);
            }
        };
        Effect::<Self>::persist(event).then_reply(reply_to, |balance| *balance)
    }

    fn apply(balance: &mut Balance, event: &Event) {
        match event {
            Event::Deposited { cents } => balance.cents += cents,
            Event::Withdrawn { cents } => balance.cents -= cents,
        }
        balance.events += 1;
    }
}
