//! Runs one lane: carries its statements to the server, and their answers to the callers that wait.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use greylag_persistence::{AppendError, Appended, Head, PersistenceId, StoredEvent, Timestamp, WriterUuid};
use greylag_postgres::{DatabaseError, Failure, told};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::MissedTickBehavior;

use crate::driver::link::Link;
use crate::driver::opener::Purpose;
use crate::driver::session::Session;
use crate::lane::{AppendNo, Effect, Found, Input, Lane, LaneSettings, Request, StatementNo, StoredLast, TurnNo};
use crate::sql::columns::Columns;
use crate::sql::rows::{self, Micros, Unreadable, Uuid};
use crate::sql::statements::{APPEND, APPEND_TAGGED, LOOK_UP};
use crate::stats::Counters;

/// Messages taken out of the inbox at once, and so sent together.
const MAX_MESSAGES_PER_WAKE: usize = 1000;

/// How often an unused connection is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A request to a lane.
pub(crate) enum Message {
    /// Store the events of one append; there is at least one.
    Append(Submitted),
    /// Reply when every earlier append of the id is answered.
    AwaitTurn { id: PersistenceId, reply: oneshot::Sender<()> },
    /// Take no more appends, answer those at hand, and end.
    Close,
}

/// An append, and the channel to the caller that waits for it.
pub(crate) struct Submitted {
    pub(crate) records: Arc<[StoredEvent]>,
    pub(crate) bytes: usize,
    /// Its share of the room for pending appends, kept until it is answered.
    pub(crate) room: OwnedSemaphorePermit,
    pub(crate) reply: oneshot::Sender<Result<Appended, AppendError>>,
}

struct PendingAppend {
    records: Arc<[StoredEvent]>,
    bytes: usize,
    room: OwnedSemaphorePermit,
    reply: oneshot::Sender<Result<Appended, AppendError>>,
}

struct Driver {
    link: Arc<Link>,
    counters: Arc<Counters>,
    session: Option<Arc<Session>>,
    appends: HashMap<AppendNo, PendingAppend>,
    turns: BTreeMap<TurnNo, oneshot::Sender<()>>,
    connecting: FuturesUnordered<BoxFuture<'static, Result<Arc<Session>, DatabaseError>>>,
    /// Statements under way on the present connection; dropped with it.
    statements: FuturesUnordered<BoxFuture<'static, Input>>,
    next_no: u64,
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.disconnect();
    }
}

