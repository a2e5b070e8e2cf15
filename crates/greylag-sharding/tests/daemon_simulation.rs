//! Managers and workers of a daemon process under drawn faults: several managers, messages late, lost and out of order.
//!
//! Checked at every step: all workers that live are of one revision, and no index has two. After healing the workers of
//! the latest record live, each once. A violation is found without the check of a worker's revision, with shards that
//! report a stop and go on, and with unconditional commits. `GREYLAG_SEEDS=20000` runs that many seeds instead of the
//! gate's number.
//!
//! Source: sharding §6.2, scenario 80.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use greylag_sharding::machine::daemon::{
    DaemonManager, DaemonManagerConfig, DaemonRecord, Effect, Input, ProcessId, Question,
};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const INITIAL: u32 = 3;
const MOST: u32 = 6;

/// A protocol rule left out on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sabotage {
    Nothing,
    /// Workers live whatever the record is.
    NoCheck,
    /// Shards are reported as stopped, and go on.
    NoStop,
    /// A record is written without comparing it, and the later one wins.
    BlindCommit,
}

/// A message under way, delivered in any order.
#[derive(Debug, Clone)]
enum InFlight {
    ToManager {
        run: u64,
        input: Input,
    },
    Load {
        run: u64,
    },
    Commit {
        run: u64,
        record: DaemonRecord,
    },
    Start(ProcessId),
    /// A worker reads the record, then gets its verdict.
    Read {
        worker: u64,
        id: ProcessId,
    },
    Verdict {
        worker: u64,
        allowed: bool,
    },
    Stop {
        run: u64,
        shard: u32,
    },
}

/// One worker: its revision is being checked, or it lives.
#[derive(Debug, Clone, Copy)]
struct Worker {
    id: ProcessId,
    lives: bool,
}

struct World {
    rng: ChaCha8Rng,
    sabotage: Sabotage,
    now: Instant,
    record: Option<DaemonRecord>,
    managers: BTreeMap<u64, DaemonManager>,
    workers: BTreeMap<u64, Worker>,
    in_flight: Vec<InFlight>,
    numbers: u64,
    healed: bool,
}

impl World {
    fn new(seed: u64, sabotage: Sabotage) -> Self {
        let mut world = Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            sabotage,
            now: Instant::now(),
            record: None,
            managers: BTreeMap::new(),
            workers: BTreeMap::new(),
            in_flight: Vec::new(),
            numbers: 0,
            healed: false,
        };
        world.begin_keeper();
        world
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn begin_keeper(&mut self) {
        let config = DaemonManagerConfig {
            initial: INITIAL,
            most: MOST,
            keep_alive_interval: Duration::from_secs(2),
            throttle_interval: Duration::from_millis(100),
            retry_interval: Duration::from_millis(500),
            stop_retry_interval: Duration::from_secs(1),
        };
        let mut effects = Vec::new();
        let (run, manager) = (self.number(), DaemonManager::new(config, &mut effects));
        self.managers.insert(run, manager);
        self.execute(run, effects);
    }

    fn tell(&mut self, run: u64, input: Input) {
        let mut effects = Vec::new();
        if let Some(manager) = self.managers.get_mut(&run) {
            manager.handle(self.now, input, &mut effects);
        }
        self.execute(run, effects);
    }

