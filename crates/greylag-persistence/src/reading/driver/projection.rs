//! Runs a projection as a task: queries the stores, calls the handler, and publishes the progress.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinSet;

use super::hints::{Listener, Topic};
use super::read_journal::ReadJournal;
use super::sharing::ReaderSubscription;
use crate::contract::driver::offset_store::OffsetStore;
use crate::contract::driver::seed::random_seed;
use crate::contract::error::{ReadError, StoreFailure};
use crate::contract::offset::{OwnedSlices, Processed};
use crate::contract::records::persistence_id::SLICES;
use crate::contract::settings::SettingsError;
use crate::reading::projection::{
    Guarantee, HandleError, Projection, ProjectionAnswer, ProjectionEffect, ProjectionEnd, ProjectionId,
    ProjectionInput, ProjectionSettings, ProjectionStats,
};
use crate::reading::query::envelope::Envelope;
use crate::reading::query::shared_reader::SharedAnswer;

/// Any error of a handler.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Processes events at least once, in the order of each id.
#[async_trait]
pub trait ProjectionHandler: Send + 'static {
    /// Processes a group, of [`ProjectionSettings::group`] envelopes at most. All come with their
    /// record; a filtered record has no event, or is the deletion of a durable state.
    ///
    /// # Errors
    /// Any error: the group is handed over again, after a wait.
    async fn handle(&mut self, envelopes: &[Envelope]) -> Result<(), BoxError>;
}

/// Processes events and saves its progress in one transaction, so that each event counts exactly once.
/// Backends offer this where offsets and the handler's rows share a database.
#[async_trait]
pub trait TransactionalHandler: Send + 'static {
    /// Processes a group and saves `processed` under `owned`, both or neither.
    ///
    /// # Errors
    /// [`HandleError`], which tells the outcome of the transaction.
    async fn handle_and_save(
        &mut self,
        envelopes: &[Envelope],
        owned: &OwnedSlices,
        processed: &[Processed],
    ) -> Result<(), HandleError>;
}

/// The progress of a projection.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProjectionStatus {
    /// Counts of the projection.
    pub stats: ProjectionStats,
    /// Age of the oldest event that is read and not yet processed: how far the projection's results are behind. Zero if
    /// there is none. `None` while nothing is read: paused, starting, or a store is away. Source: persistence §10.16.
    pub lag: Option<Duration>,
    /// The end of the projection, if it has ended.
    pub end: Option<ProjectionEnd>,
}

/// A running projection. It stops when the last handle is dropped. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ProjectionHandle {
    inputs: mpsc::Sender<ProjectionInput>,
    status: watch::Receiver<ProjectionStatus>,
}

impl ProjectionHandle {
    /// Stops handling events until [`ProjectionHandle::resume`]; the group in the handler is finished.
    pub async fn pause(&self) {
        self.tell(ProjectionInput::Pause).await;
    }

    /// Continues after a pause.
    pub async fn resume(&self) {
        self.tell(ProjectionInput::Resume).await;
    }

    /// Deletes the saved progress, and starts over with the first event.
    pub async fn reset(&self) {
        self.tell(ProjectionInput::Reset).await;
    }

    /// Makes the projection query for new events at once.
    pub async fn hint(&self) {
        self.tell(ProjectionInput::Hint).await;
    }

    /// Ends the projection, after the group in the handler is handled and saved; returns the end.
    pub async fn stop(&self) -> ProjectionEnd {
        self.tell(ProjectionInput::Stop).await;
        self.ended().await
    }

    /// Waits for the end of the projection.
    pub async fn ended(&self) -> ProjectionEnd {
        let mut status = self.status.clone();
        let ended = status.wait_for(|status| status.end.is_some()).await;
        // The task publishes its end before it ends, unless the runtime was shut down first.
        ended.ok().and_then(|status| status.end.clone()).unwrap_or(ProjectionEnd::Stopped)
    }

