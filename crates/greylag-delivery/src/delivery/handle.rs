//! A message in the hands of the application, and the way back to its controller.
//!
//! Only the application confirms a delivery; no code of this crate confirms on its behalf. A [`Delivery`] that is
//! dropped unconfirmed (an early return, `?`, a panic) is handed out again.
//!
//! Source: delivery §0, C12, C16, §6.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use greylag_core::UniqueAddress;

use crate::ids::{MessageId, SeqNr, StreamId};
use crate::machine::dedupe::Dedupe;
use crate::machine::sharding_consumer::DeliveryHandle;

/// An event for the controller from the application's deliveries, or from the entity that hosts the controller.
pub(crate) enum Outcome {
    Confirmed(DeliveryHandle),
    Abandoned(DeliveryHandle, Option<Duration>),
    /// The effect of the delivery was refused, because an earlier delivery of the stream is neither persisted nor
    /// confirmed.
    #[cfg_attr(not(feature = "persistence"), allow(dead_code))]
    Deferred(DeliveryHandle),
    /// The entity has recovered; carries the watermarks of its history.
    #[cfg_attr(not(feature = "persistence"), allow(dead_code))]
    Recovered(Dedupe),
    /// The delivery's mark was found in the entity's history, so the behaviour did not run.
    #[cfg_attr(not(feature = "persistence"), allow(dead_code))]
    Suppressed,
    /// A node was removed for good, and the producers on that node with it.
    NodeGone(UniqueAddress),
}

/// Queue of outcomes from deliveries, on whatever task they live, to the controller of their entity.
#[derive(Default)]
pub(crate) struct Outcomes {
    /// Confirmations count only after a proof that this entity still owns its journal.
    needs_proof: bool,
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    queue: Vec<Outcome>,
    /// Confirmed, but ownership of the journal not yet proved.
    unproved: Vec<DeliveryHandle>,
    /// Waker of the controller's task, set while the task waits for an outcome queued outside of a handler.
    waker: Option<Waker>,
    /// Deliveries handed out and not confirmed, ascending.
    open: Vec<(StreamId, SeqNr)>,
    /// Streams with a link.
    streams: Vec<StreamId>,
}

impl Pending {
    fn close(&mut self, id: &MessageId) {
        if let Ok(index) = self.open.binary_search(&(id.stream_id, id.seq_nr)) {
            self.open.remove(index);
        }
    }

    fn has_news(&self) -> bool {
        !self.queue.is_empty() || !self.unproved.is_empty()
    }
}

