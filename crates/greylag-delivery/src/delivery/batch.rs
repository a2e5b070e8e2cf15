//! Batches: deliveries that a consumer processes and confirms together.

use std::fmt;
use std::ops::Index;
use std::sync::Arc;

use crate::delivery::{ConfirmHandle, Delivery};
use crate::ids::MessageId;

/// Deliveries of one producer, ordered by sequence number. Deliveries still unconfirmed when the batch is dropped are
/// handed out again.
///
/// Deliveries confirmed together reach the producer as one confirmation message. Source: delivery §6.
#[must_use = "deliveries that are dropped unconfirmed are handed out again"]
pub struct DeliveryBatch<T> {
    items: Vec<Item<T>>,
}

struct Item<T> {
    message: Arc<T>,
    id: MessageId,
    /// `None` once the delivery is confirmed.
    confirm: Option<ConfirmHandle>,
}

impl<T> DeliveryBatch<T> {
    pub(crate) fn new(deliveries: impl Iterator<Item = Delivery<T>>) -> Self {
        let items = deliveries.map(|delivery| {
            let id = delivery.id().clone();
            let (message, confirm) = delivery.split();
            Item { message, id, confirm: Some(confirm) }
        });
        Self { items: items.collect() }
    }

    /// Number of messages in the batch, including the confirmed ones.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether the batch has no message; a batch from a consumer has at least one.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The messages, ordered by sequence number.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter().map(|item| &*item.message)
    }

    /// Ids of the messages, in the same order as [`iter`](Self::iter). Equal ids mean that a message is a redelivery.
    pub fn ids(&self) -> impl Iterator<Item = &MessageId> {
        self.items.iter().map(|item| &item.id)
    }

    /// Confirms that every message of the batch is processed, for good.
    pub fn confirm_all(mut self) {
        self.confirm_first(self.items.len());
    }

    /// Confirms that the message at `index`, and all before it, are processed, for good. An `index` beyond the end
    /// confirms all messages.
    pub fn confirm_through(&mut self, index: usize) {
        self.confirm_first(self.items.len().min(index.saturating_add(1)));
    }

    /// Confirms the first `count` messages in one call, so that the controller sends one confirmation.
    fn confirm_first(&mut self, count: usize) {
        ConfirmHandle::confirm_all(self.items[..count].iter_mut().filter_map(|item| item.confirm.take()));
    }
}

impl<T> Index<usize> for DeliveryBatch<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        &self.items[index].message
    }
}

impl<T: fmt::Debug> fmt::Debug for DeliveryBatch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
