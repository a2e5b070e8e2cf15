//! The two inboxes of a shard: messages for its entities, and control items.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::driver::shard::control_item::Control;
use crate::inbox::Inbox;
use crate::parcel::Parcel;

/// See the module's description.
pub(in crate::driver) struct Inboxes<M> {
    messages: Arc<Inbox<Parcel<M>>>,
    control: Arc<Inbox<Control<M>>>,
}

impl<M> Inboxes<M> {
    pub(in crate::driver) fn new(messages: Arc<Inbox<Parcel<M>>>, control: Arc<Inbox<Control<M>>>) -> Self {
        Self { messages, control }
    }

    /// The inbox of control items, for what answers by it.
    pub(in crate::driver) fn control(&self) -> &Arc<Inbox<Control<M>>> {
        &self.control
    }

    /// Takes all messages. False if there was none.
    pub(in crate::driver) fn take(&self, batch: &mut VecDeque<Parcel<M>>) -> bool {
        self.messages.take(batch)
    }

    /// Takes all messages, once there are any.
    pub(in crate::driver) fn poll_take(&self, cx: &mut Context<'_>, batch: &mut VecDeque<Parcel<M>>) -> Poll<()> {
        self.messages.poll_take(cx, batch)
    }
}
