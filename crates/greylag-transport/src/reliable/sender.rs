//! The half that numbers messages and repeats them until they are acknowledged.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use greylag_core::{DeadLetterReason, Uid};

use super::MAX_FORMER;
use crate::settings::TransportSettings;

/// An input to a [`ReliableSender`]: messages to send, the peer's acknowledgements, and events of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SenderInput<M> {
    /// A message for this incarnation and no other.
    Send {
        /// The only incarnation that may get the message.
        target: Uid,
        /// The message.
        message: M,
    },
    /// This incarnation runs at the peer's address from now on: numbers begin again.
    Incarnation {
        /// The incarnation.
        uid: Uid,
    },
    /// A control stream to the current incarnation may be written.
    Opened {
        /// The stream's number.
        stream: u64,
    },
    /// That stream may not be written any more. No message is lost by this (cluster T32).
    Closed {
        /// The stream's number.
        stream: u64,
    },
    /// The peer has delivered everything up to `seq`.
    Ack {
        /// The incarnation that acknowledges.
        from: Uid,
        /// The last number delivered.
        seq: u64,
    },
    /// The peer misses the number after `seq`.
    Nack {
        /// The incarnation that reports the gap.
        from: Uid,
        /// The last number before the gap.
        seq: u64,
    },
    /// The peer refused our Hello for good.
    Refused,
    /// This incarnation is quarantined: nothing goes to it any more.
    Quarantined {
        /// The incarnation.
        uid: Uid,
    },
    /// This node shuts down.
    Shutdown,
    /// Time has passed: handle the deadlines that are due.
    Tick,
}

/// An effect that the driver carries out, in the order of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SenderEffect<M> {
    /// Open a control stream: a message waits and none is open.
    Connect,
    /// Discard copies that are queued and not written yet: all that matter are written again next.
    Rewind,
    /// Write the message with its number.
    Write {
        /// The number.
        seq: u64,
        /// The message.
        message: M,
    },
    /// Write that everything up to this number has been given up.
    WriteSkip {
        /// The number.
        seq: u64,
    },
    /// Make the message a dead letter. It is unknown whether the message arrived.
    Drop {
        /// The message.
        message: M,
        /// The reason of the drop.
        reason: DeadLetterReason,
    },
    /// Report that the peer let too many messages wait, or for too long. The messages were dropped before this.
    GaveUp {
        /// The incarnation that the messages were for.
        uid: Uid,
        /// The number of dropped messages.
        dropped: usize,
    },
}

/// Numbers and repeats the messages to one peer address. See the [module](super).
#[derive(Debug)]
pub struct ReliableSender<M> {
    buffer_size: usize,
    resend_interval: Duration,
    give_up_after: Duration,
    peer: Option<Uid>,
    former: VecDeque<Former>,
    stream: Option<u64>,
    next_seq: u64,
    unacked: VecDeque<(u64, M)>,
    /// Messages for an incarnation that has not been met yet.
    early: VecDeque<(Uid, M)>,
    /// Numbers up to this one were given up, and the peer has not confirmed skipping them.
    skipped: Option<u64>,
    /// The gap after which everything was repeated already.
    nacked: Option<u64>,
    resend_at: Option<Instant>,
    /// Since when no message was acknowledged although some wait.
    waiting_since: Option<Instant>,
}

/// The numbers of an incarnation that was replaced.
#[derive(Debug)]
struct Former {
    uid: Uid,
    next_seq: u64,
    /// How many messages for the incarnation were dropped since.
    dropped: usize,
}

impl<M: Clone> ReliableSender<M> {
    /// A sender that knows no incarnation of the peer yet.
    pub fn new(settings: &TransportSettings) -> Self {
        Self {
            buffer_size: settings.reliable_buffer_size,
            resend_interval: settings.reliable_resend_interval,
            give_up_after: settings.give_up_reliable_after,
            peer: None,
            former: VecDeque::new(),
            stream: None,
            next_seq: 1,
            unacked: VecDeque::new(),
            early: VecDeque::new(),
            skipped: None,
            nacked: None,
            resend_at: None,
            waiting_since: None,
        }
    }

    /// How many messages wait for their acknowledgement.
    pub fn waiting(&self) -> usize {
        self.unacked.len() + self.early.len()
    }

    /// Whether a control stream may be written.
    pub fn is_open(&self) -> bool {
        self.stream.is_some()
    }

    /// Whether no message waits to be sent or acknowledged, and no skip to be confirmed.
    pub fn is_idle(&self) -> bool {
        self.unacked.is_empty() && self.early.is_empty() && self.skipped.is_none()
    }

