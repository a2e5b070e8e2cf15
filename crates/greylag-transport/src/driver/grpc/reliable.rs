//! The numbered messages of one peer: runs the two machines of [`crate::reliable`] and carries out their effects.
//! Numbered messages wait here and not in a lane's queue, so they outlive every stream.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use greylag_core::{Uid, UniqueAddress};

use super::peer::Peer;
use super::shared::{Announcement, Shared};
use crate::association::Input;
use crate::envelope::EncodedMessage;
use crate::lane::Lane;
use crate::queue::{Item, Pushed};
use crate::reliable::{ReceiverEffect, ReceiverInput, ReliableReceiver, ReliableSender, SenderEffect, SenderInput};
use crate::remoting::{QuarantineReason, TransportEvent};
use crate::settings::{OnReliableGiveUp, TransportSettings};
use crate::wire;

/// The sender and receiver of one peer's numbered messages.
pub(super) struct Numbered {
    sender: Mutex<ReliableSender<Arc<EncodedMessage>>>,
    /// Whether the peer was dropped; written under the lock of the sender.
    is_closed: AtomicBool,
    receiver: Mutex<ReliableReceiver>,
}

impl Numbered {
    pub(super) fn new(settings: &TransportSettings) -> Self {
        let sender = Mutex::new(ReliableSender::new(settings));
        Self { sender, is_closed: AtomicBool::new(false), receiver: Mutex::default() }
    }

    /// Closes for new messages, if none waits and `also` returns true.
    pub(super) fn close_unused(&self, also: impl FnOnce() -> bool) -> bool {
        let sender = self.sender.lock().expect(NO_PANIC);
        let closes = sender.is_idle() && also();
        self.is_closed.fetch_or(closes, Ordering::AcqRel);
        closes
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.sender.lock().expect(NO_PANIC).next_deadline()
    }

    /// Notes that another incarnation runs at the address: its messages are numbered anew.
    pub(super) fn expect_from(&self, uid: Uid) {
        let input = ReceiverInput::<EncodedMessage>::Incarnation { uid };
        self.receiver.lock().expect(NO_PANIC).handle(input, &mut Vec::new());
    }

    /// Gives the receiver a numbered message; returns the effects.
    pub(super) fn arrived(
        &self,
        from: Uid,
        seq: u64,
        message: Option<EncodedMessage>,
    ) -> Vec<ReceiverEffect<EncodedMessage>> {
        let mut effects = Vec::new();
        self.receiver.lock().expect(NO_PANIC).handle(ReceiverInput::Arrived { from, seq, message }, &mut effects);
        effects
    }
}

/// Why a message was not numbered.
#[derive(Debug)]
pub(super) enum NotNumbered {
    /// Too many messages waited: all of them were given up, the newest included.
    GaveUp,
    /// The peer was dropped; its address has a new one.
    LetGo,
}

impl Peer {
    /// Numbers a message and sends it.
    pub(super) fn send_numbered(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        target: Uid,
        message: Arc<EncodedMessage>,
    ) -> Result<(), NotNumbered> {
        let (inputs, outcome) = self.run_sender(shared, Instant::now(), SenderInput::Send { target, message });
        for input in inputs {
            self.input(shared, input);
        }
        outcome
    }

    /// Feeds the sender, and then the association with the inputs that follow.
    pub(super) fn numbered_input(self: &Arc<Self>, shared: &Arc<Shared>, input: SenderInput<Arc<EncodedMessage>>) {
        for input in self.run_numbered(shared, Instant::now(), input) {
            self.input(shared, input);
        }
    }

    /// Feeds the sender; returns the inputs for the association. Callable under the association's lock.
    pub(super) fn run_numbered(
        &self,
        shared: &Shared,
        now: Instant,
        input: SenderInput<Arc<EncodedMessage>>,
    ) -> Vec<Input> {
        self.run_sender(shared, now, input).0
    }

    fn run_sender(
        &self,
        shared: &Shared,
        now: Instant,
        input: SenderInput<Arc<EncodedMessage>>,
    ) -> (Vec<Input>, Result<(), NotNumbered>) {
        let mut outcome = Ok(());
        let mut effects = Vec::new();
        let mut inputs = Vec::new();
        // Carry effects out under the lock, so that those of two inputs cannot cross.
        let mut sender = self.numbered.sender.lock().expect(NO_PANIC);
        if self.numbered.is_closed.load(Ordering::Acquire) {
            return (inputs, Err(NotNumbered::LetGo));
        }
        let deadline = sender.next_deadline();
        sender.handle(now, input, &mut effects);
        for effect in effects {
            match effect {
                SenderEffect::Connect => inputs.push(Input::Wanted { lane: Lane::CONTROL }),
                SenderEffect::Rewind => {
                    self.queue(Lane::CONTROL).extract(|item| matches!(item, Item::Reliable { .. }));
                }
                SenderEffect::Write { seq, message } => {
                    let frame = wire::write_reliable(seq, &message);
                    inputs.extend(self.enqueue_numbered(message.target_uid, frame));
                }
                SenderEffect::WriteSkip { seq } => {
                    let to = shared.endpoint.peer(&self.address).map(|info| info.peer.uid());
                    inputs.extend(self.enqueue_numbered(to, wire::write_skip(seq)));
                }
                SenderEffect::Drop { message, reason } => {
                    shared.endpoint.drop_unsent(now, Lane::CONTROL, &self.address, &message.to_envelope(), reason);
                }
                SenderEffect::GaveUp { uid, dropped } => {
                    inputs.extend(self.gave_up(shared, uid, dropped));
                    outcome = Err(NotNumbered::GaveUp);
                }
            }
        }
        if sender.next_deadline() != deadline {
            self.deadline_moved.notify_one();
        }
        (inputs, outcome)
    }

    fn enqueue_numbered(&self, to: Option<Uid>, frame: bytes::Bytes) -> Option<Input> {
        let pushed = self.queue(Lane::CONTROL).push(Item::Reliable { to: to?, frame }, true);
        matches!(pushed, Ok(Pushed::Wanted)).then_some(Input::Wanted { lane: Lane::CONTROL })
    }

    fn gave_up(&self, shared: &Shared, uid: Uid, dropped: usize) -> Option<Input> {
        let peer = UniqueAddress::new(self.address.clone(), uid);
        tracing::warn!(%peer, dropped, "reliable control messages were given up");
        shared.announce(Announcement::Event(TransportEvent::ReliableGaveUp { peer, dropped }));
        let reason = QuarantineReason::DeliveryGaveUp;
        (shared.settings.on_reliable_give_up == OnReliableGiveUp::Quarantine).then_some(Input::Quarantine {
            uid,
            reason,
            harmless: false,
        })
    }
}

const NO_PANIC: &str = "nothing under this lock panics";
