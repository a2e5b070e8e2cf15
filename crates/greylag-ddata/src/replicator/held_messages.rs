//! Holds back messages about entries until the store says that this replicator has met others.
//!
//! A store that says that it never met others is accepted after a restart without a judgement, however old it is. So
//! the store must record the first exchange before anything of an entry leaves. The sum over all entries that opens a
//! round changes nothing at its receiver and is not held back. The wait is one flush, once in the life of a store.
//! Source: ddata Z11.

use greylag_core::UniqueAddress;

use crate::messages::message::Message;

/// The most bytes held back, by estimated sizes. A message beyond counts as lost, and its protocol repeats it.
const MOST_BYTES: usize = 8 * 1024 * 1024;

/// The messages held back, in the order of sending.
#[derive(Debug, Default)]
pub(super) struct HeldMessages {
    messages: Vec<(UniqueAddress, Message)>,
    bytes: usize,
}

impl HeldMessages {
    /// Holds a message back. Returns whether there was room.
    pub(super) fn keep(&mut self, to: UniqueAddress, message: Message) -> bool {
        let bytes = self.bytes.saturating_add(message.size_hint());
        let has_room = bytes <= MOST_BYTES;
        if has_room {
            self.bytes = bytes;
            self.messages.push((to, message));
        }
        has_room
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Takes out all messages, in the order of sending.
    pub(super) fn take(&mut self) -> Vec<(UniqueAddress, Message)> {
        std::mem::take(self).messages
    }
}
