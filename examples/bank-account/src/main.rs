//! An event-sourced bank account on disk, over two releases of its program.
//!
//! The example shows how an account refuses to be overdrawn, how its replies wait for the disk, how snapshots
//! replace old events, and schema evolution: the previous release wrote whole euros, the present one writes cents
//! with a currency, and reads both. If an account has events that the program cannot read (those of the next
//! release after a rollback, or of a type that the program does not know), it does not start, and says why.
//!
//! ```sh
//! cargo run --package bank-account
//! ```
//! `account.rs` is the part to copy; this file runs the two releases and checks the results.
#![expect(clippy::print_stdout, reason = "a program that shows what happens")]

mod account;
mod money;
mod release_1;

use std::path::Path;

use greylag_core::{CodecId, EntityError, ReplyTo};
use greylag_journal_sled::{SledJournal, SledJournalSettings};
use greylag_persistence::driver::{self, Ended, EntityHandle};
use greylag_persistence::{
    self as persistence, Append, EventCodecs, EventKind, EventSourced, Journal, Metadata, NewEvent, Persisted,
    PersistenceId, RecoveryFailure, RecoveryPermits, SeqNr, StoredDecodeError, Stores, Tags, Under, UnreadableRecord,
    WriterEpoch, WriterUuid,
};
use tokio::sync::oneshot;

use account::{Account, Command};
use money::{Money, Refusal};

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let directory = tempfile::tempdir()?;
    let id = PersistenceId::of("Account", "7")?;

    let journal = open(directory.path()).await?;
    release_1_writes(&journal.stores(), &id).await?;
    let balance = release_2_reads_it(&journal.stores(), &id).await?;
    release_1_is_put_back(&journal.stores(), &id).await?;
    let balance = release_2_goes_on(&journal.stores(), &id, balance).await?;
    an_event_of_an_unknown_type(&journal.stores()).await?;
    journal.close().await?;

    // Reopen the journal: the account's answer now comes from the disk only.
    let journal = open(directory.path()).await?;
    let account = Running::start(account::codecs().of(id.clone(), Account::new()), &journal.stores())?;
    let found = account.ask(|reply_to| Command::Balance { reply_to }).await?;
    account.stop().await?;
    journal.close().await?;
    check(found == Some(balance), "the account lost money")?;
    println!("reopened:  the account holds {balance}, as the replies said");
    Ok(())
}

async fn open(directory: &Path) -> Result<SledJournal, Failure> {
    Ok(SledJournal::open(directory, SledJournalSettings::default()).await?)
}

/// The previous release stores six events of version 1, and a snapshot of the first four.
async fn release_1_writes(stores: &Stores, id: &PersistenceId) -> Result<(), Failure> {
    use release_1::Event::{Deposited, Withdrawn};
    let account = Running::start(release_1::codecs().of(id.clone(), release_1::Account), stores)?;
    let mut balance = None;
    for (deposited, amount) in [(true, 100), (false, 30), (true, 20), (true, 40), (false, 25), (true, 15)] {
        let event = if deposited { Deposited { amount } } else { Withdrawn { amount } };
        balance = account.ask(|reply_to| release_1::Command(event, reply_to)).await?;
    }
    account.stop().await?;
    check(balance == Some(120), "120 whole euros were expected")?;
    println!("release 1: 6 events of version 1, 120 whole euros");
    Ok(())
}

/// The present release reads the old events, refuses two withdrawals, and writes its first event.
async fn release_2_reads_it(stores: &Stores, id: &PersistenceId) -> Result<Money, Failure> {
    let account = Running::start(account::codecs().of(id.clone(), Account::new()), stores)?;
    let found = account.ask(|reply_to| Command::Balance { reply_to }).await?;
    check(found == Some(Money::euro_cents(12_000)), "120.00 EUR were expected")?;
    println!("release 2: reads version 1, 120.00 EUR");

    for money in [Money::euro_cents(100_000), Money::dollar_cents(100)] {
        let refused = account.ask(|reply_to| Command::Withdraw { money, reply_to }).await?;
        let refusal = refused.err().ok_or("this must be refused")?;
        check(matches!(refusal, Refusal::Overdrawn | Refusal::OtherCurrency), "refused for another reason")?;
        println!("release 2: withdraw {money}: {refusal}");
    }

    let money = Money::euro_cents(50);
    let balance = account.ask(|reply_to| Command::Deposit { money, reply_to }).await??;
    // The reply is never sent before the event is stored, so a crash at this point would lose nothing.
    let head = stores.journal.head(id).await?;
    check(head.highest == SeqNr::from(7), "the event must be stored before the reply comes")?;
    println!("release 2: deposit {money}: {balance}, event {} is on the disk", head.highest);
    account.stop().await?;
    Ok(balance)
}

