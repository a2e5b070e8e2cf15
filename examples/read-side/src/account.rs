//! The write side: an event-sourced account that knows nothing of any table.

use greylag_codec::json;
use greylag_core::ReplyTo;
use greylag_persistence::{Ctx, Effect, EventSourced, StoredCodec};
use serde::{Deserialize, Serialize};

/// The type in the ids of accounts, by which the projection finds their events.
pub(crate) const ENTITY_TYPE: &str = "Account";

/// What an account is asked.
pub(crate) enum Command {
    Deposit {
        cents: u64,
        reply_to: ReplyTo<Balance>,
    },
    /// Of more than there is, nothing is withdrawn.
    Withdraw {
        cents: u64,
        reply_to: ReplyTo<Balance>,
    },
    Balance {
        reply_to: ReplyTo<Balance>,
    },
}

/// What an account remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    Deposited { cents: u64 },
    Withdrawn { cents: u64 },
}

/// What an account holds, and how many events it took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Balance {
    pub(crate) cents: u64,
    pub(crate) events: u64,
}

/// How events are stored, for the account that writes and the projection that reads.
pub(crate) fn event_codec() -> StoredCodec<Event> {
    StoredCodec::new(json("account.event"))
}

/// One account.
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
