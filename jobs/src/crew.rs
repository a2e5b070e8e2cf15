//! The worker processes as seen by their parent.

use std::collections::VecDeque;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use greylag::delivery::WorkPullingProducer;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinSet;

use crate::ledger::Ledger;
use crate::record::Record;
use crate::worker::Worker;
use crate::{Failure, PATIENCE};

/// The ledger, shared by the tasks that read workers' output and those that wait for confirmations.
#[derive(Clone)]
pub(crate) struct Book(Arc<Mutex<Ledger>>);

impl Book {
    pub(crate) fn of(jobs: u64) -> Self {
        Self(Arc::new(Mutex::new(Ledger::of(jobs))))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The running workers; they end with their parent.
pub(crate) struct Crew {
    told: Worker,
    book: Book,
    /// Oldest first.
    workers: VecDeque<Child>,
    reading: JoinSet<std::io::Result<()>>,
}

impl Crew {
    /// Starts `workers` workers.
    pub(crate) fn hire(workers: u64, told: Worker, book: &Book) -> Result<Self, Failure> {
        let mut crew = Self { told, book: book.clone(), workers: VecDeque::new(), reading: JoinSet::new() };
        (0..workers).try_for_each(|_| crew.hire_one())?;
        Ok(crew)
    }

    fn hire_one(&mut self) -> Result<(), Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut worker = command.args(self.told.arguments()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let told = worker.stdout.take().ok_or("no way to hear a worker")?;
        self.reading.spawn(read(told, self.book.clone()));
        self.workers.push_back(worker);
        Ok(())
    }

    /// Kills the worker that has run longest, and starts another one.
    pub(crate) async fn replace_one(&mut self) -> Result<(), Failure> {
        if let Some(mut worker) = self.workers.pop_front() {
            if let Some(status) = worker.try_wait()? {
                return Err(format!("a worker ended by itself: {status}").into());
            }
            worker.kill().await?;
        }
        self.hire_one()
    }

    /// The process ids of the workers.
    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> + '_ {
        self.workers.iter().filter_map(Child::id)
    }

    /// Waits until the producer can select every worker.
    pub(crate) async fn wait_until_ready(&self, producer: &WorkPullingProducer<u64>) -> Result<(), Failure> {
        let ready = async {
            while producer.stats().selectable < self.workers.len() as u64 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        Ok(tokio::time::timeout(PATIENCE, ready).await.map_err(|_| "not all workers came up")?)
    }

    /// Kills all workers, and waits until all their records are in the ledger.
    pub(crate) async fn dismiss(mut self) -> Result<(), Failure> {
        for worker in &mut self.workers {
            worker.kill().await?;
        }
        while let Some(read) = self.reading.join_next().await {
            read??;
        }
        Ok(())
    }
}

/// Enters the records of one worker into the ledger until the worker ends.
async fn read(mut told: ChildStdout, book: Book) -> std::io::Result<()> {
    let mut bytes = Vec::with_capacity(64 << 10);
    while told.read_buf(&mut bytes).await? > 0 {
        let (records, rest) = bytes.as_chunks::<{ Record::LEN }>();
        let (mut ledger, rest) = (book.lock(), bytes.len() - rest.len());
        records.iter().for_each(|record| ledger.enter(Record::from_bytes(record)));
        drop(ledger);
        bytes.drain(..rest);
    }
    Ok(())
}
