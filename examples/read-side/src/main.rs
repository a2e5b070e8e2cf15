//! A table in PostgreSQL that follows event-sourced accounts: each event counted exactly once.
//!
//! The example shows a projection that commits rows and progress in one transaction. Twenty accounts write to a
//! shared journal; a projection adds up their events in the table `balance`. The projection is killed in the middle of
//! its work, the accounts write on without it, a second one continues and is stopped in order, and a third one
//! finishes. Then the table agrees with the accounts, to the cent and to the event.
//!
//! ```sh
//! cargo run --package read-side                       # starts a PostgreSQL of its own and throws it away
//! cargo run --package read-side -- --url 'host=127.0.0.1 user=me password=secret dbname=test'
//! ```
//! The second form leaves the schema `read_side_example` behind; another run continues from there.
//! `table.rs` has the projection's handler and `account.rs` the accounts; this file runs them and checks the result.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program that shows what happens")]

mod account;
mod runner;
mod table;

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::ExitCode;

use clap::Parser;
use futures::future::{try_join, try_join_all};
use greylag_journal_postgres::{PostgresJournal, PostgresJournalSettings};
use greylag_persistence::driver::EntityHandle;
use greylag_persistence::{BoxError, Journal, PersistenceId};
use greylag_testkit::postgres::Postgres;

use account::{Account, Balance, Command, ENTITY_TYPE, event_codec};
use runner::Runner;
use table::{SCHEMA, Table};

const ACCOUNTS: u64 = 20;
/// Commands per account before the projection is killed, and again after that.
const ROUNDS: u64 = 20;

#[derive(Parser)]
#[command(about = "Keeps a table in PostgreSQL that follows event-sourced accounts, each event counted exactly once")]
struct Arguments {
    /// A connection string of a PostgreSQL that takes connections without TLS. Default: a throw-away server, made
    /// from the binaries that are installed.
    #[arg(long)]
    url: Option<String>,
}

fn main() -> ExitCode {
    match start(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("read-side: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: Arguments) -> Result<(), BoxError> {
    let runtime = tokio::runtime::Runtime::new()?;
    match arguments.url {
        Some(url) => runtime.block_on(run(&url)),
        None => {
            // The server ends when this value is dropped.
            let server = Postgres::try_start(&[]).map_err(|error| format!("{error} (or name a server by --url)"))?;
            runtime.block_on(run(&server.config()))
        }
    }
}

async fn run(url: &str) -> Result<(), BoxError> {
    let journal = PostgresJournal::open(url, journal_settings()).await?;
    let table = Table::open(url).await?;
    let accounts = Accounts::start(&journal)?;
    let before = table.events().await?;

    // The accounts write, the projection keeps the table up to date, and then the projection is killed.
    let keeper = Runner::start(url).await?;
    let death = async {
        table.wait_for(before + 50).await?;
        keeper.kill();
        Ok(())
    };
    try_join(accounts.write(0..ROUNDS), death).await?;
    println!("killed:   the table has counted {} of {} events", table.events().await?, accounts.events().await?);

    // The accounts go on while no projection runs.
    accounts.write(ROUNDS..2 * ROUNDS).await?;
    let (counted, stored) = (table.events().await?, accounts.events().await?);
    println!("alone:    the table has counted {counted} of {stored} events");

    let keeper = Runner::start(url).await?;
    table.wait_for(counted + 1).await?;
    keeper.stop().await?;
    println!("stopped:  the table has counted {} of {stored} events", table.events().await?);

    let keeper = Runner::start(url).await?;
    table.wait_for(stored).await?;
    keeper.stop().await?;
    let (rows, balances) = (table.balances().await?, accounts.balances().await?);
    if rows != balances {
        return Err(format!("the table says {rows:?}, and the accounts {balances:?}").into());
    }
    let cents: u64 = balances.values().map(|balance| balance.cents).sum();
    println!(
        "finished: {stored} events, {}.{:02} in {} accounts and in the table",
        cents / 100,
        cents % 100,
        rows.len()
    );
    journal.close().await?;
    Ok(())
}

fn journal_settings() -> PostgresJournalSettings {
    PostgresJournalSettings { schema: SCHEMA.to_owned(), ..PostgresJournalSettings::default() }
}

/// The accounts by name, as tasks of this process; in a cluster, shards would host them.
struct Accounts(BTreeMap<String, EntityHandle<Command>>);

impl Accounts {
    fn start(journal: &PostgresJournal) -> Result<Self, BoxError> {
        let stored = journal.stores().events(event_codec());
        let accounts = (1..=ACCOUNTS).map(|number| {
            let name = format!("{number:02}");
            let (handle, _end) = stored.spawn(PersistenceId::of(ENTITY_TYPE, &name)?, Account)?;
            Ok((name, handle))
        });
        accounts.collect::<Result<_, BoxError>>().map(Self)
    }

    /// Two deposits, then a withdrawal, and so on; all accounts at once, each waiting for its replies.
    async fn write(&self, rounds: Range<u64>) -> Result<(), BoxError> {
        let writing = self.0.values().zip(1..).map(async |(account, number): (_, u64)| {
            for round in rounds.clone() {
                let cents = number * 100 + round * 7;
                let command = |reply_to| match round % 3 {
                    2 => Command::Withdraw { cents, reply_to },
                    _ => Command::Deposit { cents, reply_to },
                };
                account.ask(command).await?;
            }
            Ok::<_, BoxError>(())
        });
        try_join_all(writing).await.map(drop)
    }

    async fn balances(&self) -> Result<BTreeMap<String, Balance>, BoxError> {
        let asking = self.0.iter().map(async |(name, account)| {
            let balance = account.ask(|reply_to| Command::Balance { reply_to }).await?;
            Ok::<_, BoxError>((name.clone(), balance))
        });
        Ok(try_join_all(asking).await?.into_iter().collect())
    }

    /// The count of events that all accounts have stored.
    async fn events(&self) -> Result<u64, BoxError> {
        Ok(self.balances().await?.values().map(|balance| balance.events).sum())
    }
}
