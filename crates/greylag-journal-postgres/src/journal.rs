//! The handle of a journal: limits, back-pressure, and one statement for each call but appends.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use greylag_persistence::{
    AdvanceError, Append, AppendError, Appended, Caps, Claim, ClaimError, CloseError, Corrupt, CorruptKind,
    DeleteError, Head, Health, Journal, Page, PersistenceId, ReadError, ReadRange, RejectReason, Scope, SeqNr,
    StoreFailure, StoreReturns, StoredEvent, Stores, Timestamp, Under, WriterEpoch, WriterUuid,
};
use greylag_postgres::Database;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_postgres::Row;

use crate::clock::ClockWatch;
use crate::driver::lane::{self, Message, Submitted};
use crate::driver::link::{Link, Purpose, Session, Use};
use crate::driver::pool::Pool;
use crate::driver::sweeper::{self, Deleted};
use crate::error::OpenError;
use crate::lane::LaneSettings;
use crate::offsets::PostgresOffsets;
use crate::queries::PostgresQueries;
use crate::rows::{self, Unreadable, Uuid};
use crate::settings::PostgresJournalSettings;
use crate::snapshots::PostgresSnapshots;
use crate::statements::{ADVANCE, CLAIM, DELETE_TO, HEAD, READ};
use crate::states::PostgresStates;
use crate::stats::{Counters, PostgresStats};

const CAPS: Caps = Caps::full(Scope::Shared);

/// Bytes of one permit of the semaphore `room`.
const ROOM_UNIT: usize = 1024;

/// Bytes that an event takes in a statement besides its payload and texts, roughly.
const EVENT_OVERHEAD: usize = 128;

/// A journal in PostgreSQL, for every node that reaches the database. Clones share it.
#[derive(Debug, Clone)]
pub struct PostgresJournal {
    inner: Arc<Inner>,
}

/// State that the handles of one journal share.
pub(crate) struct Inner {
    pub(crate) link: Arc<Link>,
    pub(crate) settings: PostgresJournalSettings,
    pub(crate) counters: Arc<Counters>,
    lanes: Vec<mpsc::UnboundedSender<Message>>,
    /// Room for pending appends, in units of [`ROOM_UNIT`].
    room: Arc<Semaphore>,
    pub(crate) write: Arc<Pool>,
    pub(crate) replay: Arc<Pool>,
    pub(crate) query: Arc<Pool>,
    pub(crate) deleted: mpsc::UnboundedSender<Deleted>,
    /// Tasks of lanes that have not ended. `close` holds the lock while it waits for them.
    tasks: Mutex<Vec<JoinHandle<()>>>,
    sweeper: JoinHandle<()>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresJournal").field("database", &self.link.place()).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    /// Aborts the sweeper only: lanes end by themselves, once they have answered their appends.
    fn drop(&mut self) {
        self.sweeper.abort();
    }
}

