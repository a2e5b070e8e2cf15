//! Messages of entries wait here until the store says that this replicator has met others.
//!
//! A store that says that it never met others is taken after a restart without a judgement, however old it is. So the
//! store has to know of the first exchange before anything of an entry leaves; the one sum over all entries that opens a
//! round changes nothing at its receiver and does not wait. The wait is one flush, once in the life of a store. Source:
//! ddata Z11.

use greylag_core::UniqueAddress;

use super::ReplicatorCore;
use crate::effect::Effect;
use crate::message::Message;

/// What waits at most, by the reckoned sizes of the messages. What is beyond counts as lost, and its protocol repeats it.
const MOST_BYTES: usize = 8 * 1024 * 1024;

/// The messages that wait, in the order in which they were sent.
#[derive(Debug, Default)]
pub(super) struct Held {
    messages: Vec<(UniqueAddress, Message)>,
    bytes: usize,
}

impl Held {
    /// Keeps a message. Returns whether there was room for it.
    fn keep(&mut self, to: UniqueAddress, message: Message) -> bool {
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
}

impl ReplicatorCore {
    /// Keeps a message until the store says that this replicator has met others.
    pub(super) fn hold(&mut self, to: UniqueAddress, message: Message) {
        if !self.storage.held.keep(to, message) {
            self.stats.unsent += 1;
        }
    }

    /// Sends what waited for the store, or counts it as lost if the store failed: by the time it works again,
    /// requests have been repeated and rounds begun anew.
    pub(super) fn release_sent(&mut self, is_stored: bool, out: &mut Vec<Effect>) {
        if is_stored && !self.entries.storing.says_met_others() {
            return;
        }
        for (to, message) in std::mem::take(&mut self.storage.held).messages {
            if is_stored && self.replicas.other(&to).is_some() {
                self.send(to, message, out);
            } else {
                self.stats.unsent += 1;
            }
        }
    }
}
