//! Counters of the region's messages, and the fill level of all its buffers together.

use super::buffer::Content;
use super::report::Counters;
use crate::settings::ShardingSettings;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct MessageCounters {
    pub(super) counters: Counters,
    /// Bytes of the waiting messages.
    bytes: u64,
    /// The tenth of the buffer last reported as full.
    reported: usize,
    /// Whether a message was dropped since a tenth of the buffer was free.
    overflowing: bool,
}

impl MessageCounters {
    /// Counts a message that waits from now on.
    pub(super) fn count_in(&mut self, content: &Content) {
        if let Content::Message(message) = content {
            self.counters.buffered += 1;
            self.bytes += u64::from(message.size);
        }
    }

    /// Counts a message that waits no more.
    pub(super) fn count_out(&mut self, content: &Content) {
        if let Content::Message(message) = content {
            self.counters.buffered -= 1;
            self.bytes -= u64::from(message.size);
        }
    }

    /// Whether a message of this size finds no room. A message larger than the whole buffer waits alone.
    pub(super) fn is_full(&self, size: u64, settings: &ShardingSettings) -> bool {
        let is_beyond = self.bytes + size > settings.buffer_bytes as u64;
        self.counters.buffered >= settings.buffer_size as u64 || (is_beyond && self.counters.buffered > 0)
    }

    /// Notes that a message is dropped because the buffer is full. True for the first since a tenth of the buffer was free.
    pub(super) fn overflow(&mut self) -> bool {
        !std::mem::replace(&mut self.overflowing, true)
    }

    /// The fill level of the buffers in per cent, if it has grown by a tenth since the last call.
    pub(super) fn fill_to_report(&mut self, settings: &ShardingSettings) -> Option<u8> {
        let messages = (self.counters.buffered as usize).saturating_mul(10) / settings.buffer_size;
        let bytes = (self.bytes as usize).saturating_mul(10) / settings.buffer_bytes;
        let tenth = messages.max(bytes);
        self.overflowing &= tenth >= 9;
        let grows = tenth > self.reported;
        // A fill that goes to and fro over one mark is told once.
        if grows || tenth + 1 < self.reported {
            self.reported = tenth;
        }
        grows.then_some((tenth.min(10) * 10) as u8)
    }

    /// Asserts what holds at every moment, `buffered` messages being in buffers.
    pub(super) fn check_invariants(&self, buffered: Option<usize>) {
        let c = &self.counters;
        assert_eq!(c.submitted, c.delivered + c.forwarded + c.dead_lettered + c.buffered, "no message is lost");
        if let Some(buffered) = buffered {
            assert_eq!(buffered as u64, c.buffered, "what is counted as buffered is in a buffer");
            assert!(c.buffered > 0 || self.bytes == 0, "what is not there takes no room");
        }
    }
}
