//! Statements for the rows of queues and of outboxes, which have the same columns.

use bytes::Bytes;
use greylag_core::{CodecId, Encoded};
use greylag_delivery::queue::{
    MessageSent, Qualifier, QueueChange, QueueClaim, QueueHead, QueueRows, QueueStoreError, TimestampMillis,
};
use greylag_delivery::{ControllerRef, Epoch, SeqNr, StreamId};
use greylag_postgres::Failure;
use tokio_postgres::Row;

use crate::link::Link;

/// How often rows are read again because the head row changed meanwhile.
const READS: usize = 8;

/// The statements for one kind of queue.
pub(crate) struct Statements {
    head: String,
    make: String,
    claim: String,
    messages: String,
    confirmed: String,
    write: String,
}

impl Statements {
    /// Statements for the tables whose names begin with `prefix`.
    pub(crate) fn of(prefix: &str) -> Self {
        let head = format!(
            "select stream_id, epoch, node, path, instance, current, highest_confirmed from {prefix}_head where queue = $1"
        );
        let make = format!(
            "insert into {prefix}_head (queue, stream_id, epoch, node, path, instance, current, highest_confirmed) \
             values ($1, $2, $3, $4, $5, $6, 1, 0) on conflict (queue) do nothing returning 1"
        );
        let claim = format!(
            "update {prefix}_head set epoch = $3, node = $4, path = $5, instance = $6 where queue = $1 and epoch = $2 \
             returning 1"
        );
        let messages = format!(
            "select seq_nr, qualifier, ack, timestamp_ms, codec, manifest, payload from {prefix}_message \
             where queue = $1 and seq_nr is not null order by seq_nr"
        );
        let confirmed = format!("select qualifier, seq_nr, timestamp_ms from {prefix}_confirmed where queue = $1");
        Self { head, make, claim, messages, confirmed, write: write(prefix) }
    }
}

/// The statement of a change: the head row is its condition, and all parts use one snapshot of the database.
fn write(prefix: &str) -> String {
    format!(
        "with head as (
    update {prefix}_head set current = $3, highest_confirmed = $4 where queue = $1 and epoch = $2 returning 1
), added as (
    insert into {prefix}_message (queue, seq_nr, qualifier, ack, timestamp_ms, codec, manifest, payload)
    select $1, m.* from unnest($5::bigint[], $6::text[], $7::boolean[], $8::bigint[], $9::bigint[], $10::text[],
        $11::bytea[]) as m where exists (select 1 from head)
), removed as (
    delete from {prefix}_message where queue = $1 and seq_nr = any($12::bigint[]) and exists (select 1 from head)
), confirmed as (
    insert into {prefix}_confirmed (queue, qualifier, seq_nr, timestamp_ms)
    select $1, c.* from unnest($13::text[], $14::bigint[], $15::bigint[]) as c where exists (select 1 from head)
    on conflict (queue, qualifier) do update set seq_nr = excluded.seq_nr, timestamp_ms = excluded.timestamp_ms
), forgotten as (
    delete from {prefix}_confirmed where queue = $1 and qualifier = any($16::text[]) and exists (select 1 from head)
) select 1 from head"
    )
}

/// Converts a row to a message; the columns are in the order of the statements.
pub(crate) fn message(row: &Row) -> Result<MessageSent<Encoded>, QueueStoreError> {
    let (seq_nr, timestamp_ms, codec): (i64, i64, i64) = (row.try_get(0).map_err(damaged)?, get(row, 3)?, get(row, 4)?);
    let codec = u32::try_from(codec).map_err(|_| QueueStoreError::Damaged(format!("there is no codec {codec}")))?;
    let (qualifier, manifest): (&str, &str) = (get(row, 1)?, get(row, 5)?);
    let payload: &[u8] = get(row, 6)?;
    let payload = Bytes::copy_from_slice(payload);
    Ok(MessageSent {
        seq_nr: SeqNr(number(seq_nr)?),
        message: Encoded { codec: CodecId::from_u32(codec), manifest: manifest.to_owned().into(), payload },
        ack: get(row, 2)?,
        qualifier: qualifier.into(),
        timestamp_ms: u64::try_from(timestamp_ms).unwrap_or_default(),
    })
}

