//! The tables: numbered migrations, embedded, applied in order, each once.
//!
//! Table `greylag_schema` has the applied migrations. Nodes that start together take turns by an advisory lock. A
//! schema newer than this program is refused, since this program does not know its meaning.

use tokio_postgres::Client;

use crate::error::SchemaError;
use crate::settings::Migrate;

/// One step from schema to schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migration {
    /// The migration's number, from 1 without a gap; also the version of the schema that it leads to.
    pub version: i32,
    /// Short name of the migration's subject.
    pub name: &'static str,
    /// The migration's statements, without the transaction around them.
    pub sql: &'static str,
}

/// All migrations, for those who apply them by hand: the statements in one transaction, and with them
/// `insert into greylag_schema (version, name) values (…)`.
pub const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "journal", sql: include_str!("migrations/0001_journal.sql") },
    Migration { version: 2, name: "clock", sql: include_str!("migrations/0002_clock.sql") },
];

/// The table of applied migrations.
pub const SCHEMA_TABLE: &str = "CREATE TABLE IF NOT EXISTS greylag_schema (version integer PRIMARY KEY, \
                                name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())";

/// Key of the advisory lock, which must never change: "greylag" in ASCII.
const LOCK: i64 = 0x67_72_65_79_6c_61_67;

/// The schema version that this program works with.
pub(crate) fn known() -> i32 {
    MIGRATIONS.last().map_or(0, |last| last.version)
}

/// Makes sure that the schema of `client`'s search path has the version that this program works with.
pub(crate) async fn migrate(client: &Client, schema: &str, policy: Migrate) -> Result<(), SchemaError> {
    let found = version(client).await?;
    check(found)?;
    if found == known() {
        return Ok(());
    }
    if policy == Migrate::Refuse {
        return Err(SchemaError::Older { schema: schema.to_owned(), found, known: known() });
    }
    let applied = apply(client, schema).await;
    if applied.is_err() {
        // The transaction may be open. If the rollback fails, the next statement fails, too, and tells why.
        let _rolled_back = client.batch_execute("ROLLBACK").await;
    }
    applied
}

async fn apply(client: &Client, schema: &str) -> Result<(), SchemaError> {
    // The statement timeout is off here: waiting for other nodes and indexing a large table may take longer.
    client.batch_execute("BEGIN; SET LOCAL statement_timeout = 0").await?;
    client.query_one("SELECT pg_advisory_xact_lock($1)::text", &[&LOCK]).await?;
    // The schema is created only if it is missing, so a user that may not create schemas can use an existing one.
    let exists = client.query_one("SELECT to_regnamespace(quote_ident($1)) IS NOT NULL", &[&schema]).await?;
    if !exists.get::<_, bool>(0) {
        client.batch_execute(&format!("CREATE SCHEMA IF NOT EXISTS {}", quoted(schema))).await?;
    }
    client.batch_execute(SCHEMA_TABLE).await?;
    // The previous holder of the lock may have applied all migrations.
    let found = version(client).await?;
    check(found)?;
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > found) {
        client.batch_execute(migration.sql).await?;
        let (version, name) = (migration.version, migration.name);
        client.execute("INSERT INTO greylag_schema (version, name) VALUES ($1, $2)", &[&version, &name]).await?;
        tracing::info!(schema, version, name, "migration of the journal's schema applied");
    }
    client.batch_execute("COMMIT").await?;
    Ok(())
}

fn check(found: i32) -> Result<(), SchemaError> {
    let known = known();
    if found > known { Err(SchemaError::Newer { found, known }) } else { Ok(()) }
}

/// The latest applied version; 0 if none is.
async fn version(client: &Client) -> Result<i32, SchemaError> {
    let table = client.query_one("SELECT to_regclass('greylag_schema') IS NOT NULL", &[]).await?;
    if !table.get::<_, bool>(0) {
        return Ok(0);
    }
    Ok(client.query_one("SELECT coalesce(max(version), 0) FROM greylag_schema", &[]).await?.get(0))
}

/// A name as an identifier, whatever it contains.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_numbered_without_a_gap() {
        assert!(MIGRATIONS.iter().map(|migration| migration.version).eq(1..=known()));
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
    }
}
