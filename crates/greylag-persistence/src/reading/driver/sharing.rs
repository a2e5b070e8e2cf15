//! Runs the readers that the projections of a node share, one task for each entity type.

use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::hints::{Hints, Listener, Topic};
use crate::contract::driver::query_store::EventQueries;
use crate::contract::error::{QueryError, ReadError, StoreFailure};
use crate::reading::query::settings::QuerySettings;
use crate::reading::query::shared_reader::{
    ConsumerId, SharedAnswer, SharedReader, SharedReaderEffect, SharedReaderInput,
};

/// Handle to the shared readers of one journal.
#[derive(Clone)]
pub(crate) struct Sharing {
    queries: Arc<dyn EventQueries>,
    settings: QuerySettings,
    hints: Hints,
    readers: Arc<Mutex<HashMap<String, mpsc::UnboundedSender<ReaderMessage>>>>,
}

impl fmt::Debug for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharing").finish_non_exhaustive()
    }
}

/// A message of a consumer. The channel has no bound, and needs none: a consumer has at most one of a kind under way.
enum ReaderMessage {
    Join { id: ConsumerId, slices: RangeInclusive<u16>, answers: mpsc::UnboundedSender<SharedAnswer> },
    Demand(ConsumerId),
    Leave(ConsumerId),
}

/// One consumer's place at a shared reader; leaves it when dropped.
#[derive(Debug)]
pub(crate) struct ReaderSubscription {
    id: ConsumerId,
    reader: mpsc::UnboundedSender<ReaderMessage>,
    /// Answers: one for each demand, and two more, so no bound is needed.
    answers: mpsc::UnboundedReceiver<SharedAnswer>,
}

impl ReaderSubscription {
    pub(crate) fn demand(&self) {
        // The send fails if the reader has ended; it has then dropped `answers`, so `answer` reports it.
        let _ = self.reader.send(ReaderMessage::Demand(self.id));
    }

    pub(crate) async fn answer(&mut self) -> SharedAnswer {
        self.answers.recv().await.unwrap_or(SharedAnswer::Dismissed(None))
    }
}

impl Drop for ReaderSubscription {
    fn drop(&mut self) {
        let _ = self.reader.send(ReaderMessage::Leave(self.id));
    }
}

impl Sharing {
    pub(crate) fn new(queries: Arc<dyn EventQueries>, settings: QuerySettings, hints: Hints) -> Self {
        Self { queries, settings, hints, readers: Arc::default() }
    }

    /// Joins the reader of the type; starts the reader if there is none.
    pub(crate) fn join(&self, entity_type: &str, slices: RangeInclusive<u16>) -> ReaderSubscription {
        static CONSUMERS: AtomicU64 = AtomicU64::new(1);
        let id = ConsumerId(CONSUMERS.fetch_add(1, Ordering::Relaxed));
        let (answers, receiver) = mpsc::unbounded_channel();
        // Send under the lock, so that a reader that is about to end for want of consumers finds this message.
        let mut readers = self.lock();
        let known = readers.get(entity_type).filter(|reader| !reader.is_closed()).cloned();
        let reader = known.unwrap_or_else(|| {
            let reader = self.start(entity_type);
            readers.insert(entity_type.to_owned(), reader.clone());
            reader
        });
        let _ = reader.send(ReaderMessage::Join { id, slices, answers });
        ReaderSubscription { id, reader, answers: receiver }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, mpsc::UnboundedSender<ReaderMessage>>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self, entity_type: &str) -> mpsc::UnboundedSender<ReaderMessage> {
        let (sender, inbox) = mpsc::unbounded_channel();
        let (mut out, kind) = (Vec::new(), self.queries.caps().kind);
        let machine = SharedReader::start(entity_type, kind, self.settings.clone(), now(), &mut out);
        let task = Reader {
            machine,
            entity_type: entity_type.to_owned(),
            sharing: self.clone(),
            inbox,
            consumers: HashMap::new(),
            work: JoinSet::new(),
            hints: self.hints.listen(Topic::EntityType(entity_type.to_owned()), self.queries.settles_after()),
        };
        tokio::spawn(task.run(out));
        sender
    }
}

