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
//! The hook that damages a record is optional, since only the store itself can do that; a case without its hook is
//! reported as skipped, never as passed. The kit needs no runtime of its own. Source: ddata U2, U5.

mod cases;

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;

use crate::storage::store::{DurableStore, LoadBatch, StoreError, StoreOp};

pub use cases::durable_store;

/// An implementation under test: a place, and stores at that place.
pub trait StoreBench: Send + Sync + Sized {
    /// A place where nothing is stored.
    fn fresh() -> Self;

    /// A store at this place, as another process would have it; it has loaded nothing yet.
    fn open(&self) -> Arc<dyn DurableStore>;

    /// Damages the record of an entry. Returns whether the bench can. No store has the place open.
    fn damage(&self, _key: &str) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(false))
    }
}

/// The outcome of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The store meets the requirement.
    Passed,
    /// The bench lacks the hook of the case.
    Skipped,
    /// The store does not meet the requirement, for this reason.
    Failed(String),
}

/// The outcomes of all cases.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The cases in order, each with its name and its outcome.
    pub cases: Vec<(&'static str, Outcome)>,
}

impl Report {
    /// Fails unless every case passed or was skipped.
    ///
    /// # Panics
    /// If a case failed; the message lists all outcomes.
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
/// The store's error.
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
/// The store's error.
pub async fn store(store: &dyn DurableStore, ops: Vec<StoreOp>) -> Result<(), StoreError> {
    store.append(ops).await?;
    store.flush().await
}
