//! The same rows written without a journal: into a table of the same columns and indexes, by as many connections as
//! the journal used, two statements under way on each.
//!
//! Both kinds of `INSERT` send every column of every row, as any writer of events must, by prepared statements of as
//! many rows as the journal's statements had appends: [`Values`](Kind::Values) is the plain one, `VALUES (…), (…), …`
//! with a parameter for each value; [`Arrays`](Kind::Arrays) binds each column as one array, as the journal does. They
//! compare nothing, raise no head, answer no caller, and never wait for an entity's next event.

use std::time::Instant;

use bytes::Bytes;
use futures::future::try_join_all;
use futures::{SinkExt, TryStreamExt, pin_mut};
use greylag_journal_postgres::tokio_postgres::types::ToSql;
use greylag_journal_postgres::tokio_postgres::{self, Client, Statement};
use greylag_postgres::Database;
use greylag_testkit::postgres::Postgres;

use crate::{Failure, LANES};

const UNDER_WAY: usize = 2;

/// Rows in a piece of a `COPY`.
const COPIED_AT_ONCE: usize = 500;

const COLUMNS: &str =
    "persistence_id, seq_nr, slice, entity_type, db_timestamp, writer_uuid, writer_epoch, codec_id, manifest,
    schema_version, filtered, payload, metadata, tags, crc32c";

const FROM_ARRAYS: &str = "\
select pid, seq_nr, slice, entity_type, statement_timestamp(), writer_uuid::uuid, writer_epoch, codec_id,
    manifest, schema_version, filtered, payload, metadata, string_to_array(tags, E'\\x1f'), crc32c
from unnest($1::text[], $2::bigint[], $3::smallint[], $4::text[], $5::text[], $6::bigint[], $7::integer[], $8::text[],
    $9::integer[], $10::boolean[], $11::bytea[], $12::bytea[], $13::text[], $14::bigint[])
    as x(pid, seq_nr, slice, entity_type, writer_uuid, writer_epoch, codec_id, manifest, schema_version, filtered,
        payload, metadata, tags, crc32c)";

/// How a statement carries its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Values,
    Arrays,
}

