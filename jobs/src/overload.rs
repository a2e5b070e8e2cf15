//! The run in which more jobs are offered than the workers can do.

use std::time::{Duration, Instant};

use greylag::delivery::{Sent, TrySendError, WorkPullingProducer, WorkPullingSettings};
use greylag::prelude::*;
use tokio::task::JoinSet;

use crate::crew::{Book, Crew};
use crate::memory::Courses;
use crate::record::now;
use crate::worker::Worker;
use crate::{Failure, Overload, PATIENCE, jobs, say};

/// How long a job takes, in microseconds.
const WORK_US: u64 = 5_000;
/// Upper bound of the jobs that one worker does per second; sizes the ledger.
const PER_WORKER: u64 = 1_000_000 / WORK_US;
/// The interval between offers.
const TICK: Duration = Duration::from_millis(10);
/// Count of memory samples in the run.
const LOOKS: u32 = 60;
/// A throughput below this part of the workers' capacity is a failure.
const COLLAPSE: f64 = 0.8;

/// Runs the overload, from start to verdict.
pub(crate) async fn run(overload: &Overload) -> Result<(), Failure> {
    let node = Node::builder("jobs").bind("127.0.0.1", 0).roles(["producer"]).start().await?;
    let producer = node.delivery().work_producer(&jobs(), ProducerId::per_node("jobs")).start().await?;
    let buffer = WorkPullingSettings::default().buffer_size as u64;
    let for_all = (overload.seconds * 2).saturating_mul(PER_WORKER * overload.workers) + 2 * buffer;
    let book = Book::of(for_all);
    let told = Worker { seed: node.address().to_string(), work_us: WORK_US, parallel: 1 };
    let crew = Crew::hire(overload.workers, told, &book)?;
    crew.wait_until_ready(&producer).await?;

    let mut offers =
        Offers { producer, book, unconfirmed: JoinSet::new(), accepted: 0, refused: 0, refusal: String::new() };
    let capacity = offers.capacity(Duration::from_secs(overload.seconds).div_f64(6.0)).await?;
    let rate = capacity * overload.times as f64;
    say(&format!(
        "{} workers do {capacity:.0} jobs/s; now {rate:.0}/s are offered for {} s",
        overload.workers, overload.seconds
    ));
    let pids = [std::process::id()].into_iter().chain(crew.pids());
    let done = offers.overload(rate, Duration::from_secs(overload.seconds), Courses::of(pids)).await?;
    let Offers { book, unconfirmed, accepted, .. } = &mut offers;
    let confirmed = async {
        while let Some(confirmed) = unconfirmed.join_next().await {
            confirmed??;
        }
        Ok::<_, Failure>(())
    };
    tokio::time::timeout(PATIENCE, confirmed).await??;
    crew.dismiss().await?;
    node.shutdown().await?;
    let mut wrongs = book.lock().wrongs(*accepted);
    if book.lock().repeats() > 0 {
        wrongs.push("jobs were begun again, though no worker was killed".to_owned());
    }
    if done.done < capacity * COLLAPSE && !overload.lenient {
        wrongs.push(format!("of {capacity:.0} jobs/s only {:.0} were done under overload", done.done));
    }
    done.judge(buffer, wrongs)
}

/// Offers jobs to the producer, and counts the accepted and the refused ones.
struct Offers {
    producer: WorkPullingProducer<u64>,
    book: Book,
    unconfirmed: JoinSet<Result<(), Failure>>,
    accepted: u64,
    refused: u64,
    /// The error text of the first refusal.
    refusal: String,
}

impl Offers {
    fn accept(&mut self, sent: Sent) -> Result<(), Failure> {
        let (book, job) = (self.book.clone(), self.accepted);
        self.accepted += 1;
        self.unconfirmed.spawn(async move {
            sent.confirmed().await?;
            book.lock().confirm(job, now());
            Ok(())
        });
        while let Some(confirmed) = self.unconfirmed.try_join_next() {
            confirmed??;
        }
        Ok(())
    }

    /// Measures the jobs per second that the workers do when the producer always has jobs: the sender waits for room.
    async fn capacity(&mut self, how_long: Duration) -> Result<f64, Failure> {
        let began = Instant::now();
        while began.elapsed() < how_long {
            let sent = self.producer.send(self.accepted).await?;
            self.accept(sent)?;
        }
        let confirmed = self.book.lock().confirmed();
        Ok(confirmed as f64 / began.elapsed().as_secs_f64())
    }

    /// Offers one job without waiting for room.
    fn offer(&mut self) -> Result<(), Failure> {
        match self.producer.try_send(self.accepted) {
            Ok(sent) => self.accept(sent),
            Err(TrySendError::Full(job)) if job == self.accepted => {
                self.refused += 1;
                if self.refusal.is_empty() {
                    self.refusal = TrySendError::Full(job).to_string();
                }
                Ok(())
            }
            Err(error) => Err(error.to_string().into()),
        }
    }

    /// Offers `rate` jobs per second for `how_long`.
    async fn overload(&mut self, rate: f64, how_long: Duration, mut memory: Courses) -> Result<Overloaded, Failure> {
        let (before, accepted_before) = (self.book.lock().confirmed(), self.accepted);
        let (began, mut tick) = (Instant::now(), tokio::time::interval(TICK));
        let (mut offered, mut looks, mut most_pending) = (0_u64, 0, 0);
        while began.elapsed() < how_long {
            tick.tick().await;
            let due = (began.elapsed().as_secs_f64() * rate) as u64;
            for _ in offered..due {
                self.offer()?;
            }
            offered = offered.max(due);
            most_pending = most_pending.max(self.producer.stats().pending);
            if began.elapsed() >= how_long / LOOKS * looks {
                looks += 1;
                memory.look();
            }
        }
        let done = (self.book.lock().confirmed() - before) as f64 / began.elapsed().as_secs_f64();
        let (accepted, refused, refusal) = (self.accepted - accepted_before, self.refused, self.refusal.clone());
        Ok(Overloaded { offered, accepted, refused, refusal, most_pending, done, memory })
    }
}

/// The figures of the overload.
struct Overloaded {
    offered: u64,
    accepted: u64,
    refused: u64,
    refusal: String,
    most_pending: u64,
    /// Jobs done per second.
    done: f64,
    memory: Courses,
}

impl Overloaded {
    fn judge(&self, buffer: u64, mut wrongs: Vec<String>) -> Result<(), Failure> {
        let Self { offered, accepted, refused, refusal, most_pending, done, memory } = self;
        say(&format!("{offered} offered: {accepted} accepted, {refused} refused, each by {refusal:?}"));
        say(&format!("{done:.0} jobs/s were done meanwhile, and at most {most_pending} waited"));
        let (most, growth) = (memory.most_of_first_mib(), memory.growth_mib());
        say(&format!("the producer's process had {most:.1} MiB at most; no process grew by more than {growth:.1} MiB"));
        wrongs.extend(memory.wrongs());
        if accepted + refused != *offered {
            wrongs.push(format!("of {offered} offers {} have no answer", offered.abs_diff(accepted + refused)));
        }
        if *refused == 0 {
            wrongs.push("nothing was refused: that was no overload".to_owned());
        }
        if *most_pending > buffer {
            wrongs.push(format!("{most_pending} jobs waited where {buffer} may"));
        }
        if wrongs.is_empty() {
            say("memory is flat, every refusal was told, and every job that was accepted is done once");
            return Ok(());
        }
        Err(wrongs.join("\n").into())
    }
}