/// Puts the old release back, which then meets an event of a newer version: it neither guesses nor skips the event,
/// unless its settings say so (`on_unknown_event`).
async fn release_1_is_put_back(stores: &Stores, id: &PersistenceId) -> Result<(), Failure> {
    let account = Running::start(release_1::codecs().of(id.clone(), release_1::Account), stores)?;
    let why = account.fails_to_recover().await?;
    let is_newer = matches!(why.error, StoredDecodeError::NewerSchema { found: 2, known: 1, .. });
    check(is_newer, "the newer schema was expected to be named")?;
    println!("release 1: {why}");
    Ok(())
}

/// The present release writes more events, until a snapshot of version 2 makes old events unnecessary.
async fn release_2_goes_on(stores: &Stores, id: &PersistenceId, before: Money) -> Result<Money, Failure> {
    let account = Account::new();
    let mut deleted_to = account.deleted_to();
    let account = Running::start(account::codecs().of(id.clone(), account), stores)?;
    let mut expected = before;
    for (deposit, cents) in [(true, 1_000), (false, 400), (true, 2_000), (false, 1_000), (true, 500)] {
        let money = Money::euro_cents(cents);
        let command = |reply_to| match deposit {
            true => Command::Deposit { money, reply_to },
            false => Command::Withdraw { money, reply_to },
        };
        let balance = account.ask(command).await??;
        expected = if deposit { expected.plus(money)? } else { expected.minus(money)? };
        check(balance == expected, "the replies do not add up")?;
    }
    // The snapshots at events 8 and 12 are kept, so the events up to 4 are no longer needed.
    let deleted_to = *deleted_to.wait_for(|deleted_to| *deleted_to >= SeqNr::from(4)).await?;
    account.stop().await?;
    println!("release 2: 12 events, {expected}; snapshots stand for the events up to {deleted_to}");
    Ok(expected)
}

/// Stores an event with a manifest that no codec here knows, as another team's program might have written it.
async fn an_event_of_an_unknown_type(stores: &Stores) -> Result<(), Failure> {
    let id = PersistenceId::of("Account", "13")?;
    let writer_uuid = WriterUuid::from_u128(1);
    let claim = stores.journal.claim(&id, writer_uuid, Under::Seen(WriterEpoch::NONE)).await?;
    let frozen = NewEvent {
        codec_id: CodecId::JSON,
        manifest: "account.frozen".to_owned(),
        schema_version: 1,
        kind: EventKind::Event,
        payload: "{}".into(),
        metadata: Metadata::new(),
        tags: Tags::new(),
    };
    let append = Append { id: id.clone(), epoch: claim.epoch, writer_uuid, first: SeqNr::FIRST, events: vec![frozen] };
    stores.journal.append(append).await?;

    let why = Running::start(account::codecs().of(id, Account::new()), stores)?.fails_to_recover().await?;
    check(matches!(why.error, StoredDecodeError::UnknownManifest { .. }), "the manifest was expected to be named")?;
    println!("release 2: {why}");
    Ok(())
}

/// An account that runs as a task of this process; in a cluster, a shard would host it.
struct Running<C> {
    handle: EntityHandle<C>,
    end: oneshot::Receiver<Ended>,
}

impl<C: Send + 'static> Running<C> {
    fn start<B>(entity: Persisted<B, EventCodecs<B>>, stores: &Stores) -> Result<Self, Failure>
    where
        B: EventSourced<Command = C>,
    {
        let (handle, end) = driver::spawn(entity, stores.clone(), RecoveryPermits::default())?;
        Ok(Self { handle, end })
    }

    /// Sends the command that holds the given reply token, and waits for the answer.
    async fn ask<R: Send + 'static>(&self, command: impl FnOnce(ReplyTo<R>) -> C) -> Result<R, EntityError> {
        self.handle.ask(command).await
    }

    async fn stop(self) -> Result<(), Failure> {
        self.handle.stop().await;
        check(self.end.await? == Ended::Stopped, "the account did not end as it was told")
    }

    /// The record that keeps the account from starting.
    async fn fails_to_recover(self) -> Result<UnreadableRecord, Failure> {
        match self.end.await? {
            Ended::Failed(persistence::Failure::Recovery(RecoveryFailure::Unreadable(record))) => Ok(record),
            ended => Err(format!("expected an event that cannot be read, not {ended:?}").into()),
        }
    }
}

fn check(holds: bool, otherwise: &str) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(otherwise.into()) }
}