impl Kind {
    fn sql(self, rows: usize) -> String {
        match self {
            Self::Arrays => format!("insert into bare ({COLUMNS}) {FROM_ARRAYS}"),
            Self::Values => {
                let row = |row: usize| {
                    let n = |column: usize| row * PARAMETERS + column;
                    format!(
                        "(${}, ${}, ${}, ${}, statement_timestamp(), ${}::text::uuid, ${}, ${}, ${}, ${}, ${}, ${}, ${}, ${}, ${})",
                        n(1),
                        n(2),
                        n(3),
                        n(4),
                        n(5),
                        n(6),
                        n(7),
                        n(8),
                        n(9),
                        n(10),
                        n(11),
                        n(12),
                        n(13),
                        n(14)
                    )
                };
                format!("insert into bare ({COLUMNS}) values {}", (0..rows).map(row).collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// Parameters of one row.
const PARAMETERS: usize = 14;

pub(crate) struct Bare {
    clients: Vec<Client>,
    rows: Vec<Row>,
}

struct Row {
    id: String,
    seq_nr: i64,
    slice: i16,
    uuid: String,
    payload: Vec<u8>,
    crc32c: i64,
}

impl Bare {
    /// Connects, and reads the rows of a journal in the order of their commits.
    pub(crate) async fn connect(server: &Postgres, schema: &str, entities: u64) -> Result<Self, Failure> {
        let mut clients = Vec::new();
        for _ in 0..LANES.min(usize::try_from(entities)?) {
            let (client, _) = Database::parse(&server.config())?.connect("bench").await?;
            client.batch_execute(&format!("set search_path to {schema}")).await?;
            clients.push(client);
        }
        clients[0].batch_execute("create table bare (like event including all)").await?;
        let sql = "select persistence_id, seq_nr, slice, writer_uuid::text, payload, crc32c from event
                   order by db_timestamp, persistence_id, seq_nr";
        let rows = clients[0].query(sql, &[]).await?;
        let row = |row: &tokio_postgres::Row| Row {
            id: row.get(0),
            seq_nr: row.get(1),
            slice: row.get(2),
            uuid: row.get(3),
            payload: row.get(4),
            crc32c: row.get(5),
        };
        Ok(Self { rows: rows.iter().map(row).collect(), clients })
    }

    /// Inserts the rows, `batch` in each statement; answers rows per second.
    pub(crate) async fn insert(&self, kind: Kind, batch: usize) -> Result<f64, Failure> {
        // A statement has at most 65,535 parameters.
        let batch = batch.clamp(1, usize::from(u16::MAX) / PARAMETERS);
        // Only whole batches are written, since a smaller last one would need a statement of its own.
        let whole = self.rows.len() / batch * batch;
        self.clients[0].batch_execute("truncate bare").await?;
        let mut statements = Vec::new();
        for client in &self.clients {
            statements.push(client.prepare(&kind.sql(batch)).await?);
        }
        // One entity has only one append under way.
        let under_way = if self.clients.len() == 1 { 1 } else { UNDER_WAY };
        let step = self.clients.len() * under_way;
        let began_at = Instant::now();
        let lanes = self.clients.iter().zip(&statements).enumerate().flat_map(|(lane, (client, statement))| {
            (0..under_way).map(move |place| async move {
                for rows in self.rows[..whole].chunks(batch).skip(lane * under_way + place).step_by(step) {
                    match kind {
                        Kind::Values => insert_values(client, statement, rows).await?,
                        Kind::Arrays => insert_arrays(client, statement, rows).await?,
                    }
                }
                Ok::<_, Failure>(())
            })
        });
        try_join_all(lanes).await?;
        Ok(whole as f64 / began_at.elapsed().as_secs_f64())
    }

    /// Copies the rows, an equal share by one `COPY` on each connection; answers rows per second.
    pub(crate) async fn copy(&self) -> Result<f64, Failure> {
        self.clients[0].batch_execute("truncate bare").await?;
        let lines: Vec<Bytes> = self.clients[0].copy_out("copy event to stdout").await?.try_collect().await?;
        let share = lines.len().div_ceil(self.clients.len());
        let began_at = Instant::now();
        let parts = self.clients.iter().zip(lines.chunks(share)).map(|(client, lines)| async move {
            let sink = client.copy_in::<_, Bytes>("copy bare from stdin").await?;
            pin_mut!(sink);
            for some in lines.chunks(COPIED_AT_ONCE) {
                sink.feed(Bytes::from(some.concat())).await?;
            }
            sink.close().await?;
            Ok::<_, Failure>(())
        });
        try_join_all(parts).await?;
        Ok(self.rows.len() as f64 / began_at.elapsed().as_secs_f64())
    }
}

async fn insert_values(client: &Client, statement: &Statement, rows: &[Row]) -> Result<(), Failure> {
    let mut parameters: Vec<&(dyn ToSql + Sync)> = Vec::with_capacity(rows.len() * PARAMETERS);
    for row in rows {
        parameters.extend([&row.id as &(dyn ToSql + Sync), &row.seq_nr, &row.slice, &"Customer", &row.uuid]);
        parameters.extend([&1_i64 as &(dyn ToSql + Sync), &2_i32, &"bench.event", &1_i32, &false]);
        parameters.extend([&row.payload as &(dyn ToSql + Sync), &None::<&[u8]>, &None::<Vec<&str>>, &row.crc32c]);
    }
    client.execute(statement, &parameters).await?;
    Ok(())
}

async fn insert_arrays(client: &Client, statement: &Statement, rows: &[Row]) -> Result<(), Failure> {
    fn all<'a, T>(rows: &'a [Row], column: impl Fn(&'a Row) -> T) -> Vec<T> {
        rows.iter().map(column).collect()
    }
    client
        .execute(
            statement,
            &[
                &all(rows, |row| row.id.as_str()),
                &all(rows, |row| row.seq_nr),
                &all(rows, |row| row.slice),
                &all(rows, |_| "Customer"),
                &all(rows, |row| row.uuid.as_str()),
                &all(rows, |_| 1_i64),
                &all(rows, |_| 2_i32),
                &all(rows, |_| "bench.event"),
                &all(rows, |_| 1_i32),
                &all(rows, |_| false),
                &all(rows, |row| &row.payload[..]),
                &all(rows, |_| None::<&[u8]>),
                &all(rows, |_| None::<&str>),
                &all(rows, |row| row.crc32c),
            ],
        )
        .await?;
    Ok(())
}
