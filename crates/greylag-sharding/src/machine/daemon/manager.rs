//! Keeps the workers of one daemon process alive, and changes their number.
//!
//! The manager begins by reading the record, since an earlier manager may have left a change incomplete, which is
//! completed first. While nothing changes, the manager asks one worker after the other to start, spaced so that many
//! workers do not start at once, and reads the record again before each round, in case another manager has changed it.
//! A change is recorded before the first worker is stopped, and all workers of the previous number have stopped before
//! the first worker of the new number is asked to start: so two workers of one index never live at a time, even if the
//! manager fails.
//!
//! ```text
//! Loading --Loaded, complete--> Pinging --Change--> Beginning --Committed--> Stopping --all stopped--> Completing --+
//!   | ^-------------next round----' ^                                            ^         reply ok                |
//!   '---Loaded, incomplete----------|--------------------------------------------'                                 |
//!                                   '------------------------------------------------------------------Committed---+
//! ```
//! A commit that another manager's write overtook is given up: the manager reads again.
//!
//! Source: sharding §6.2.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::id::ProcessId;
use super::record::{DaemonRecord, NumberOfProcesses};

/// Most questions that wait while the record is read; further ones are answered [`Answer::Busy`].
const MOST_WAITING: usize = 1_000;

/// Settings of a manager: the initial and the largest number of workers, and its intervals.
#[derive(Debug, Clone)]
pub struct DaemonManagerConfig {
    /// The number of workers before any change.
    pub initial: u32,
    /// Most workers: the shards of the type.
    pub most: u32,
    /// Between two rounds in which each worker is asked to start.
    pub keep_alive_interval: Duration,
    /// Between two start requests of a round.
    pub throttle_interval: Duration,
    /// Between two tries to read or to write the record.
    pub retry_interval: Duration,
    /// Between two requests to stop the same shards.
    pub stop_retry_interval: Duration,
}

/// A user's question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// Change the number of workers.
    Change(u32),
    /// How many workers are there?
    Number,
}

/// Inputs of the manager: answers of its store, requests of users, time. `wall_ms` is the wall clock in milliseconds
/// since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The record, read from a majority of the nodes; `None` if the number was never changed.
    Loaded {
        /// The record.
        record: Option<DaemonRecord>,
        /// Now.
        wall_ms: u64,
    },
    /// The record could not be read.
    NotLoaded,
    /// A user asks a question.
    Asked {
        /// Identifies the question in its answer.
        request: u64,
        /// The question.
        question: Question,
        /// Now.
        wall_ms: u64,
    },
    /// A majority of the nodes has the record, and no later one.
    Committed(DaemonRecord),
    /// A majority could not be reached. The record may spread nevertheless.
    NotCommitted(DaemonRecord),
    /// The store holds another record than the one to be committed.
    Superseded,
    /// Nothing of this shard runs any more.
    ShardStopped(u32),
    /// A deadline may have come.
    Tick,
}

/// Effects that the driver carries out in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Read the record by a majority; answered by `Loaded` or `NotLoaded`.
    Load,
    /// Write the record to a majority and read it again; answered by `Committed`, `NotCommitted` or `Superseded`.
    Commit(DaemonRecord),
    /// Ask a worker to start. Not answered.
    Start(ProcessId),
    /// Stop these shards, replacing an earlier order; each is answered by `ShardStopped`.
    StopShards(BTreeSet<u32>),
    /// Answer a question.
    Reply {
        /// The number from [`Input::Asked`].
        request: u64,
        /// The answer.
        answer: Answer,
    },
}

/// The manager's answers to requests of users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The previous workers have stopped, and those of the new number start; or the number was the same.
    Changed,
    /// The number of workers.
    Number(NumberOfProcesses),
    /// Another change is under way, or came first. This change had no lasting effect.
    RescaleInProgress,
    /// The number is out of range; nothing was done.
    OutOfRange {
        /// The largest possible number; at least 1.
        most: u32,
    },
    /// Too many questions wait until the record is read; nothing was done.
    Busy,
}

/// The manager's phase.
#[derive(Debug)]
enum ManagerPhase {
    /// The record is being read, or will be read again at the deadline.
    Loading { again_at: Option<Instant> },
    /// No change is under way: workers are asked to start; `left` are the rest of this round.
    Pinging { left: VecDeque<ProcessId>, round_began: Instant, next_at: Instant },
    /// The begin of the change is being recorded, or will be again at the deadline.
    Beginning { record: DaemonRecord, request: u64, again_at: Option<Instant> },
    /// The previous workers stop.
    Stopping { left: BTreeSet<u32>, request: Option<u64>, again_at: Instant },
    /// The end of the change is being recorded, or will be again at the deadline.
    Completing { again_at: Option<Instant> },
}

