//! One lane of appends: queues them, sends them in statements, and decides what an answer or an error means for each.
//!
//! ```text
//! submit ─▶ waiting ─▶ sent in a statement ─▶ stored ─────────────────────▶ Ok
//!              ▲              │                └─ not stored ─▶ looked up ─▶ Ok | Fenced | Conflict
//!              └──────────────┴─ rolled back, or unanswered: once more, until its deadline ─▶ Unknown
//! ```
//! An id has at most one append among the sent; later appends of the id wait behind it, in order, and so does a request
//! that must see all of them (a claim). So no statement names an id twice, and the later of two tries of one append
//! finds what the earlier try stored. While an earlier try of an append is unanswered, no answer says that the append
//! is not stored: the only answers left are Ok, Fenced by the head, and Unknown (J10).
//!
//! Pure: the driver owns the connection, the payloads, and the callers' reply channels. Source: persistence §4.4.

mod request;
mod verdict;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::error::Error;
use std::iter::repeat;
use std::time::{Duration, Instant};

use greylag_persistence::{AppendError, Appended, PersistenceId, RejectReason, StoreFailure, Timestamp};
use greylag_postgres::{DatabaseError, Failure};

use crate::clock;
pub(crate) use request::{AppendNo, Request};
pub(crate) use verdict::{Found, StoredLast};
use verdict::{Verdict, verdict};

/// After this many rollbacks an append goes alone: another id of the statement may cause the rollbacks.
const ROLLBACKS_TOGETHER: u32 = 3;

/// Number of a request that waits for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TurnNo(pub(crate) u64);

/// Number of a statement within its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StatementNo(pub(crate) u64);

/// An input to a lane: requests, results of connecting and of statements, and passing time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Input {
    /// Appends that arrived together.
    Submit(Vec<Request>),
    /// A request that must see all earlier appends of the id gets its turn when they are answered.
    AwaitTurn { turn: TurnNo, id: PersistenceId },
    /// A connection was made.
    Connected,
    /// A try to connect failed.
    NotConnected(DatabaseError),
    /// The connection was lost while no statement used it.
    Lost(DatabaseError),
    /// A statement of appends ended. For each append, in their order: its timestamp, or `None` if the statement did not
    /// store it.
    Executed { statement: StatementNo, outcome: Result<Vec<Option<Timestamp>>, Failure> },
    /// Heads and events found for appends that a statement did not store; without those whose head cannot be read.
    LookedUp { statement: StatementNo, outcome: Result<BTreeMap<PersistenceId, Found>, Failure> },
    /// Time passed.
    Tick,
    /// Take no more appends.
    Close,
}

/// A request to the driver; effects are carried out in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Make a connection, after the wait of the back-off.
    Connect,
    /// Drop the connection, with the statements under way on it.
    Disconnect,
    /// Store these appends in one statement. They are in the order of their ids: statements that lock rows in one order
    /// never deadlock, and inserts in key order suit the indexes.
    Execute { statement: StatementNo, appends: Vec<AppendNo> },
    /// Look up the heads and events that explain why these appends were not stored.
    LookUp { statement: StatementNo, appends: Vec<AppendNo> },
    /// Answer an append, and forget it.
    Answer { append: AppendNo, outcome: Result<Appended, AppendError> },
    /// Give this request its turn.
    Turn(TurnNo),
}

/// Limits of a lane.
#[derive(Debug, Clone)]
pub(crate) struct LaneSettings {
    /// Name of the store for the operator.
    pub(crate) name: String,
    pub(crate) pipeline: usize,
    pub(crate) max_batch_appends: usize,
    pub(crate) max_batch_bytes: usize,
    pub(crate) append_timeout: Duration,
    pub(crate) try_timeout: Duration,
    /// While the server's clock is behind the latest event by more than this, no event is stored.
    pub(crate) max_clock_lag: Duration,
}

