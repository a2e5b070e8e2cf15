//! The buffer of arrived frames: puts them in order, and joins them into messages.
//!
//! Source: delivery C5, C6, K2 to K6.

use std::collections::VecDeque;

use super::chunks::Assembly;
use crate::ids::SeqNr;
use crate::message::{Content, Frames, SequencedMessage};

/// Frames that were dropped because they were beyond the window.
#[derive(Debug, Clone, Copy)]
struct Lost {
    /// The lowest number of the dropped frames.
    from: u64,
    /// Whether a resend was requested, after the window has reached the dropped frames.
    asked: bool,
}

/// What happened to an arriving frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The frame had arrived before.
    Duplicate,
    /// The frame is buffered.
    Kept,
    /// The frame is buffered, and these frames before it are missing.
    AfterGap { from: u64, to: u64 },
    /// The frame is beyond the window, and was dropped.
    BeyondWindow,
}

/// A message whose frames were all taken from the buffer.
#[derive(Debug)]
pub(super) struct Taken<P> {
    pub(super) last_seq: u64,
    pub(super) total: SeqNr,
    pub(super) ack: bool,
    pub(super) first: bool,
    pub(super) parts: Frames<P>,
}

/// The result of taking the next frame.
#[derive(Debug)]
pub(super) enum Step<P> {
    /// A complete message.
    Message(Taken<P>),
    /// A chunk; further chunks of its message follow this number.
    Chunk { seq_nr: u64 },
    /// A chunk whose message lost its beginning, so the chunk is skipped (K6).
    Torn,
}

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(super) struct Arrivals<P> {
    /// Frames above `received`, ascending.
    buffer: VecDeque<SequencedMessage<P>>,
    assembly: Option<Box<Assembly<P>>>,
    received: u64,
    highest_seen: u64,
    /// Last frame of the last message that was taken completely.
    delivered: u64,
    lost: Option<Lost>,
    /// Flow control only: lost frames are skipped, and no resend is requested.
    only_flow_control: bool,
}

impl<P: Content> Arrivals<P> {
    pub(super) fn new(only_flow_control: bool) -> Self {
        let (buffer, assembly, lost) = (VecDeque::new(), None, None);
        Self { buffer, assembly, received: 0, highest_seen: 0, delivered: 0, lost, only_flow_control }
    }

    /// The last frame taken.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    pub(super) fn len(&self) -> u64 {
        self.buffer.len() as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Clears the buffer; the frame after `received` is next.
    pub(super) fn start_after(&mut self, received: u64) {
        self.buffer.clear();
        self.assembly = None;
        self.received = received;
        self.highest_seen = received;
        self.delivered = received;
        self.lost = None;
    }

    /// Drops all frames after the last message that was taken completely.
    pub(super) fn start_after_delivered(&mut self) {
        self.start_after(self.delivered);
    }

    /// Skips numbers below `lowest`, whose frames no producer holds any more.
    pub(super) fn skip_to(&mut self, lowest: u64) {
        while self.buffer.pop_front_if(|message| message.frame.seq_nr < lowest).is_some() {}
        self.assembly = None;
        self.received = lowest - 1;
        self.delivered = self.received;
        self.highest_seen = self.highest_seen.max(self.received);
    }

    /// Buffers a frame in order (C5): up to the number `reach`, or `window` frames with flow control only.
    pub(super) fn arrive(&mut self, message: SequencedMessage<P>, reach: u64, window: u64) -> Arrival {
        let seq_nr = message.frame.seq_nr;
        let position = self.buffer.partition_point(|other| other.frame.seq_nr < seq_nr);
        let is_buffered = self.buffer.get(position).is_some_and(|other| other.frame.seq_nr == seq_nr);
        if seq_nr <= self.received || is_buffered {
            return Arrival::Duplicate;
        }
        let is_in_reach = if self.only_flow_control { self.len() < window } else { seq_nr <= reach };
        if !is_in_reach {
            if !self.only_flow_control && self.lost.is_none_or(|lost| seq_nr < lost.from) {
                self.lost = Some(Lost { from: seq_nr, asked: false });
            }
            return Arrival::BeyondWindow;
        }
        self.buffer.insert(position, message);
        let expected = self.highest_seen + 1;
        self.highest_seen = self.highest_seen.max(seq_nr);
        if seq_nr > expected && !self.only_flow_control {
            return Arrival::AfterGap { from: expected, to: seq_nr - 1 };
        }
        Arrival::Kept
    }