/// See the module's description.
#[derive(Debug)]
pub struct DaemonManager {
    config: DaemonManagerConfig,
    phase: ManagerPhase,
    /// The latest record known to be committed, or the initial number.
    record: DaemonRecord,
    /// When the record was first read, wall clock in milliseconds since 1970.
    began_ms: Option<u64>,
    /// Questions that came while the record was read, with their wall-clock times.
    waiting: Vec<(u64, Question, u64)>,
}

impl DaemonManager {
    /// Begins by reading the record.
    pub fn new(config: DaemonManagerConfig, out: &mut Vec<Effect>) -> Self {
        out.push(Effect::Load);
        let record = DaemonRecord::initial(config.initial, 0);
        Self { config, phase: ManagerPhase::Loading { again_at: None }, record, began_ms: None, waiting: Vec::new() }
    }

    /// Takes one input. Inputs that make no sense in the present phase change nothing.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Loaded { record, wall_ms } => self.on_loaded(now, record, wall_ms, out),
            Input::NotLoaded => {
                if let ManagerPhase::Loading { again_at: again_at @ None } = &mut self.phase {
                    *again_at = Some(now + self.config.retry_interval);
                }
            }
            Input::Asked { request, question, wall_ms } => self.on_asked(request, question, wall_ms, out),
            Input::Committed(record) => self.on_committed(now, record, out),
            Input::NotCommitted(record) => self.on_not_committed(now, record),
            Input::Superseded => self.on_superseded(out),
            Input::ShardStopped(shard) => self.on_shard_stopped(shard, out),
            Input::Tick => self.on_tick(now, out),
        }
        self.check_invariants();
    }

    /// Source: sharding §6.2.
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        assert!(self.waiting.len() <= MOST_WAITING, "the questions that wait are bounded");
        let is_loading = matches!(self.phase, ManagerPhase::Loading { .. });
        assert!(self.waiting.is_empty() || is_loading, "a question waits only while the record is read");
        let is_complete = self.record.is_complete;
        match &self.phase {
            ManagerPhase::Loading { .. } => {}
            ManagerPhase::Pinging { .. } => assert!(is_complete, "workers start once those before have stopped"),
            ManagerPhase::Beginning { record, .. } => {
                assert!(is_complete && record.previous == self.record.count, "a change follows a complete one");
            }
            ManagerPhase::Stopping { left, .. } => assert!(!is_complete && !left.is_empty(), "a worker is waited for"),
            ManagerPhase::Completing { .. } => assert!(!is_complete, "a change is completed once"),
        }
    }

    /// When a `Tick` next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        match &self.phase {
            ManagerPhase::Loading { again_at }
            | ManagerPhase::Beginning { again_at, .. }
            | ManagerPhase::Completing { again_at } => *again_at,
            ManagerPhase::Pinging { next_at, .. } => Some(*next_at),
            ManagerPhase::Stopping { again_at, .. } => Some(*again_at),
        }
    }

    fn on_loaded(&mut self, now: Instant, record: Option<DaemonRecord>, wall_ms: u64, out: &mut Vec<Effect>) {
        if !matches!(self.phase, ManagerPhase::Loading { again_at: None }) {
            return;
        }
        let began_ms = *self.began_ms.get_or_insert(wall_ms);
        self.record = record.unwrap_or_else(|| DaemonRecord::initial(self.config.initial, began_ms));
        if self.record.is_complete {
            self.become_pinging(now);
        } else {
            self.begin_stopping(now, None, out);
        }
        for (request, question, wall_ms) in std::mem::take(&mut self.waiting) {
            self.on_asked(request, question, wall_ms, out);
        }
    }

    fn on_asked(&mut self, request: u64, question: Question, wall_ms: u64, out: &mut Vec<Effect>) {
        if matches!(self.phase, ManagerPhase::Loading { .. }) {
            if self.waiting.len() < MOST_WAITING {
                self.waiting.push((request, question, wall_ms));
            } else {
                out.push(Effect::Reply { request, answer: Answer::Busy });
            }
            return;
        }
        let is_settled = matches!(self.phase, ManagerPhase::Pinging { .. });
        let most = self.config.most;
        let answer = match question {
            Question::Number => Answer::Number(self.number(!is_settled)),
            Question::Change(count) if count == 0 || count > most => Answer::OutOfRange { most },
            Question::Change(_) if !is_settled => Answer::RescaleInProgress,
            Question::Change(count) if count == self.record.count => Answer::Changed,
            Question::Change(count) => {
                let record = self.record.change(count, wall_ms);
                // From here on no previous worker is asked to start.
                self.phase = ManagerPhase::Beginning { record, request, again_at: None };
                out.push(Effect::Commit(record));
                return;
            }
        };
        out.push(Effect::Reply { request, answer });
    }

    fn number(&self, rescale_in_progress: bool) -> NumberOfProcesses {
        let DaemonRecord { revision, count, started_ms, .. } = self.record;
        NumberOfProcesses { count, started_ms, rescale_in_progress, revision }
    }

    fn on_committed(&mut self, now: Instant, committed: DaemonRecord, out: &mut Vec<Effect>) {
        match self.phase {
            ManagerPhase::Beginning { record, request, again_at: None } if record == committed => {
                self.record = committed;
                self.begin_stopping(now, Some(request), out);
            }
            ManagerPhase::Completing { again_at: None } if committed == self.record.completed() => {
                self.record = committed;
                self.become_pinging(now);
            }
            _ => {}
        }
    }

    fn on_not_committed(&mut self, now: Instant, failed: DaemonRecord) {
        let completed = self.record.completed();
        let again_at = match &mut self.phase {
            ManagerPhase::Beginning { record, again_at, .. } if *record == failed => again_at,
            ManagerPhase::Completing { again_at } if completed == failed => again_at,
            _ => return,
        };
        *again_at = Some(now + self.config.retry_interval);
    }

    fn on_superseded(&mut self, out: &mut Vec<Effect>) {
        match self.phase {
            ManagerPhase::Beginning { request, .. } => {
                out.push(Effect::Reply { request, answer: Answer::RescaleInProgress });
            }
            ManagerPhase::Completing { .. } => {}
            _ => return,
        }
        self.phase = ManagerPhase::Loading { again_at: None };
        out.push(Effect::Load);
    }

    fn begin_stopping(&mut self, now: Instant, request: Option<u64>, out: &mut Vec<Effect>) {
        // A peer may record more workers than there are shards: the excess has nothing to stop.
        let left: BTreeSet<u32> = (0..self.record.previous.min(self.config.most)).collect();
        out.push(Effect::StopShards(left.clone()));
        self.phase = ManagerPhase::Stopping { left, request, again_at: now + self.config.stop_retry_interval };
    }

    fn on_shard_stopped(&mut self, shard: u32, out: &mut Vec<Effect>) {
        let ManagerPhase::Stopping { left, request, .. } = &mut self.phase else { return };
        left.remove(&shard);
        if !left.is_empty() {
            return;
        }
        if let Some(request) = request.take() {
            out.push(Effect::Reply { request, answer: Answer::Changed });
        }
        self.phase = ManagerPhase::Completing { again_at: None };
        out.push(Effect::Commit(self.record.completed()));
    }

    fn become_pinging(&mut self, now: Instant) {
        self.phase = ManagerPhase::Pinging { left: self.record.processes().into(), round_began: now, next_at: now };
    }

    fn on_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.next_deadline().is_none_or(|at| now < at) {
            return;
        }
        let completed = self.record.completed();
        match &mut self.phase {
            ManagerPhase::Loading { again_at } => {
                *again_at = None;
                out.push(Effect::Load);
            }
            ManagerPhase::Beginning { record, again_at, .. } => {
                *again_at = None;
                out.push(Effect::Commit(*record));
            }
            ManagerPhase::Completing { again_at } => {
                *again_at = None;
                out.push(Effect::Commit(completed));
            }
            ManagerPhase::Stopping { left, again_at, .. } => {
                *again_at = now + self.config.stop_retry_interval;
                out.push(Effect::StopShards(left.clone()));
            }
            ManagerPhase::Pinging { .. } => self.ping(now, out),
        }
    }

    /// Asks the next worker of the round to start. After the last one, reads the record for the next round.
    fn ping(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let ManagerPhase::Pinging { left, round_began, next_at } = &mut self.phase else { return };
        let Some(next) = left.pop_front() else {
            self.phase = ManagerPhase::Loading { again_at: None };
            return out.push(Effect::Load);
        };
        out.push(Effect::Start(next));
        let next_of_round = now + self.config.throttle_interval;
        let next_round = *round_began + self.config.keep_alive_interval;
        *next_at = if left.is_empty() { next_of_round.max(next_round) } else { next_of_round };
    }
}
