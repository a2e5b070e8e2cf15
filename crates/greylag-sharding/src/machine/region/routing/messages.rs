//! The messages of a region: how many came, left and wait, how full all buffers together are, and the end of messages
//! that are dropped.

use greylag_core::DeadLetterReason;

use crate::ids::ShardId;
use crate::machine::region::place::{Buffer, Content, Rank, Waiting};
use crate::machine::region::protocol::{Effect, Returned};
use crate::machine::region::report::{Counters, RegionEvent};
use crate::settings::{BufferOverflow, ShardingSettings};

/// See the module's description.
#[derive(Debug, Default)]
pub(in crate::machine::region) struct Messages {
    counters: Counters,
    /// Bytes of the waiting messages.
    bytes: u64,
    /// The tenth of the buffer last reported as full.
    reported: usize,
    /// Whether a message was dropped since a tenth of the buffer was free.
    overflowing: bool,
}

impl Messages {
    /// Counts of the messages that passed through the machine.
    pub(in crate::machine::region) fn counters(&self) -> Counters {
        self.counters
    }

    /// Counts messages that were taken in.
    pub(in crate::machine::region) fn on_submitted(&mut self, messages: usize) {
        self.counters.submitted += messages as u64;
    }

    /// Counts a message that was handed to a local shard.
    pub(in crate::machine::region) fn on_delivered(&mut self) {
        self.counters.delivered += 1;
    }

    /// Counts a message that was enqueued for another region.
    pub(in crate::machine::region) fn on_forwarded(&mut self) {
        self.counters.forwarded += 1;
    }

    /// Whether one message more may wait. Marks, and messages that were accepted before, always may.
    pub(in crate::machine::region) fn make_room(
        &mut self,
        shard: &ShardId,
        buffer: &mut Buffer,
        waiting: &Waiting,
        settings: &ShardingSettings,
        out: &mut Vec<Effect>,
    ) -> bool {
        let size = waiting.content.size();
        if waiting.rank != Rank::Plain {
            return true;
        }
        let drops_old = settings.buffer_overflow == BufferOverflow::DropOld;
        while self.is_full(size, settings) {
            if self.overflow() {
                out.push(Effect::Event(RegionEvent::BufferFull { buffered: self.counters.buffered }));
            }
            let Some(dropped) = drops_old.then(|| buffer.take_oldest_plain()).flatten() else {
                self.drop_waiting(shard, waiting, DeadLetterReason::BufferFull, out);
                return false;
            };
            self.count_out(&dropped.content);
            self.drop_waiting(shard, &dropped, DeadLetterReason::BufferFull, out);
        }
        true
    }

    /// Ends the wait of an entry that is in no buffer any more: a message becomes a dead letter. A probe vanishes
    /// silently, since the region that sent the probe has a timeout.
    pub(in crate::machine::region) fn drop_waiting(
        &mut self,
        shard: &ShardId,
        waiting: &Waiting,
        reason: DeadLetterReason,
        out: &mut Vec<Effect>,
    ) {
        if let Content::Message(message) = waiting.content {
            self.counters.dead_lettered += 1;
            out.push(Effect::DeadLetter { shard: shard.clone(), token: message.token, reason });
        }
    }

    /// Drops messages that a shard gave back.
    pub(in crate::machine::region) fn drop_returned(
        &mut self,
        shard: &ShardId,
        returned: Vec<Returned>,
        reason: DeadLetterReason,
        out: &mut Vec<Effect>,
    ) {
        self.counters.dead_lettered += returned.len() as u64;
        let dead =
            |returned: Returned| Effect::DeadLetter { shard: shard.clone(), token: returned.message.token, reason };
        out.extend(returned.into_iter().map(dead));
    }

    /// Counts a message that waits from now on.
    pub(in crate::machine::region) fn count_in(&mut self, content: &Content) {
        if let Content::Message(message) = content {
            self.counters.buffered += 1;
            self.bytes += u64::from(message.size);
        }
    }

    /// Counts a message that waits no more.
    pub(in crate::machine::region) fn count_out(&mut self, content: &Content) {
        if let Content::Message(message) = content {
            self.counters.buffered -= 1;
            self.bytes -= u64::from(message.size);
        }
    }

    /// Whether a message of this size finds no room. A message larger than the whole buffer waits alone.
    fn is_full(&self, size: u64, settings: &ShardingSettings) -> bool {
        let is_beyond = self.bytes + size > settings.buffer_bytes as u64;
        self.counters.buffered >= settings.buffer_size as u64 || (is_beyond && self.counters.buffered > 0)
    }

    /// Notes that a message is dropped because the buffer is full. True for the first since a tenth of the buffer was free.
    fn overflow(&mut self) -> bool {
        !std::mem::replace(&mut self.overflowing, true)
    }

    /// The fill level of the buffers in per cent, if it has grown by a tenth since the last call.
    pub(in crate::machine::region) fn fill_to_report(&mut self, settings: &ShardingSettings) -> Option<u8> {
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
    pub(in crate::machine::region) fn check_invariants(&self, buffered: Option<usize>) {
        let c = &self.counters;
        assert_eq!(c.submitted, c.delivered + c.forwarded + c.dead_lettered + c.buffered, "no message is lost");
        if let Some(buffered) = buffered {
            assert_eq!(buffered as u64, c.buffered, "what is counted as buffered is in a buffer");
            assert!(c.buffered > 0 || self.bytes == 0, "what is not there takes no room");
        }
    }
}
