//! Where messages of peers come in: read on the worker that brings them, and queued for the machine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use greylag_core::UniqueAddress;
use greylag_transport::{Inbound, Receiver};
use tokio::sync::{mpsc, watch};

use crate::message::{DropReason, Message};
use crate::replicas::Replicas;
use crate::transfers::{Accepted, Transfers};
use crate::wire::{self, FRAGMENT_MANIFEST, WireError};

/// Something for the machine.
pub(super) enum Arrived {
    Message(Box<Message>),
    Dropped(DropReason),
}

/// What waits for the machine. What a round brings may be much, and who waits for an answer does not wait for that, too.
pub(super) struct Arrivals {
    /// Requests, their answers, and deltas.
    pub(super) asked: mpsc::Receiver<(UniqueAddress, Arrived)>,
    /// Rounds of anti-entropy.
    pub(super) rounds: mpsc::Receiver<(UniqueAddress, Arrived)>,
}

/// The other ends.
pub(super) struct WaysIn {
    asked: mpsc::Sender<(UniqueAddress, Arrived)>,
    rounds: mpsc::Sender<(UniqueAddress, Arrived)>,
}

/// Room for so many messages of each kind.
pub(super) fn arrivals(room: usize) -> (WaysIn, Arrivals) {
    let ((asked, asking), (rounds, of_rounds)) = (mpsc::channel(room), mpsc::channel(room));
    (WaysIn { asked, rounds }, Arrivals { asked: asking, rounds: of_rounds })
}

/// The receiver of both mailboxes.
pub(super) struct Inlet {
    ways_in: WaysIn,
    transfers: Mutex<Transfers>,
    replicas: watch::Receiver<Arc<Replicas>>,
    /// Messages for which there was no room.
    lost: AtomicU64,
}

impl Inlet {
    /// Messages in fragments may have, together and per peer, `max_bytes`. Who is none of `replicas` occupies
    /// nothing.
    pub(super) fn new(ways_in: WaysIn, max_bytes: usize, replicas: watch::Receiver<Arc<Replicas>>) -> Self {
        Self { ways_in, transfers: Mutex::new(Transfers::new(max_bytes)), replicas, lost: AtomicU64::new(0) }
    }

    fn transfers(&self) -> MutexGuard<'_, Transfers> {
        self.transfers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives up what nothing more came of, and what came of those who are no replicas any more.
    pub(super) fn tidy(&self) {
        let replicas = self.replicas.borrow().clone();
        self.transfers().tidy(Instant::now(), |peer| replicas.other(peer).is_some());
    }

    /// How many messages were lost because too many waited.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// The message, once all of it is here.
    fn read(&self, message: &Inbound) -> Result<Option<Arrived>, WireError> {
        let whole = |message| Arrived::Message(Box::new(message));
        if message.manifest != FRAGMENT_MANIFEST {
            return wire::decode(message.payload.clone()).map(whole).map(Some);
        }
        let fragment = wire::decode_fragment(message.payload.clone())?;
        if self.replicas.borrow().other(&message.from).is_none() {
            return Ok(Some(Arrived::Dropped(DropReason::Stranger)));
        }
        let accepted = self.transfers().accept(Instant::now(), &message.from, fragment);
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
        let way_in = match &arrived {
            Arrived::Message(message) if message.is_of_round() => &self.ways_in.rounds,
            Arrived::Message(_) | Arrived::Dropped(_) => &self.ways_in.asked,
        };
        if way_in.try_send((message.from, arrived)).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
            tracing::debug!("a message of a replica was dropped: the replicator is busy or has stopped");
        }
    }
}
