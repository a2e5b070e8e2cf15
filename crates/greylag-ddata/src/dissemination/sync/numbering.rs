//! The numbered messages of a round, both ways: how each side knows that nothing was lost. Source: ddata G10.

use std::collections::{BTreeSet, VecDeque};

/// What the peer last said of its side.
#[derive(Debug, Clone, Copy, Default)]
struct PeerSide {
    /// The number of the acknowledgement.
    number: u64,
    /// How many of this side's messages the peer has received.
    received: u64,
    /// How many messages the peer has sent.
    sent: u64,
    /// Whether the peer has nothing left to send.
    is_idle: bool,
}

/// An acknowledgement to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Acknowledgement {
    pub(super) number: u64,
    pub(super) received: u64,
    pub(super) sent: u64,
    pub(super) is_idle: bool,
}

/// The numbered messages of a round.
#[derive(Debug, Default)]
pub(super) struct Numbering {
    sent: u64,
    received: BTreeSet<u64>,
    /// The weights of the unacknowledged messages, the oldest first.
    weights: VecDeque<usize>,
    /// The number of the last message that went in fragments.
    fragmented: u64,
    peer: PeerSide,
    /// The last acknowledgement sent to the peer.
    acknowledged: Option<Acknowledgement>,
}

impl Numbering {
    /// Notes a numbered message of the peer. Returns whether it is new.
    pub(super) fn on_received(&mut self, number: u64) -> bool {
        number > 0 && self.received.insert(number)
    }

    /// Takes the peer's acknowledgement. Returns whether it is newer than all before.
    pub(super) fn on_ack(&mut self, number: u64, received: u64, sent: u64, is_idle: bool) -> bool {
        let is_new = number > self.peer.number;
        if is_new {
            self.peer = PeerSide { number, received, sent, is_idle };
        }
        is_new
    }

    /// Whether the peer has nothing left to send, and each side has received everything that the other sent.
    pub(super) fn is_settled(&self) -> bool {
        let PeerSide { number, received, sent, is_idle } = self.peer;
        number > 0 && is_idle && received == self.sent && self.received.len() as u64 == sent
    }

    /// Whether a message that went in fragments may still be on its way.
    pub(super) fn awaits_fragments(&self) -> bool {
        self.peer.received < self.fragmented
    }

    /// The number of the next message.
    pub(super) fn next(&self) -> u64 {
        self.sent + 1
    }

    /// Notes that the next message was sent, with its weight in the window.
    pub(super) fn on_sent(&mut self, weight: usize, in_fragments: bool) {
        self.sent += 1;
        if in_fragments {
            self.fragmented = self.sent;
        }
        self.weights.push_back(weight);
    }

    /// The weight of the unacknowledged messages.
    pub(super) fn unacknowledged(&mut self) -> usize {
        let count = self.sent - self.peer.received.min(self.sent);
        let known = self.weights.len() - (self.weights.len() as u64).min(count) as usize;
        self.weights.drain(..known);
        self.weights.iter().sum()
    }

    /// The acknowledgement that the peer must get, if it does not know the present state.
    pub(super) fn acknowledge(&mut self, is_idle: bool) -> Option<Acknowledgement> {
        let (received, sent) = (self.received.len() as u64, self.sent);
        let number = self.acknowledged.map_or(1, |last| last.number + 1);
        let is_known = self
            .acknowledged
            .is_some_and(|last| last == Acknowledgement { number: last.number, received, sent, is_idle });
        if is_known {
            return None;
        }
        self.acknowledged = Some(Acknowledgement { number, received, sent, is_idle });
        self.acknowledged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ddata G10: the peer gets an acknowledgement when anything has changed, and no second one before that.
    #[test]
    fn an_acknowledgement_is_sent_once_for_each_state() {
        let mut numbering = Numbering::default();
        let said = |ack: Option<Acknowledgement>| ack.map(|ack| (ack.number, ack.received, ack.sent, ack.is_idle));
        assert_eq!(said(numbering.acknowledge(true)), Some((1, 0, 0, true)));
        assert_eq!(said(numbering.acknowledge(true)), None);
        numbering.on_sent(3, true);
        assert!(numbering.on_received(2));
        assert_eq!(said(numbering.acknowledge(true)), Some((2, 1, 1, true)));
        assert_eq!((numbering.unacknowledged(), numbering.awaits_fragments()), (3, true));
        assert!(numbering.on_ack(1, 1, 1, true));
        assert_eq!((numbering.unacknowledged(), numbering.awaits_fragments()), (0, false));
        assert!(numbering.is_settled());
        assert_eq!(said(numbering.acknowledge(false)), Some((3, 1, 1, false)));
    }
}