impl PostgresJournal {
    /// Opens the journal, and applies missing migrations, so that a wrong setup shows at start. `config` is a
    /// connection string as for libpq, key words or a URL; its password appears in no log and no error.
    ///
    /// # Errors
    /// [`OpenError`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn open(config: &str, settings: PostgresJournalSettings) -> Result<Self, OpenError> {
        let journal = Self::lazy(config, settings)?;
        journal.probe().await?;
        Ok(journal)
    }

    /// Opens the journal for this process alone, as [`copy`](greylag_persistence::copy) needs it: while it is open no
    /// other process's journal of this schema connects, and it does not open while one is connected. Opening waits for
    /// connections that end meanwhile, but not longer than `connect_timeout`.
    ///
    /// The reservation is an advisory lock, which connections of ordinary journals hold shared and this journal holds
    /// alone. Databases without advisory locks (the table below) reserve nothing.
    ///
    /// # Errors
    /// [`OpenError`]; [`OpenError::InUse`] if others are connected.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn open_exclusive(config: &str, settings: PostgresJournalSettings) -> Result<Self, OpenError> {
        let journal = Self::start(Database::parse(config)?, settings, Use::Exclusive)?;
        let link = &journal.inner.link;
        let place = link.place();
        match link.reserve().await {
            Ok(None) => Ok(journal),
            Ok(Some(by)) => Err(OpenError::InUse { place, schema: journal.inner.settings.schema.clone(), by }),
            Err(cause) => Err(OpenError::Unavailable { place, cause }),
        }
    }

    /// Opens the journal without waiting for the database. The journal tries to connect until the database answers;
    /// until then its health is down, and calls answer unavailable when their time is over.
    ///
    /// # Errors
    /// [`OpenError::Settings`], [`OpenError::Config`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn lazy(config: &str, settings: PostgresJournalSettings) -> Result<Self, OpenError> {
        Self::start(Database::parse(config)?, settings, Use::Shared)
    }

    /// As [`PostgresJournal::lazy`], with a password from a file instead of `config`.
    ///
    /// # Errors
    /// As [`PostgresJournal::lazy`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn lazy_with_password_file(
        config: &str,
        file: &Path,
        settings: PostgresJournalSettings,
    ) -> Result<Self, OpenError> {
        Self::start(Database::parse(config)?.with_password_file(file)?, settings, Use::Shared)
    }

    /// Connects once, to check that the database can be used.
    ///
    /// # Errors
    /// [`OpenError::Unavailable`].
    pub async fn probe(&self) -> Result<(), OpenError> {
        let link = &self.inner.link;
        let place = link.place();
        link.connect(Purpose::Query).await.map(drop).map_err(|cause| OpenError::Unavailable { place, cause })
    }

    fn start(database: Database, settings: PostgresJournalSettings, used: Use) -> Result<Self, OpenError> {
        settings.validate()?;
        if database.believes_anybody() {
            let place = database.place();
            tracing::warn!(
                place,
                "any server that answers there is taken for the journal database; use sslmode=verify-full"
            );
        }
        let link = Link::new(database, &settings, used);
        let pool = |purpose, size| Arc::new(Pool::new(link.clone(), purpose, size, settings.statement_timeout));
        let write = pool(Purpose::Primary, settings.pool_write);
        let replay = pool(Purpose::Primary, settings.pool_read);
        let query = pool(Purpose::Query, settings.pool_query);
        let clock = ClockWatch::new(link.name.clone(), settings.behind_current_time);
        let (mut tasks, counters) = (Vec::new(), Arc::new(Counters::new(clock)));
        let lanes = (0..settings.write_lanes).map(|_| {
            let (sender, inbox) = mpsc::unbounded_channel();
            tasks.push(tokio::spawn(lane::run(link.clone(), counters.clone(), lane_settings(&link, &settings), inbox)));
            sender
        });
        let lanes = lanes.collect();
        let (deleted, to_sweep) = mpsc::unbounded_channel();
        let sweeper = tokio::spawn(sweeper::run(write.clone(), settings.call_timeout, settings.sweep_events, to_sweep));
        let room = Arc::new(Semaphore::new(settings.max_pending_bytes.div_ceil(ROOM_UNIT)));
        let tasks = Mutex::new(tasks);
        let inner = Inner { link, settings, counters, lanes, room, write, replay, query, deleted, tasks, sweeper };
        Ok(Self { inner: Arc::new(inner) })
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// The snapshot store in the same database.
    pub fn snapshots(&self) -> PostgresSnapshots {
        PostgresSnapshots::new(self.inner.clone())
    }

    /// The store of durable states in the same database.
    pub fn states(&self) -> PostgresStates {
        PostgresStates::new(self.inner.clone())
    }

    /// The query side of this journal.
    pub fn queries(&self) -> PostgresQueries {
        PostgresQueries::new(self.inner.clone())
    }

    /// The offset store of projections in the same database.
    pub fn offsets(&self) -> PostgresOffsets {
        PostgresOffsets::new(self.inner.clone())
    }

    /// Counters of this journal, over all its handles.
    pub fn stats(&self) -> PostgresStats {
        let (all, free) = (self.inner.room_units(), self.inner.room.available_permits());
        PostgresStats { pending_bytes: ((all - free.min(all)) * ROOM_UNIT) as u64, ..self.inner.counters.read() }
    }

    /// Journal and snapshots, as event-sourced entities take them.
    pub fn stores(&self) -> Stores {
        Stores::new(Arc::new(self.clone()), Arc::new(self.snapshots()))
    }
}