#[derive(Debug)]
struct Pending {
    request: Request,
    deadline: Instant,
    /// Whether an earlier try went unanswered, so that the append may be stored.
    unanswered: bool,
    rollbacks: u32,
    /// Whether the append goes in a statement of its own.
    alone: bool,
    /// The statement that carries the append now.
    sent: Option<StatementNo>,
    /// Error of the last try, if it failed.
    last_error: Option<DatabaseError>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueEntry {
    Append(AppendNo),
    Turn(TurnNo),
}

/// The appends and turns of one id, in the order in which they came.
#[derive(Debug)]
struct Queue {
    /// The append that is ready or sent.
    first: AppendNo,
    /// Appends and turns after the first; mostly none, since the writer of an id waits for each answer.
    behind: VecDeque<QueueEntry>,
}

#[derive(Debug)]
struct Statement {
    appends: Vec<AppendNo>,
    answer_deadline: Instant,
    /// Whether the statement was answered, and a look-up for the appends that it did not store is under way.
    is_looking_up: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Connection {
    Connecting,
    Ready,
}

/// One lane; the module describes it.
#[derive(Debug)]
pub(crate) struct Lane {
    settings: LaneSettings,
    pending: HashMap<AppendNo, Pending>,
    /// Appends in the order of their deadlines, which is that of arrival since all have the same timeout. May name
    /// answered appends, but not at the front.
    by_deadline: VecDeque<AppendNo>,
    by_id: HashMap<PersistenceId, Queue>,
    /// Appends for the next statements. May name answered appends.
    ready: VecDeque<AppendNo>,
    statements: BTreeMap<StatementNo, Statement>,
    connection: Connection,
    next_statement: u64,
    /// Why there is no connection, after a failure.
    last_error: Option<DatabaseError>,
    closed: bool,
}

impl Lane {
    /// A new lane; its first effect is to connect.
    pub(crate) fn start(settings: LaneSettings, out: &mut Vec<Effect>) -> Self {
        out.push(Effect::Connect);
        Self {
            settings,
            pending: HashMap::new(),
            by_deadline: VecDeque::new(),
            by_id: HashMap::new(),
            ready: VecDeque::new(),
            statements: BTreeMap::new(),
            connection: Connection::Connecting,
            next_statement: 0,
            last_error: None,
            closed: false,
        }
    }

    /// Handles one input.
    pub(crate) fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Submit(requests) => requests.into_iter().for_each(|request| self.submit(now, request, out)),
            Input::AwaitTurn { turn, id } => self.await_turn(turn, id, out),
            Input::Connected => {
                self.connection = Connection::Ready;
                self.last_error = None;
            }
            Input::NotConnected(cause) => {
                self.last_error = Some(cause);
                out.push(Effect::Connect);
            }
            Input::Lost(cause) => self.on_failure_of_connection(None, &Failure::Unanswered(cause), out),
            Input::Executed { statement, outcome } => self.on_executed(statement, outcome, out),
            Input::LookedUp { statement, outcome } => self.on_looked_up(statement, outcome, out),
            Input::Tick => self.on_tick(now, out),
            Input::Close => self.closed = true,
        }
        self.send(now, out);
        self.check_invariants();
    }