/// The task of one reader.
struct Reader {
    machine: SharedReader,
    entity_type: String,
    sharing: Sharing,
    inbox: mpsc::UnboundedReceiver<ReaderMessage>,
    consumers: HashMap<ConsumerId, mpsc::UnboundedSender<SharedAnswer>>,
    work: JoinSet<SharedReaderInput>,
    hints: Listener,
}

impl Reader {
    async fn run(mut self, mut out: Vec<SharedReaderEffect>) {
        loop {
            let mut late = None;
            for effect in std::mem::take(&mut out) {
                match self.perform(effect) {
                    Next::GoOn => {}
                    Next::Take(message) => late = Some(message),
                    Next::End => return,
                }
            }
            let input = match late {
                Some(message) => self.open(message),
                None => tokio::select! {
                    () = sleep_until(self.machine.next_deadline()) => SharedReaderInput::Tick,
                    Some(message) = self.inbox.recv() => self.open(message),
                    () = self.hints.heard() => SharedReaderInput::Hint,
                    Some(done) = self.work.join_next() => match done {
                        Ok(answer) => answer,
                        // Treat a store that panics as unavailable.
                        Err(panicked) => SharedReaderInput::Page(Err(QueryError::Read(ReadError::Unavailable(
                            StoreFailure::new("store", panicked),
                        )))),
                    },
                },
            };
            self.machine.handle(now(), input, &mut out);
        }
    }

    fn open(&mut self, message: ReaderMessage) -> SharedReaderInput {
        match message {
            ReaderMessage::Join { id, slices, answers } => {
                self.consumers.insert(id, answers);
                SharedReaderInput::Join(id, slices)
            }
            ReaderMessage::Demand(id) => SharedReaderInput::Demand(id),
            ReaderMessage::Leave(id) => {
                self.consumers.remove(&id);
                SharedReaderInput::Leave(id)
            }
        }
    }

    fn perform(&mut self, effect: SharedReaderEffect) -> Next {
        let queries = self.sharing.queries.clone();
        let entity_type = &self.entity_type;
        match effect {
            SharedReaderEffect::AskNewest => {
                self.work.spawn(async move { SharedReaderInput::Newest(queries.newest().await) });
            }
            SharedReaderEffect::Query(query) => {
                self.work.spawn(async move { SharedReaderInput::Page(queries.events(&query).await) });
            }
            SharedReaderEffect::Tell(id, answer) => {
                let is_last = matches!(answer, SharedAnswer::Dismissed(_));
                if is_last {
                    tracing::debug!(
                        entity_type,
                        consumer = id.0,
                        "consumer dismissed from the shared reader; it reads by itself"
                    );
                }
                if let Some(consumer) = self.consumers.get(&id) {
                    // The send fails if the consumer is dropped; its `Leave` is then under way.
                    let _ = consumer.send(answer);
                }
                if is_last {
                    self.consumers.remove(&id);
                }
            }
            SharedReaderEffect::Trouble(cause) => {
                tracing::warn!(entity_type, cause, "shared reader: query failed; retrying");
            }
            SharedReaderEffect::Idle => return self.end_if_inbox_empty(),
            SharedReaderEffect::Broken(error) => {
                tracing::warn!(
                    entity_type,
                    %error,
                    "shared reader stopped by a failed query; projections read by themselves"
                );
                self.sharing.lock().remove(entity_type);
                return Next::End;
            }
        }
        Next::GoOn
    }

    fn end_if_inbox_empty(&mut self) -> Next {
        let mut readers = self.sharing.lock();
        match self.inbox.try_recv() {
            Ok(message) => Next::Take(message),
            Err(_) => {
                readers.remove(&self.entity_type);
                Next::End
            }
        }
    }
}

/// The next step of a reader after an effect.
enum Next {
    GoOn,
    /// Handle a consumer's message that came while the reader was about to end.
    Take(ReaderMessage),
    End,
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
