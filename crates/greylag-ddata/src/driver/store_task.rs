//! The connection with the store: one task that calls the store, one call at a time.

use std::sync::Arc;

use futures::StreamExt;
use tokio::sync::mpsc;

use crate::api::input::Input;
use crate::storage::store::{DurableStore, StoreError, StoreOp};

/// How many batches of loaded entries may wait for the machine.
const LOADED_BATCHES: usize = 4;

enum Job {
    Load,
    LoadAnew,
    Store { ticket: u64, ops: Vec<StoreOp> },
}

/// The replicator's end of the connection. Without a store nothing comes from it.
pub(super) struct StoreTask {
    store: Option<Arc<dyn DurableStore>>,
    /// `None` once the store is closed.
    jobs: Option<mpsc::UnboundedSender<Job>>,
    answers: mpsc::Receiver<Input>,
    task: tokio::task::JoinHandle<()>,
}

impl StoreTask {
    pub(super) fn new(store: Option<Arc<dyn DurableStore>>) -> Self {
        let (jobs, job_queue) = mpsc::unbounded_channel();
        let (answer, answers) = mpsc::channel(LOADED_BATCHES);
        let task = match store.clone() {
            Some(store) => tokio::spawn(run(store, job_queue, answer)),
            None => tokio::spawn(std::future::ready(())),
        };
        Self { store, jobs: Some(jobs), answers, task }
    }

    /// Queues changes for the store. The machine has at most one store request under way, so the queue is short.
    pub(super) fn store(&mut self, ticket: u64, ops: Vec<StoreOp>) {
        self.submit(Job::Store { ticket, ops });
    }

    pub(super) fn load(&mut self) {
        self.submit(Job::Load);
    }

    pub(super) fn load_anew(&mut self) {
        self.submit(Job::LoadAnew);
    }

    fn submit(&mut self, job: Job) {
        // Without a store the settings name no durable entry, so the machine submits nothing.
        drop(self.jobs.as_ref().map(|jobs| jobs.send(job)));
    }

    /// The next answer of the store; `None` if there is no store.
    pub(super) async fn answer(&mut self) -> Option<Input> {
        self.answers.recv().await
    }

    /// Whether the store is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.jobs.is_none()
    }

    /// Ends the call under way and closes the store. A second call does nothing.
    pub(super) async fn close(&mut self) {
        if self.jobs.take().is_none() {
            return;
        }
        self.answers.close();
        // Ignore the error: the task has ended already.
        drop((&mut self.task).await);
        if let Some(store) = &self.store
            && let Err(error) = store.close().await
        {
            tracing::error!(%error, "closing the store of durable entries failed");
        }
    }
}

async fn run(store: Arc<dyn DurableStore>, mut jobs: mpsc::UnboundedReceiver<Job>, answer: mpsc::Sender<Input>) {
    while let Some(job) = jobs.recv().await {
        let last = match job {
            Job::Load => load(&*store, &answer).await,
            Job::LoadAnew => match store.set_aside().await {
                Ok(place) => {
                    tracing::error!(%place, "the store had lost acknowledged commits and was renamed; this replicator starts without it");
                    load(&*store, &answer).await
                }
                Err(error) => Input::LoadFailed(error),
            },
            Job::Store { ticket, ops } => {
                let result = store_flushed(&*store, ops).await;
                Input::Stored { ticket, result }
            }
        };
        // Ignore the error: the replicator has stopped and wants no answer.
        drop(answer.send(last).await);
    }
}

async fn store_flushed(store: &dyn DurableStore, ops: Vec<StoreOp>) -> Result<(), StoreError> {
    store.append(ops).await?;
    store.flush().await
}

async fn load(store: &dyn DurableStore, answer: &mpsc::Sender<Input>) -> Input {
    let mut batches = store.load_all();
    let mut meta = None;
    while let Some(batch) = batches.next().await {
        match batch {
            Ok(batch) => {
                meta = batch.meta.or(meta);
                if answer.send(Input::Loaded(batch.records)).await.is_err() {
                    break;
                }
            }
            Err(error) => return Input::LoadFailed(error),
        }
    }
    Input::LoadDone(meta)
}