    /// When the next [`Input::Tick`] is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let silence = self.statements.values().map(|statement| statement.answer_deadline);
        silence.chain(self.next_timeout().map(|(_, deadline)| deadline)).min()
    }

    /// Whether no append and no turn waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The append with the earliest deadline, and the deadline.
    fn next_timeout(&self) -> Option<(AppendNo, Instant)> {
        let append = *self.by_deadline.front()?;
        Some((append, self.pending.get(&append)?.deadline))
    }

    fn submit(&mut self, now: Instant, request: Request, out: &mut Vec<Effect>) {
        let append = request.no;
        if self.closed {
            let outcome = Err(AppendError::NotStored(self.failure("the journal is closed")));
            return out.push(Effect::Answer { append, outcome });
        }
        match self.by_id.entry(request.id.clone()) {
            Entry::Occupied(mut queue) => queue.get_mut().behind.push_back(QueueEntry::Append(append)),
            Entry::Vacant(idle) => {
                idle.insert(Queue { first: append, behind: VecDeque::new() });
                self.ready.push_back(append);
            }
        }
        let deadline = now + self.settings.append_timeout;
        let pending =
            Pending { request, deadline, unanswered: false, rollbacks: 0, alone: false, sent: None, last_error: None };
        self.pending.insert(append, pending);
        self.by_deadline.push_back(append);
    }

    fn await_turn(&mut self, turn: TurnNo, id: PersistenceId, out: &mut Vec<Effect>) {
        match self.by_id.get_mut(&id) {
            Some(queue) => queue.behind.push_back(QueueEntry::Turn(turn)),
            None => out.push(Effect::Turn(turn)),
        }
    }

    /// Sends statements until the pipeline is full or nothing is ready.
    fn send(&mut self, now: Instant, out: &mut Vec<Effect>) {
        while self.connection == Connection::Ready && self.may_send() {
            let appends = self.next_batch();
            if appends.is_empty() {
                return;
            }
            self.next_statement += 1;
            let statement = StatementNo(self.next_statement);
            for append in &appends {
                self.pending.get_mut(append).expect("a batch holds pending appends").sent = Some(statement);
            }
            let answer_deadline = now + self.settings.try_timeout;
            self.statements
                .insert(statement, Statement { appends: appends.clone(), answer_deadline, is_looking_up: false });
            out.push(Effect::Execute { statement, appends });
        }
    }

    /// Whether the pipeline has room and as many appends are ready as are under way. The connection runs one statement
    /// after the other, so a small one behind a large one gains nothing; waiting lets it take appends that arrive
    /// meanwhile.
    fn may_send(&self) -> bool {
        let under_way = self.statements.values().map(|statement| statement.appends.len()).sum();
        self.statements.len() < self.settings.pipeline
            && self.ready.len() >= self.settings.max_batch_appends.min(under_way)
    }

    /// The appends of the next statement: the oldest ready ones, of different ids, in the order of the ids.
    fn next_batch(&mut self) -> Vec<AppendNo> {
        let mut batch = self.oldest();
        batch.sort_unstable_by(|(left, _), (right, _)| left.cmp(right));
        batch.into_iter().map(|(_, append)| append).collect()
    }

    /// The oldest ready appends, as many as fit into one statement.
    fn oldest(&mut self) -> Vec<(PersistenceId, AppendNo)> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some(append) = self.ready.front().copied() {
            let Some(pending) = self.pending.get(&append) else {
                self.ready.pop_front();
                continue;
            };
            bytes += pending.request.bytes;
            let full = batch.len() >= self.settings.max_batch_appends || bytes > self.settings.max_batch_bytes;
            if !batch.is_empty() && (full || pending.alone) {
                break;
            }
            batch.push((pending.request.id.clone(), append));
            self.ready.pop_front();
            if pending.alone {
                break;
            }
        }
        batch
    }

    fn on_executed(
        &mut self,
        statement: StatementNo,
        outcome: Result<Vec<Option<Timestamp>>, Failure>,
        out: &mut Vec<Effect>,
    ) {
        // A statement that was given up may still answer; its appends were queued again.
        let Some(sent) = self.statements.get(&statement) else { return };
        let appends = sent.appends.clone();
        match outcome {
            Ok(stored) => {
                let mut missing = Vec::new();
                for (append, timestamp) in appends.into_iter().zip(stored.into_iter().chain(repeat(None))) {
                    match timestamp {
                        Some(timestamp) => self.answer(append, Ok(Appended { timestamp }), out),
                        None if self.pending.contains_key(&append) => missing.push(append),
                        None => {}
                    }
                }
                if missing.is_empty() {
                    self.statements.remove(&statement);
                } else if let Some(sent) = self.statements.get_mut(&statement) {
                    sent.appends.clone_from(&missing);
                    sent.is_looking_up = true;
                    out.push(Effect::LookUp { statement, appends: missing });
                }
            }
            Err(failure) if failure.ends_connection() => self.on_failure_of_connection(Some(statement), &failure, out),
            Err(failure) => {
                self.statements.remove(&statement);
                self.on_failure(appends, &failure, out);
            }
        }
    }

    /// Handles an error of the server that says none of these appends is stored.
    fn on_failure(&mut self, appends: Vec<AppendNo>, failure: &Failure, out: &mut Vec<Effect>) {
        let together = appends.len() > 1;
        let error = failure.error();
        let mut again = Vec::new();
        for append in appends {
            let Some(pending) = self.pending.get_mut(&append) else { continue };
            pending.last_error = Some(error.clone());
            match failure {
                Failure::StorageLow(error) => {
                    let error = AppendError::Rejected(RejectReason::StorageLow(error.text().to_owned()));
                    self.refuse(append, error, out);
                }
                // Another append of the statement may be the cause, and no append may suffer for another (J11): try
                // each alone.
                Failure::Taken(_) | Failure::Refused(_) if together => {
                    pending.alone = true;
                    again.push(append);
                }
                Failure::Taken(error) => {
                    let Request { id, first, last, .. } = &pending.request;
                    let cause = format!(
                        "stored data of {id} is corrupt: its head ends before {first}, but an event stands in \
                         {first}..={last}; verify the journal: {error}"
                    );
                    let failure = self.failure(error.with_text(cause));
                    self.refuse(append, AppendError::NotStored(failure), out);
                }
                Failure::Refused(error) => {
                    let failure = self.failure(error.clone());
                    self.refuse(append, AppendError::NotStored(failure), out);
                }
                _ => {
                    pending.rollbacks += 1;
                    pending.alone |= pending.rollbacks >= ROLLBACKS_TOGETHER;
                    // An append that goes alone goes to the end of the queue, so that others need not wait for it.
                    if pending.alone {
                        pending.sent = None;
                        self.ready.push_back(append);
                    } else {
                        again.push(append);
                    }
                }
            }
        }
        self.requeue(again);
    }

    /// Queues all sent appends again and connects anew. Whether they are stored is unknown, except for the statement
    /// that the failure is `about`, if the failure says that it was not done.
    fn on_failure_of_connection(&mut self, about: Option<StatementNo>, failure: &Failure, out: &mut Vec<Effect>) {
        if self.connection != Connection::Ready {
            return;
        }
        self.connection = Connection::Connecting;
        let error = failure.error();
        let says_not_done = matches!(failure, Failure::NotSent(_) | Failure::Elsewhere(_));
        let mut again = Vec::new();
        for (no, statement) in std::mem::take(&mut self.statements) {
            let is_known = statement.is_looking_up || says_not_done && about == Some(no);
            for append in statement.appends {
                let Some(pending) = self.pending.get_mut(&append) else { continue };
                pending.unanswered |= !is_known;
                pending.last_error = Some(error.clone());
                again.push(append);
            }
        }
        self.last_error = Some(error.clone());
        self.requeue(again);
        out.push(Effect::Disconnect);
        out.push(Effect::Connect);
    }

    fn on_looked_up(
        &mut self,
        statement: StatementNo,
        outcome: Result<BTreeMap<PersistenceId, Found>, Failure>,
        out: &mut Vec<Effect>,
    ) {
        let Some(Statement { appends, .. }) = self.statements.get(&statement) else { return };
        let appends = appends.clone();
        match outcome {
            Ok(found) => {
                self.statements.remove(&statement);
                let mut again = Vec::new();
                for append in appends {
                    let Some(pending) = self.pending.get(&append) else { continue };
                    let found = found.get(&pending.request.id);
                    match verdict(&pending.request, found, pending.unanswered, self.settings.max_clock_lag) {
                        Verdict::Answer(outcome) => self.answer(append, outcome, out),
                        Verdict::Unknown(why) => {
                            let outcome = Err(AppendError::Unknown(self.failure(why)));
                            self.answer(append, outcome, out);
                        }
                        Verdict::Retry => again.push(append),
                        Verdict::ClockBehind(behind) => {
                            let words = clock::too_far_behind(behind, self.settings.max_clock_lag);
                            let error = AppendError::NotStored(self.failure(words));
                            self.refuse(append, error, out);
                        }
                    }
                }
                self.requeue(again);
            }
            // The statement was answered and stored nothing, so its appends are queued again, certainly not stored.
            Err(failure) if failure.ends_connection() => self.on_failure_of_connection(None, &failure, out),
            Err(Failure::RolledBack(_)) => {
                self.statements.remove(&statement);
                self.requeue(appends);
            }
            Err(failure) => {
                self.statements.remove(&statement);
                let cause =
                    format!("not stored by this try; whether an earlier try stored it cannot be read: {failure:?}");
                let cause = failure.error().with_text(cause);
                for append in appends {
                    let outcome = Err(AppendError::Unknown(self.failure(cause.clone())));
                    self.answer(append, outcome, out);
                }
            }
        }
    }

    fn on_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        while let Some((append, _)) = self.next_timeout().filter(|(_, deadline)| *deadline <= now) {
            self.expire(append, out);
        }
        if self.statements.values().any(|statement| statement.answer_deadline <= now) {
            let cause = format!("no answer within {:?}", self.settings.try_timeout);
            self.on_failure_of_connection(None, &Failure::Unanswered(cause.into()), out);
        }
    }

    fn expire(&mut self, append: AppendNo, out: &mut Vec<Effect>) {
        let Some(pending) = self.pending.get(&append) else { return };
        let within = self.settings.append_timeout;
        let last = self.last_error.as_ref().or(pending.last_error.as_ref()).cloned();
        let last = last.unwrap_or_else(|| "earlier statements took all the time".into());
        let failure = |text: String| self.failure(last.with_text(text));
        let outcome = if pending.unanswered || pending.sent.is_some() {
            AppendError::Unknown(failure(format!("sent, and not answered within {within:?}; last: {last}")))
        } else {
            AppendError::NotStored(failure(format!("not sent within {within:?}; last: {last}")))
        };
        self.answer(append, Err(outcome), out);
    }

    /// Answers an error that says "not stored", or Unknown if an earlier try may have stored the append (J10).
    fn refuse(&mut self, append: AppendNo, error: AppendError, out: &mut Vec<Effect>) {
        let unanswered = self.pending.get(&append).is_some_and(|pending| pending.unanswered);
        let error = if unanswered {
            let text = format!("an earlier try was not answered, this one was refused: {error}");
            AppendError::Unknown(self.failure(error).with_text(text))
        } else {
            error
        };
        self.answer(append, Err(error), out);
    }

    fn answer(&mut self, append: AppendNo, outcome: Result<Appended, AppendError>, out: &mut Vec<Effect>) {
        let Some(pending) = self.pending.remove(&append) else { return };
        while self.by_deadline.front().is_some_and(|first| !self.pending.contains_key(first)) {
            self.by_deadline.pop_front();
        }
        out.push(Effect::Answer { append, outcome });
        let Entry::Occupied(mut of_id) = self.by_id.entry(pending.request.id) else { return };
        let queue = of_id.get_mut();
        if queue.first != append {
            return queue.behind.retain(|waiting| *waiting != QueueEntry::Append(append));
        }
        loop {
            match queue.behind.pop_front() {
                Some(QueueEntry::Turn(turn)) => out.push(Effect::Turn(turn)),
                Some(QueueEntry::Append(next)) => {
                    queue.first = next;
                    return self.ready.push_back(next);
                }
                None => return drop(of_id.remove()),
            }
        }
    }

    /// Puts appends back to the front of the queue, in their order.
    fn requeue(&mut self, appends: Vec<AppendNo>) {
        for append in appends.into_iter().rev() {
            let Some(pending) = self.pending.get_mut(&append) else { continue };
            pending.sent = None;
            self.ready.push_front(append);
        }
    }

    fn failure(&self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> StoreFailure {
        StoreFailure::new(&self.settings.name, cause)
    }

    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        assert!(self.statements.len() <= self.settings.pipeline, "more statements than the pipeline holds");
        let waiting = self.by_deadline.iter().filter_map(|append| self.pending.get(append));
        let deadlines: Vec<_> = waiting.map(|pending| pending.deadline).collect();
        assert!(deadlines.is_sorted(), "a later append has an earlier deadline");
        assert_eq!(deadlines.len(), self.pending.len(), "each append has one deadline");
        assert_eq!(self.next_timeout().is_some(), !deadlines.is_empty(), "the earliest deadline is found");
        for (append, pending) in &self.pending {
            if let Some(statement) = pending.sent {
                let carried = self.statements.get(&statement).is_some_and(|sent| sent.appends.contains(append));
                assert!(carried, "{append:?} is sent in a statement that does not carry it");
                let queue = &self.by_id[&pending.request.id];
                assert_eq!(queue.first, *append, "an id has one append among the sent");
            }
        }
    }
}

#[cfg(test)]
mod tests;
