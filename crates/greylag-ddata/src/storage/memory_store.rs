//! A store in memory: for tests, and as the simplest implementation of a store.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt};

use crate::api::key::KeyId;
use crate::storage::store::{DurableStore, LoadBatch, LoadedRecord, StoreError, StoreMeta, StoreOp};

/// The content of a store, as a value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreImage {
    /// The record of each entry.
    pub records: BTreeMap<KeyId, LoadedRecord>,
    /// The replicator's own record.
    pub meta: Option<StoreMeta>,
    /// Quarantined records, by entry.
    pub quarantined: BTreeMap<KeyId, Vec<LoadedRecord>>,
}

impl StoreImage {
    /// Applies a change.
    pub fn apply(&mut self, op: StoreOp) {
        match op {
            StoreOp::Put { key, tag, bytes, markers } => {
                let record = LoadedRecord::Value { key: key.clone(), tag, bytes, markers, deltas: Vec::new() };
                self.records.insert(key, record);
            }
            StoreOp::Delta { key, bytes } => match self.records.get_mut(&key) {
                Some(LoadedRecord::Value { deltas, .. }) => deltas.push(bytes),
                _ => {
                    let why = "a delta without a snapshot".into();
                    self.records.insert(key.clone(), LoadedRecord::Bad { key, why });
                }
            },
            StoreOp::Tombstone { key, deleted_at } => {
                self.records.insert(key.clone(), LoadedRecord::Tombstone { key, deleted_at });
            }
            StoreOp::Remove { key } => drop(self.records.remove(&key)),
            StoreOp::Quarantine { key } => {
                if let Some(record) = self.records.remove(&key) {
                    self.quarantined.entry(key).or_default().push(record);
                }
            }
            StoreOp::Meta(meta) => self.meta = Some(meta),
        }
    }

    /// All records, in one batch.
    pub fn load(&self) -> LoadBatch {
        LoadBatch { records: self.records.values().cloned().collect(), meta: self.meta.clone() }
    }
}

#[derive(Debug, Default)]
struct MemoryDisk {
    durable: StoreImage,
    appended: Vec<StoreOp>,
    aside: Vec<StoreImage>,
    open_by: Option<u64>,
}

static HANDLES: AtomicU64 = AtomicU64::new(1);

/// A store that lasts as long as one of its clones. Every clone stands for another process that opens the same store:
/// it sees what was flushed, and finds the store locked while another clone has it open. A clone that is dropped
/// without being closed stands for a process that crashed.
#[derive(Debug)]
pub struct MemoryStore {
    place: Arc<Mutex<MemoryDisk>>,
    handle: u64,
}

impl MemoryStore {
    /// The durable content.
    pub fn image(&self) -> StoreImage {
        self.lock().durable.clone()
    }

    /// The contents that were set aside, the oldest first.
    pub fn aside(&self) -> Vec<StoreImage> {
        self.lock().aside.clone()
    }

    /// Changes the durable content; clones that have the store open do not notice.
    pub fn edit(&self, edit: impl FnOnce(&mut StoreImage)) {
        edit(&mut self.lock().durable);
    }

    fn lock(&self) -> MutexGuard<'_, MemoryDisk> {
        // Ignore poisoning: no code panics half-way through a change.
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Result<MutexGuard<'_, MemoryDisk>, StoreError> {
        let mut place = self.lock();
        if *place.open_by.get_or_insert(self.handle) == self.handle {
            Ok(place)
        } else {
            Err(StoreError::Locked { place: "memory".into() })
        }
    }

    fn let_go(&self) {
        let mut place = self.lock();
        if place.open_by == Some(self.handle) {
            place.open_by = None;
            place.appended.clear();
        }
    }

    fn write_out(&self) -> Result<(), StoreError> {
        let mut place = self.open()?;
        for op in std::mem::take(&mut place.appended) {
            place.durable.apply(op);
        }
        Ok(())
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self { place: Arc::default(), handle: HANDLES.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Clone for MemoryStore {
    fn clone(&self) -> Self {
        Self { place: self.place.clone(), handle: HANDLES.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl DurableStore for MemoryStore {
    fn load_all(&self) -> BoxStream<'_, Result<LoadBatch, StoreError>> {
        stream::once(async { Ok(self.open()?.durable.load()) }).boxed()
    }

    fn append(&self, ops: Vec<StoreOp>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async {
            self.open()?.appended.extend(ops);
            Ok(())
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { self.write_out() })
    }

    fn set_aside(&self) -> BoxFuture<'_, Result<String, StoreError>> {
        Box::pin(async {
            let mut place = self.open()?;
            let durable = std::mem::take(&mut place.durable);
            place.appended.clear();
            place.aside.push(durable);
            Ok(format!("memory, set aside {}", place.aside.len()))
        })
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async {
            let written = self.write_out();
            self.let_go();
            written
        })
    }
}
