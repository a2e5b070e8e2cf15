//! The store of durable replicated entries, on the engine: ddata U2.
//!
//! Appends go to the committer, which groups them and answers when they are flushed and synced, so `flush` has nothing
//! left to do. Opening blocks, and may wait for a dying process to release the lock; it runs on a thread of its own, as
//! does all reading. One append runs at a time, and a long record is written piece by piece, so little of it waits in
//! memory.
//!
//! Commits are numbered, and the tail guard remembers the last one: a store that lost its end is not opened. Before the
//! disk is full, changes that only add are refused; see [`DdataStoreSettings::min_free_bytes`].

mod loading;
mod planner;
mod record;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use futures::channel::oneshot;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use greylag_ddata::{DurableStore, LoadBatch, StoreError as Failure, StoreOp};

use crate::engine::sync_directory;
use crate::{Disk, OpenError, Store, StoreError, StoreSettings, Watermark};
use planner::{Change, Entries, Numbers};
#[cfg(feature = "fuzzing")]
pub(crate) use record::read_anything;

/// About how many bytes of short records go to the committer in one request.
const REQUEST_BYTES: usize = 1 << 20;
/// How many pieces of a long record go to the committer in one request.
const PIECES: usize = 16;

/// Settings of the store of durable entries.
#[derive(Debug, Clone)]
pub struct DdataStoreSettings {
    /// Page cache. Default 64 MiB. Source: ddata §8, `durable.cache_bytes`.
    pub cache_bytes: u64,
    /// With fewer bytes free on the file system of the store, values and deltas are refused, so updates end with
    /// `StoreFailed`, until twice as many are free; with fewer than half, tombstones and the replicator's own records
    /// are refused too. Reads and removals always work. Default 256 MiB; 0 switches the limit off. Source: ddata U2,
    /// persistence §4.3.
    pub min_free_bytes: u64,
    /// The size of a file that is given up when a full disk would not let the store open: the engine's
    /// [`StoreSettings::ballast_bytes`]. Default 64 MiB; 0 for none. Source: ddata U2, persistence §4.3.
    pub ballast_bytes: u64,
    /// How the free bytes are measured. Default: by asking the file system.
    pub disk: Disk,
    /// All other settings of the engine.
    pub engine: StoreSettings,
}

impl Default for DdataStoreSettings {
    fn default() -> Self {
        let (min_free_bytes, ballast_bytes) = (256 << 20, 64 << 20);
        Self {
            cache_bytes: 64 << 20,
            min_free_bytes,
            ballast_bytes,
            disk: Disk::system(),
            engine: StoreSettings::default(),
        }
    }
}

impl DdataStoreSettings {
    /// Settings for tests: a small cache, short waits, a disk of any fullness.
    pub fn test() -> Self {
        let (min_free_bytes, ballast_bytes) = (0, 0);
        let engine = StoreSettings::test();
        Self { cache_bytes: 8 << 20, min_free_bytes, ballast_bytes, engine, ..Self::default() }
    }
}

/// Keeps durable entries in a directory. Nothing is opened before the replicator loads.
///
/// ```
/// use std::sync::Arc;
/// use greylag_core::Registry;
/// use greylag_crdt::GCounter;
/// use greylag_ddata::{DurableSettings, Key, Membership, ReadLevel, Replicator, ReplicatorSettings, TypeTable, WriteLevel};
/// use greylag_store_sled::{DdataStore, DdataStoreSettings};
/// use greylag_transport::memory::MemoryNetwork;
///
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
/// # let data = tempfile::tempdir()?;
/// let network = MemoryNetwork::new();
/// // A node that is started anew is a new incarnation; its store is the same.
/// let start = |node: &str| -> Result<Replicator, Box<dyn std::error::Error>> {
///     let remoting = network.node(node.parse()?, Arc::new(Registry::new()));
///     let settings = ReplicatorSettings { durable: DurableSettings::of(["visits"]), ..ReplicatorSettings::test() };
///     let store = Arc::new(DdataStore::new(data.path().join("ddata"), DdataStoreSettings::default()));
///     Ok(Replicator::start_durable(settings, TypeTable::new(), remoting, Membership::fixed([]), store)?)
/// };
/// let visits = Key::<GCounter>::new("visits")?;
///
/// let first = start("shop:7355#1")?;
/// first.update(&visits, WriteLevel::Local, GCounter::new, |visits, cx| visits.increment(cx, 3)).await?;
/// first.shutdown().await;
///
/// let second = start("shop:7355#2")?;
/// let read = second.get(&visits, ReadLevel::Local).await?;
/// assert_eq!(read.found().map(|visits| visits.value()), Some(3));
/// # second.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DdataStore {
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    settings: StoreSettings,
    numbers: Numbers,
    watermark: Watermark,
    store: Mutex<Option<Store<Entries>>>,
}

