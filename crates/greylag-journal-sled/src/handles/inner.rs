//! The open journal behind all handles: asks the committer, and reads.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use greylag_persistence::{CloseError, Health, StoreFailure};
use greylag_store_sled::{OpenError, Refused, Store, StoreSettings, Watermark};

use crate::heads::Undurable;
use crate::planner::JournalPlanner;
use crate::queued::Room;
use crate::reading::Reads;
use crate::request::{Answer, Request};
use crate::settings::SledJournalSettings;

/// An open journal, which all handles share.
#[derive(Debug)]
pub(crate) struct Inner {
    name: String,
    pub(crate) store: Store<JournalPlanner>,
    pub(crate) undurable: Arc<Undurable>,
    watermark: Arc<Watermark>,
    room: Room,
    max_append_bytes: usize,
}

/// Why a request has no answer.
pub(crate) enum Lost {
    NotTaken(StoreFailure),
    Unanswered(StoreFailure),
}

impl Lost {
    pub(crate) fn cause(self) -> StoreFailure {
        match self {
            Self::NotTaken(cause) | Self::Unanswered(cause) => cause,
        }
    }
}

impl Inner {
    /// Opens the journal in the directory `path`, or creates it. Blocks.
    pub(super) fn open(path: &Path, settings: &SledJournalSettings) -> Result<Self, OpenError> {
        let name = format!("journal {}", path.display());
        let undurable = Arc::new(Undurable::default());
        let watermark = Arc::new(Watermark::new(path, settings.disk.clone(), settings.min_free_bytes));
        let planner = JournalPlanner::new(name.clone(), settings, undurable.clone(), watermark.clone());
        let store_settings = StoreSettings { ballast_bytes: settings.ballast_bytes, ..settings.store.clone() };
        let store = Store::open(path, store_settings, planner)?;
        let (room, max_append_bytes) = (Room::new(settings.store.max_pending_bytes), settings.max_append_bytes);
        Ok(Self { name, store, undurable, watermark, room, max_append_bytes })
    }

    pub(crate) async fn ask(&self, request: Request) -> Result<Answer, Lost> {
        let request = self.room.admit(request).await;
        let pending = self.store.submit(request).map_err(|refused: Refused| Lost::NotTaken(self.failure(refused)))?;
        pending.await.map_err(|unanswered| match self.store.health() {
            greylag_store_sled::Health::Down(reason) => Lost::Unanswered(self.failure(reason)),
            _ => Lost::Unanswered(self.failure(unanswered)),
        })
    }

    /// Runs a read on a thread that may block.
    pub(crate) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Reads<'_>) -> T + Send + 'static,
    ) -> Result<T, StoreFailure> {
        let inner = self.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let reader = inner.store.reader().map_err(|error| inner.failure(error))?;
            Ok(read(&Reads::new(&inner.name, reader, &inner.undurable)))
        });
        reading.await.unwrap_or_else(|error| Err(self.failure(error)))
    }

    pub(crate) fn health(&self) -> Health {
        let mut reasons = match self.store.health() {
            greylag_store_sled::Health::Up => Vec::new(),
            greylag_store_sled::Health::Degraded(reasons) => reasons,
            greylag_store_sled::Health::Down(reason) => return Health::Down(reason),
        };
        reasons.extend(self.watermark.room().is_low().map(|why| format!("storage is low: {why}")));
        if reasons.is_empty() { Health::Up } else { Health::Degraded(reasons) }
    }

    pub(crate) async fn close(&self) -> Result<(), CloseError> {
        let store = self.store.clone();
        let closing = tokio::task::spawn_blocking(move || store.close());
        let closed = closing.await.map_err(|error| CloseError(self.failure(error)))?;
        closed.map_err(|error| CloseError(self.failure(error)))
    }

    /// The longest append in bytes.
    pub(super) fn max_append_bytes(&self) -> usize {
        self.max_append_bytes
    }

    pub(super) fn failure(&self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> StoreFailure {
        StoreFailure::new(&self.name, cause)
    }
}

/// Panics: the planner answers each request with the answer variant of the same name, so this is a bug.
pub(crate) fn mismatch(answer: &Answer) -> ! {
    panic!("the planner answered another request: {answer:?}")
}
