//! An input as a program for a machine: bytes that are read one after the other.

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

    /// A number: mostly a small one, sometimes one at the end of all numbers.
    pub(super) fn number(&mut self) -> u64 {
        match self.byte() {
            byte @ 0..=191 => u64::from(byte),
            byte @ 192..=223 => u64::MAX - u64::from(byte - 192),
            byte => u64::from(byte - 223) << 31,
        }
    }

    /// A length in two bytes, and as many of the bytes behind it; fewer where the input ends before.
    pub(super) fn bytes(&mut self) -> &'a [u8] {
        let length = usize::from(u16::from_be_bytes([self.byte(), self.byte()]));
        let (bytes, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

/// The time of a machine.
pub(super) struct Time {
    pub(super) now: Instant,
}

impl Time {
    pub(super) fn starting(now: Instant) -> Self {
        Self { now }
    }

    /// Goes on by some milliseconds.
    pub(super) fn pass(&mut self, milliseconds: u64) {
        self.now += Duration::from_millis(milliseconds.min(60_000));
    }

    /// Goes on to a deadline; false if that is further away than anything is worth waiting for.
    pub(super) fn reach(&mut self, deadline: Instant) -> bool {
        let is_near = deadline.saturating_duration_since(self.now) < Duration::from_secs(86_400 * 30);
        if is_near {
            self.now = self.now.max(deadline);
        }
        is_near
    }

    /// Asserts that a deadline after a tick lies later than now, or is none.
    pub(super) fn assert_later(&self, deadline: Option<Instant>) {
        assert!(deadline.is_none_or(|deadline| deadline > self.now), "a tick at its deadline leaves that deadline");
    }
}
