//! A message in the hands of the application, and the way back to its controller.
//!
//! Confirming is a business act: only the application does it, and nothing confirms on its behalf. A
//! [`Delivery`] that is dropped unconfirmed (an early return, `?`, a panic) is handed out again.
//!
//! Source: delivery §0, C12, C16, §6.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::dedupe::Dedupe;
use crate::ids::{MessageId, SeqNr, StreamId};
use crate::machine::sharding_consumer::DeliveryHandle;

/// What the application has done with its deliveries since its controller last looked.
pub(crate) enum Outcome {
    Confirmed(DeliveryHandle),
    Abandoned(DeliveryHandle, Option<Duration>),
    /// The entity has recovered, and this is what its history says.
    #[cfg_attr(not(feature = "persistence"), allow(dead_code))]
    Recovered(Dedupe),
    /// The behaviour found the delivery's mark in its history, and did not run.
    #[cfg_attr(not(feature = "persistence"), allow(dead_code))]
    Suppressed,
}

/// The way back: written to by deliveries wherever they are, read by the entity's controller.
#[derive(Default)]
pub(crate) struct Outcomes(Mutex<Pending>);

#[derive(Default)]
struct Pending {
    queue: Vec<Outcome>,
    /// The controller's task, if it waits for an outcome that is queued outside of a handler.
    waker: Option<Waker>,
    /// Deliveries handed out and not confirmed.
    open: BTreeSet<(StreamId, SeqNr)>,
}

impl Outcomes {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn push(&self, outcome: Outcome) {
        let mut pending = self.lock();
        pending.queue.push(outcome);
        let waker = pending.waker.take();
        drop(pending);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn take(&self) -> Vec<Outcome> {
        std::mem::take(&mut self.lock().queue)
    }

    pub(crate) fn open(&self, id: &MessageId) {
        self.lock().open.insert((id.stream_id, id.seq_nr));
    }

    pub(crate) fn close(&self, id: &MessageId) {
        self.lock().open.remove(&(id.stream_id, id.seq_nr));
    }

    pub(crate) fn open_count(&self) -> usize {
        self.lock().open.len()
    }

    /// Whether an earlier delivery of the same stream is neither persisted nor confirmed.
    #[cfg_attr(not(feature = "persistence"), allow(dead_code))]
    pub(crate) fn has_earlier(&self, id: &MessageId) -> bool {
        let from = (id.stream_id, SeqNr::NONE);
        self.lock().open.range(from..(id.stream_id, id.seq_nr)).next().is_some()
    }

    /// Ready when something is queued; otherwise the last waker given is woken then.
    pub(crate) fn poll_changed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut pending = self.lock();
        if pending.queue.is_empty() {
            pending.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

/// A message that waits to be processed and confirmed.
#[must_use = "a delivery that is dropped unconfirmed is handed out again"]
pub struct Delivery<T> {
    message: Arc<T>,
    confirm: ConfirmHandle,
}

impl<T> Delivery<T> {
    pub(crate) fn new(message: Arc<T>, handle: DeliveryHandle, outcomes: Arc<Outcomes>) -> Self {
        Self { message, confirm: ConfirmHandle { handle: Some(handle), outcomes } }
    }

    /// Confirms that the message is processed, for good. Never fails: a confirmation that comes too late changes
    /// nothing, and the message then comes again.
    pub fn confirm(self) {
        self.confirm.confirm();
    }

    /// Says that the message cannot be processed now; it is handed out again after the pause.
    pub fn nack(self, after: Duration) {
        self.confirm.nack(after);
    }

    /// What makes it the same message as another delivery.
    pub fn id(&self) -> &MessageId {
        &self.confirm.handle().id
    }

    /// Its number in its stream.
    pub fn seq_nr(&self) -> SeqNr {
        self.id().seq_nr
    }

    /// 1 for the first attempt, as far as this controller knows.
    pub fn attempt(&self) -> u32 {
        self.confirm.handle().key.attempt
    }

    /// The message, and the right to confirm it.
    pub fn split(self) -> (Arc<T>, ConfirmHandle) {
        (self.message, self.confirm)
    }
}

impl<T> Deref for Delivery<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.message
    }
}

impl<T: fmt::Debug> fmt::Debug for Delivery<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery").field("id", self.id()).field("message", &self.message).finish()
    }
}

