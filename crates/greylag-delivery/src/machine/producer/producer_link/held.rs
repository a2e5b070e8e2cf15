//! The frames that a link holds, and the unconfirmed messages of these frames.

use std::collections::VecDeque;

use super::Frames;
use crate::ids::SeqNr;
use crate::message::Frame;

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(super) struct Held<P> {
    /// Contiguous; the first frame has the number `base`.
    frames: VecDeque<Frame<P>>,
    base: u64,
    next_seq: u64,
    /// Last frame and total of every unconfirmed message.
    messages: VecDeque<(u64, SeqNr)>,
}

impl<P> Held<P> {
    pub(super) fn new() -> Self {
        Self { frames: VecDeque::new(), base: 1, next_seq: 1, messages: VecDeque::new() }
    }

    /// The number of the first held frame, or of the next frame if none is held.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// The number of the next frame.
    pub(super) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether every message is confirmed, including messages whose frames were released.
    pub(super) fn is_settled(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn get(&self, seq_nr: u64) -> Option<&Frame<P>> {
        self.frames.get(usize::try_from(seq_nr.checked_sub(self.base)?).ok()?)
    }

    /// Totals of the unconfirmed messages, in order.
    pub(super) fn unconfirmed(&self) -> impl Iterator<Item = SeqNr> + '_ {
        self.messages.iter().map(|(_, total)| *total)
    }

    pub(super) fn append(&mut self, total: SeqNr, frames: Frames<P>, ack: bool) {
        match frames {
            Frames::Whole(payload) => self.push(total, ack, (true, true), payload),
            Frames::Chunks(chunks) => {
                let last = chunks.len().saturating_sub(1);
                for (index, payload) in chunks.into_iter().enumerate() {
                    self.push(total, ack && index == last, (index == 0, index == last), payload);
                }
            }
        }
        self.messages.push_back((self.next_seq - 1, total));
    }

    fn push(&mut self, total: SeqNr, ack: bool, (first_chunk, last_chunk): (bool, bool), payload: P) {
        self.frames.push_back(Frame { seq_nr: self.next_seq, total, ack, first_chunk, last_chunk, payload });
        self.next_seq += 1;
    }

    pub(super) fn frames(&self) -> impl Iterator<Item = &P> {
        self.frames.iter().map(|frame| &frame.payload)
    }

    /// The messages whose frames are all held, each with the flag that its sender waits, in order.
    pub(super) fn into_messages(self) -> Vec<(SeqNr, Frames<P>, bool)> {
        let mut messages = Vec::with_capacity(self.messages.len());
        let mut chunks = Vec::new();
        for Frame { total, ack, first_chunk, last_chunk, payload, .. } in self.frames {
            match (first_chunk, last_chunk) {
                (true, true) => messages.push((total, Frames::Whole(payload), ack)),
                // The first frames of this message were released.
                (false, _) if chunks.is_empty() => {}
                (_, is_last) => {
                    chunks.push(payload);
                    if is_last {
                        messages.push((total, Frames::Chunks(std::mem::take(&mut chunks)), ack));
                    }
                }
            }
        }
        messages
    }

    /// Releases the frames below `seq_nr`; their messages stay unconfirmed.
    pub(super) fn release_below(&mut self, seq_nr: u64) {
        while self.base < seq_nr && self.frames.pop_front().is_some() {
            self.base += 1;
        }
    }

    /// Releases confirmed frames. Returns the total of the last message confirmed thereby.
    pub(super) fn confirm(&mut self, confirmed: u64) -> Option<SeqNr> {
        self.release_below(confirmed.saturating_add(1));
        let mut total = None;
        while let Some((_, done)) = self.messages.pop_front_if(|(last, _)| *last <= confirmed) {
            total = Some(done);
        }
        total
    }

    /// Frees memory that only a busy link needs, if no frame is held.
    pub(super) fn shrink(&mut self) {
        if self.is_settled() && self.is_empty() {
            self.frames.shrink_to_fit();
            self.messages.shrink_to_fit();
        }
    }

    pub(super) fn check_invariants(&self) {
        debug_assert_eq!(self.base + self.frames.len() as u64, self.next_seq, "frames are contiguous");
    }
}
