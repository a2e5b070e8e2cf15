//! Which frame is transmitted next, and up to which one the consumer grants frames.
//!
//! Source: delivery P3, P7, P10.

use std::ops::RangeInclusive;

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(super) struct Cursor {
    /// The next frame to be transmitted.
    next: u64,
    /// The last frame that the consumer grants.
    granted: u64,
    /// The frame that begins the present association.
    first: u64,
    highest_transmitted: u64,
}

impl Cursor {
    /// Before the first frame, which needs no grant (P1).
    pub(super) fn new() -> Self {
        Self { next: 1, granted: 1, first: 1, highest_transmitted: 0 }
    }

    /// The next frame to be transmitted.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Whether the consumer grants the next frame.
    pub(super) fn is_granted(&self) -> bool {
        self.next <= self.granted
    }

    /// Number of granted frames from this one on.
    pub(super) fn granted_from(&self, seq_nr: u64) -> u64 {
        self.granted.saturating_add(1).saturating_sub(seq_nr)
    }

    /// Whether a frame begins the present association.
    pub(super) fn is_first(&self, seq_nr: u64) -> bool {
        seq_nr == self.first
    }

    pub(super) fn advance(&mut self) {
        self.next += 1;
    }

    /// Notes a transmission. Returns whether the frame was transmitted before.
    pub(super) fn note_transmitted(&mut self, seq_nr: u64) -> bool {
        let again = seq_nr <= self.highest_transmitted;
        self.highest_transmitted = self.highest_transmitted.max(seq_nr);
        again
    }

    /// Goes back to a frame, unless the cursor is below the frame already; at most to `head`, the first held frame.
    pub(super) fn go_back_to(&mut self, seq_nr: u64, head: u64) {
        self.next = head.max(self.next.min(seq_nr));
    }

    /// Skips confirmed frames: the cursor stands at `seq_nr` or above.
    pub(super) fn skip_to(&mut self, seq_nr: u64) {
        self.next = self.next.max(seq_nr);
    }

    pub(super) fn grant(&mut self, confirmed: u64, up_to: u64) {
        // Always grant at least the next frame, whatever a peer sends, so that the producer is never stuck.
        let up_to = up_to.max(confirmed + 1).min(u64::MAX - 1);
        self.granted = self.granted.max(up_to);
    }

    /// Begins a new association with `head`, the first held frame, which needs no grant (P10).
    pub(super) fn start_over(&mut self, head: u64) {
        self.first = head;
        self.granted = head;
        self.next = head;
    }

    /// The cursor is at a held frame or behind the last one, and the frame after the confirmed ones is granted.
    pub(super) fn check_invariants(&self, positions: &RangeInclusive<u64>, confirmed: u64) {
        debug_assert!(positions.contains(&self.next));
        debug_assert!(self.granted > confirmed, "a producer always has a next step");
    }
}