    /// Handles one input. Infallible: an input that makes no sense in the present state is ignored.
    pub fn handle(&mut self, now: Instant, input: SenderInput<M>, out: &mut Vec<SenderEffect<M>>) {
        match input {
            SenderInput::Send { target, message } => self.on_send(now, target, message, out),
            SenderInput::Incarnation { uid } => self.on_incarnation(now, uid, out),
            SenderInput::Opened { stream } => self.on_opened(now, stream, out),
            SenderInput::Closed { stream } => {
                if self.stream == Some(stream) {
                    self.stream = None;
                }
            }
            SenderInput::Ack { from, seq } => self.on_ack(now, from, seq),
            SenderInput::Nack { from, seq } => self.on_nack(now, from, seq, out),
            SenderInput::Refused => drop(self.drop_all(DeadLetterReason::HandshakeRejected, out)),
            SenderInput::Shutdown => drop(self.drop_all(DeadLetterReason::ShuttingDown, out)),
            SenderInput::Quarantined { uid } => self.on_quarantined(uid, out),
            SenderInput::Tick => self.on_tick(now, out),
        }
        self.update_deadlines(now);
        self.check_invariants();
    }

    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        assert!(self.waiting() <= self.buffer_size, "the messages that wait are bounded");
        let first = self.unacked.front().map_or(self.next_seq, |(seq, _)| *seq);
        assert_eq!(first + self.unacked.len() as u64, self.next_seq, "numbers follow one another");
        assert!(self.skipped.is_none_or(|skipped| skipped < first), "what was given up is not sent again");
        assert!(self.unacked.is_empty() || self.peer.is_some(), "numbers are those of an incarnation");
        assert!(self.early.is_empty() || self.stream.is_none(), "a stream shows which incarnation answers");
        assert!(self.former.len() <= MAX_FORMER, "the incarnations remembered are bounded");
        let is_current = |uid: Uid| self.peer == Some(uid);
        assert!(!self.former.iter().any(|former| is_current(former.uid)), "the current incarnation is no former one");
        assert!(
            !self.early.iter().take(16).any(|(uid, _)| is_current(*uid)),
            "a message for a known incarnation has a number"
        );
    }

    /// When a `Tick` next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let give_up = self.waiting_since.map(|since| since + self.give_up_after);
        self.resend_at.into_iter().chain(give_up).min()
    }

    fn on_send(&mut self, now: Instant, target: Uid, message: M, out: &mut Vec<SenderEffect<M>>) {
        if self.waiting() >= self.buffer_size {
            self.early.push_back((target, message));
            self.give_up(out);
        } else if self.peer == Some(target) {
            self.number(message, out);
        } else if self.stream.is_some() {
            // Drop: another incarnation answers at the address; the target is gone or never ran there.
            self.count_dropped(target);
            out.push(SenderEffect::Drop { message, reason: DeadLetterReason::StaleIncarnation });
        } else {
            self.early.push_back((target, message));
        }
        if self.stream.is_none() && self.waiting() > 0 {
            out.push(SenderEffect::Connect);
            self.resend_at.get_or_insert(now + self.resend_interval);
        }
    }

    /// Gives a message its number, and writes it at once if a stream is open.
    fn number(&mut self, message: M, out: &mut Vec<SenderEffect<M>>) {
        let seq = self.next_seq;
        self.next_seq += 1;
        if self.stream.is_some() {
            out.push(SenderEffect::Write { seq, message: message.clone() });
        }
        self.unacked.push_back((seq, message));
    }

    fn on_incarnation(&mut self, now: Instant, uid: Uid, out: &mut Vec<SenderEffect<M>>) {
        if self.peer == Some(uid) {
            return;
        }
        if let Some(before) = self.peer.replace(uid) {
            if self.former.len() >= MAX_FORMER {
                self.former.pop_front();
            }
            self.former.push_back(Former { uid: before, next_seq: self.next_seq, dropped: self.unacked.len() });
        }
        self.forget_numbers();
        for (_, message) in self.unacked.drain(..) {
            out.push(SenderEffect::Drop { message, reason: DeadLetterReason::StaleIncarnation });
        }
        self.resume_numbers(uid, out);
        for (target, message) in std::mem::take(&mut self.early) {
            if target == uid {
                self.number(message, out);
            } else {
                self.early.push_back((target, message));
            }
        }
        self.waiting_since = (self.waiting() > 0).then_some(now);
    }

    /// Continues the numbers of an incarnation that was replaced in error, past those that were dropped.
    fn resume_numbers(&mut self, uid: Uid, out: &mut Vec<SenderEffect<M>>) {
        let known = self.former.iter().position(|former| former.uid == uid);
        let Some(former) = known.and_then(|at| self.former.remove(at)) else { return };
        self.next_seq = former.next_seq;
        self.skipped = (former.next_seq > 1).then_some(former.next_seq - 1);
        if former.dropped > 0 {
            out.push(SenderEffect::GaveUp { uid, dropped: former.dropped });
        }
    }

    fn count_dropped(&mut self, target: Uid) {
        if let Some(former) = self.former.iter_mut().find(|former| former.uid == target) {
            former.dropped += 1;
        }
    }

    /// Resets stream, numbers and gaps, which were those of another incarnation.
    fn forget_numbers(&mut self) {
        (self.stream, self.skipped, self.nacked, self.next_seq) = (None, None, None, 1);
    }

    fn on_opened(&mut self, now: Instant, stream: u64, out: &mut Vec<SenderEffect<M>>) {
        self.stream = Some(stream);
        // The incarnation that answers is the current one; messages for others cannot be delivered.
        for (target, message) in std::mem::take(&mut self.early) {
            self.count_dropped(target);
            out.push(SenderEffect::Drop { message, reason: DeadLetterReason::StaleIncarnation });
        }
        self.write_all(now, out);
    }

    fn on_ack(&mut self, now: Instant, from: Uid, seq: u64) {
        // Ignore a number that was never given, and acknowledgements of another incarnation.
        if self.peer != Some(from) || seq >= self.next_seq {
            return;
        }
        let before = self.unacked.len();
        while self.unacked.front().is_some_and(|(first, _)| *first <= seq) {
            self.unacked.pop_front();
        }
        self.skipped = self.skipped.filter(|skipped| *skipped > seq);
        if self.unacked.len() < before {
            self.waiting_since = Some(now);
        }
    }

    fn on_nack(&mut self, now: Instant, from: Uid, seq: u64, out: &mut Vec<SenderEffect<M>>) {
        self.on_ack(now, from, seq);
        // Repeat once per gap: every message behind a gap causes the same nack.
        if self.peer == Some(from) && seq < self.next_seq && self.nacked != Some(seq) {
            self.nacked = Some(seq);
            self.write_all(now, out);
        }
    }

    fn write_all(&mut self, now: Instant, out: &mut Vec<SenderEffect<M>>) {
        if self.stream.is_none() || (self.unacked.is_empty() && self.skipped.is_none()) {
            return;
        }
        out.push(SenderEffect::Rewind);
        out.extend(self.skipped.map(|seq| SenderEffect::WriteSkip { seq }));
        let again =
            self.unacked.iter().map(|(seq, message)| SenderEffect::Write { seq: *seq, message: message.clone() });
        out.extend(again);
        self.resend_at = Some(now + self.resend_interval);
    }

    fn on_quarantined(&mut self, uid: Uid, out: &mut Vec<SenderEffect<M>>) {
        let reason = DeadLetterReason::Quarantined;
        if self.peer == Some(uid) {
            self.forget_numbers();
            out.extend(self.unacked.drain(..).map(|(_, message)| SenderEffect::Drop { message, reason }));
        }
        for (target, message) in std::mem::take(&mut self.early) {
            if target == uid {
                out.push(SenderEffect::Drop { message, reason });
            } else {
                self.early.push_back((target, message));
            }
        }
    }

    fn on_tick(&mut self, now: Instant, out: &mut Vec<SenderEffect<M>>) {
        if self.waiting_since.is_some_and(|since| since + self.give_up_after <= now) {
            self.give_up(out);
        }
        if self.resend_at.is_some_and(|at| at <= now) {
            self.nacked = None;
            self.resend_at = Some(now + self.resend_interval);
            if self.stream.is_some() {
                self.write_all(now, out);
            } else if self.waiting() > 0 {
                out.push(SenderEffect::Connect);
            }
        }
    }

    fn give_up(&mut self, out: &mut Vec<SenderEffect<M>>) {
        let Some(uid) = self.peer.filter(|_| !self.unacked.is_empty()).or(self.early.front().map(|(uid, _)| *uid))
        else {
            return;
        };
        let dropped = self.drop_all(DeadLetterReason::DeliveryGaveUp, out);
        out.push(SenderEffect::GaveUp { uid, dropped });
    }

    /// Drops all messages that wait. The peer will be told to skip their numbers.
    fn drop_all(&mut self, reason: DeadLetterReason, out: &mut Vec<SenderEffect<M>>) -> usize {
        let dropped = self.waiting();
        let unacked = self.unacked.drain(..).map(|(_, message)| message);
        let messages = unacked.chain(self.early.drain(..).map(|(_, message)| message));
        out.extend(messages.map(|message| SenderEffect::Drop { message, reason }));
        if dropped > 0 && self.next_seq > 1 {
            self.skipped = Some(self.next_seq - 1);
        }
        dropped
    }

    /// Sets or clears the deadlines, depending on whether messages wait.
    fn update_deadlines(&mut self, now: Instant) {
        if self.waiting() == 0 {
            self.waiting_since = None;
        } else {
            self.waiting_since.get_or_insert(now);
        }
        // A skip alone is worth no connection; it is written on the next stream.
        let is_due = self.waiting() > 0 || (self.skipped.is_some() && self.stream.is_some());
        if is_due {
            self.resend_at.get_or_insert(now + self.resend_interval);
        } else {
            self.resend_at = None;
        }
    }
}
