//! The crash cases of the kit: the server ends in the midst of statements and transactions, again and again, while its
//! clients' handles stay. A long run with more kills:
//!
//! ```sh
//! GREYLAG_RESTARTS=500 cargo test --release -p greylag-journal-postgres --test suite crash:: -- --nocapture
//! ```

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{id, settings, with_server};
use async_trait::async_trait;
use futures::future::join_all;
use greylag_journal_postgres::{PostgresJournal, PostgresJournalSettings};
use greylag_persistence::Journal;
use greylag_persistence::tck::{self, CrashFactory, CrashStores, Flags};
use greylag_testkit::postgres::Postgres;
use tokio::sync::{Mutex, OnceCell};

/// Append timeouts: the first two are longer than any restart, the last one is shorter.
const TIME_LIMIT: [Duration; 3] = [Duration::from_secs(60), Duration::from_secs(60), Duration::from_millis(50)];

struct Killed {
    server: Mutex<Postgres>,
    journals: OnceCell<Vec<PostgresJournal>>,
}

async fn connect(config: &str, append_timeout: Duration) -> PostgresJournal {
    let statement_timeout = settings().statement_timeout.min(append_timeout / 2);
    let settings = PostgresJournalSettings { append_timeout, statement_timeout, ..settings() };
    PostgresJournal::open(config, settings).await.unwrap()
}

#[async_trait]
impl CrashFactory for Killed {
    async fn start(&self) -> Vec<CrashStores> {
        let mut server = self.server.lock().await;
        tokio::task::block_in_place(|| server.restart().unwrap());
        let config = server.config();
        let connect_all = || async { join_all(TIME_LIMIT.map(|time_limit| connect(&config, time_limit))).await };
        let journals = self.journals.get_or_init(connect_all).await;
        for journal in journals {
            // The journal refuses calls until it has connected again.
            while journal.head(&id("unclaimed")).await.is_err() {
                tokio::task::yield_now().await;
            }
        }
        let stores = |journal: &PostgresJournal| CrashStores {
            journal: Arc::new(journal.clone()),
            snapshots: Arc::new(journal.snapshots()),
            states: Some(Arc::new(journal.states())),
            offsets: Some(Arc::new(journal.offsets())),
        };
        journals.iter().map(stores).collect()
    }

    async fn kill(&self, after: Duration) {
        tokio::time::sleep(after).await;
        let mut server = self.server.lock().await;
        tokio::task::block_in_place(|| server.stop());
    }

    async fn kill_while_starting(&self, after: Duration) -> bool {
        let mut server = self.server.lock().await;
        tokio::task::block_in_place(|| server.stop_while_starting(2 * after).unwrap());
        true
    }
}

/// How many times the server ends; `GREYLAG_RESTARTS` sets it for a long run.
fn kills() -> u32 {
    std::env::var("GREYLAG_RESTARTS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(6)
}

#[test]
fn the_stores_survive_kills_of_the_server() {
    with_server(async |server| {
        let began_at = Instant::now();
        let killed = Killed { server: Mutex::new(server), journals: OnceCell::new() };
        let report = tck::crash(&killed, Flags { kills: kills(), ..Flags::default() }).await;
        report.assert_conforms();
        assert_eq!((report.cases.len(), report.skipped().count()), (3, 0), "{report}");
        let (kills, took) = (kills(), began_at.elapsed());
        let done = format!(
            "{kills} kills under appends, {kills} under everything, {} twice, in {took:?}\n{report}",
            kills / 10 + 1
        );
        std::io::stdout().write_all(done.as_bytes()).unwrap();
    });
}
