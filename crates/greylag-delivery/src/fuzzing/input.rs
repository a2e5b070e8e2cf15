//! Reads a fuzzing input byte by byte, as a program for a machine.

use std::time::{Duration, Instant};

/// The unread part of an input.
pub(super) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next byte; `None` at the end.
    pub(super) fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// The next byte, 0 at the end.
    pub(super) fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    /// A number: mostly small, sometimes near the end of the number range.
    pub(super) fn number(&mut self) -> u64 {
        match self.byte() {
            byte @ 0..=191 => u64::from(byte),
            byte @ 192..=223 => u64::MAX - u64::from(byte - 192),
            byte => u64::from(byte - 223) << 31,
        }
    }

    /// Bytes with a length of two bytes in front; fewer if the input ends before.
    pub(super) fn bytes(&mut self) -> &'a [u8] {
        let length = usize::from(u16::from_be_bytes([self.byte(), self.byte()]));
        let (bytes, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

/// The clock of a machine.
pub(super) struct Time {
    pub(super) now: Instant,
}

impl Time {
    pub(super) fn starting(now: Instant) -> Self {
        Self { now }
    }

    /// Advances the clock by some milliseconds, at most 60 s.
    pub(super) fn advance(&mut self, milliseconds: u64) {
        self.now += Duration::from_millis(milliseconds.min(60_000));
    }

    /// Advances the clock to a deadline; false if the deadline is too far away (30 days or more).
    pub(super) fn reach(&mut self, deadline: Instant) -> bool {
        let is_near = deadline.saturating_duration_since(self.now) < Duration::from_secs(86_400 * 30);
        if is_near {
            self.now = self.now.max(deadline);
        }
        is_near
    }

    /// Asserts that the deadline after a tick, if there is one, is later than now.
    pub(super) fn assert_later(&self, deadline: Option<Instant>) {
        assert!(deadline.is_none_or(|deadline| deadline > self.now), "a tick at its deadline leaves that deadline");
    }
}
