//! The producers of a link: the current one, the one registered to, displaced ones, and a parked one.
//!
//! Source: delivery §1.4, C2 to C4.

use std::collections::VecDeque;

use crate::ids::{ControllerRef, Epoch, MessageId, ProducerId, SeqNr, StreamId};
use crate::message::{BatchHeader, SequencedMessage};

/// Capacity of the list of displaced producers. Source: delivery §1.3.
const MAX_REPLACED: usize = 8;

/// The sender of a frame; two epochs of one controller are two senders.
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

/// The current producer.
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

    /// The id of one of the producer's messages.
    pub(super) fn message_id(&self, total: SeqNr) -> MessageId {
        MessageId { producer_id: self.producer_id.clone(), stream_id: self.stream, seq_nr: total }
    }
}

/// How a producer was displaced.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Replaced {
    ByFirst(Sender),
    ByRegistration(ControllerRef),
}

/// How a frame's sender was displaced; `ForGood` takes precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Displaced {
    /// By another producer's `first` frame; the displaced producer may still be alive.
    ByFirst,
    /// By a registration to another producer.
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

    /// The current producer.
    pub(super) fn current(&self) -> Option<&Producer> {
        self.current.as_ref()
    }

    /// Whether the frame is from the current producer.
    pub(super) fn is_current(&self, header: &BatchHeader) -> bool {
        self.current.as_ref().is_some_and(|producer| producer.sender.sent(header))
    }

    /// The producer controller registered to, until its first frame arrives.
    pub(super) fn registering(&self) -> Option<&ControllerRef> {
        self.registering.as_ref()
    }

    /// Whether and how the frame's sender was displaced.
    pub(super) fn displaced(&self, header: &BatchHeader) -> Option<Displaced> {
        let how = |replaced: &Replaced| match replaced {
            Replaced::ByFirst(sender) => sender.sent(header).then_some(Displaced::ByFirst),
            Replaced::ByRegistration(controller) => (*controller == header.controller).then_some(Displaced::ForGood),
        };
        self.replaced.iter().filter_map(how).max()
    }

    /// Removes the sender from the list of producers displaced by a `first` frame.
    pub(super) fn undo_displacement(&mut self, header: &BatchHeader) {
        self.replaced.retain(|replaced| !matches!(replaced, Replaced::ByFirst(sender) if sender.sent(header)));
    }

    /// Makes the frame's sender the current producer (C3). Returns the former controller, if it is another one.
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

    /// Registers to a producer controller (§1.4). Returns whether it is not the current one.
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

    /// Parks the first frame of a successor (C4), unless a frame with a later epoch of its stream is parked.
    pub(super) fn park(&mut self, header: &BatchHeader, message: SequencedMessage<P>) {
        let is_outranked = |parked: &(BatchHeader, SequencedMessage<P>)| {
            parked.0.stream_id == header.stream_id && parked.0.epoch > header.epoch
        };
        if !self.parked.as_deref().is_some_and(is_outranked) {
            self.parked = Some(Box::new((header.clone(), message)));
        }
    }

    /// Takes the parked frame.
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