    /// The total of the frame that can be taken next.
    pub(super) fn next_total(&self) -> Option<SeqNr> {
        let next = self.buffer.front()?;
        let is_next = next.frame.seq_nr == self.received + 1 || self.only_flow_control;
        is_next.then_some(next.frame.total)
    }

    /// Whether a frame can be taken now.
    pub(super) fn is_next_here(&self) -> bool {
        self.next_total().is_some()
    }

    /// Takes the next frame. A message of more than `max_message_bytes` is not joined (K3).
    pub(super) fn take(&mut self, max_message_bytes: u64) -> Option<Step<P>> {
        self.next_total()?;
        let message = self.buffer.pop_front()?;
        let seq_nr = message.frame.seq_nr;
        if seq_nr > self.received + 1 {
            // Flow control only: skip the gap, and the message whose chunks it interrupted (K6).
            self.assembly = None;
        }
        self.received = seq_nr;
        self.highest_seen = self.highest_seen.max(seq_nr);
        let step = self.assemble(message, max_message_bytes);
        if let Step::Message(_) = step {
            self.delivered = seq_nr;
        }
        Some(step)
    }

    fn assemble(&mut self, message: SequencedMessage<P>, max_message_bytes: u64) -> Step<P> {
        let SequencedMessage { frame, first } = message;
        let (last_seq, total, ack, is_last) = (frame.seq_nr, frame.total, frame.ack, frame.last_chunk);
        let assembly = if frame.first_chunk {
            self.assembly = None;
            if is_last {
                return Step::Message(Taken { last_seq, total, ack, first, parts: Frames::Whole(frame.payload) });
            }
            Box::new(Assembly::begin(first, frame, max_message_bytes))
        } else {
            match self.assembly.take() {
                Some(mut assembly) => {
                    assembly.add(frame);
                    assembly
                }
                // K6: the skipped gap contained the first chunk of this message.
                None if self.only_flow_control => return Step::Torn,
                None => Box::new(Assembly::torn(first, frame)),
            }
        };
        if is_last {
            let (first, parts) = (assembly.first, assembly.into_frames());
            return Step::Message(Taken { last_seq, total, ack, first, parts });
        }
        self.assembly = Some(assembly);
        Step::Chunk { seq_nr: last_seq }
    }

    /// The first range of missing frames below an arrived frame; an end of 0 means all frames from there on.
    pub(super) fn lowest_gap(&self) -> Option<(u64, u64)> {
        if self.only_flow_control {
            return None;
        }
        let mut expected = self.received + 1;
        for message in &self.buffer {
            let seq_nr = message.frame.seq_nr;
            if seq_nr > expected {
                return Some((expected, seq_nr - 1));
            }
            expected = seq_nr + 1;
        }
        self.lost.filter(|lost| expected <= lost.from).map(|_| (expected, 0))
    }

    /// Whether frames are missing for which a resend was requested.
    pub(super) fn misses_frames(&self) -> bool {
        let has_gap = self.highest_seen - self.received > self.len();
        !self.only_flow_control && (has_gap || self.lost.is_some_and(|lost| lost.asked))
    }

    /// C6: the first frame dropped beyond the window, once the window has reached it.
    pub(super) fn reached_lost(&mut self) -> Option<u64> {
        let is_next_here = self.is_next_here();
        let lost = self.lost.as_mut()?;
        let from = lost.from;
        if self.received >= from {
            self.lost = None;
        } else if self.received + 1 == from && !is_next_here && !lost.asked {
            lost.asked = true;
            return Some(from);
        }
        None
    }

    /// Frees memory that only a busy link needs.
    pub(super) fn shrink(&mut self) {
        self.buffer.shrink_to_fit();
    }

    pub(super) fn check_invariants(&self, largest_window: u64) {
        debug_assert!(self.received <= self.highest_seen, "received runs behind what was seen");
        debug_assert!(self.delivered <= self.received, "a message is whole when its last frame is taken");
        debug_assert!(self.buffer.iter().all(|message| message.frame.seq_nr > self.received));
        debug_assert!(self.buffer.iter().map(|message| message.frame.seq_nr).is_sorted());
        debug_assert!(self.len() <= largest_window, "never more than a window is buffered");
    }
}
