//! A journal in PostgreSQL as the source or the target of a copy.

use crate::common;

use std::sync::Arc;
use std::time::Duration;

use crate::common::{config_at, schema, settings, with_server};
use greylag_journal_postgres::{OpenError, PostgresJournal, PostgresJournalSettings};
use greylag_persistence::copy::{CopyError, copy};
use greylag_persistence::tck::{self, Flags};
use greylag_persistence::{Import, InMemoryArchive, Journal};

#[test]
fn everything_moves_to_the_database_and_back() {
    with_server(async |server| {
        let config = config_at(&server, server.port());
        let factory = || async {
            let settings = PostgresJournalSettings { schema: schema(), ..settings() };
            Arc::new(PostgresJournal::open_exclusive(&config, settings).await.unwrap()) as Arc<dyn Import>
        };
        tck::transfer(&factory, Flags::default()).await.assert_conforms();
    });
}

/// A copy needs its schema alone: while a copy or an ordinary journal is connected, the other is refused.
#[test]
fn a_schema_in_use_is_refused_to_copies_and_to_ordinary_journals() {
    with_server(async |server| {
        let config = config_at(&server, server.port());
        let schema = schema();
        let settings = || PostgresJournalSettings {
            schema: schema.clone(),
            // Also the time that opening alone waits for connections that end.
            connect_timeout: Duration::from_secs(3),
            ..settings()
        };
        let user = PostgresJournal::open(&config, settings()).await.unwrap();
        // After this call the pool keeps a connection; opening the journal leaves none.
        user.head(&common::id("a")).await.unwrap();
        let refused = PostgresJournal::open_exclusive(&config, settings()).await.unwrap_err();
        assert!(matches!(refused, OpenError::InUse { .. }), "{refused}");
        let told = refused.to_string();
        assert!(told.contains(&schema) && told.contains("connections") && told.contains("stop"), "{told}");
        let refused = copy(&user, &InMemoryArchive::default()).await.unwrap_err();
        assert!(matches!(refused, CopyError::InUse(_)), "it may be shared: {refused}");
        user.close().await.unwrap();
        drop(user);

        let other = PostgresJournalSettings { schema: format!("{schema}_2"), ..settings() };
        let elsewhere = PostgresJournal::open(&config, other).await.unwrap();
        let alone = PostgresJournal::open_exclusive(&config, settings()).await.unwrap();
        let refused = PostgresJournal::open(&config, settings()).await.unwrap_err().to_string();
        assert!(refused.contains("copied") && refused.contains(&schema), "{refused}");
        copy(&alone, &InMemoryArchive::default()).await.unwrap();
        // The connection with the lock is cut, so another process may use the schema by now.
        server
            .psql(
                "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and mode = 'ExclusiveLock'",
            )
            .unwrap();
        let refused = copy(&alone, &InMemoryArchive::default()).await.unwrap_err();
        assert!(matches!(refused, CopyError::InUse(_)), "{refused}");
        alone.close().await.unwrap();
        PostgresJournal::open(&config, settings()).await.unwrap().close().await.unwrap();
        elsewhere.close().await.unwrap();
    });
}
