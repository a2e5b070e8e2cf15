//! The handle for users of the engine.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use futures::channel::oneshot;

use crate::error::{OpenError, Refused, StoreError, Unanswered};
use crate::group_commit::{StoreInner, start};
use crate::health::{Health, StoreStats};
use crate::planner::Planner;
use crate::reader::Reader;
use crate::settings::StoreSettings;

/// One store on disk, with its committer. Clones share the store; dropping the last one closes it in the background,
/// and [`Store::close`] waits for that.
pub struct Store<P: Planner> {
    handle: Arc<Handle<P>>,
}

struct Handle<P: Planner> {
    path: PathBuf,
    shared: Arc<StoreInner<P>>,
}

impl<P: Planner> Store<P> {
    /// Opens the store in the directory `path`, or creates it. Blocks; see `lock_retry` for how long.
    ///
    /// # Errors
    /// [`OpenError::Locked`] if another process keeps the store open, [`OpenError::Failed`] or [`OpenError::Corrupt`]
    /// otherwise.
    pub fn open(path: impl AsRef<Path>, settings: StoreSettings, planner: P) -> Result<Self, OpenError> {
        let path = path.as_ref().to_owned();
        let shared = start(path.clone(), settings, planner)?;
        Ok(Self { handle: Arc::new(Handle { path, shared }) })
    }

    /// Hands a request to the committer. Requests are planned in the order of these calls, and an accepted request runs
    /// even if its [`Pending`] is dropped. Never blocks.
    ///
    /// # Errors
    /// [`Refused`]: the request was not accepted and changes nothing.
    pub fn submit(&self, request: P::Request) -> Result<Pending<P::Answer>, Refused> {
        self.handle.shared.submit(request).map(Pending)
    }

    /// Reads from any thread. Do not keep the reader: it holds the store open.
    ///
    /// # Errors
    /// [`StoreError::Down`] if the store is closed or failed.
    pub fn reader(&self) -> Result<Reader, StoreError> {
        self.handle.shared.reader()
    }

    /// The state of the store.
    pub fn health(&self) -> Health {
        self.handle.shared.health()
    }

    /// Counters since the store was opened.
    pub fn stats(&self) -> StoreStats {
        self.handle.shared.stats()
    }

    /// Directory of the store.
    pub fn path(&self) -> &Path {
        &self.handle.path
    }

    /// Answers the waiting requests, closes the files, and blocks until that is done. Idempotent.
    ///
    /// # Errors
    /// [`StoreError::Stalled`] if the committer does not end within `commit_stall_timeout`.
    pub fn close(&self) -> Result<(), StoreError> {
        self.handle.shared.begin_close();
        self.handle.shared.wait_closed()
    }
}

impl<P: Planner> Clone for Store<P> {
    fn clone(&self) -> Self {
        Self { handle: self.handle.clone() }
    }
}

impl<P: Planner> std::fmt::Debug for Store<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("path", &self.handle.path).finish_non_exhaustive()
    }
}

impl<P: Planner> Drop for Handle<P> {
    fn drop(&mut self) {
        self.shared.begin_close();
    }
}

/// The answer to a request, once it is durable.
#[derive(Debug)]
pub struct Pending<A>(oneshot::Receiver<A>);

impl<A> Pending<A> {
    /// Blocks the thread until the answer arrives; for programs without a runtime.
    ///
    /// # Errors
    /// [`Unanswered`] if the store failed first.
    pub fn wait(mut self) -> Result<A, Unanswered> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            match Pin::new(&mut self).poll(&mut context) {
                Poll::Ready(answer) => return answer,
                Poll::Pending => thread::park(),
            }
        }
    }
}

impl<A> Future for Pending<A> {
    type Output = Result<A, Unanswered>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_err(|_| Unanswered)
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests;