fn lane_settings(link: &Link, settings: &PostgresJournalSettings) -> LaneSettings {
    LaneSettings {
        name: link.name.clone(),
        pipeline: settings.pipeline,
        max_batch_appends: settings.max_batch_appends,
        max_batch_bytes: settings.max_batch_bytes,
        append_timeout: settings.append_timeout,
        try_timeout: settings.try_timeout(),
        max_clock_lag: settings.max_clock_lag,
    }
}

impl Inner {
    /// All the room for pending appends, in units of [`ROOM_UNIT`].
    fn room_units(&self) -> usize {
        self.settings.max_pending_bytes.div_ceil(ROOM_UNIT)
    }

    fn lane(&self, id: &PersistenceId) -> &mpsc::UnboundedSender<Message> {
        &self.lanes[usize::from(id.slice()) % self.lanes.len()]
    }

    /// A new connection that may write, outside the pools.
    pub(crate) async fn connect(&self) -> Result<Arc<Session>, String> {
        self.link.connect(Purpose::Primary).await
    }

    pub(crate) fn failure(&self, cause: impl ToString) -> StoreFailure {
        StoreFailure::new(&self.link.name, cause)
    }

    /// The failure for an answer of the server that this program cannot decode.
    pub(crate) fn unreadable(&self) -> StoreFailure {
        self.failure("the answer cannot be read; check that the schema is the one documented")
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.link.is_closed()
    }

    pub(crate) fn closed(&self) -> StoreFailure {
        self.failure("closed")
    }

    pub(crate) fn health(&self) -> Health {
        if self.link.is_closed() {
            return Health::Down("closed".to_owned());
        }
        if let Some(trouble) = self.link.trouble() {
            let name = &self.link.name;
            return match self.link.is_any_lane_up() {
                true => Health::Degraded(vec![format!("{name}: some connections cannot be made: {trouble}")]),
                false => Health::Down(format!("{name}: {trouble}")),
            };
        }
        if let Some(reason) = self.counters.clock.trouble() {
            return Health::Degraded(vec![format!("{}: {reason}", self.link.name)]);
        }
        let (all, free) = (self.room_units(), self.room.available_permits());
        if free * 2 < all {
            let reason = format!("{}: {} KiB of {all} KiB of appends wait", self.link.name, all - free);
            return Health::Degraded(vec![reason]);
        }
        Health::Up
    }

    /// Closes the journal: lanes answer the appends that wait, then every connection is closed, in this order because a
    /// lane may need a new connection for its last answers. A second call waits for the first, or takes over if the
    /// first was dropped.
    pub(crate) async fn close(&self) -> Result<(), CloseError> {
        for lane in &self.lanes {
            let _ended_already = lane.send(Message::Close);
        }
        let mut tasks = self.tasks.lock().await;
        let mut panicked = None;
        // Each lane ends at the latest when the deadline of its last append is over.
        while let Some(task) = tasks.last_mut() {
            panicked = task.await.err().or(panicked);
            tasks.pop();
        }
        drop(tasks);
        self.link.close().await;
        self.sweeper.abort();
        for pool in [&self.write, &self.replay, &self.query] {
            pool.close();
        }
        panicked.map_or(Ok(()), |error| Err(CloseError(self.failure(error))))
    }

