//! One lane of appends: what waits, what is sent, and what an answer or an error means for each.
//!
//! ```text
//! submit ─▶ waiting ─▶ sent in a statement ─▶ stored ─────────────────────▶ Ok
//!              ▲              │                └─ not stored ─▶ looked up ─▶ Ok | Fenced | Conflict
//!              └──────────────┴─ rolled back, or unanswered: once more, until its deadline ─▶ Unknown
//! ```
//! An id has at most one append among the sent; later appends of the id wait behind it, in order, and so
//! does a request that must see all of them (a claim). So no statement names an id twice, and of two tries of
//! one append the later finds what the earlier left. An append is never taken for refused while an
//! earlier try of it is unanswered: the only answers left are Ok, Fenced by the head, and Unknown (J10).
//!
//! Pure: the driver owns the connection, the payloads, and the callers' reply channels. Source: persistence §4.4.

mod verdict;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::iter::repeat;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_persistence::{
    AppendError, Appended, PersistenceId, RejectReason, SeqNr, StoreFailure, Timestamp, WriterEpoch, WriterUuid,
};

use crate::clock;
use greylag_postgres::Failure;
pub(crate) use verdict::{Found, StoredLast};
use verdict::{Verdict, verdict};

/// After so many rollbacks an append goes alone: another id of the statement may be what causes them.
const ROLLBACKS_TOGETHER: u32 = 3;

/// Names one append of a lane; later ones have larger numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AppendNo(pub(crate) u64);

/// Names one request that waits for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TurnNo(pub(crate) u64);

/// Names one statement of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StatementNo(pub(crate) u64);

/// What the lane must know of an append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) no: AppendNo,
    pub(crate) id: PersistenceId,
    pub(crate) epoch: WriterEpoch,
    pub(crate) writer_uuid: WriterUuid,
    pub(crate) first: SeqNr,
    pub(crate) last: SeqNr,
    /// Of its last event.
    pub(crate) crc32c: u32,
    pub(crate) bytes: usize,
}

/// An input to a lane of appends: requests, what became of the connection and of statements, and that time passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Input {
    /// Appends that came together.
    Submit(Vec<Request>),
    /// A request must see all appends of the id that came before it: give it its turn when they are answered.
    AwaitTurn { turn: TurnNo, id: PersistenceId },
    /// There is a connection.
    Connected,
    /// A try to connect failed.
    NotConnected(String),
    /// The connection ended by itself.
    Lost(String),
    /// A statement of appends ended. Of each append, in their order, when it was stored; nothing of those that were
    /// not stored by it.
    Executed { statement: StatementNo, outcome: Result<Vec<Option<Timestamp>>, Failure> },
    /// What stands in the database about appends that a statement did not store; nothing of those
    /// whose head cannot be read.
    LookedUp { statement: StatementNo, outcome: Result<BTreeMap<PersistenceId, Found>, Failure> },
    /// Time has passed.
    Tick,
    /// No more appends are taken.
    Close,
}

/// What the driver is asked to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Make a connection, when it is time to try again.
    Connect,
    /// Drop the connection; what is under way on it is not waited for.
    Disconnect,
    /// Store these, in one statement. They are in the order of their ids: statements that lock rows in one order
    /// never wait for each other in a circle, and indexes like it.
    Execute { statement: StatementNo, appends: Vec<AppendNo> },
    /// Look up what stands in the place of these.
    LookUp { statement: StatementNo, appends: Vec<AppendNo> },
    /// Answer, and forget.
    Answer { append: AppendNo, outcome: Result<Appended, AppendError> },
    /// It is the turn of this request.
    Turn(TurnNo),
}

/// Limits of a lane.
#[derive(Debug, Clone)]
pub(crate) struct LaneSettings {
    /// The store, as its operator knows it.
    pub(crate) name: String,
    pub(crate) pipeline: usize,
    pub(crate) max_batch_appends: usize,
    pub(crate) max_batch_bytes: usize,
    pub(crate) append_timeout: Duration,
    pub(crate) try_timeout: Duration,
    /// No event is stored while the server's clock is behind the latest event by more.
    pub(crate) max_clock_lag: Duration,
}

#[derive(Debug)]
struct Pending {
    request: Request,
    deadline: Instant,
    /// Whether an earlier try went unanswered, so that it may be stored.
    unanswered: bool,
    rollbacks: u32,
    /// Whether the append goes in a statement of its own.
    alone: bool,
    /// The statement that carries it now.
    sent: Option<StatementNo>,
    /// What its last try met, if that came to nothing.
    trouble: Option<Arc<str>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    Append(AppendNo),
    Turn(TurnNo),
}

