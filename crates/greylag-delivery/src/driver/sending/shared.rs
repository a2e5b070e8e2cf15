//! What the handles and the task of a producer share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::command::Address;
use super::encoding::Encoding;
use crate::error::{ProducerError, SentError};
use crate::ids::SeqNr;

/// State shared by handles and task.
pub(crate) struct SendingState<T, A: Address> {
    pub(super) encoding: Arc<Encoding<T>>,
    pub(super) confirmed: watch::Sender<SeqNr>,
    pub(super) published: Mutex<A::State>,
    /// Why the producer has ended; `None` if it was closed.
    pub(super) end: Mutex<Option<ProducerError>>,
    pub(super) is_running: AtomicBool,
}

impl<T, A: Address> SendingState<T, A> {
    pub(super) fn new(encoding: Arc<Encoding<T>>, published: A::State) -> Self {
        let (end, is_running) = (Mutex::default(), AtomicBool::new(true));
        Self { encoding, confirmed: watch::channel(SeqNr::NONE).0, published: Mutex::new(published), end, is_running }
    }

    /// Whether the producer's task runs.
    pub(super) fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Relaxed)
    }

    /// Why the producer has ended on its own, if it has.
    pub(super) fn failure(&self) -> Option<ProducerError> {
        lock(&self.end).clone()
    }

    /// Why there are no more permits: the producer's own error, or that it was closed.
    pub(super) fn error(&self) -> ProducerError {
        self.failure().unwrap_or(ProducerError::Closed)
    }

    /// Why no more messages are sent.
    pub(super) fn end(&self) -> SentError {
        match self.error() {
            ProducerError::Fenced { newer, .. } => SentError::Fenced { newer },
            _ => SentError::Closed,
        }
    }
}

pub(super) fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
