//! The numbered messages of one peer: runs the two machines of [`crate::reliable`] and carries out their effects.
//! Numbered messages wait here and not in a lane's queue, so they outlive every stream.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use greylag_core::{NodeAddress, Uid, UniqueAddress};

use crate::association::Input;
use crate::driver::grpc::local::{Announcement, LocalNode};
use crate::lanes::lane::Lane;
use crate::lanes::queue::{Item, LaneQueue, Pushed};
use crate::messages::envelope::EncodedMessage;
use crate::reliable::{ReceiverEffect, ReceiverInput, ReliableReceiver, ReliableSender, SenderEffect, SenderInput};
use crate::remoting::{QuarantineReason, TransportEvent};
use crate::settings::{OnReliableGiveUp, TransportSettings};
use crate::wire;

/// The sender and receiver of one peer's numbered messages.
pub(crate) struct Numbered {
    address: NodeAddress,
    /// The queue of the control lane.
    control: Arc<LaneQueue>,
    sender: Mutex<ReliableSender<Arc<EncodedMessage>>>,
    /// Whether the peer was dropped; written under the lock of the sender.
    is_closed: AtomicBool,
    receiver: Mutex<ReliableReceiver>,
}

impl Numbered {
    /// The numbered messages to and from the process at `address`; `control` is the queue of its control lane.
    pub(crate) fn new(settings: &TransportSettings, address: NodeAddress, control: Arc<LaneQueue>) -> Self {
        let sender = Mutex::new(ReliableSender::new(settings));
        Self { address, control, sender, is_closed: AtomicBool::new(false), receiver: Mutex::default() }
    }

    /// Closes for new messages, if none waits and `also` returns true.
    pub(crate) fn close_unused(&self, also: impl FnOnce() -> bool) -> bool {
        let sender = self.sender.lock().expect(NO_PANIC);
        let closes = sender.is_idle() && also();
        self.is_closed.fetch_or(closes, Ordering::AcqRel);
        closes
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.sender.lock().expect(NO_PANIC).next_deadline()
    }

    /// Notes that another incarnation runs at the address: its messages are numbered anew.
    pub(crate) fn expect_from(&self, uid: Uid) {
        let input = ReceiverInput::<EncodedMessage>::Incarnation { uid };
        self.receiver.lock().expect(NO_PANIC).handle(input, &mut Vec::new());
    }

    /// Gives the receiver a numbered message; returns the effects.
    pub(crate) fn arrived(
        &self,
        from: Uid,
        seq: u64,
        message: Option<EncodedMessage>,
    ) -> Vec<ReceiverEffect<EncodedMessage>> {
        let mut effects = Vec::new();
        self.receiver.lock().expect(NO_PANIC).handle(ReceiverInput::Arrived { from, seq, message }, &mut effects);
        effects
    }

    /// Gives the sender an input and carries out its effects. Callable under the association's lock.
    pub(crate) fn feed(&self, node: &LocalNode, now: Instant, input: SenderInput<Arc<EncodedMessage>>) -> Fed {
        let mut fed = Fed { inputs: Vec::new(), outcome: Ok(()), is_deadline_moved: false };
        let mut effects = Vec::new();
        // Carry effects out under the lock, so that those of two inputs cannot cross.
        let mut sender = self.sender.lock().expect(NO_PANIC);
        if self.is_closed.load(Ordering::Acquire) {
            return Fed { outcome: Err(NotNumbered::LetGo), ..fed };
        }
        let deadline = sender.next_deadline();
        sender.handle(now, input, &mut effects);
        for effect in effects {
            match effect {
                SenderEffect::Connect => fed.inputs.push(Input::Wanted { lane: Lane::CONTROL }),
                SenderEffect::Rewind => {
                    self.control.extract(|item| matches!(item, Item::Reliable { .. }));
                }
                SenderEffect::Write { seq, message } => {
                    let frame = wire::write_reliable(seq, &message);
                    fed.inputs.extend(self.enqueue(message.target_uid, frame));
                }
                SenderEffect::WriteSkip { seq } => {
                    let to = node.endpoint.peer(&self.address).map(|info| info.peer.uid());
                    fed.inputs.extend(self.enqueue(to, wire::write_skip(seq)));
                }
                SenderEffect::Drop { message, reason } => {
                    node.endpoint.drop_unsent(now, Lane::CONTROL, &self.address, &message.to_envelope(), reason);
                }
                SenderEffect::GaveUp { uid, dropped } => {
                    fed.inputs.extend(self.gave_up(node, uid, dropped));
                    fed.outcome = Err(NotNumbered::GaveUp);
                }
            }
        }
        fed.is_deadline_moved = sender.next_deadline() != deadline;
        fed
    }

    fn enqueue(&self, to: Option<Uid>, frame: bytes::Bytes) -> Option<Input> {
        let pushed = self.control.push(Item::Reliable { to: to?, frame }, true);
        matches!(pushed, Ok(Pushed::Wanted)).then_some(Input::Wanted { lane: Lane::CONTROL })
    }

    fn gave_up(&self, node: &LocalNode, uid: Uid, dropped: usize) -> Option<Input> {
        let peer = UniqueAddress::new(self.address.clone(), uid);
        tracing::warn!(%peer, dropped, "reliable control messages were given up");
        node.announce(Announcement::Event(TransportEvent::ReliableGaveUp { peer, dropped }));
        let reason = QuarantineReason::DeliveryGaveUp;
        (node.settings.on_reliable_give_up == OnReliableGiveUp::Quarantine).then_some(Input::Quarantine {
            uid,
            reason,
            harmless: false,
        })
    }
}

/// What followed an input to the sender.
pub(crate) struct Fed {
    /// The inputs for the association, in this order.
    pub(crate) inputs: Vec<Input>,
    pub(crate) outcome: Result<(), NotNumbered>,
    /// Whether the sender's next deadline is another one now.
    pub(crate) is_deadline_moved: bool,
}

/// Why a message was not numbered.
#[derive(Debug)]
pub(crate) enum NotNumbered {
    /// Too many messages waited: all of them were given up, the newest included.
    GaveUp,
    /// The peer was dropped; its address has a new one.
    LetGo,
}

const NO_PANIC: &str = "nothing under this lock panics";
