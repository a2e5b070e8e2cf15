//! The crash cases: a store is killed in the midst of its work, again and again. Acknowledged writes
//! are there afterwards, once and whole; refused writes are not, and no number is missing.
//!
//! ```text
//! start ─▶ check what the workers were told ─▶ claim, write ─▶ kill, while writes are on their way ─▶ start …
//! ```
//! Damage of a disk (a full one, cut tails, flipped bits, missing commits) is tested by the
//! backend that uses the disk. Source: persistence §4.5 (crash), §8.

mod answers;
mod check;
mod content;
mod round;
mod work;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::channel::oneshot;
use futures::future::{join, join_all};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use self::round::{Load, Round};
use self::work::Worker;
use super::harness::{Checked, Flags, Report, Stop, cases, ensure, skip};

pub use self::round::CrashStores;

/// Starts and kills the store under test.
#[async_trait]
pub trait CrashFactory: Send + Sync {
    /// Starts the store on the data that its last life left behind, and returns the stores of its clients, one
    /// entry for each. Handles that outlive a crash may be the same every time; then a write that was
    /// under way may be answered by the next life.
    async fn start(&self) -> Vec<CrashStores>;

    /// Kills the store after the time `after`, like a power cut or `kill -9`: it finishes nothing.
    async fn kill(&self, after: Duration);

    /// Starts the store, and kills it after the time `after`, possibly before it is up; returns whether the factory
    /// can do that.
    async fn kill_while_starting(&self, _after: Duration) -> bool {
        false
    }
}

/// Runs every crash case, in the order of their numbers, [`Flags::kills`] kills for each of the first two.
/// The store is started first; it is left running.
pub async fn crash(factory: &impl CrashFactory, flags: Flags) -> Report {
    let mut kit = Kit::new(factory, flags.kills).await;
    let mut report = Report::default();
    cases! {report, &flags;
        "01 killed during appends" => kit.rounds(Load::Appends);
        "02 killed during deletes, claims, snapshots, states and offsets" => kit.rounds(Load::Everything);
        "03 killed again while it recovers" => kit.killed_twice();
    }
    report
}

/// Number of writers of the kit, each with an id of its own.
const WORKERS: u32 = 12;

struct Kit<'a, F> {
    factory: &'a F,
    clients: Vec<CrashStores>,
    workers: Vec<Worker>,
    kills: u32,
    rng: ChaCha8Rng,
}

impl<'a, F: CrashFactory> Kit<'a, F> {
    async fn new(factory: &'a F, kills: u32) -> Self {
        let clients = factory.start().await;
        let workers = (0..WORKERS).map(Worker::new).collect();
        Self { factory, clients, workers, kills, rng: ChaCha8Rng::seed_from_u64(u64::from(kills)) }
    }

    async fn rounds(&mut self, load: Load) -> Checked {
        let mut acknowledged = 0;
        for round in 0..self.kills {
            acknowledged += self.round(load).await.map_err(|stop| in_round(stop, round))?;
        }
        self.check().await.map_err(|stop| in_round(stop, self.kills))?;
        // Require acknowledgements: kills that meet no worker at work prove nothing.
        ensure(acknowledged >= u64::from(self.kills), || {
            format!("{} kills, and only {acknowledged} appends were acknowledged", self.kills)
        })
    }

    async fn killed_twice(&mut self) -> Checked {
        for round in 0..=self.kills / 10 {
            let after = self.moment();
            self.round(Load::Everything).await.map_err(|stop| in_round(stop, round))?;
            self.factory.kill(Duration::ZERO).await;
            if !self.factory.kill_while_starting(after).await {
                self.clients = self.factory.start().await;
                return skip("the factory cannot kill a store that starts");
            }
            self.clients = self.factory.start().await;
        }
        self.check().await
    }

    /// Checks, writes and kills; returns the number of acknowledged appends.
    async fn round(&mut self, load: Load) -> Checked<u64> {
        self.check().await?;
        let (end, ended) = oneshot::channel();
        let (enough, after) = (self.rng.random_range(1..60), self.moment());
        let (acknowledged, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let round = &Round { load, acknowledged, enough, over, end: Mutex::new(Some(end)) };
        let clients = &self.clients;
        let at_work = self.workers.iter_mut().enumerate();
        let at_work = at_work.map(|(number, worker)| worker.work(&clients[number % clients.len()], round));
        let working = async {
            let worked = join_all(at_work).await;
            round.end();
            worked.into_iter().collect::<Checked<()>>()
        };
        let crashing = async {
            // An error means that the sender is dropped: no worker can end the round any more, so end it too.
            let _ = ended.await;
            self.factory.kill(after).await;
            round.over.store(true, Ordering::Relaxed);
            self.factory.start().await
        };
        let (worked, started) = join(working, crashing).await;
        self.clients = started;
        worked?;
        Ok(round.acknowledged.load(Ordering::Relaxed))
    }

    /// Compares the stored data with the answers that the workers got.
    async fn check(&mut self) -> Checked {
        let clients = &self.clients;
        let checked = self.workers.iter_mut().enumerate();
        // Each worker's data is read by another client than wrote it.
        let checked = checked.map(|(number, worker)| worker.check(&clients[(number + 1) % clients.len()]));
        join_all(checked).await.into_iter().collect()
    }

    fn moment(&mut self) -> Duration {
        Duration::from_micros(self.rng.random_range(0..20_000))
    }
}

fn in_round(stop: Stop, round: u32) -> Stop {
    match stop {
        Stop::Failed(what) => Stop::Failed(format!("after {round} kills: {what}")),
        Stop::Skipped(why) => Stop::Skipped(why),
    }
}