    /// Waits for room, but not longer than `append_timeout`.
    async fn room(&self, bytes: usize) -> Result<OwnedSemaphorePermit, StoreFailure> {
        let all = self.room_units();
        let units = u32::try_from(bytes.div_ceil(ROOM_UNIT).clamp(1, all)).unwrap_or(u32::MAX);
        if let Ok(room) = self.room.clone().try_acquire_many_owned(units) {
            return Ok(room);
        }
        let limit = self.settings.append_timeout;
        let waited = tokio::time::timeout(limit, self.room.clone().acquire_many_owned(units)).await;
        match waited {
            Ok(Ok(room)) => Ok(room),
            Ok(Err(_)) => Err(self.closed()),
            Err(_) => Err(self.failure(format!("no room among the pending appends within {limit:?}"))),
        }
    }

    /// Checks an append and gives it to its lane. From then on the lane stores it, whether its caller waits or not
    /// (J13).
    async fn submit(&self, append: Append) -> Result<oneshot::Receiver<Result<Appended, AppendError>>, AppendError> {
        let bytes = check(&append, self.settings.max_append_bytes).map_err(AppendError::Rejected)?;
        let records: Arc<[StoredEvent]> = append.records(Timestamp::default()).into();
        let room = self.room(bytes).await.map_err(AppendError::NotStored)?;
        let (reply, answer) = oneshot::channel();
        let message = Message::Append(Submitted { records, bytes, room, reply });
        self.lane(&append.id).send(message).map_err(|_| AppendError::NotStored(self.closed()))?;
        Ok(answer)
    }

    /// Waits until every earlier append of the id from this process is answered. Those of other nodes are waited for by
    /// the lock of the id's row.
    async fn await_turn(&self, id: &PersistenceId) -> Result<(), StoreFailure> {
        let (reply, turn) = oneshot::channel();
        let message = Message::AwaitTurn { id: id.clone(), reply };
        self.lane(id).send(message).map_err(|_| self.closed())?;
        turn.await.map_err(|_| self.closed())
    }

    async fn head(&self, pool: &Pool, within: Duration, id: &PersistenceId) -> Result<Head, HeadError> {
        let text = id.as_str();
        let found = pool.call(within, |session| async move {
            let statement = session.prepare(HEAD).await?;
            session.client.query_opt(&statement, &[&text]).await
        });
        let Some(row) = found.await.map_err(|failed| HeadError::Unavailable(failed.cause))? else {
            return Ok(Head::default());
        };
        let corrupt = || Corrupt { id: id.clone(), seq_nr: SeqNr::ZERO, kind: CorruptKind::Unreadable };
        rows::head(&row).map_err(|Unreadable| HeadError::Corrupt(corrupt()))
    }

    /// The head, read to explain why a write changed nothing.
    async fn current(&self, id: &PersistenceId) -> Result<Head, HeadError> {
        self.head(&self.write, self.settings.call_timeout, id).await
    }
}

enum HeadError {
    Unavailable(StoreFailure),
    Corrupt(Corrupt),
}

impl HeadError {
    /// The error for calls whose error type has no corrupt head.
    fn cause(self, inner: &Inner) -> StoreFailure {
        match self {
            Self::Unavailable(cause) => cause,
            Self::Corrupt(corrupt) => inner.failure(corrupt),
        }
    }
}

#[async_trait]
impl Journal for PostgresJournal {
    fn caps(&self) -> Caps {
        CAPS
    }

    async fn claim(&self, id: &PersistenceId, writer_uuid: WriterUuid, under: Under) -> Result<Claim, ClaimError> {
        let inner = &self.inner;
        inner.await_turn(id).await.map_err(ClaimError::Unavailable)?;
        let (generation, seen) = match under {
            Under::Generation(generation) => (Some(rows::generation(generation)), None),
            Under::Seen(epoch) => (None, Some(rows::epoch(epoch))),
        };
        let (text, slice) = (id.as_str(), slice(id));
        let claimed = inner.write.call(inner.settings.call_timeout, |session| async move {
            let statement = session.prepare(CLAIM).await?;
            let uuid = Uuid(writer_uuid);
            session.client.query_opt(&statement, &[&text, &id.entity_type(), &slice, &uuid, &generation, &seen]).await
        });
        let Some(row) = claimed.await.map_err(|failed| ClaimError::Unavailable(failed.cause))? else {
            return Err(match inner.current(id).await {
                Ok(current) => ClaimError::Fenced { current },
                Err(HeadError::Unavailable(cause)) => ClaimError::Unavailable(cause),
                Err(HeadError::Corrupt(corrupt)) => ClaimError::Corrupt(corrupt),
            });
        };
        let corrupt = || Corrupt { id: id.clone(), seq_nr: SeqNr::ZERO, kind: CorruptKind::Unreadable };
        rows::claim(&row).map_err(|Unreadable| ClaimError::Corrupt(corrupt()))
    }

