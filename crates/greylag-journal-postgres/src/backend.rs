//! The connections, lanes and pools that all handles of one journal share: limits, back-pressure, health and the end.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use greylag_persistence::{
    Append, AppendError, Appended, Caps, CloseError, Corrupt, CorruptKind, Head, Health, NewEvent, PersistenceId,
    ReadError, RejectReason, Scope, SeqNr, StoreFailure, StoredEvent, StoredState, Timestamp,
};
use greylag_postgres::{Database, DatabaseError};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::clock::ClockWatch;
use crate::driver::lane::{self, Message, Submitted};
use crate::driver::link::Link;
use crate::driver::opener::{Access, Purpose};
use crate::driver::pool::Pool;
use crate::driver::session::Session;
use crate::driver::sweeper::{self, Deleted};
use crate::lane::LaneSettings;
use crate::settings::PostgresJournalSettings;
use crate::sql::rows::{self, Unreadable};
use crate::sql::statements::{GET_STATE, HEAD};
use crate::stats::{Counters, PostgresStats};

pub(crate) const CAPS: Caps = Caps::full(Scope::Shared);

/// Bytes of one permit of the semaphore `room`.
const ROOM_UNIT: usize = 1024;

/// Bytes that an event takes in a statement besides its payload and texts, roughly.
const EVENT_OVERHEAD: usize = 128;

/// State that the handles of one journal share.
pub(crate) struct Backend {
    pub(crate) link: Arc<Link>,
    pub(crate) settings: PostgresJournalSettings,
    pub(crate) counters: Arc<Counters>,
    lanes: Vec<mpsc::UnboundedSender<Message>>,
    /// Room for pending appends, in units of [`ROOM_UNIT`].
    room: Arc<Semaphore>,
    pub(crate) write: Arc<Pool>,
    pub(crate) replay: Arc<Pool>,
    pub(crate) query: Arc<Pool>,
    deleted: mpsc::UnboundedSender<Deleted>,
    /// Tasks of lanes that have not ended. `close` holds the lock while it waits for them.
    tasks: Mutex<Vec<JoinHandle<()>>>,
    sweeper: JoinHandle<()>,
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresJournal").field("database", &self.link.place()).finish_non_exhaustive()
    }
}

impl Drop for Backend {
    /// Aborts the sweeper only: lanes end by themselves, once they have answered their appends.
    fn drop(&mut self) {
        self.sweeper.abort();
    }
}

impl Backend {
    /// Starts the lanes and the sweeper. They connect by themselves.
    pub(crate) fn start(database: Database, settings: PostgresJournalSettings, access: Access) -> Arc<Self> {
        let link = Link::new(database, &settings, access);
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
        let backend = Self { link, settings, counters, lanes, room, write, replay, query, deleted, tasks, sweeper };
        Arc::new(backend)
    }

    /// Counters of this journal, over all its handles.
    pub(crate) fn stats(&self) -> PostgresStats {
        let (all, free) = (self.room_units(), self.room.available_permits());
        PostgresStats { pending_bytes: ((all - free.min(all)) * ROOM_UNIT) as u64, ..self.counters.read() }
    }

    /// All the room for pending appends, in units of [`ROOM_UNIT`].
    fn room_units(&self) -> usize {
        self.settings.max_pending_bytes.div_ceil(ROOM_UNIT)
    }

    fn lane(&self, id: &PersistenceId) -> &mpsc::UnboundedSender<Message> {
        &self.lanes[usize::from(id.slice()) % self.lanes.len()]
    }

    /// A new connection that may write, outside the pools.
    pub(crate) async fn connect(&self) -> Result<Arc<Session>, DatabaseError> {
        self.link.connect(Purpose::Primary).await
    }

    pub(crate) fn failure(&self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> StoreFailure {
        StoreFailure::new(&self.link.name, cause)
    }

    /// The failure for an answer of the server that this program cannot decode.
    pub(crate) fn unreadable(&self) -> StoreFailure {
        self.failure("the answer cannot be decoded; check that the tables are those that the crate docs show")
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
        if let Some(error) = self.link.availability().last_error() {
            let name = &self.link.name;
            return match self.link.availability().is_any_lane_up() {
                true => Health::Degraded(vec![format!("{name}: some connections cannot be made: {error}")]),
                false => Health::Down(format!("{name}: {error}")),
            };
        }
        if let Some(reason) = self.counters.clock.problem() {
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

    /// Lets the sweeper remove the events of the id up to `to`.
    pub(crate) fn sweep_later(&self, id: &PersistenceId, to: SeqNr) {
        let _closed_meanwhile = self.deleted.send((id.clone(), to));
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
            Err(_) => {
                Err(self
                    .failure(format!("not queued within {limit:?}: the pending appends take all of max_pending_bytes")))
            }
        }
    }

    /// Checks an append and gives it to its lane. From then on the lane stores it, whether its caller waits or not
    /// (J13).
    pub(crate) async fn submit(
        &self,
        append: Append,
    ) -> Result<oneshot::Receiver<Result<Appended, AppendError>>, AppendError> {
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
    pub(crate) async fn await_turn(&self, id: &PersistenceId) -> Result<(), StoreFailure> {
        let (reply, turn) = oneshot::channel();
        let message = Message::AwaitTurn { id: id.clone(), reply };
        self.lane(id).send(message).map_err(|_| self.closed())?;
        turn.await.map_err(|_| self.closed())
    }

    pub(crate) async fn head(&self, pool: &Pool, within: Duration, id: &PersistenceId) -> Result<Head, HeadError> {
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

    /// The durable state of the id, from the primary.
    pub(crate) async fn state(&self, id: &PersistenceId) -> Result<StoredState, ReadError> {
        let text = id.as_str();
        let found = self.replay.call(self.settings.call_timeout, |session| async move {
            let statement = session.prepare(GET_STATE).await?;
            session.client.query_opt(&statement, &[&text]).await
        });
        let found = found.await.map_err(|failed| ReadError::Unavailable(failed.cause))?;
        found.map_or_else(|| Ok(StoredState::absent(id.clone())), |row| rows::intact_state(id, &row))
    }

    /// The head, read to explain why a write changed nothing.
    pub(crate) async fn current(&self, id: &PersistenceId) -> Result<Head, HeadError> {
        self.head(&self.write, self.settings.call_timeout, id).await
    }
}

/// Why a head cannot be answered.
pub(crate) enum HeadError {
    Unavailable(StoreFailure),
    Corrupt(Corrupt),
}

impl HeadError {
    /// The error for calls whose error type has no corrupt head.
    pub(crate) fn cause(self, backend: &Backend) -> StoreFailure {
        match self {
            Self::Unavailable(cause) => cause,
            Self::Corrupt(corrupt) => backend.failure(corrupt),
        }
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
        return Err(RejectReason::Other(format!(
            "the append has {bytes} bytes, more than max_append_bytes = {max_bytes}; persist fewer events at once, or raise the setting"
        )));
    }
    Ok(bytes)
}

fn size(event: &NewEvent) -> usize {
    let metadata: usize = event.metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
    let tags: usize = event.tags.iter().map(String::len).sum();
    event.payload.len() + event.manifest.len() + metadata + tags
}