impl DdataStore {
    /// The store in the directory `path`, which is created when the store is opened.
    pub fn new(path: impl Into<PathBuf>, settings: DdataStoreSettings) -> Self {
        let DdataStoreSettings { cache_bytes, min_free_bytes, ballast_bytes, disk, engine } = settings;
        let settings = StoreSettings { cache_bytes, ballast_bytes, ..engine };
        let (path, numbers, store) = (path.into(), Numbers::default(), Mutex::new(None));
        let watermark = Watermark::new(&path, disk, min_free_bytes);
        Self { shared: Arc::new(Shared { path, settings, numbers, watermark, store }) }
    }

    /// The directory of a replicator's store: a path that ends in `ddata` is completed by the names of cluster and
    /// replicator and by the port, so that nodes on one machine do not meet; any other path is taken as it is. Relative
    /// paths begin at `data_dir`. Source: ddata U6.
    pub fn place(data_dir: &Path, path: &Path, cluster: &str, replicator: &str, port: u16) -> PathBuf {
        let ends_so = path.file_name().and_then(|name| name.to_str()).filter(|name| name.ends_with("ddata"));
        let named = ends_so.map(|name| path.with_file_name(format!("{name}-{cluster}-{replicator}-{port}")));
        data_dir.join(named.as_deref().unwrap_or(path))
    }

    /// The directory of the store.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }
}

impl std::fmt::Debug for DdataStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DdataStore").field("path", &self.shared.path).finish_non_exhaustive()
    }
}

impl Shared {
    fn failed(&self, why: &dyn std::fmt::Display) -> Failure {
        Failure::Failed { place: self.path.display().to_string(), why: why.to_string() }
    }

    /// Opens the store unless it is open. Blocks.
    fn open(&self) -> Result<Store<Entries>, Failure> {
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

    fn opened(&self) -> Option<Store<Entries>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
    fn set_aside(&self) -> Result<PathBuf, Failure> {
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

    async fn append(self: Arc<Self>, ops: Vec<StoreOp>) -> Result<(), Failure> {
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

impl DurableStore for DdataStore {
    fn load_all(&self) -> BoxStream<'_, Result<LoadBatch, Failure>> {
        loading::load_all(self.shared.clone())
    }

    fn append(&self, ops: Vec<StoreOp>) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(self.shared.clone().append(ops))
    }

    fn set_aside(&self) -> BoxFuture<'_, Result<String, Failure>> {
        Box::pin(async {
            let shared = self.shared.clone();
            let moved = off_thread(move || shared.set_aside()).await;
            moved
                .unwrap_or_else(|| Err(self.shared.failed(&"no thread to move it on")))
                .map(|aside| aside.display().to_string())
        })
    }

    /// Nothing to do: appending ends with a sync.
    fn flush(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Failure>> {
        let store = self.shared.store.lock().unwrap_or_else(PoisonError::into_inner).take();
        Box::pin(async move {
            let Some(store) = store else { return Ok(()) };
            let closed = off_thread(move || store.close()).await;
            closed.unwrap_or(Ok(())).map_err(|error| self.shared.failed(&error))
        })
    }
}

/// Runs a blocking closure on a thread of its own. `None` if no thread can be started.
async fn off_thread<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, result) = oneshot::channel();
    let spawned = thread::Builder::new().name("greylag-ddata-store".into()).spawn(move || {
        // A caller that is gone wants no answer.
        let _gone = done.send(run());
    });
    spawned.ok()?;
    result.await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ddata U6: only a path that ends in `ddata` is completed.
    #[test]
    fn the_default_path_tells_nodes_apart() {
        let place = |path: &str| DdataStore::place(Path::new("/var/lib/shop"), Path::new(path), "shop", "carts", 7355);
        assert_eq!(place("ddata"), Path::new("/var/lib/shop/ddata-shop-carts-7355"));
        assert_eq!(place("/mnt/my-ddata"), Path::new("/mnt/my-ddata-shop-carts-7355"));
        assert_eq!(place("/mnt/carts"), Path::new("/mnt/carts"));
    }
}