    /// The present status. The lag is as of now, so it grows while a handler is stuck.
    pub fn status(&self) -> ProjectionStatus {
        let status = self.status.borrow().clone();
        ProjectionStatus { lag: lag(&status.stats), ..status }
    }

    /// The projection's status as it changes, each with the lag of that moment.
    pub fn watch(&self) -> watch::Receiver<ProjectionStatus> {
        self.status.clone()
    }

    async fn tell(&self, input: ProjectionInput) {
        // A send fails only if the projection has ended already, and the status tells so.
        let _ = self.inputs.send(input).await;
    }
}

/// Starts a projection that saves its offsets after its handler returns: each event at least once.
///
/// Projections over one [`ReadJournal`] (or its clones) share a reader: once they have caught up, they
/// cost the store the queries of one reader. See [`ProjectionSettings::share_reader`].
///
/// ```
/// use std::sync::Arc;
/// use greylag_persistence::{
///     BoxError, Envelope, InMemoryJournal, InMemoryOffsets, ProjectionHandler, ProjectionId, ProjectionSettings,
///     QuerySettings, ReadJournal, run_projection,
/// };
///
/// struct CountEvents(u64);
///
/// #[async_trait::async_trait]
/// impl ProjectionHandler for CountEvents {
///     async fn handle(&mut self, envelopes: &[Envelope]) -> Result<(), BoxError> {
///         self.0 += envelopes.len() as u64; // `envelope.decode(&codec)` gives the event
///         Ok(())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let journal = InMemoryJournal::default();
/// // One for the program, however many projections there are.
/// let read = ReadJournal::new(Arc::new(journal.queries()), QuerySettings::default());
/// let offsets = Arc::new(InMemoryOffsets::default());
/// // One instance for all slices; several share them by `slice_ranges`.
/// let id = ProjectionId { name: "counts".into(), entity_type: "Cart".into(), slices: 0..=1023 };
/// let counting = run_projection(id, &read, offsets, CountEvents(0), ProjectionSettings::default())?;
/// // … `counting.status().lag`, `counting.pause().await` …
/// counting.stop().await;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`SettingsError`], naming the settings that cannot work.
///
/// # Panics
/// Outside a tokio runtime.
pub fn run_projection(
    id: ProjectionId,
    read: &ReadJournal,
    offsets: Arc<dyn OffsetStore>,
    handler: impl ProjectionHandler,
    settings: ProjectionSettings,
) -> Result<ProjectionHandle, SettingsError> {
    let handler = Arc::new(Mutex::new(handler));
    let call = move |envelopes: Vec<Envelope>, _: Option<(OwnedSlices, Vec<Processed>)>| -> Handling {
        let handler = handler.clone();
        Box::pin(async move {
            let handled = handler.lock().await.handle(&envelopes).await;
            handled.map_err(|error| HandleError::Handler(error.to_string()))
        })
    };
    start(id, Guarantee::AtLeastOnce, read, offsets, call, settings)
}

/// Starts a projection whose handler saves its offsets with its own writes: each event exactly once.
/// `offsets` must be the store that the handler saves into.
///
/// # Errors
/// [`SettingsError`], naming the settings that cannot work.
///
/// # Panics
/// Outside a tokio runtime.
pub fn run_transactional(
    id: ProjectionId,
    read: &ReadJournal,
    offsets: Arc<dyn OffsetStore>,
    handler: impl TransactionalHandler,
    settings: ProjectionSettings,
) -> Result<ProjectionHandle, SettingsError> {
    let handler = Arc::new(Mutex::new(handler));
    let call = move |envelopes: Vec<Envelope>, save: Option<(OwnedSlices, Vec<Processed>)>| -> Handling {
        let handler = handler.clone();
        Box::pin(async move {
            let Some((owned, processed)) = save else {
                return Err(HandleError::Unknown("nothing to save with the group".to_owned()));
            };
            handler.lock().await.handle_and_save(&envelopes, &owned, &processed).await
        })
    };
    start(id, Guarantee::ExactlyOnce, read, offsets, call, settings)
}