impl Outcomes {
    /// Outcomes of an entity whose confirmations wait for a proof of ownership (delivery §7).
    #[cfg_attr(not(feature = "persistence"), allow(dead_code))]
    pub(crate) fn requiring_proof() -> Self {
        Self { needs_proof: true, pending: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Changes the pending outcomes, and wakes the controller's task.
    fn change(&self, change: impl FnOnce(&mut Pending)) {
        let mut pending = self.lock();
        change(&mut pending);
        let waker = pending.waker.take();
        drop(pending);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn push(&self, outcome: Outcome) {
        self.change(|pending| pending.queue.push(outcome));
    }

    /// Queues confirmations; they wait for a proof of ownership if the entity needs one.
    pub(crate) fn confirm(&self, handles: impl IntoIterator<Item = DeliveryHandle>) {
        if self.needs_proof {
            self.change(|pending| pending.unproved.extend(handles));
        } else {
            self.confirm_proved(handles);
        }
    }

    /// Queues confirmations of an entity that is proved to have owned its journal at the time.
    pub(crate) fn confirm_proved(&self, handles: impl IntoIterator<Item = DeliveryHandle>) {
        self.change(|pending| pending.queue.extend(handles.into_iter().map(Outcome::Confirmed)));
    }

    /// Takes the confirmations without proof.
    #[cfg_attr(not(feature = "persistence"), allow(dead_code))]
    pub(crate) fn take_unproved(self: &Arc<Self>) -> Option<UnprovedConfirmations> {
        let handles = std::mem::take(&mut self.lock().unproved);
        (!handles.is_empty()).then(|| UnprovedConfirmations { handles, outcomes: self.clone() })
    }

    /// Turns the outcomes of a delivery whose effect was refused (see [`Outcome::Deferred`]) into deferrals: an
    /// unproved confirmation does not count, and the attempt is not counted either, since the message is not at fault.
    #[cfg_attr(not(feature = "persistence"), allow(dead_code))]
    pub(crate) fn defer(&self, id: &MessageId) {
        self.change(|pending| {
            let of_it: Vec<_> = pending.unproved.extract_if(.., |handle| handle.id == *id).collect();
            pending.queue.extend(of_it.into_iter().map(Outcome::Deferred));
            for outcome in &mut pending.queue {
                if let Outcome::Abandoned(handle, _) = outcome
                    && handle.id == *id
                {
                    *outcome = Outcome::Deferred(handle.clone());
                }
            }
        });
    }

    /// Whether confirmations wait for proof.
    #[cfg_attr(not(feature = "persistence"), allow(dead_code))]
    pub(crate) fn has_unproved(&self) -> bool {
        !self.lock().unproved.is_empty()
    }

    /// Moves the queued outcomes into an empty vector, and closes the confirmed deliveries.
    pub(crate) fn take(&self, into: &mut Vec<Outcome>) {
        let mut pending = self.lock();
        std::mem::swap(&mut pending.queue, into);
        for outcome in into {
            if let Outcome::Confirmed(handle) = outcome {
                pending.close(&handle.id);
            }
        }
    }

    pub(crate) fn open(&self, id: &MessageId) {
        let mut pending = self.lock();
        if let Err(index) = pending.open.binary_search(&(id.stream_id, id.seq_nr)) {
            pending.open.insert(index, (id.stream_id, id.seq_nr));
        }
    }

    pub(crate) fn close(&self, id: &MessageId) {
        self.lock().close(id);
    }

    pub(crate) fn has_open(&self) -> bool {
        !self.lock().open.is_empty()
    }

    /// Whether an earlier delivery of the same stream is neither persisted nor confirmed.
    #[cfg_attr(not(feature = "persistence"), allow(dead_code))]
    pub(crate) fn has_earlier(&self, id: &MessageId) -> bool {
        let pending = self.lock();
        let index = pending.open.partition_point(|open| *open < (id.stream_id, id.seq_nr));
        index > 0 && pending.open[index - 1].0 == id.stream_id
    }

    /// Sets the streams that have a link; `streams` is ascending.
    pub(crate) fn set_streams(&self, streams: impl Iterator<Item = StreamId>) {
        let mut pending = self.lock();
        pending.streams.clear();
        pending.streams.extend(streams);
    }

    /// Whether a stream has a link.
    #[cfg_attr(not(feature = "persistence"), allow(dead_code))]
    pub(crate) fn has_stream(&self, stream: StreamId) -> bool {
        self.lock().streams.binary_search(&stream).is_ok()
    }

    /// Ready when an outcome is queued; otherwise stores the waker (the last one given) for the next outcome.
    pub(crate) fn poll_changed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut pending = self.lock();
        if pending.has_news() {
            return Poll::Ready(());
        }
        pending.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Confirmations that wait for a proof of ownership. Dropped without proof, their deliveries are given up.
#[cfg_attr(not(feature = "persistence"), allow(dead_code))]
pub(crate) struct UnprovedConfirmations {
    handles: Vec<DeliveryHandle>,
    outcomes: Arc<Outcomes>,
}

impl UnprovedConfirmations {
    #[cfg_attr(not(feature = "persistence"), allow(dead_code))]
    pub(crate) fn confirm(mut self) {
        self.outcomes.confirm_proved(self.handles.drain(..));
    }
}

impl Drop for UnprovedConfirmations {
    fn drop(&mut self) {
        let handles = std::mem::take(&mut self.handles);
        if !handles.is_empty() {
            let given_up = handles.into_iter().map(|handle| Outcome::Abandoned(handle, None));
            self.outcomes.change(|pending| pending.queue.extend(given_up));
        }
    }
}

/// A message that waits to be processed and confirmed.
#[must_use = "a delivery that is dropped unconfirmed is handed out again"]
pub struct Delivery<T> {
    /// `None` in a request for proof, which is never handed to an application.
    message: Option<Arc<T>>,
    confirm: ConfirmHandle,
}

/// Applications are never handed a request for proof.
const HAS_MESSAGE: &str = "a delivery in the hands of an application has a message";

impl<T> Delivery<T> {
    pub(crate) fn new(message: Arc<T>, handle: DeliveryHandle, outcomes: Arc<Outcomes>) -> Self {
        Self { message: Some(message), confirm: ConfirmHandle { handle: Some(handle), outcomes: Some(outcomes) } }
    }

    /// A request for proof, sent in place of a delivery: the entity proves ownership for the confirmations without
    /// proof.
    #[cfg_attr(not(feature = "persistence"), allow(dead_code))]
    pub(crate) fn for_proof() -> Self {
        Self { message: None, confirm: ConfirmHandle { handle: None, outcomes: None } }
    }

    #[cfg_attr(not(feature = "persistence"), allow(dead_code))]
    pub(crate) fn is_for_proof(&self) -> bool {
        self.message.is_none()
    }

    /// [`Delivery::confirm`], for an entity that is known to own its journal.
    #[cfg_attr(not(feature = "persistence"), allow(dead_code))]
    pub(crate) fn confirm_proved(mut self) {
        if let Some((handle, outcomes)) = self.confirm.take() {
            outcomes.confirm_proved([handle]);
        }
    }

    /// Takes the handle out without confirming or giving up the delivery.
    pub(crate) fn into_handle(mut self) -> Option<DeliveryHandle> {
        self.confirm.take().map(|(handle, _)| handle)
    }

    /// Confirms that the message is processed, for good. Never fails: a confirmation that comes too late has no effect,
    /// and the message is then delivered again.
    pub fn confirm(self) {
        self.confirm.confirm();
    }

    /// Reports that the message cannot be processed now; the delivery is handed out again after the pause.
    pub fn nack(self, after: Duration) {
        self.confirm.nack(after);
    }

    /// The id of the message. Deliveries with equal ids carry the same message.
    pub fn id(&self) -> &MessageId {
        &self.confirm.handle().id
    }

    /// The number of the message in its stream.
    pub fn seq_nr(&self) -> SeqNr {
        self.id().seq_nr
    }

    /// 1 for the first attempt, as far as this controller knows.
    pub fn attempt(&self) -> u32 {
        self.confirm.handle().key.attempt
    }

    /// The message, and the right to confirm it.
    pub fn split(self) -> (Arc<T>, ConfirmHandle) {
        (self.message.expect(HAS_MESSAGE), self.confirm)
    }
}

impl<T> Deref for Delivery<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.message.as_ref().expect(HAS_MESSAGE)
    }
}

impl<T: fmt::Debug> fmt::Debug for Delivery<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery").field("id", &self.confirm.handle).field("message", &self.message).finish()
    }
}

