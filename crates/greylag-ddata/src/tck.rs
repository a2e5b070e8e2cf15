//! The public conformance kit for stores of durable entries: one call proves an implementation.
//!
//! ```
//! use std::sync::Arc;
//! use greylag_ddata::{DurableStore, MemoryStore, tck};
//!
//! struct Memory(MemoryStore);
//!
//! impl tck::StoreBench for Memory {
//!     fn fresh() -> Self {
//!         Self(MemoryStore::default())
//!     }
//!     fn open(&self) -> Arc<dyn DurableStore> {
//!         Arc::new(self.0.clone())
//!     }
//! }
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! tck::durable_store::<Memory>().await.assert_conforms();
//! # });
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! The hook for what only the store itself can do, damaging a record, is optional; the case that lacks it
//! is reported as skipped, never as passed. The kit needs no runtime of its own. Source: ddata U2, U5.

mod cases;

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;

use crate::store::{DurableStore, LoadBatch, StoreError, StoreOp};

pub use cases::durable_store;

/// What an implementation gives the kit: a place, and stores there.
pub trait StoreBench: Send + Sync + Sized {
    /// A place where nothing is stored.
    fn fresh() -> Self;

    /// A store at this place, as another process would have it; nothing has been loaded with it.
    fn open(&self) -> Arc<dyn DurableStore>;

    /// Damages what is stored for an entry; answers whether it can. Nothing has the place open.
    fn damage(&self, _key: &str) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(false))
    }
}

/// What became of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The store does what it should.
    Passed,
    /// The bench lacks the hook for it.
    Skipped,
    /// The store does not, for this reason.
    Failed(String),
}

/// What became of all cases.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// In order: the name of a case, and its outcome.
    pub cases: Vec<(&'static str, Outcome)>,
}

impl Report {
    /// Fails unless every case passed or was skipped.
    ///
    /// # Panics
    /// If a case failed, with all of them.
    pub fn assert_conforms(&self) {
        let failed = self.cases.iter().any(|(_, outcome)| matches!(outcome, Outcome::Failed(_)));
        assert!(!failed, "the store does not conform:\n{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cases.iter().try_for_each(|(name, outcome)| match outcome {
            Outcome::Passed => writeln!(f, "ok       {name}"),
            Outcome::Skipped => writeln!(f, "skipped  {name}"),
            Outcome::Failed(why) => writeln!(f, "FAILED   {name}: {why}"),
        })
    }
}

/// Reads all of a store.
///
/// # Errors
/// What the store says.
pub async fn load(store: &dyn DurableStore) -> Result<LoadBatch, StoreError> {
    use futures::StreamExt;
    let mut all = LoadBatch::default();
    let mut batches = store.load_all();
    while let Some(batch) = batches.next().await {
        let batch = batch?;
        all.records.extend(batch.records);
        all.meta = batch.meta.or(all.meta);
    }
    Ok(all)
}

/// Appends and flushes.
///
/// # Errors
/// What the store says.
pub async fn store(store: &dyn DurableStore, ops: Vec<StoreOp>) -> Result<(), StoreError> {
    store.append(ops).await?;
    store.flush().await
}