type Handling = BoxFuture<'static, Result<(), HandleError>>;

fn start(
    id: ProjectionId,
    guarantee: Guarantee,
    read: &ReadJournal,
    offsets: Arc<dyn OffsetStore>,
    call: impl Fn(Vec<Envelope>, Option<(OwnedSlices, Vec<Processed>)>) -> Handling + Send + 'static,
    settings: ProjectionSettings,
) -> Result<ProjectionHandle, SettingsError> {
    let mut out = Vec::new();
    let (caps, query) = (read.queries().caps(), read.settings().clone());
    let machine = Projection::start(id.clone(), guarantee, caps, query, settings, random_seed(), &mut out)?;
    let (inputs, inbox) = mpsc::channel(16);
    let (told, status) = watch::channel(ProjectionStatus::default());
    let hints = read.listen(Topic::EntityType(id.entity_type.clone()));
    let (read, work) = (read.clone(), JoinSet::new());
    let task = Task { machine, id, read, offsets, call, inbox, status: told, work, shared: None, hints };
    tokio::spawn(task.run(out));
    Ok(ProjectionHandle { inputs, status })
}

struct Task<F> {
    machine: Projection,
    id: ProjectionId,
    read: ReadJournal,
    offsets: Arc<dyn OffsetStore>,
    call: F,
    inbox: mpsc::Receiver<ProjectionInput>,
    status: watch::Sender<ProjectionStatus>,
    work: JoinSet<ProjectionInput>,
    /// The projection's place at the shared reader, and the number of the run that took it.
    shared: Option<(u64, ReaderSubscription)>,
    hints: Listener,
}

impl<F> fmt::Debug for Task<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("id", &self.id).finish_non_exhaustive()
    }
}

impl<F: Fn(Vec<Envelope>, Option<(OwnedSlices, Vec<Processed>)>) -> Handling> Task<F> {
    async fn run(mut self, mut out: Vec<ProjectionEffect>) {
        let mut open = true;
        loop {
            let mut end = None;
            for effect in std::mem::take(&mut out) {
                end = self.perform(effect).or(end);
            }
            if let Some(end) = end {
                // Wait for a last save.
                while self.work.join_next().await.is_some() {}
                self.tell(Some(end));
                return;
            }
            self.tell(None);
            let input = tokio::select! {
                () = sleep_until(self.machine.next_deadline()) => ProjectionInput::Tick,
                received = self.inbox.recv(), if open => received.unwrap_or_else(|| {
                    open = false;
                    ProjectionInput::Stop
                }),
                // Only without a shared reader, which gets hints for all its projections.
                () = self.hints.heard(), if self.shared.is_none() => ProjectionInput::Hint,
                (run, answer) = next_shared(&mut self.shared) => {
                    ProjectionInput::Answer(run, ProjectionAnswer::Shared(answer))
                }
                Some(done) = self.work.join_next() => match done {
                    Ok(answer) => answer,
                    // Treat a store that panics as unavailable.
                    Err(panicked) => {
                        let away = ReadError::Unavailable(StoreFailure::new("store", panicked));
                        ProjectionInput::Answer(self.machine.run(), ProjectionAnswer::Read(Err(away)))
                    }
                },
            };
            self.machine.handle(now(), input, &mut out);
        }
    }