fn get<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, QueueStoreError> {
    row.try_get(column).map_err(damaged)
}

fn damaged(error: tokio_postgres::Error) -> QueueStoreError {
    QueueStoreError::Damaged(greylag_postgres::told(&error))
}

fn number(stored: i64) -> Result<u64, QueueStoreError> {
    u64::try_from(stored).map_err(|_| QueueStoreError::Damaged(format!("{stored} is no number of a message")))
}

/// Converts a number to PostgreSQL's signed integers; numbers above `i64::MAX` are refused.
pub(crate) fn stored(number: u64) -> Result<i64, QueueStoreError> {
    i64::try_from(number).map_err(|_| QueueStoreError::Rejected(format!("PostgreSQL stores no number {number}")))
}

fn time(timestamp_ms: TimestampMillis) -> i64 {
    i64::try_from(timestamp_ms).unwrap_or(i64::MAX)
}

fn head(row: &Row) -> Result<QueueHead, QueueStoreError> {
    let stream_id: &[u8] = get(row, 0)?;
    let stream_id = <[u8; 16]>::try_from(stream_id);
    let stream_id = stream_id.map_err(|_| QueueStoreError::Damaged("a stream id has 16 bytes".into()))?;
    let (epoch, instance, current, highest): (i64, i64, i64, i64) =
        (get(row, 1)?, get(row, 4)?, get(row, 5)?, get(row, 6)?);
    let (node, path): (&str, &str) = (get(row, 2)?, get(row, 3)?);
    let node = node.parse().map_err(|error| QueueStoreError::Damaged(format!("{node:?} is no node: {error}")))?;
    Ok(QueueHead {
        stream_id: StreamId(u128::from_be_bytes(stream_id)),
        epoch: Epoch(number(epoch)?),
        // The instance uses all of its 64 bits.
        controller: ControllerRef { node, path: path.into(), instance: instance.cast_unsigned() },
        current: SeqNr(number(current)?),
        highest_confirmed: SeqNr(number(highest)?),
    })
}

/// Converts the failure of a writing statement.
pub(crate) fn not_written(failure: Failure) -> QueueStoreError {
    let words = failure.error().to_string();
    match failure {
        Failure::NotSent(_) | Failure::RolledBack(_) | Failure::Elsewhere(_) | Failure::StorageLow(_) => {
            QueueStoreError::Unavailable(words)
        }
        Failure::Unanswered(_) => QueueStoreError::Unknown(words),
        Failure::Taken(_) | Failure::Refused(_) => QueueStoreError::Rejected(words),
    }
}

/// Converts the failure of a reading statement.
pub(crate) fn not_read(failure: Failure) -> QueueStoreError {
    QueueStoreError::Unavailable(failure.error().to_string())
}

impl Statements {
    pub(crate) async fn head(&self, link: &Link, queue: &str) -> Result<Option<QueueHead>, QueueStoreError> {
        let rows = link.query(&self.head, &[&queue]).await.map_err(not_read)?;
        rows.first().map(head).transpose()
    }

    /// Reads all rows. They are consistent if the head row is the same before and after the read; otherwise the read is
    /// repeated.
    pub(crate) async fn read(&self, link: &Link, queue: &str) -> Result<Option<QueueRows>, QueueStoreError> {
        let mut before = self.head(link, queue).await?;
        for _ in 0..READS {
            let messages = link.query(&self.messages, &[&queue]).await.map_err(not_read)?;
            let confirmed = link.query(&self.confirmed, &[&queue]).await.map_err(not_read)?;
            let after = self.head(link, queue).await?;
            if before == after {
                let Some(head) = after else { return Ok(None) };
                let messages = messages.iter().map(message).collect::<Result<_, _>>()?;
                let confirmed = confirmed.iter().map(confirmation).collect::<Result<_, _>>()?;
                return Ok(Some(QueueRows { head, confirmed, messages }));
            }
            before = after;
        }
        Err(QueueStoreError::Unavailable("the queue changes faster than it can be read".into()))
    }