/// The right to confirm one delivery; if dropped unused, the delivery is handed out again.
#[must_use = "dropping it hands the delivery out again"]
pub struct ConfirmHandle {
    /// Taken by the first of confirm, nack and drop.
    handle: Option<DeliveryHandle>,
    outcomes: Option<Arc<Outcomes>>,
}

impl ConfirmHandle {
    /// See [`Delivery::confirm`].
    pub fn confirm(mut self) {
        if let Some((handle, outcomes)) = self.take() {
            outcomes.confirm([handle]);
        }
    }

    /// Confirms deliveries of one consumer in one call, so that their producer gets one confirmation for all.
    pub(crate) fn confirm_all(handles: impl IntoIterator<Item = Self>) {
        let mut said = handles.into_iter().filter_map(|mut handle| handle.take());
        if let Some((first, outcomes)) = said.next() {
            outcomes.confirm(std::iter::once(first).chain(said.map(|(handle, _)| handle)).collect::<Vec<_>>());
        }
    }

    /// See [`Delivery::nack`].
    pub fn nack(mut self, after: Duration) {
        if let Some((handle, outcomes)) = self.take() {
            outcomes.push(Outcome::Abandoned(handle, Some(after)));
        }
    }

    fn take(&mut self) -> Option<(DeliveryHandle, Arc<Outcomes>)> {
        let outcomes = self.outcomes.take()?;
        Some((self.handle.take()?, outcomes))
    }

    fn handle(&self) -> &DeliveryHandle {
        self.handle.as_ref().expect("only consuming methods take it")
    }
}

impl Drop for ConfirmHandle {
    fn drop(&mut self) {
        if let Some((handle, outcomes)) = self.take() {
            outcomes.push(Outcome::Abandoned(handle, None));
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

    fn said(outcomes: &Outcomes) -> Vec<String> {
        let mut queue = Vec::new();
        outcomes.take(&mut queue);
        let of = |outcome| match outcome {
            Outcome::Confirmed(handle) => format!("confirmed {}", handle.id.seq_nr),
            Outcome::Abandoned(handle, pause) => format!("abandoned {} {pause:?}", handle.id.seq_nr),
            Outcome::Deferred(handle) => format!("deferred {}", handle.id.seq_nr),
            Outcome::Recovered(_) | Outcome::Suppressed | Outcome::NodeGone(_) => "other".to_owned(),
        };
        queue.into_iter().map(of).collect()
    }

    /// delivery 100.
    #[test]
    fn a_confirmation_without_proof_is_none() {
        let outcomes = Arc::new(Outcomes::requiring_proof());
        let delivery = |total| Delivery::new(Arc::new("message"), handle(total), outcomes.clone());
        delivery(1).confirm();
        delivery(2).split().1.confirm();
        ConfirmHandle::confirm_all([delivery(7).split().1, delivery(8).split().1]);
        assert!(said(&outcomes).is_empty());
        outcomes.take_unproved().unwrap().confirm();
        assert_eq!(said(&outcomes), ["confirmed 1", "confirmed 2", "confirmed 7", "confirmed 8"]);
        delivery(3).confirm();
        drop(outcomes.take_unproved());
        assert_eq!(said(&outcomes), ["abandoned 3 None"], "the proof failed");
        delivery(4).confirm();
        delivery(5).confirm();
        drop(delivery(9));
        outcomes.defer(&handle(4).id);
        assert_eq!(said(&outcomes), ["abandoned 9 None", "deferred 4"], "its effect was refused");
        delivery(6).confirm_proved();
        assert_eq!(said(&outcomes), ["confirmed 6"]);
    }

    #[test]
    fn delivery_has_exactly_one_outcome() {
        let outcomes = Arc::new(Outcomes::default());
        let delivery = |total| Delivery::new(Arc::new("message"), handle(total), outcomes.clone());
        delivery(1).confirm();
        delivery(2).nack(Duration::from_secs(1));
        drop(delivery(3));
        delivery(4).split().1.confirm();
        drop(delivery(5).split().1);
        assert_eq!(
            said(&outcomes),
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
        assert_eq!(said(&outcomes), ["abandoned 1 None"]);
    }

    #[test]
    fn earlier_delivery_is_an_open_one_of_the_same_stream() {
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