    /// Performs an effect of the machine; returns the end, if the projection has ended.
    fn perform(&mut self, effect: ProjectionEffect) -> Option<ProjectionEnd> {
        let (queries, offsets) = (self.read.queries().clone(), self.offsets.clone());
        let ProjectionId { name, slices, entity_type } = self.id.clone();
        match effect {
            ProjectionEffect::Claim(run) => {
                self.answer(run, async move { ProjectionAnswer::Claimed(offsets.claim(&name, slices).await) });
            }
            ProjectionEffect::Load(run) => {
                self.answer(run, async move { ProjectionAnswer::Loaded(offsets.load(&name, 0..=SLICES - 1).await) });
            }
            ProjectionEffect::Query(run, query) => {
                self.answer(run, async move { ProjectionAnswer::Page(queries.events(&query).await) });
            }
            ProjectionEffect::Join(run) => self.shared = Some((run, self.read.sharing().join(&entity_type, slices))),
            ProjectionEffect::Pull => {
                if let Some((_, place)) = &self.shared {
                    place.demand();
                }
            }
            ProjectionEffect::Leave => self.shared = None,
            ProjectionEffect::Read(run, id, range) => {
                self.answer(run, async move { ProjectionAnswer::Read(queries.read(&id, range).await) });
            }
            ProjectionEffect::Handle(run, envelopes) => {
                let handling = guarded((self.call)(envelopes, None));
                self.answer(run, async move { ProjectionAnswer::Handled(handling.await) });
            }
            ProjectionEffect::Commit(run, envelopes, owned, processed) => {
                let handling = guarded((self.call)(envelopes, Some((owned, processed))));
                self.answer(run, async move { ProjectionAnswer::Handled(handling.await) });
            }
            ProjectionEffect::Save(run, owned, processed) => {
                self.answer(run, async move { ProjectionAnswer::Saved(offsets.save(&owned, &processed).await) });
            }
            ProjectionEffect::Reset(run, owned) => {
                self.answer(run, async move { ProjectionAnswer::WasReset(offsets.reset(&owned).await) });
            }
            ProjectionEffect::Forget(owned, before) => {
                tokio::spawn(async move {
                    if let Err(error) = offsets.forget_before(&owned, before).await {
                        tracing::debug!(
                            projection = name,
                            %error,
                            "removing old offsets failed; retrying at the next interval"
                        );
                    }
                });
            }
            ProjectionEffect::Skipped(envelope, cause) => {
                let (id, seq_nr) = (&envelope.id, envelope.seq_nr);
                tracing::error!(projection = name, %id, %seq_nr, cause, "event skipped: its handler cannot process it");
            }
            ProjectionEffect::Trouble(cause) => {
                tracing::warn!(projection = name, ?slices, cause, "projection operation failed; retrying");
            }
            ProjectionEffect::Ended(end) => {
                tracing::info!(projection = name, ?slices, %end, "projection ended");
                return Some(end);
            }
        }
        None
    }

    fn answer(&mut self, run: u64, answer: impl Future<Output = ProjectionAnswer> + Send + 'static) {
        self.work.spawn(async move { ProjectionInput::Answer(run, answer.await) });
    }

    fn tell(&self, end: Option<ProjectionEnd>) {
        let stats = self.machine.stats();
        self.status.send_replace(ProjectionStatus { lag: lag(&stats), stats, end });
    }
}

/// Present age of the oldest event that is read and not yet processed.
fn lag(stats: &ProjectionStats) -> Option<Duration> {
    if !stats.is_running {
        return None;
    }
    let Some(oldest) = stats.oldest_in_hand else { return Some(Duration::ZERO) };
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Some(since_epoch.saturating_sub(Duration::from_micros(oldest.as_micros())))
}

/// The next answer of the shared reader; waits for ever if there is no reader.
async fn next_shared(shared: &mut Option<(u64, ReaderSubscription)>) -> (u64, SharedAnswer) {
    let Some((run, place)) = shared else { return std::future::pending().await };
    let (run, answer) = (*run, place.answer().await);
    if matches!(answer, SharedAnswer::Dismissed(_)) {
        *shared = None;
    }
    (run, answer)
}

/// Runs the handler; a panic is a failure, and its transaction has to undo the writes that the handler began.
async fn guarded(handling: Handling) -> Result<(), HandleError> {
    let handled = AssertUnwindSafe(handling).catch_unwind().await;
    handled.unwrap_or_else(|_| Err(HandleError::Handler("the handler panicked".to_owned())))
}

/// The runtime's clock, so that a test can pause it.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
