//! Runs a durable producer's queue in a task of its own, so that a slow store delays only messages to be stored.
//!
//! If the storing machine replaces a call by another one, the future of the earlier call is dropped; the queue may have
//! stored it all the same, and a repeat writes nothing twice.
//!
//! Source: delivery D4 to D7.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use greylag_core::Encoded;
use tokio::sync::mpsc;

use super::queue::DurableProducerQueue;
use crate::ids::ControllerRef;
use crate::machine::storing::{Answer, Call};
use crate::queue::QueueError;

type Queue = Box<dyn DurableProducerQueue<Encoded>>;

/// The channels to and from the task. When dropped, the task ends and releases the queue.
#[derive(Debug)]
pub(super) struct Store {
    calls: mpsc::UnboundedSender<(u64, Call<Encoded>)>,
    answers: mpsc::UnboundedReceiver<(u64, Answer<Encoded>)>,
}

impl Store {
    /// Starts the task of a queue. Every load passes the same reference `controller`.
    pub(super) fn open(queue: Queue, controller: ControllerRef) -> Self {
        let (calls, called) = mpsc::unbounded_channel();
        let (answer, answers) = mpsc::unbounded_channel();
        tokio::spawn(serve(queue, controller, called, answer));
        Self { calls, answers }
    }

    /// Calls the queue. An earlier unanswered call is dropped.
    pub(super) fn call(&self, id: u64, call: Call<Encoded>) {
        self.calls.send((id, call)).ok(); // if the task has ended there is no answer; the machine handles that
    }

    /// The next answer. Cancel safe; pending if the task has ended.
    pub(super) async fn answer(&mut self) -> (u64, Answer<Encoded>) {
        match self.answers.recv().await {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}

async fn serve(
    mut queue: Queue,
    controller: ControllerRef,
    mut calls: mpsc::UnboundedReceiver<(u64, Call<Encoded>)>,
    answers: mpsc::UnboundedSender<(u64, Answer<Encoded>)>,
) {
    let mut next = calls.recv().await;
    while let Some((id, call)) = next.take() {
        tokio::select! {
            biased;
            answer = run_call(&mut queue, &controller, call) => {
                if answers.send((id, answer)).is_err() {
                    return;
                }
                next = calls.recv().await;
            }
            later = calls.recv() => next = later,
        }
    }
}

/// Carries out one call. After a panic of the queue, the outcome of the call is unknown.
async fn run_call(queue: &mut Queue, controller: &ControllerRef, call: Call<Encoded>) -> Answer<Encoded> {
    match call {
        Call::Load => {
            let loaded = AssertUnwindSafe(queue.load(controller)).catch_unwind().await;
            Answer::Loaded(loaded.unwrap_or_else(|_| Err(QueueError::NotStored("the queue panicked".to_owned()))))
        }
        Call::Store(batch) => {
            let stored = AssertUnwindSafe(queue.store_message_sent(batch)).catch_unwind().await;
            Answer::Stored(stored.unwrap_or(Err(QueueError::OutcomeUnknown)))
        }
        Call::Poll(max_messages) => {
            let polled = AssertUnwindSafe(queue.poll_new(max_messages)).catch_unwind().await;
            Answer::Polled(polled.unwrap_or(Err(QueueError::OutcomeUnknown)))
        }
        Call::Confirm(confirmations) => {
            let stored = AssertUnwindSafe(queue.store_message_confirmed(confirmations)).catch_unwind().await;
            Answer::Confirmed(stored.unwrap_or(Err(QueueError::OutcomeUnknown)))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use async_trait::async_trait;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::ids::SeqNr;
    use crate::queue::{Confirmation, MessageSent, QueueState};

    /// A queue whose stores each wait for a permit, and whose load panics.
    struct Slow(Arc<Semaphore>);

    #[async_trait]
    impl DurableProducerQueue<Encoded> for Slow {
        async fn load(&mut self, _: &ControllerRef) -> Result<QueueState<Encoded>, QueueError> {
            panic!("on purpose")
        }

        async fn store_message_sent(&mut self, batch: Vec<MessageSent<Encoded>>) -> Result<SeqNr, QueueError> {
            self.0.acquire().await.unwrap().forget();
            Ok(SeqNr(batch.len() as u64))
        }

        async fn store_message_confirmed(&mut self, _: Vec<Confirmation>) -> Result<(), QueueError> {
            Ok(())
        }

        fn max_message_bytes(&self) -> usize {
            1
        }
    }

    #[tokio::test]
    async fn a_later_call_takes_the_place_of_one_that_hangs_and_a_panic_is_an_answer() {
        let stores = Arc::new(Semaphore::new(0));
        let controller = ControllerRef { node: "n:1#1".parse().unwrap(), path: "p".into(), instance: 0 };
        let mut store = Store::open(Box::new(Slow(stores.clone())), controller);
        store.call(1, Call::Store(Vec::new()));
        assert!(tokio::time::timeout(Duration::from_millis(20), store.answer()).await.is_err(), "the store hangs");
        store.call(2, Call::Confirm(Vec::new()));
        assert_eq!(store.answer().await, (2, Answer::Confirmed(Ok(()))));
        stores.add_permits(1);
        store.call(3, Call::Store(Vec::new()));
        assert_eq!(store.answer().await, (3, Answer::Stored(Ok(SeqNr(0)))));
        store.call(4, Call::Load);
        assert!(matches!(store.answer().await, (4, Answer::Loaded(Err(QueueError::NotStored(_))))));
        assert_eq!(Arc::strong_count(&stores), 2);
        drop(store);
        while Arc::strong_count(&stores) > 1 {
            tokio::task::yield_now().await;
        }
    }
}
