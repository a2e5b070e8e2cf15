//! Asks of an entity that runs as a task: the answer goes to a waiting future of the same process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use greylag_core::{EntityError, ReplyAddress, ReplyOutcome, ReplyPort, ReplyTo};
use tokio::sync::oneshot;

/// Numbers the asks of this process.
static ASKS: AtomicU64 = AtomicU64::new(1);

/// Receives the answer to one ask.
struct OneAnswer(Mutex<Option<oneshot::Sender<ReplyOutcome>>>);

impl ReplyPort for OneAnswer {
    fn reply(&self, _: &ReplyAddress, outcome: ReplyOutcome) {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The send fails only if the caller has stopped waiting, which is not an error.
        let _ = waiting.map(|waiting| waiting.send(outcome));
    }
}

/// A reply token, and the receiver of its answer.
pub(super) fn question<R: Send + 'static>() -> (ReplyTo<R>, oneshot::Receiver<ReplyOutcome>) {
    let (answer, coming) = oneshot::channel();
    let node = "alone:1#1".parse().expect("a fixed address parses");
    let address = ReplyAddress { node, ask_id: ASKS.fetch_add(1, Ordering::Relaxed) };
    (ReplyTo::new(address, Arc::new(OneAnswer(Mutex::new(Some(answer))))), coming)
}

/// Waits for the answer to a [`question`].
pub(super) async fn answer<R: Send + 'static>(coming: oneshot::Receiver<ReplyOutcome>) -> Result<R, EntityError> {
    match coming.await {
        Ok(ReplyOutcome::Value { value, .. }) => Ok(*value.downcast::<R>().expect("the token answers its own type")),
        Ok(ReplyOutcome::Failed(error)) => Err(error),
        // Only sharding drops messages on their way. Or the token was encoded and its answer port dropped, so that no
        // answer can come to this process.
        Ok(ReplyOutcome::Dropped(_)) | Err(_) => Err(EntityError::NoReply),
    }
}