    pub(crate) async fn claim(&self, link: &Link, queue: &str, claim: &QueueClaim) -> Result<(), QueueStoreError> {
        let ControllerRef { node, path, instance } = &claim.controller;
        let (node, path, instance) = (node.to_string(), &**path, instance.cast_signed());
        let epoch = stored(claim.epoch.0)?;
        let claimed = match claim.expected {
            Some(expected) => {
                let expected = stored(expected.0)?;
                link.query(&self.claim, &[&queue, &expected, &epoch, &node, &path, &instance]).await
            }
            None => {
                let stream_id = claim.stream_id.0.to_be_bytes();
                link.query(&self.make, &[&queue, &&stream_id[..], &epoch, &node, &path, &instance]).await
            }
        };
        made(&claimed.map_err(not_written)?)
    }

    pub(crate) async fn write(&self, link: &Link, queue: &str, change: &QueueChange) -> Result<(), QueueStoreError> {
        let (epoch, current) = (stored(change.epoch.0)?, stored(change.current.get())?);
        let highest = stored(change.highest_confirmed.get())?;
        let messages = &change.messages;
        let seq_nrs = messages.iter().map(|sent| stored(sent.seq_nr.get())).collect::<Result<Vec<_>, _>>()?;
        let qualifiers: Vec<&str> = messages.iter().map(|sent| &*sent.qualifier).collect();
        let acks: Vec<bool> = messages.iter().map(|sent| sent.ack).collect();
        let times: Vec<i64> = messages.iter().map(|sent| time(sent.timestamp_ms)).collect();
        let codecs: Vec<i64> = messages.iter().map(|sent| sent.message.codec.as_u32().into()).collect();
        let manifests: Vec<&str> = messages.iter().map(|sent| &*sent.message.manifest).collect();
        let payloads: Vec<&[u8]> = messages.iter().map(|sent| &*sent.message.payload).collect();
        let removed = change.removed.iter().map(|seq_nr| stored(seq_nr.get())).collect::<Result<Vec<_>, _>>()?;
        let confirmed: Vec<&str> = change.confirmed.iter().map(|(qualifier, ..)| &**qualifier).collect();
        let up_to =
            change.confirmed.iter().map(|(_, seq_nr, _)| stored(seq_nr.get())).collect::<Result<Vec<_>, _>>()?;
        let confirmed_at: Vec<i64> = change.confirmed.iter().map(|(.., at)| time(*at)).collect();
        let forgotten: Vec<&str> = change.forgotten.iter().map(|qualifier| &**qualifier).collect();
        #[rustfmt::skip]
        let written = link.query(&self.write, &[
            &queue, &epoch, &current, &highest,
            &seq_nrs, &qualifiers, &acks, &times, &codecs, &manifests, &payloads,
            &removed, &confirmed, &up_to, &confirmed_at, &forgotten,
        ]).await;
        made(&written.map_err(not_written)?)
    }
}

/// A statement returns a row if its condition held.
fn made(rows: &[Row]) -> Result<(), QueueStoreError> {
    if rows.is_empty() { Err(QueueStoreError::Changed) } else { Ok(()) }
}

fn confirmation(row: &Row) -> Result<(Qualifier, SeqNr, TimestampMillis), QueueStoreError> {
    let qualifier: &str = get(row, 0)?;
    let (seq_nr, at): (i64, i64) = (get(row, 1)?, get(row, 2)?);
    Ok((qualifier.into(), SeqNr(number(seq_nr)?), u64::try_from(at).unwrap_or_default()))
}