/// The appends and turns of one id, in the order in which they came.
#[derive(Debug)]
struct Queue {
    /// The append that is ready or sent.
    first: AppendNo,
    /// Mostly empty, since the writer of an id waits for each answer.
    behind: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Statement {
    appends: Vec<AppendNo>,
    silent_at: Instant,
    /// Whether it was answered, and only what stands in the way of these is asked for.
    looks_up: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Connection {
    Connecting,
    Ready,
}

/// One lane; see the module.
#[derive(Debug)]
pub(crate) struct Lane {
    settings: LaneSettings,
    pending: HashMap<AppendNo, Pending>,
    /// All have the same time, so the first is the first to be late. May name some that were answered meanwhile, but
    /// not as the first.
    by_deadline: VecDeque<AppendNo>,
    by_id: HashMap<PersistenceId, Queue>,
    /// What the next statements carry. May name some that were answered meanwhile.
    ready: VecDeque<AppendNo>,
    statements: BTreeMap<StatementNo, Statement>,
    connection: Connection,
    next_statement: u64,
    /// Why there is no connection.
    trouble: Option<String>,
    closed: bool,
}

impl Lane {
    /// Begins by connecting.
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
            trouble: None,
            closed: false,
        }
    }

    /// Takes one input.
    pub(crate) fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Submit(requests) => requests.into_iter().for_each(|request| self.submit(now, request, out)),
            Input::AwaitTurn { turn, id } => self.await_turn(turn, id, out),
            Input::Connected => {
                self.connection = Connection::Ready;
                self.trouble = None;
            }
            Input::NotConnected(cause) => {
                self.trouble = Some(cause);
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

    /// When a `Tick` next has work to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let silence = self.statements.values().map(|statement| statement.silent_at);
        silence.chain(self.next_late().map(|(_, deadline)| deadline)).min()
    }

    /// Whether no append and no turn waits any more.
    pub(crate) fn is_idle(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The append that is late first, and when.
    fn next_late(&self) -> Option<(AppendNo, Instant)> {
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
            Entry::Occupied(mut queue) => queue.get_mut().behind.push_back(Waiting::Append(append)),
            Entry::Vacant(idle) => {
                idle.insert(Queue { first: append, behind: VecDeque::new() });
                self.ready.push_back(append);
            }
        }
        let deadline = now + self.settings.append_timeout;
        let pending =
            Pending { request, deadline, unanswered: false, rollbacks: 0, alone: false, sent: None, trouble: None };
        self.pending.insert(append, pending);
        self.by_deadline.push_back(append);
    }

    fn await_turn(&mut self, turn: TurnNo, id: PersistenceId, out: &mut Vec<Effect>) {
        match self.by_id.get_mut(&id) {
            Some(queue) => queue.behind.push_back(Waiting::Turn(turn)),
            None => out.push(Effect::Turn(turn)),
        }
    }

    /// Fills the pipeline.
    fn send(&mut self, now: Instant, out: &mut Vec<Effect>) {
        while self.connection == Connection::Ready && self.may_send() {
            let appends = self.next_batch();
            if appends.is_empty() {
                return;
            }
            self.next_statement += 1;
            let statement = StatementNo(self.next_statement);
            for append in &appends {
                self.pending.get_mut(append).expect("a batch holds what is pending").sent = Some(statement);
            }
            let silent_at = now + self.settings.try_timeout;
            self.statements.insert(statement, Statement { appends: appends.clone(), silent_at, looks_up: false });
            out.push(Effect::Execute { statement, appends });
        }
    }

    /// Whether the pipeline has room, and as many are ready as are under way: the connection does one statement after
    /// the other, so a small one behind a large one gains nothing, and what comes meanwhile goes with it.
    fn may_send(&self) -> bool {
        let under_way = self.statements.values().map(|statement| statement.appends.len()).sum();
        self.statements.len() < self.settings.pipeline
            && self.ready.len() >= self.settings.max_batch_appends.min(under_way)
    }

    /// What goes into the next statement: the oldest, in the order of their ids, which are all different.
    fn next_batch(&mut self) -> Vec<AppendNo> {
        let mut batch = self.oldest();
        batch.sort_unstable_by(|(left, _), (right, _)| left.cmp(right));
        batch.into_iter().map(|(_, append)| append).collect()
    }

    /// As many as fit into one statement.
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
        // One that was given up may still answer; its appends were sent again.
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
                    sent.looks_up = true;
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

