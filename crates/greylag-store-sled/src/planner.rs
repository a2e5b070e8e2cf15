//! The interface of crates on the engine: how requests become changes.

use crate::batch::Batch;
use crate::error::StoreError;
use crate::reader::Reader;

/// Turns requests into changes, on the committer's thread, one group at a time.
///
/// The committer calls `recover` after every open, then `plan` and `once_durable` for each group. Because one thread
/// does all of this, a plan may check a condition and write on the strength of it, without a transaction. A plan reads
/// the store with all earlier groups applied; the last of them may not be durable yet, but becomes durable before this
/// group, or neither does.
pub trait Planner: Send + 'static {
    /// A request to the store.
    type Request: Request;
    /// The answer to a request once its group is durable.
    type Answer: Send + 'static;

    /// Rebuilds what the planner keeps in memory, because its former content may never have become durable. May repair:
    /// the batch is committed before the first group.
    ///
    /// # Errors
    /// Any error fails the opening; damage is reported as [`StoreError::Corrupt`].
    fn recover(&mut self, reader: &Reader, batch: &mut Batch) -> Result<(), StoreError>;

    /// Adds the changes of the requests to `batch`, and returns one answer per request, in order. Also called without
    /// requests if [`Planner::has_background_work`] is true. If the batch stays empty, nothing is committed and the
    /// answers are sent at once.
    ///
    /// # Errors
    /// Any error poisons the store: every request of the group stays unanswered.
    fn plan(
        &mut self,
        requests: Vec<Self::Request>,
        reader: &Reader,
        batch: &mut Batch,
    ) -> Result<Vec<Self::Answer>, StoreError>;

    /// Returns what is to be done when the last plan is durable, before its answers are sent. The closure runs on
    /// another thread, in the order of the plans, and is dropped if the store fails first.
    fn once_durable(&mut self) -> OnceDurable {
        Box::new(|| {})
    }

    /// Whether the next plan may be made only when everything before it is durable, because it removes data that
    /// readers use until then. While this is true, no group is planned while another one is synced.
    fn needs_durable(&self) -> bool {
        false
    }

    /// The number of the last commit planned so far, or found by `recover`, if the tail of the store is to be guarded.
    /// The number must rise with every commit that may not get lost. A guarded store whose last commit has a smaller
    /// number than was ever acknowledged is not opened.
    fn tail(&self) -> Option<u64> {
        None
    }

    /// Checks, after `recover` and once the tail guard agrees, whether all records are there. May add to the batch that
    /// `recover` began.
    ///
    /// # Errors
    /// Any error fails the opening; a loss is reported as [`StoreError::Corrupt`].
    fn verify(&mut self, _reader: &Reader, _batch: &mut Batch) -> Result<(), StoreError> {
        Ok(())
    }

    /// The advice to an operator whose store is damaged.
    fn repair(&self) -> &'static str {
        "restore the directory from a copy"
    }

    /// Whether `plan` should be called although no request waits.
    fn has_background_work(&self) -> bool {
        false
    }
}

/// See [`Planner::once_durable`].
pub type OnceDurable = Box<dyn FnOnce() + Send>;

/// A request to a store.
pub trait Request: Send + 'static {
    /// About how many bytes the request takes in the queue and in a group.
    fn bytes(&self) -> usize;
}
