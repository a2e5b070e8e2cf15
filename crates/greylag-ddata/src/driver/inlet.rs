//! Where messages of peers come in: read on the worker that brings them, and queued for the machine.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use greylag_core::UniqueAddress;
use greylag_transport::{Inbound, Receiver};
use tokio::sync::mpsc;

use crate::message::{DropReason, Message};
use crate::transfers::{Accepted, Transfers};
use crate::wire::{self, FRAGMENT_MANIFEST, WireError};

/// Something for the machine.
pub(super) enum Arrived {
    Message(Box<Message>),
    Dropped(DropReason),
}

/// The receiver of both mailboxes.
pub(super) struct Inlet {
    inbox: mpsc::Sender<(UniqueAddress, Arrived)>,
    transfers: Mutex<Transfers>,
}

impl Inlet {
    /// Messages in fragments may have, together and per peer, `max_bytes`.
    pub(super) fn new(inbox: mpsc::Sender<(UniqueAddress, Arrived)>, max_bytes: usize) -> Self {
        Self { inbox, transfers: Mutex::new(Transfers::new(max_bytes)) }
    }

    /// The message, once all of it is here.
    fn read(&self, message: &Inbound) -> Result<Option<Arrived>, WireError> {
        let whole = |message| Arrived::Message(Box::new(message));
        if message.manifest != FRAGMENT_MANIFEST {
            return wire::decode(message.payload.clone()).map(whole).map(Some);
        }
        let fragment = wire::decode_fragment(message.payload.clone())?;
        let accepted = {
            let mut transfers = self.transfers.lock().unwrap_or_else(PoisonError::into_inner);
            transfers.accept(Instant::now(), &message.from, fragment)
        };
        match accepted {
            Accepted::InPart => Ok(None),
            Accepted::Aborted => Ok(Some(Arrived::Dropped(DropReason::Transfer))),
            Accepted::Whole(pieces) => match pieces.join() {
                Some(bytes) => wire::decode(bytes).map(whole).map(Some),
                None => Ok(Some(Arrived::Dropped(DropReason::Transfer))),
            },
        }
    }
}

impl Receiver for Inlet {
    fn receive(&self, message: Inbound) {
        let arrived = match self.read(&message) {
            Ok(None) => return,
            Ok(Some(arrived)) => arrived,
            Err(error) => {
                tracing::debug!(from = %message.from, %error, "a message of a replica was dropped");
                Arrived::Dropped(DropReason::Malformed)
            }
        };
        if self.inbox.try_send((message.from, arrived)).is_err() {
            tracing::debug!("a message of a replica was dropped: the replicator is busy or has stopped");
        }
    }
}
