//! The account of this release: version 2 of its events, and an upcaster that reads those of version 1.
//!
//! ```text
//! version 1   {"type":"deposited","amount":30}                      whole euros
//! version 2   {"type":"deposited","cents":3000,"currency":"EUR"}
//! ```
//! Stored events are never rewritten. The upcaster converts old payloads as they are read, so the rest of this
//! file knows only version 2.

use std::num::{NonZeroU32, NonZeroU64};

use greylag_codec::json;
use greylag_core::ReplyTo;
use greylag_persistence::{
    Ctx, Effect, EventCodecs, EventSourced, EventSourcedSettings, OnFailure, SeqNr, Signal, StoredCodec, Upcaster,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;

use crate::money::{Money, Refusal};

/// The names under which events and balances are stored: chosen once, and kept over all versions.
pub(crate) const EVENT: &str = "account.event";
pub(crate) const BALANCE: &str = "account.balance";
/// The version that this release writes.
pub(crate) const VERSION: NonZeroU32 = NonZeroU32::new(2).unwrap();
/// The count of events between two snapshots.
pub(crate) const SNAPSHOT_EVERY: NonZeroU64 = NonZeroU64::new(4).unwrap();

/// The commands of an account.
#[derive(Debug)]
pub(crate) enum Command {
    Deposit { money: Money, reply_to: ReplyTo<Result<Money, Refusal>> },
    Withdraw { money: Money, reply_to: ReplyTo<Result<Money, Refusal>> },
    Balance { reply_to: ReplyTo<Option<Money>> },
}

/// The events of an account, as they are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Event {
    Deposited(Money),
    Withdrawn(Money),
}

impl Event {
    /// The balance after this event, or the reason for a refusal. An account has the currency of its first deposit.
    fn after(self, balance: Option<Money>) -> Result<Money, Refusal> {
        match (self, balance) {
            (Self::Deposited(money), None) => Ok(money),
            (Self::Deposited(money), Some(balance)) => balance.plus(money),
            (Self::Withdrawn(_), None) => Err(Refusal::Overdrawn),
            (Self::Withdrawn(money), Some(balance)) => balance.minus(money),
        }
    }
}

/// The account's entity; the balance is its state.
pub(crate) struct Account {
    deleted_to: watch::Sender<SeqNr>,
}

/// The codecs of events and snapshots. Those of the previous release are read by upcasters.
pub(crate) fn codecs() -> EventCodecs<Account> {
    let events = StoredCodec::with_version(json(EVENT), VERSION.get()).upcaster(Upcaster::json(EVENT, 1, 2, in_cents));
    EventCodecs::new(events).snapshots(balance_codec())
}

/// The snapshots' codec. Snapshots outlive a release just as events do, so they need an upcaster too.
fn balance_codec() -> StoredCodec<Option<Money>> {
    StoredCodec::with_version(json(BALANCE), VERSION.get()).upcaster(Upcaster::json(BALANCE, 1, 2, in_cents))
}

impl Account {
    pub(crate) fn new() -> Self {
        Self { deleted_to: watch::Sender::new(SeqNr::ZERO) }
    }

    /// The sequence number up to which this incarnation has deleted events, to be watched.
    pub(crate) fn deleted_to(&self) -> watch::Receiver<SeqNr> {
        self.deleted_to.subscribe()
    }

    fn decide(balance: Option<Money>, event: Event, reply_to: ReplyTo<Result<Money, Refusal>>) -> Effect<Self> {
        match event.after(balance) {
            // The reply is sent only when the event is on the disk.
            Ok(after) => Effect::<Self>::persist(event).then_reply(reply_to, move |_| Ok(after)),
            Err(refusal) => Effect::reply(reply_to, Err(refusal)),
        }
    }
}

impl EventSourced for Account {
    type Command = Command;
    type Event = Event;
    /// `None` before the first deposit.
    type State = Option<Money>;

    fn settings(&self, node: &EventSourcedSettings) -> EventSourcedSettings {
        EventSourcedSettings {
            snapshot_every: Some(SNAPSHOT_EVERY),
            // Keep two, so that an older snapshot remains if one is damaged; events covered by both are deleted.
            keep_n_snapshots: NonZeroU64::new(2).expect("two is not zero"),
            delete_events: true,
            // Stop, so that this program sees the failure; in a shard, a failed entity is restarted after a delay.
            on_failure: OnFailure::Stop,
            ..node.clone()
        }
    }

    fn on_command(&mut self, _: &mut Ctx<'_, Command>, balance: &Option<Money>, command: Command) -> Effect<Self> {
        match command {
            Command::Deposit { money, reply_to } => Self::decide(*balance, Event::Deposited(money), reply_to),
            Command::Withdraw { money, reply_to } => Self::decide(*balance, Event::Withdrawn(money), reply_to),
            Command::Balance { reply_to } => Effect::reply(reply_to, *balance),
        }
    }

    fn apply(balance: &mut Option<Money>, event: &Event) {
        *balance = Some(event.after(*balance).expect("what is refused is not persisted"));
    }

    fn on_signal(&mut self, _: &mut Ctx<'_, Command>, _: &Option<Money>, signal: &Signal) {
        if let Signal::DeleteEventsCompleted(to) = signal {
            self.deleted_to.send_replace(*to);
        }
    }
}

/// Converts events and balances from version 1, with `amount` in whole euros, to version 2.
fn in_cents(mut stored: Value) -> Result<Value, String> {
    let fields = stored.as_object_mut().ok_or("not an object")?;
    let amount = fields.remove("amount").and_then(|amount| amount.as_u64()).ok_or("no amount")?;
    let cents = amount.checked_mul(100).ok_or("more than an account can hold")?;
    fields.insert("cents".to_owned(), cents.into());
    fields.insert("currency".to_owned(), "EUR".into());
    Ok(stored)
}

#[cfg(test)]
mod tests {
    use greylag_persistence::EncodedValue;

    use super::*;
    use crate::release_1;

    /// Tests the codec directly: as long as all events are there, recovery also works without a snapshot that it cannot
    /// read, so a run of the program would not show the mistake.
    #[test]
    fn snapshots_of_the_release_before_are_read() {
        let old = release_1::balance_codec();
        let balance = serde_json::from_str(r#"{"amount":120}"#).expect("a balance in whole euros");
        let stored = old.encode(&balance).expect("it can be written");
        let new = balance_codec();
        assert_eq!(new.decode_one(stored.clone()), Ok(Some(Money::euro_cents(12_000))));
        let damaged = EncodedValue { payload: "{}".into(), ..stored };
        assert!(new.decode_one(damaged).is_err(), "a balance without an amount is no balance");
    }
}
