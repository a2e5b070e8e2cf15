//! The numbered messages between one node and an address: the machines of [`crate::reliable`] over a link that is never
//! opened or closed.

use std::sync::Arc;
use std::time::Instant;

use greylag_core::Uid;

use crate::messages::envelope::{EncodedMessage, Inbound};
use crate::reliable::{ReceiverEffect, ReceiverInput, ReliableReceiver, ReliableSender, SenderEffect, SenderInput};
use crate::settings::TransportSettings;

/// The sender and receiver of numbered messages for one address.
pub(super) struct Numbered {
    sender: ReliableSender<Arc<EncodedMessage>>,
    receiver: ReliableReceiver,
}

/// The number of the one stream to each incarnation: links are never opened or closed.
const STREAM: u64 = 1;

impl Numbered {
    pub(super) fn new(settings: &TransportSettings) -> Self {
        Self { sender: ReliableSender::new(settings), receiver: ReliableReceiver::new() }
    }

    /// When a message is next to be repeated.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.sender.next_deadline()
    }

    /// Takes a message of the process `from`.
    pub(super) fn arrived(&mut self, from: Uid, seq: u64, message: Option<Inbound>) -> Vec<ReceiverEffect<Inbound>> {
        let mut effects = Vec::new();
        self.receiver.handle(ReceiverInput::Incarnation { uid: from }, &mut effects);
        self.receiver.handle(ReceiverInput::Arrived { from, seq, message }, &mut effects);
        effects
    }

    /// Feeds the sender. `reached` is the process at the other end, if the link to it is not cut.
    pub(super) fn feed(
        &mut self,
        now: Instant,
        reached: Option<Uid>,
        input: SenderInput<Arc<EncodedMessage>>,
    ) -> Vec<SenderEffect<Arc<EncodedMessage>>> {
        let mut effects = Vec::new();
        if let Some(uid) = reached {
            self.sender.handle(now, SenderInput::Incarnation { uid }, &mut effects);
            if !self.sender.is_open() {
                self.sender.handle(now, SenderInput::Opened { stream: STREAM }, &mut effects);
            }
        }
        self.sender.handle(now, input, &mut effects);
        effects
    }
}