    async fn advance(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<(), AdvanceError> {
        let inner = &self.inner;
        let (text, stored_epoch, number) = (id.as_str(), rows::epoch(epoch), rows::number(to));
        let advanced = inner.write.call(inner.settings.call_timeout, |session| async move {
            let statement = session.prepare(ADVANCE).await?;
            session.client.query_opt(&statement, &[&text, &stored_epoch, &number]).await
        });
        if advanced.await.map_err(|failed| AdvanceError::Unavailable(failed.cause))?.is_some() {
            return Ok(());
        }
        let current = inner.current(id).await.map_err(|error| AdvanceError::Unavailable(error.cause(inner)))?;
        Err(if current.epoch == epoch {
            AdvanceError::NotEmpty { highest: current.highest }
        } else {
            AdvanceError::Fenced { current }
        })
    }

    async fn append(&self, append: Append) -> Result<Appended, AppendError> {
        let inner = &self.inner;
        // A lane counts the appends that it gets; an append that reaches no lane is counted here.
        let answer = inner.submit(append).await.inspect_err(|error| {
            inner.counters.answered(&Err(error.clone()), 0, 0);
        })?;
        let ended = || AppendError::Unknown(inner.failure("the lane ended without an answer"));
        answer.await.unwrap_or_else(|_| Err(ended()))
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        read_page(&self.inner, &self.inner.replay, id, range).await
    }

    async fn head(&self, id: &PersistenceId) -> Result<Head, ReadError> {
        let inner = &self.inner;
        let head = inner.head(&inner.replay, inner.settings.call_timeout, id).await;
        head.map_err(|error| match error {
            HeadError::Unavailable(cause) => ReadError::Unavailable(cause),
            HeadError::Corrupt(corrupt) => ReadError::Corrupt(corrupt),
        })
    }

    async fn delete_to(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<SeqNr, DeleteError> {
        let inner = &self.inner;
        let (text, stored_epoch, number) = (id.as_str(), rows::epoch(epoch), rows::number(to));
        let deleted = inner.write.call(inner.settings.call_timeout, |session| async move {
            let statement = session.prepare(DELETE_TO).await?;
            session.client.query_opt(&statement, &[&text, &stored_epoch, &number]).await
        });
        let Some(row) = deleted.await.map_err(|failed| DeleteError::Unavailable(failed.cause))? else {
            let current = inner.current(id).await.map_err(|error| DeleteError::Unavailable(error.cause(inner)))?;
            // The id was never claimed: there is nothing to delete, and no writer to fence.
            let is_absent = current.epoch == epoch && epoch == WriterEpoch::NONE;
            return if is_absent { Ok(current.deleted_to) } else { Err(DeleteError::Fenced { current }) };
        };
        let deleted_to = rows::column::<i64>(&row, "deleted_to").ok().and_then(|number| u64::try_from(number).ok());
        let deleted_to = deleted_to.and_then(SeqNr::new).ok_or_else(|| DeleteError::Unavailable(inner.unreadable()))?;
        let _closed_meanwhile = inner.deleted.send((id.clone(), deleted_to));
        Ok(deleted_to)
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn store_returns(&self) -> Option<&StoreReturns> {
        Some(&self.inner.link.store_returns)
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.inner.close().await
    }
}

/// One page of a history, over a connection of `pool`, which is given back before the page is decoded.
pub(crate) async fn read_page(
    inner: &Inner,
    pool: &Pool,
    id: &PersistenceId,
    range: ReadRange,
) -> Result<Page, ReadError> {
    let (text, from, to) = (id.as_str(), rows::number(range.from), rows::number(range.to));
    let saturated = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let (limit, max_bytes) = (saturated(range.max_events), saturated(range.max_bytes));
    let found = pool.call(inner.settings.call_timeout, |session| async move {
        let statement = session.prepare(READ).await?;
        session.client.query(&statement, &[&text, &from, &to, &limit, &max_bytes]).await
    });
    let rows = found.await.map_err(|failed| ReadError::Unavailable(failed.cause))?;
    page(id, range, &rows).map_err(ReadError::Corrupt)
}

/// The slice as the type of its column.
pub(crate) fn slice(id: &PersistenceId) -> i16 {
    i16::try_from(id.slice()).expect("there are 1024 slices")
}

/// Refuses an append that can never be stored before it is queued; answers its size in bytes, roughly.
fn check(append: &Append, max_bytes: usize) -> Result<usize, RejectReason> {
    append.check(&CAPS)?;
    if let Some((seq_nr, _)) =
        (append.first.as_u64()..).zip(&append.events).find(|(_, event)| event.manifest.contains('\0'))
    {
        return Err(RejectReason::Other(format!(
            "the manifest of event {seq_nr} has a zero byte, which PostgreSQL does not store in texts"
        )));
    }
    let bytes: usize = append.events.iter().map(|event| size(event) + EVENT_OVERHEAD).sum();
    if bytes > max_bytes {
        return Err(RejectReason::Other(format!("an append of {bytes} bytes, at most {max_bytes} are stored at once")));
    }
    Ok(bytes)
}

fn size(event: &greylag_persistence::NewEvent) -> usize {
    let metadata: usize = event.metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
    let tags: usize = event.tags.iter().map(String::len).sum();
    event.payload.len() + event.manifest.len() + metadata + tags
}

/// Makes a page of the rows that [`READ`] found: checks that none is missing or damaged, and cuts at `max_bytes`.
fn page(id: &PersistenceId, range: ReadRange, found: &[Row]) -> Result<Page, Corrupt> {
    let corrupt = |seq_nr, kind| Corrupt { id: id.clone(), seq_nr, kind };
    let mut page = Page::default();
    let Some(first) = found.first() else { return Ok(page) };
    let bound = |name| {
        let number = rows::column::<i64>(first, name).ok().and_then(|number| u64::try_from(number).ok());
        number.and_then(SeqNr::new).ok_or_else(|| corrupt(SeqNr::ZERO, CorruptKind::Unreadable))
    };
    let (deleted_to, highest) = (bound("deleted_to")?, bound("highest_seq_nr")?);
    let (from, to) = (range.from.max(deleted_to.next().unwrap_or(SeqNr::MAX)), range.to.min(highest));
    if range.max_events == 0 || range.from > range.to || from > to || to <= deleted_to {
        return Ok(page);
    }
    let (mut expected, mut bytes) = (from, 0);
    for row in found {
        let is_there = rows::column::<Option<i64>>(row, "seq_nr").ok().flatten() == Some(rows::number(expected));
        if !is_there {
            return Err(corrupt(expected, CorruptKind::Missing));
        }
        let record = rows::event(id, row).map_err(|Unreadable| corrupt(expected, CorruptKind::Unreadable))?;
        if !record.is_intact() {
            return Err(corrupt(expected, CorruptKind::Checksum));
        }
        bytes += record.size_bytes();
        if bytes > range.max_bytes && !page.records.is_empty() {
            break;
        }
        page.records.push(record);
        if expected == to {
            return Ok(page);
        }
        expected = expected.next().unwrap_or(SeqNr::MAX);
    }
    page.next = Some(expected);
    Ok(page)
}
