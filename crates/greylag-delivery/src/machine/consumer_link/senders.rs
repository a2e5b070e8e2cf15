//! The producers of a link: the one listened to, the one asked for, those displaced, and the one that waits its turn.
//!
//! Source: delivery §1.4, C2 to C4.

use std::collections::VecDeque;

use crate::ids::{ControllerRef, Epoch, MessageId, ProducerId, SeqNr, StreamId};
use crate::message::{BatchHeader, SequencedMessage};

/// How many displaced producers are remembered. Source: delivery §1.3.
const MAX_REPLACED: usize = 8;

/// A sender: two epochs of one controller are two senders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sender {
    pub(super) controller: ControllerRef,
    pub(super) epoch: Epoch,
}

impl Sender {
    fn sent(&self, header: &BatchHeader) -> bool {
        self.epoch == header.epoch && self.controller == header.controller
    }
}

/// The producer listened to.
#[derive(Debug, Clone)]
pub(super) struct Producer {
    pub(super) sender: Sender,
    pub(super) producer_id: ProducerId,
    pub(super) stream: StreamId,
    pub(super) ordered: bool,
}

impl Producer {
    fn of(header: &BatchHeader) -> Self {
        Self {
            sender: Sender { controller: header.controller.clone(), epoch: header.epoch },
            producer_id: header.producer_id.clone(),
            stream: header.stream_id,
            ordered: header.ordered,
        }
    }

    /// The name of one of its messages.
    pub(super) fn message_id(&self, total: SeqNr) -> MessageId {
        MessageId { producer_id: self.producer_id.clone(), stream_id: self.stream, seq_nr: total }
    }
}

/// Why a producer is no longer the one listened to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Replaced {
    ByFirst(Sender),
    ByRegistration(ControllerRef),
}

/// How a frame's sender was displaced; the later one outweighs the earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Displaced {
    /// By another's first frame: it may be the living one all the same.
    ByFirst,
    /// By a registration elsewhere.
    ForGood,
}

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(super) struct Senders<P> {
    current: Option<Producer>,
    registering: Option<ControllerRef>,
    replaced: VecDeque<Replaced>,
    parked: Option<Box<(BatchHeader, SequencedMessage<P>)>>,
}

impl<P> Senders<P> {
    pub(super) fn new() -> Self {
        Self { current: None, registering: None, replaced: VecDeque::new(), parked: None }
    }

    /// The producer listened to.
    pub(super) fn current(&self) -> Option<&Producer> {
        self.current.as_ref()
    }

    /// Whether the frame is from the producer listened to.
    pub(super) fn is_current(&self, header: &BatchHeader) -> bool {
        self.current.as_ref().is_some_and(|producer| producer.sender.sent(header))
    }

    /// The producer controller asked for, until it answers.
    pub(super) fn registering(&self) -> Option<&ControllerRef> {
        self.registering.as_ref()
    }

    /// Whether the frame's sender was displaced, and how. A registration is for good.
    pub(super) fn displaced(&self, header: &BatchHeader) -> Option<Displaced> {
        let how = |replaced: &Replaced| match replaced {
            Replaced::ByFirst(sender) => sender.sent(header).then_some(Displaced::ByFirst),
            Replaced::ByRegistration(controller) => (*controller == header.controller).then_some(Displaced::ForGood),
        };
        self.replaced.iter().filter_map(how).max()
    }

    /// Forgets that the frame's sender was displaced by another's first frame.
    pub(super) fn pardon(&mut self, header: &BatchHeader) {
        self.replaced.retain(|replaced| !matches!(replaced, Replaced::ByFirst(sender) if sender.sent(header)));
    }

    /// Listens to the frame's sender from now on (C3). Returns the controller listened to before, if it was another one.
    pub(super) fn switch(&mut self, header: &BatchHeader) -> Option<ControllerRef> {
        let by_registration = self.registering.take_if(|controller| *controller == header.controller).is_some();
        let mut former = None;
        if let Some(old) = self.current.take() {
            former = (old.sender.controller != header.controller).then(|| old.sender.controller.clone());
            self.displace(if by_registration && former.is_some() {
                Replaced::ByRegistration(old.sender.controller)
            } else {
                Replaced::ByFirst(old.sender)
            });
        }
        let new = Producer::of(header);
        self.replaced.retain(|replaced| match replaced {
            Replaced::ByFirst(displaced) => *displaced != new.sender,
            Replaced::ByRegistration(controller) => *controller != new.sender.controller,
        });
        self.current = Some(new);
        former
    }

    /// Asks for another producer controller (§1.4). Returns whether it is not the one listened to already.
    pub(super) fn register_to(&mut self, controller: &ControllerRef) -> bool {
        self.replaced.retain(|replaced| match replaced {
            Replaced::ByFirst(sender) => sender.controller != *controller,
            Replaced::ByRegistration(displaced) => displaced != controller,
        });
        if let Some(superseded) = self.registering.take_if(|registering| registering != controller) {
            self.displace(Replaced::ByRegistration(superseded));
        }
        self.parked.take_if(|parked| parked.0.controller != *controller);
        let is_other = self.current.as_ref().is_none_or(|producer| producer.sender.controller != *controller);
        if is_other {
            self.registering = Some(controller.clone());
        }
        is_other
    }

    /// Keeps the first frame of a producer that waits its turn (C4), unless a later epoch of its stream waits.
    pub(super) fn park(&mut self, header: &BatchHeader, message: SequencedMessage<P>) {
        let is_outranked = |parked: &(BatchHeader, SequencedMessage<P>)| {
            parked.0.stream_id == header.stream_id && parked.0.epoch > header.epoch
        };
        if !self.parked.as_deref().is_some_and(is_outranked) {
            self.parked = Some(Box::new((header.clone(), message)));
        }
    }

    /// Takes the first frame of the producer that waits its turn.
    pub(super) fn unpark(&mut self) -> Option<(BatchHeader, SequencedMessage<P>)> {
        self.parked.take().map(|parked| *parked)
    }

    fn displace(&mut self, replaced: Replaced) {
        self.replaced.retain(|known| *known != replaced);
        self.replaced.push_back(replaced);
        if self.replaced.len() > MAX_REPLACED {
            self.replaced.pop_front();
        }
    }
}
