//! The store behind the handle: opened when it is first needed, and written record by record.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use futures::channel::oneshot;
use greylag_ddata::{StoreError as Failure, StoreOp};

use super::planner::{self, Change, Entries, Numbers};
use super::record;
use super::settings::DdataStoreSettings;
use crate::files::directory::sync_directory;
use crate::{OpenError, Store, StoreError, StoreSettings, Watermark};

/// About how many bytes of short records go to the committer in one request.
const REQUEST_BYTES: usize = 1 << 20;
/// How many pieces of a long record go to the committer in one request.
const PIECES: usize = 16;

/// A store of durable entries, opened or not.
pub(super) struct EntryStore {
    pub(super) path: PathBuf,
    settings: StoreSettings,
    numbers: Numbers,
    watermark: Watermark,
    store: Mutex<Option<Store<Entries>>>,
}

impl EntryStore {
    pub(super) fn new(path: PathBuf, settings: DdataStoreSettings) -> Self {
        let DdataStoreSettings { cache_bytes, min_free_bytes, ballast_bytes, disk, engine } = settings;
        let settings = StoreSettings { cache_bytes, ballast_bytes, ..engine };
        let (numbers, store) = (Numbers::default(), Mutex::new(None));
        let watermark = Watermark::new(&path, disk, min_free_bytes);
        Self { path, settings, numbers, watermark, store }
    }

    pub(super) fn failed(&self, why: &dyn std::fmt::Display) -> Failure {
        Failure::Failed { place: self.path.display().to_string(), why: why.to_string() }
    }

    /// Opens the store unless it is open. Blocks.
    pub(super) fn open(&self) -> Result<Store<Entries>, Failure> {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = &*store {
            return Ok(open.clone());
        }
        let planner = Entries::new(self.numbers.clone());
        let opened = Store::open(&self.path, self.settings.clone(), planner).map_err(|error| match error {
            OpenError::Locked { path } => Failure::Locked { place: path.display().to_string() },
            OpenError::Failed { source, .. } => self.failed(&source),
            OpenError::Corrupt { source: StoreError::TailLost { guard, found }, .. } => {
                Failure::TailLost { place: self.path.display().to_string(), expected: guard, found }
            }
            OpenError::Corrupt { source, repair, .. } => self.failed(&format_args!("{source}; {repair}")),
        })?;
        Ok(store.insert(opened).clone())
    }

    pub(super) fn opened(&self) -> Option<Store<Entries>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes the store out, if it is open.
    pub(super) fn take(&self) -> Option<Store<Entries>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn commit(&self, store: &Store<Entries>, change: Change) -> Result<(), Failure> {
        let pending = store.submit(change).map_err(|refused| self.failed(&refused))?;
        pending.await.map_err(|unanswered| self.failed(&unanswered))
    }

    /// Writes a record of more than one piece: first the pieces, a few at a time, last the head.
    async fn put_long(
        &self,
        store: &Store<Entries>,
        id: &greylag_ddata::KeyId,
        pieces: Vec<Vec<u8>>,
    ) -> Result<(), Failure> {
        let snapshot = self.numbers.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        let mut pieces = pieces.into_iter();
        for first in (0_u32..).step_by(PIECES) {
            let some: Vec<Vec<u8>> = pieces.by_ref().take(PIECES).collect();
            if some.is_empty() {
                break;
            }
            self.commit(store, Change::WritePieces { id: id.clone(), snapshot, first, pieces: some }).await?;
        }
        self.commit(store, Change::WriteHead { id: id.clone(), snapshot }).await
    }

    /// Refuses changes for which the disk may soon have no room: sled does not survive a full disk.
    fn check_room(&self, ops: &[StoreOp]) -> Result<(), Failure> {
        let adds =
            |op: &StoreOp| matches!(op, StoreOp::Put { .. } | StoreOp::Delta { .. } | StoreOp::Quarantine { .. });
        let is_removal = |op: &StoreOp| matches!(op, StoreOp::Remove { .. });
        let room = self.watermark.room();
        let why = if ops.iter().any(adds) { room.is_low() } else { room.is_exhausted() };
        match why.filter(|_| !ops.iter().all(is_removal)) {
            Some(why) => Err(self.failed(&format_args!("storage is low: {why}"))),
            None => Ok(()),
        }
    }

    /// Closes the store if it is open, and renames its directory. Blocks. Returns the new path.
    pub(super) fn set_aside(&self) -> Result<PathBuf, Failure> {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        store.take().map_or(Ok(()), |store| store.close()).map_err(|error| self.failed(&error))?;
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let aside = self.path.with_file_name(format!("{name}.lost-{}", planner::wall_ms()));
        let failed =
            |error: std::io::Error| self.failed(&format_args!("cannot be moved to {}: {error}", aside.display()));
        std::fs::rename(&self.path, &aside).map_err(failed)?;
        let parent = aside.canonicalize().map_err(failed)?.parent().map(Path::to_path_buf);
        parent.map_or(Ok(()), |parent| sync_directory(&parent)).map_err(failed)?;
        Ok(aside)
    }

    pub(super) async fn append(self: Arc<Self>, ops: Vec<StoreOp>) -> Result<(), Failure> {
        self.check_room(&ops)?;
        let store = match self.opened() {
            Some(store) => store,
            None => {
                let shared = self.clone();
                off_thread(move || shared.open())
                    .await
                    .unwrap_or_else(|| Err(self.failed(&"no thread to open it on")))?
            }
        };
        let (mut short, mut bytes, mut pending) = (Vec::new(), 0, Vec::new());
        let mut submit = |short: &mut Vec<StoreOp>| {
            let ops = std::mem::take(short);
            let answer = (!ops.is_empty()).then(|| store.submit(Change::Ops(ops))).transpose();
            answer.map(|answer| pending.extend(answer)).map_err(|refused| self.failed(&refused))
        };
        for op in ops {
            if let StoreOp::Put { key, tag, bytes: value, markers } = &op
                && planner::is_long(&op)
            {
                submit(&mut short)?;
                let pieces = record::pieces(&record::value(planner::wall_ms(), tag, value, markers));
                self.put_long(&store, key, pieces).await?;
                continue;
            }
            bytes += planner::bytes_of(&op);
            short.push(op);
            if bytes >= REQUEST_BYTES {
                bytes = 0;
                submit(&mut short)?;
            }
        }
        submit(&mut short)?;
        for answer in pending {
            answer.await.map_err(|unanswered| self.failed(&unanswered))?;
        }
        Ok(())
    }
}

/// Runs a blocking closure on a thread of its own. `None` if no thread can be started.
pub(super) async fn off_thread<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, result) = oneshot::channel();
    let spawned = thread::Builder::new().name("greylag-ddata-store".into()).spawn(move || {
        // A caller that is gone wants no answer.
        let _gone = done.send(run());
    });
    spawned.ok()?;
    result.await.ok()
}