/// Runs a lane until it is closed and has answered every request.
pub(crate) async fn run(
    link: Arc<Link>,
    counters: Arc<Counters>,
    settings: LaneSettings,
    mut inbox: mpsc::UnboundedReceiver<Message>,
) {
    let mut driver = Driver {
        link,
        counters,
        session: None,
        appends: HashMap::new(),
        turns: BTreeMap::new(),
        connecting: FuturesUnordered::new(),
        statements: FuturesUnordered::new(),
        next_no: 0,
    };
    let mut effects = Vec::new();
    let mut lane = Lane::start(settings, &mut effects);
    let mut check = tokio::time::interval(CHECK_INTERVAL);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut messages, mut inputs) = (Vec::new(), Vec::new());
    let (mut open, mut closing) = (true, false);
    loop {
        driver.perform(&mut effects);
        if closing && lane.is_idle() {
            return;
        }
        let deadline = lane.next_deadline();
        tokio::select! {
            () = sleep_until(deadline) => inputs.push(Input::Tick),
            Some(input) = driver.statements.next(), if !driver.statements.is_empty() => inputs.push(input),
            Some(made) = driver.connecting.next(), if !driver.connecting.is_empty() => inputs.push(driver.connected(made)),
            _ = check.tick() => inputs.extend(driver.check_connection()),
            taken = inbox.recv_many(&mut messages, MAX_MESSAGES_PER_WAKE), if open => {
                // `recv_many` gives none when all handles to the journal are gone; no `Close` can come any more, so the
                // lane closes.
                open = taken > 0;
                // Writers woken by an answer run one after the other: yield, so that all their appends go into one
                // statement.
                tokio::task::yield_now().await;
                while messages.len() < MAX_MESSAGES_PER_WAKE && let Ok(message) = inbox.try_recv() {
                    messages.push(message);
                }
                closing |= driver.collect_inputs(&mut messages, &mut inputs) || !open;
            }
        }
        for input in inputs.drain(..) {
            lane.handle(Instant::now(), input, &mut effects);
        }
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

impl Driver {
    /// Turns messages into inputs; consecutive appends become one input. Answers whether a message closes the lane.
    fn collect_inputs(&mut self, messages: &mut Vec<Message>, inputs: &mut Vec<Input>) -> bool {
        let (mut together, mut close) = (Vec::new(), false);
        for message in messages.drain(..) {
            self.next_no += 1;
            match message {
                Message::Append(submitted) => together.extend(self.submit(submitted)),
                Message::AwaitTurn { id, reply } => {
                    inputs.extend(submit_input(&mut together));
                    let turn = TurnNo(self.next_no);
                    self.turns.insert(turn, reply);
                    inputs.push(Input::AwaitTurn { turn, id });
                }
                Message::Close => {
                    inputs.extend(submit_input(&mut together));
                    inputs.push(Input::Close);
                    close = true;
                }
            }
        }
        inputs.extend(submit_input(&mut together));
        close
    }

    fn disconnect(&mut self) {
        if self.session.take().is_some() {
            self.link.availability().on_lane(false);
        }
    }

    fn submit(&mut self, submitted: Submitted) -> Option<Request> {
        let Submitted { records, bytes, room, reply } = submitted;
        let (no, first, last) = (AppendNo(self.next_no), records.first()?, records.last()?);
        let request = Request {
            no,
            id: first.id.clone(),
            epoch: first.writer_epoch,
            writer_uuid: first.writer_uuid,
            first: first.seq_nr,
            last: last.seq_nr,
            crc32c: last.crc32c,
            bytes,
        };
        self.appends.insert(no, PendingAppend { records, bytes, room, reply });
        Some(request)
    }

    fn perform(&mut self, effects: &mut Vec<Effect>) {
        for effect in effects.drain(..) {
            match effect {
                Effect::Connect => {
                    let link = self.link.clone();
                    self.connecting.push(Box::pin(async move { link.connect(Purpose::Lane).await }));
                }
                Effect::Disconnect => {
                    self.disconnect();
                    self.statements.clear();
                }
                Effect::Execute { statement, appends } => {
                    let records = self.records(&appends);
                    let counters = self.counters.clone();
                    self.start_statement(statement, move |session| execute(session, counters, statement, records));
                }
                Effect::LookUp { statement, appends } => {
                    let records = self.records(&appends);
                    self.start_statement(statement, move |session| look_up(session, statement, records));
                }
                Effect::Answer { append, outcome } => {
                    if let Some(PendingAppend { records, bytes, room, reply }) = self.appends.remove(&append) {
                        // Counted before the reply, so that a caller with its answer finds the append counted, and its
                        // room free.
                        self.counters.answered(&outcome, records.len(), bytes);
                        drop(room);
                        let _caller_gone = reply.send(outcome);
                    }
                }
                Effect::Turn(turn) => {
                    if let Some(reply) = self.turns.remove(&turn) {
                        let _caller_gone = reply.send(());
                    }
                }
            }
        }
    }

    /// The events of these appends, in their order; all of them must be waiting.
    fn records(&self, appends: &[AppendNo]) -> Vec<Arc<[StoredEvent]>> {
        let waiting = |append| self.appends.get(append).expect("the lane names only appends that wait for an answer");
        appends.iter().map(|append| waiting(append).records.clone()).collect()
    }

    /// Starts a statement, unless its connection has ended already.
    fn start_statement<F>(&mut self, statement: StatementNo, start: impl FnOnce(Arc<Session>) -> F)
    where
        F: Future<Output = Input> + Send + 'static,
    {
        match self.session.clone().filter(|session| !session.client.is_closed()) {
            Some(session) => {
                self.statements.push(Box::pin(start(session)));
            }
            None => {
                let outcome = Err(Failure::NotSent("the connection ended".into()));
                let input = Input::Executed { statement, outcome };
                self.statements.push(Box::pin(std::future::ready(input)));
            }
        }
    }

    fn connected(&mut self, made: Result<Arc<Session>, DatabaseError>) -> Input {
        match made {
            Ok(session) => {
                self.session = Some(session);
                self.link.availability().on_lane(true);
                Input::Connected
            }
            Err(cause) => Input::NotConnected(cause),
        }
    }

    /// Reports a connection that ended while no statement used it, so that a new one is made before the next statement.
    fn check_connection(&self) -> Option<Input> {
        let ended = self.session.as_ref().is_some_and(|session| session.client.is_closed());
        ended.then(|| Input::Lost("the connection ended".into()))
    }
}

fn submit_input(together: &mut Vec<Request>) -> Option<Input> {
    (!together.is_empty()).then(|| Input::Submit(std::mem::take(together)))
}

async fn execute(
    session: Arc<Session>,
    counters: Arc<Counters>,
    statement: StatementNo,
    appends: Vec<Arc<[StoredEvent]>>,
) -> Input {
    let sent_at = Instant::now();
    let outcome = insert(&session, &appends).await.map_err(Failure::of);
    counters.executed(appends.len(), sent_at.elapsed(), outcome.is_ok());
    let outcome = outcome.and_then(|row| {
        let read = stored(appends.len(), &row).and_then(|stored| Ok((stored, clock_lag(row.try_get(2))?)));
        let (stored, behind) = read.map_err(|Unreadable| unreadable("an answer to an append"))?;
        counters.clock.note(behind);
        Ok(stored)
    });
    Input::Executed { statement, outcome }
}

/// The timestamps of stored appends, by their places. Both columns are null if nothing was stored.
fn stored(appends: usize, row: &tokio_postgres::Row) -> Result<Vec<Option<Timestamp>>, Unreadable> {
    let places: Option<Vec<i32>> = row.try_get(0).map_err(|_| Unreadable)?;
    let times: Option<Vec<Micros>> = row.try_get(1).map_err(|_| Unreadable)?;
    let mut stored = vec![None; appends];
    for (place, time) in places.unwrap_or_default().into_iter().zip(times.unwrap_or_default()) {
        let place = usize::try_from(place).ok().and_then(|place| stored.get_mut(place)).ok_or(Unreadable)?;
        *place = Some(time.into());
    }
    Ok(stored)
}

/// The lag of the clock, in microseconds as the statements answer it.
fn clock_lag(micros: Result<i64, tokio_postgres::Error>) -> Result<Duration, Unreadable> {
    micros.map(|micros| Duration::from_micros(micros.max(0).unsigned_abs())).map_err(|_| Unreadable)
}

/// The failure for an answer that cannot be decoded: the statement was done, but as good as unanswered.
fn unreadable(what: &str) -> Failure {
    Failure::Unanswered(
        format!("{what} cannot be decoded; check that the tables are those that the crate docs show").into(),
    )
}

async fn insert(
    session: &Session,
    appends: &[Arc<[StoredEvent]>],
) -> Result<tokio_postgres::Row, tokio_postgres::Error> {
    let columns = Columns::of(appends);
    let statement = session.prepare(if columns.are_tagged() { APPEND_TAGGED } else { APPEND }).await?;
    let shared = columns.parameters([&session.clock_row, &session.max_clock_lag]);
    session.client.query_one(&statement, &shared).await
}

async fn look_up(session: Arc<Session>, statement: StatementNo, appends: Vec<Arc<[StoredEvent]>>) -> Input {
    let lasts = || appends.iter().filter_map(|records| records.last());
    let ids: Vec<&str> = lasts().map(|last| last.id.as_str()).collect();
    let numbers: Vec<i64> = lasts().map(|last| rows::number(last.seq_nr)).collect();
    let asked = async {
        let statement = session.prepare(LOOK_UP).await?;
        session.client.query(&statement, &[&ids, &numbers]).await
    };
    let outcome = asked.await.map_err(|error| {
        let text = told(&error);
        match Failure::of(error) {
            // A look-up changes nothing, so an unanswered one counts as not sent.
            Failure::Unanswered(error) => Failure::NotSent(error.with_text(text)),
            failure => failure,
        }
    });
    // A head that cannot be decoded is left out, so that the others are used.
    let outcome = outcome.map(|rows| rows.iter().filter_map(|row| found(row).ok()).collect());
    Input::LookedUp { statement, outcome }
}

fn found(row: &tokio_postgres::Row) -> Result<(PersistenceId, Found), Unreadable> {
    let id = PersistenceId::unique(rows::column(row, "pid")?).map_err(|_| Unreadable)?;
    let is_known = rows::column::<Option<i64>>(row, "writer_epoch")?.is_some();
    let head = if is_known { rows::head(row)? } else { Head::default() };
    let last = match rows::column::<Option<Uuid>>(row, "last_writer_uuid")? {
        Some(Uuid(writer_uuid)) => Some(stored_last(row, writer_uuid)?),
        None => None,
    };
    Ok((id, Found { head, last, clock_behind: clock_lag(row.try_get("behind"))? }))
}

fn stored_last(row: &tokio_postgres::Row, writer_uuid: WriterUuid) -> Result<StoredLast, Unreadable> {
    let crc32c = u32::try_from(rows::column::<i64>(row, "last_crc32c")?).map_err(|_| Unreadable)?;
    Ok(StoredLast { writer_uuid, crc32c, timestamp: rows::column::<Micros>(row, "last_timestamp")?.into() })
}