    fn execute(&mut self, run: u64, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Load => self.in_flight.push(InFlight::Load { run }),
                Effect::Commit(record) => self.in_flight.push(InFlight::Commit { run, record }),
                Effect::Start(id) => self.in_flight.push(InFlight::Start(id)),
                Effect::StopShards(shards) => {
                    self.in_flight.extend(shards.into_iter().map(|shard| InFlight::Stop { run, shard }));
                }
                Effect::Reply { .. } => {}
            }
        }
    }

    fn deliver(&mut self) {
        if self.in_flight.is_empty() {
            return;
        }
        let drawn = self.rng.random_range(0..self.in_flight.len());
        let item = self.in_flight.swap_remove(drawn);
        let is_faulty = !self.healed && self.rng.random_bool(0.1);
        match item {
            InFlight::ToManager { run, input } => self.tell(run, input),
            InFlight::Load { run } => {
                let input =
                    if is_faulty { Input::NotLoaded } else { Input::Loaded { record: self.record, wall_ms: 0 } };
                self.in_flight.push(InFlight::ToManager { run, input });
            }
            InFlight::Commit { run, record } => self.commit(run, record, is_faulty),
            InFlight::Start(_) if is_faulty => {}
            InFlight::Start(id) => {
                if !self.workers.values().any(|worker| worker.id == id) {
                    let worker = self.number();
                    self.workers.insert(worker, Worker { id, lives: false });
                    self.in_flight.push(InFlight::Read { worker, id });
                }
            }
            InFlight::Read { worker, id } => {
                let record = self.record.unwrap_or_else(|| DaemonRecord::initial(INITIAL, 0));
                let allowed = record.allows(&id) || self.sabotage == Sabotage::NoCheck;
                self.in_flight.push(InFlight::Verdict { worker, allowed });
            }
            InFlight::Verdict { worker, allowed: true } => {
                // Skip a worker whose shard was stopped meanwhile: it has ended.
                if let Some(worker) = self.workers.get_mut(&worker) {
                    worker.lives = true;
                }
            }
            InFlight::Verdict { worker, allowed: false } => drop(self.workers.remove(&worker)),
            InFlight::Stop { .. } if is_faulty => {}
            InFlight::Stop { run, shard } => {
                if self.sabotage != Sabotage::NoStop {
                    self.workers.retain(|_, worker| worker.id.index != shard);
                }
                self.in_flight.push(InFlight::ToManager { run, input: Input::ShardStopped(shard) });
            }
        }
    }

    /// A majority takes the record, or not; the manager may not get the outcome.
    fn commit(&mut self, run: u64, record: DaemonRecord, is_faulty: bool) {
        let may_be = match (self.sabotage, &self.record) {
            (Sabotage::BlindCommit, Some(current)) => record.clock() >= current.clock(),
            (_, current) => record.follows(current.as_ref()),
        };
        let is_stored = may_be && !(is_faulty && self.rng.random_bool(0.5));
        if is_stored {
            self.record = Some(record);
        }
        let input = match (is_faulty, is_stored) {
            (true, _) => Input::NotCommitted(record),
            (false, true) => Input::Committed(record),
            (false, false) => Input::Superseded,
        };
        self.in_flight.push(InFlight::ToManager { run, input });
    }

    fn fault(&mut self) {
        let any = self.rng.next_u64();
        let drawn = |of: &BTreeSet<u64>| of.iter().copied().nth(any as usize % of.len().max(1));
        let runs: BTreeSet<u64> = self.managers.keys().copied().collect();
        match self.rng.random_range(0..200_u32) {
            0..2 if runs.len() < 2 => self.begin_keeper(),
            2..4 => {
                self.managers.remove(&drawn(&runs).unwrap_or_default());
                if self.managers.is_empty() {
                    self.begin_keeper();
                }
            }
            4..6 => {
                let workers: BTreeSet<u64> = self.workers.keys().copied().collect();
                self.workers.remove(&drawn(&workers).unwrap_or_default());
            }
            6..9 => {
                let (request, count) = (self.number(), self.rng.random_range(1..=MOST));
                let input = Input::Asked { request, question: Question::Change(count), wall_ms: 0 };
                self.tell(drawn(&runs).unwrap_or_default(), input);
            }
            _ => {}
        }
    }

    fn step(&mut self) -> Result<(), String> {
        if !self.healed {
            self.fault();
        }
        self.deliver();
        // Bound the messages in flight, so that none is late by more than some seconds.
        while self.in_flight.len() > 40 {
            self.deliver();
        }
        self.now += Duration::from_millis(self.rng.random_range(0..60));
        let due = |manager: &DaemonManager| manager.next_deadline().is_some_and(|at| at <= self.now);
        let runs: Vec<u64> = self.managers.iter().filter(|(_, manager)| due(manager)).map(|(run, _)| *run).collect();
        for run in runs {
            self.tell(run, Input::Tick);
        }
        self.check()
    }

    fn alive(&self) -> Vec<ProcessId> {
        self.workers.values().filter(|worker| worker.lives).map(|worker| worker.id).collect()
    }

    fn check(&self) -> Result<(), String> {
        let alive = self.alive();
        let revisions: BTreeSet<_> = alive.iter().map(|id| (id.revision, id.count)).collect();
        let indices: BTreeSet<_> = alive.iter().map(|id| id.index).collect();
        if revisions.len() > 1 || indices.len() < alive.len() {
            return Err(format!(
                "these live at a time: {:?}",
                alive.iter().map(ToString::to_string).collect::<Vec<_>>()
            ));
        }
        Ok(())
    }

    /// Runs under faults, then without; returns how often the number was changed.
    fn run(mut self) -> Result<u64, String> {
        for _ in 0..3_000 {
            self.step()?;
        }
        self.healed = true;
        while self.managers.len() > 1 {
            self.managers.pop_first();
        }
        for _ in 0..2_000 {
            self.step()?;
            let record = self.record.unwrap_or_else(|| DaemonRecord::initial(INITIAL, 0));
            let alive = self.alive();
            if alive.len() == record.count as usize && alive.iter().all(|id| record.allows(id)) {
                return Ok(record.revision);
            }
        }
        Err(format!("{:?} is never served: {:?}; {:?}; {:?}", self.record, self.alive(), self.managers, self.in_flight))
    }
}

fn seeds() -> u64 {
    std::env::var("GREYLAG_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(200)
}

#[test]
fn scenario_80_workers_of_one_revision_live_and_each_once() {
    let mut changes = 0;
    for seed in 0..seeds() {
        changes += World::new(seed, Sabotage::Nothing).run().unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
    assert!(changes > seeds(), "the number is changed more than once in most runs: {changes}");
}

#[test]
fn without_the_check_of_a_revision_a_violation_is_noticed() {
    assert!((0..50).any(|seed| World::new(seed, Sabotage::NoCheck).run().is_err()));
}

#[test]
fn shards_that_do_not_stop_are_noticed() {
    assert!((0..50).any(|seed| World::new(seed, Sabotage::NoStop).run().is_err()));
}

#[test]
fn commits_that_look_at_nothing_are_noticed() {
    assert!((0..300).any(|seed| World::new(seed, Sabotage::BlindCommit).run().is_err()));
}
