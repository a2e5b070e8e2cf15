//! What a crate on the engine supplies: how requests become changes.

use crate::batch::Batch;
use crate::error::StoreError;
use crate::reader::Reader;

/// Turns requests into changes, on the committer's thread, one group at a time.
///
/// The committer drives it: `recover` after every open, then for each group `plan` and `once_durable`. Because
/// one thread does all of this, a plan may check a condition and write on the strength of it, without a
/// transaction. A plan reads the store with all earlier groups in it; the last of them may not be durable yet, but
/// will be before this one, or neither.
pub trait Planner: Send + 'static {
    /// What is asked of the store.
    type Request: Request;
    /// What a request is answered once its group is durable.
    type Answer: Send + 'static;

    /// Reads anew what the planner keeps in memory, whose former content may never have become
    /// durable. May repair: the batch is committed before the first group.
    ///
    /// # Errors
    /// Any error fails the opening; damage is reported as [`StoreError::Corrupt`].
    fn recover(&mut self, reader: &Reader, batch: &mut Batch) -> Result<(), StoreError>;

    /// Adds to `batch` what the requests change, and answers each of them, in order. Called with no
    /// requests too when [`Planner::has_background_work`] says so. If the batch stays empty, nothing
    /// is committed and the answers go out at once.
    ///
    /// # Errors
    /// Any error poisons the store: every request of the group stays unanswered.
    fn plan(
        &mut self,
        requests: Vec<Self::Request>,
        reader: &Reader,
        batch: &mut Batch,
    ) -> Result<Vec<Self::Answer>, StoreError>;

    /// What there is to do when the last plan is durable, before its answers go out. It runs on another thread,
    /// in the order of the plans, and is dropped if the store fails first.
    fn once_durable(&mut self) -> OnceDurable {
        Box::new(|| {})
    }

    /// Whether the next plan may be made only when everything before it is durable, because it removes what
    /// readers look at until then. While this is so, no group is planned while another one is synced.
    fn needs_durable(&self) -> bool {
        false
    }

    /// The number of the last commit planned so far, or found by `recover`, if the tail of the store is to
    /// be guarded: it must rise with every commit that may not get lost. A guarded store whose last commit
    /// has a smaller number than was ever acknowledged is not opened.
    fn tail(&self) -> Option<u64> {
        None
    }

    /// Looks, after `recover` and once the tail guard is content, whether everything is there. May add to the batch
    /// that `recover` began.
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

    /// Whether `plan` should be called although there is no request.
    fn has_background_work(&self) -> bool {
        false
    }
}

/// See [`Planner::once_durable`].
pub type OnceDurable = Box<dyn FnOnce() + Send>;

/// Something asked of a store.
pub trait Request: Send + 'static {
    /// About how many bytes it holds in the queue, and in a group.
    fn bytes(&self) -> usize;
}