    /// The server answered, and stored nothing of these.
    fn on_failure(&mut self, appends: Vec<AppendNo>, failure: &Failure, out: &mut Vec<Effect>) {
        let together = appends.len() > 1;
        let trouble: Arc<str> = failure.words().into();
        let mut again = Vec::new();
        for append in appends {
            let Some(pending) = self.pending.get_mut(&append) else { continue };
            pending.trouble = Some(trouble.clone());
            match failure {
                Failure::StorageLow(words) => {
                    let error = AppendError::Rejected(RejectReason::StorageLow(words.clone()));
                    self.refuse(append, error, out);
                }
                // An append that is not the cause must not suffer from the refusal (J11), so each is tried alone.
                Failure::Taken(_) | Failure::Refused(_) if together => {
                    pending.alone = true;
                    again.push(append);
                }
                Failure::Taken(words) => {
                    let Request { id, first, last, .. } = &pending.request;
                    let cause = format!(
                        "stored data of {id} is corrupt: its head ends before {first}, but an event stands in \
                         {first}..={last}; verify the journal: {words}"
                    );
                    let failure = self.failure(&cause);
                    self.refuse(append, AppendError::NotStored(failure), out);
                }
                Failure::Refused(words) => {
                    let failure = self.failure(words);
                    self.refuse(append, AppendError::NotStored(failure), out);
                }
                _ => {
                    pending.rollbacks += 1;
                    pending.alone |= pending.rollbacks >= ROLLBACKS_TOGETHER;
                    // An append that goes alone goes behind the others, which must not wait for it if it never passes.
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

    /// Everything sent goes once more, on another connection. Whether it was done is unknown, except
    /// for the statement that the failure is `about`, if the failure says so.
    fn on_failure_of_connection(&mut self, about: Option<StatementNo>, failure: &Failure, out: &mut Vec<Effect>) {
        if self.connection != Connection::Ready {
            return;
        }
        self.connection = Connection::Connecting;
        let trouble: Arc<str> = failure.words().into();
        let says_not_done = matches!(failure, Failure::NotSent(_) | Failure::Elsewhere(_));
        let mut again = Vec::new();
        for (no, statement) in std::mem::take(&mut self.statements) {
            let is_known = statement.looks_up || says_not_done && about == Some(no);
            for append in statement.appends {
                let Some(pending) = self.pending.get_mut(&append) else { continue };
                pending.unanswered |= !is_known;
                pending.trouble = Some(trouble.clone());
                again.push(append);
            }
        }
        self.trouble = Some(failure.words().to_owned());
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
                        Verdict::Again => again.push(append),
                        Verdict::ClockBehind(behind) => {
                            let words = clock::too_far_behind(behind, self.settings.max_clock_lag);
                            let error = AppendError::NotStored(self.failure(&words));
                            self.refuse(append, error, out);
                        }
                    }
                }
                self.requeue(again);
            }
            // The try itself was answered: it stored nothing, and goes once more.
            Err(failure) if failure.ends_connection() => self.on_failure_of_connection(None, &failure, out),
            Err(Failure::RolledBack(_)) => {
                self.statements.remove(&statement);
                self.requeue(appends);
            }
            Err(failure) => {
                self.statements.remove(&statement);
                let cause = format!("not stored by this try, but whether by an earlier one, no answer: {failure:?}");
                for append in appends {
                    let outcome = Err(AppendError::Unknown(self.failure(&cause)));
                    self.answer(append, outcome, out);
                }
            }
        }
    }

    fn on_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        while let Some((append, _)) = self.next_late().filter(|(_, deadline)| *deadline <= now) {
            self.expire(append, out);
        }
        if self.statements.values().any(|statement| statement.silent_at <= now) {
            let cause = format!("no answer within {:?}", self.settings.try_timeout);
            self.on_failure_of_connection(None, &Failure::Unanswered(cause), out);
        }
    }

    fn expire(&mut self, append: AppendNo, out: &mut Vec<Effect>) {
        let Some(pending) = self.pending.get(&append) else { return };
        let within = self.settings.append_timeout;
        let last = self.trouble.as_deref().or(pending.trouble.as_deref());
        let last = last.unwrap_or("the statements before it take all the time");
        let outcome = if pending.unanswered || pending.sent.is_some() {
            AppendError::Unknown(self.failure(&format!("sent, and not answered within {within:?}; last: {last}")))
        } else {
            AppendError::NotStored(self.failure(&format!("not sent within {within:?}; last: {last}")))
        };
        self.answer(append, Err(outcome), out);
    }

    /// Answers a refusal, or, if an earlier try may be stored, that the outcome is unknown (J10).
    fn refuse(&mut self, append: AppendNo, error: AppendError, out: &mut Vec<Effect>) {
        let unanswered = self.pending.get(&append).is_some_and(|pending| pending.unanswered);
        let error = if unanswered {
            AppendError::Unknown(self.failure(&format!("an earlier try went unanswered; then: {error}")))
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
            return queue.behind.retain(|waiting| *waiting != Waiting::Append(append));
        }
        loop {
            match queue.behind.pop_front() {
                Some(Waiting::Turn(turn)) => out.push(Effect::Turn(turn)),
                Some(Waiting::Append(next)) => {
                    queue.first = next;
                    return self.ready.push_back(next);
                }
                None => return drop(of_id.remove()),
            }
        }
    }

    /// Puts appends back to the front, in their order.
    fn requeue(&mut self, appends: Vec<AppendNo>) {
        for append in appends.into_iter().rev() {
            let Some(pending) = self.pending.get_mut(&append) else { continue };
            pending.sent = None;
            self.ready.push_front(append);
        }
    }

    fn failure(&self, cause: &str) -> StoreFailure {
        StoreFailure::new(&self.settings.name, cause)
    }

    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        assert!(self.statements.len() <= self.settings.pipeline, "more statements than the pipeline holds");
        let waiting = self.by_deadline.iter().filter_map(|append| self.pending.get(append));
        let deadlines: Vec<_> = waiting.map(|pending| pending.deadline).collect();
        assert!(deadlines.is_sorted(), "an append that came later is late before one that came earlier");
        assert_eq!(deadlines.len(), self.pending.len(), "every append has its time");
        assert_eq!(self.next_late().is_some(), !deadlines.is_empty(), "the first to be late is found");
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
