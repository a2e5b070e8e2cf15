//! Deliveries that are processed, and confirmed, together.

use std::fmt;
use std::ops::Index;
use std::sync::Arc;

use crate::delivery::{ConfirmHandle, Delivery};
use crate::ids::MessageId;

/// Deliveries of one producer, in their order. Those that are not confirmed when it is dropped are handed out again.
///
/// Confirmed together, they are one message to the producer. Source: delivery §6.
#[must_use = "deliveries that are dropped unconfirmed are handed out again"]
pub struct DeliveryBatch<T> {
    items: Vec<Item<T>>,
}

struct Item<T> {
    message: Arc<T>,
    id: MessageId,
    /// `None` once it is confirmed.
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

    /// How many messages it has, the confirmed ones too.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether it has none; a batch of a consumer has one at least.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The messages, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter().map(|item| &*item.message)
    }

    /// What makes each of them the same message as another delivery, in their order.
    pub fn ids(&self) -> impl Iterator<Item = &MessageId> {
        self.items.iter().map(|item| &item.id)
    }

    /// Confirms that all of them are processed, for good.
    pub fn confirm_all(mut self) {
        self.confirm_first(self.items.len());
    }

    /// Confirms that the message at `index`, and all before it, are processed, for good. Beyond the end it is all of them.
    pub fn confirm_through(&mut self, index: usize) {
        self.confirm_first(self.items.len().min(index.saturating_add(1)));
    }

    /// At once, so that the controller has one thing to tell.
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
