//! The half that receives numbered messages.

use std::collections::VecDeque;

use greylag_core::Uid;

use super::MAX_FORMER;

/// An input to a [`ReliableReceiver`]: the peer's numbered messages, and which incarnation of it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReceiverInput<M> {
    /// This incarnation runs at the peer's address from now on: numbers begin again.
    Incarnation {
        /// The incarnation.
        uid: Uid,
    },
    /// A numbered message arrived.
    Arrived {
        /// The incarnation that sent it, as its stream says.
        from: Uid,
        /// The number of the message.
        seq: u64,
        /// The message. `None`: the sender has given up everything up to `seq` that did not arrive.
        message: Option<M>,
    },
}

/// An effect that the driver carries out, in the order of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReceiverEffect<M> {
    /// Hand this message to its recipient.
    Deliver(M),
    /// Acknowledge: everything up to this number has been delivered, now or earlier.
    Ack {
        /// The number.
        seq: u64,
    },
    /// Report a gap: everything up to this number has been delivered, and a later one came.
    Nack {
        /// The last number without a gap before it; 0 if the first is missing.
        seq: u64,
    },
}

/// Receives the numbered messages of one peer address. See the [module](super).
#[derive(Debug, Default)]
pub struct ReliableReceiver {
    peer: Option<Uid>,
    delivered: u64,
    /// The last number delivered of each former incarnation; one that was replaced in error continues there.
    former: VecDeque<(Uid, u64)>,
}

impl ReliableReceiver {
    /// A receiver that knows no incarnation of the peer yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Handles one input. Messages of another incarnation than the current one are ignored.
    pub fn handle<M>(&mut self, input: ReceiverInput<M>, out: &mut Vec<ReceiverEffect<M>>) {
        match input {
            ReceiverInput::Incarnation { uid } => {
                if self.peer == Some(uid) {
                    return;
                }
                if let Some(before) = self.peer.replace(uid) {
                    if self.former.len() >= MAX_FORMER {
                        self.former.pop_front();
                    }
                    self.former.push_back((before, self.delivered));
                }
                let known = self.former.iter().position(|(former, _)| *former == uid);
                let known = known.and_then(|at| self.former.remove(at));
                self.delivered = known.map_or(0, |(_, delivered)| delivered);
            }
            ReceiverInput::Arrived { from, seq, message } if self.peer == Some(from) => {
                self.on_arrived(seq, message, out);
            }
            ReceiverInput::Arrived { .. } => {}
        }
        debug_assert!(self.former.len() <= MAX_FORMER, "the incarnations remembered are bounded");
        let is_current = |uid: Uid| self.peer == Some(uid);
        debug_assert!(!self.former.iter().any(|(uid, _)| is_current(*uid)), "the current incarnation is no former one");
    }

    fn on_arrived<M>(&mut self, seq: u64, message: Option<M>, out: &mut Vec<ReceiverEffect<M>>) {
        let Some(message) = message else {
            self.delivered = self.delivered.max(seq);
            out.push(ReceiverEffect::Ack { seq });
            return;
        };
        if self.delivered.checked_add(1) == Some(seq) {
            self.delivered = seq;
            out.push(ReceiverEffect::Deliver(message));
        }
        out.push(if seq <= self.delivered {
            ReceiverEffect::Ack { seq }
        } else {
            ReceiverEffect::Nack { seq: self.delivered }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cluster T28: whatever number a peer skips to, the numbers never begin anew.
    #[test]
    fn nothing_follows_the_last_number() {
        let (mut receiver, mut effects) = (ReliableReceiver::new(), Vec::new());
        let from = Uid::new(1).unwrap();
        receiver.handle(ReceiverInput::Incarnation { uid: from }, &mut effects);
        for (seq, message) in [(u64::MAX, None), (1, Some("one")), (u64::MAX, Some("last"))] {
            receiver.handle(ReceiverInput::Arrived { from, seq, message }, &mut effects);
        }
        let ack = |seq| ReceiverEffect::Ack { seq };
        assert_eq!(effects, [ack(u64::MAX), ack(1), ack(u64::MAX)]);
    }
}