/// The right to confirm one delivery; dropped, the delivery is handed out again.
#[must_use = "dropping it hands the delivery out again"]
pub struct ConfirmHandle {
    /// Taken by whatever is said first.
    handle: Option<DeliveryHandle>,
    outcomes: Arc<Outcomes>,
}

impl ConfirmHandle {
    /// See [`Delivery::confirm`].
    pub fn confirm(mut self) {
        if let Some(handle) = self.handle.take() {
            self.outcomes.push(Outcome::Confirmed(handle));
        }
    }

    /// See [`Delivery::nack`].
    pub fn nack(mut self, after: Duration) {
        if let Some(handle) = self.handle.take() {
            self.outcomes.push(Outcome::Abandoned(handle, Some(after)));
        }
    }

    fn handle(&self) -> &DeliveryHandle {
        self.handle.as_ref().expect("only consuming methods take it")
    }
}

impl Drop for ConfirmHandle {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            self.outcomes.push(Outcome::Abandoned(handle, None));
        }
    }
}

impl fmt::Debug for ConfirmHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConfirmHandle").field(&self.handle).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ProducerId;
    use crate::machine::consumer_link::DeliveryKey;

    fn handle(total: u64) -> DeliveryHandle {
        let id = MessageId { producer_id: ProducerId::new("p").unwrap(), stream_id: StreamId(1), seq_nr: SeqNr(total) };
        DeliveryHandle { id, link: 1, key: DeliveryKey { number: total, attempt: 1 } }
    }

    #[test]
    fn a_delivery_says_exactly_one_thing() {
        let outcomes = Arc::new(Outcomes::default());
        let delivery = |total| Delivery::new(Arc::new("message"), handle(total), outcomes.clone());
        delivery(1).confirm();
        delivery(2).nack(Duration::from_secs(1));
        drop(delivery(3));
        delivery(4).split().1.confirm();
        drop(delivery(5).split().1);
        let said: Vec<String> = (outcomes.take().into_iter())
            .map(|outcome| match outcome {
                Outcome::Confirmed(handle) => format!("confirmed {}", handle.id.seq_nr),
                Outcome::Abandoned(handle, pause) => format!("abandoned {} {pause:?}", handle.id.seq_nr),
                Outcome::Recovered(_) | Outcome::Suppressed => "other".to_owned(),
            })
            .collect();
        assert_eq!(
            said,
            ["confirmed 1", "abandoned 2 Some(1s)", "abandoned 3 None", "confirmed 4", "abandoned 5 None"]
        );
    }

    #[test]
    fn a_panic_abandons_the_delivery() {
        let outcomes = Arc::new(Outcomes::default());
        let delivery = Delivery::new(Arc::new(()), handle(1), outcomes.clone());
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _delivery = delivery;
            std::panic::resume_unwind(Box::new("on purpose"));
        }))
        .unwrap_err();
        assert!(matches!(outcomes.take()[..], [Outcome::Abandoned(..)]));
    }

    #[test]
    fn earlier_means_open_in_the_same_stream() {
        let outcomes = Outcomes::default();
        outcomes.open(&handle(3).id);
        outcomes.open(&handle(5).id);
        assert!(outcomes.has_earlier(&handle(5).id));
        assert!(!outcomes.has_earlier(&handle(3).id));
        let other = MessageId { stream_id: StreamId(2), ..handle(9).id };
        assert!(!outcomes.has_earlier(&other));
        outcomes.close(&handle(3).id);
        assert!(!outcomes.has_earlier(&handle(5).id));
    }
}
