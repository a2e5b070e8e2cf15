//! The traffic between the nodes of a world, in messages and bytes.
//!
//! Counts the bytes of each message as encoded, and as sent: messages bigger than 4 KiB with zstd, as in the transport
//! (cluster T37). The heads of frames and of HTTP/2 (some 30 bytes a message) are not counted.

use greylag_cluster::Message;

/// Size above which the transport compresses messages (`compress_above`).
const COMPRESS_ABOVE: usize = 4 << 10;
/// The transport's compression level.
const LEVEL: i32 = 1;
/// Of messages whose bytes are not needed, one in this many is encoded, and counts for all; with more than a thousand
/// nodes, which send more messages, fewer in proportion.
const SAMPLED: u64 = 64;
/// With fewer nodes than this, all messages are encoded.
const FEW: usize = 200;

/// Counts of messages so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Traffic {
    pub(super) messages: u64,
    /// Count of messages with a whole state.
    pub(super) states: u64,
    pub(super) encoded: u64,
    pub(super) sent: u64,
    /// Size of the biggest encoded message.
    pub(super) biggest: u64,
}

impl Traffic {
    /// Counts a message of a world of `nodes` nodes.
    pub(super) fn count(&mut self, message: &Message, nodes: usize) {
        self.messages += 1;
        let is_state = matches!(message, Message::GossipEnvelope { .. } | Message::Welcome { .. });
        self.states += u64::from(is_state);
        let every = if nodes < FEW { 1 } else { SAMPLED * (nodes as u64 / 1000).max(1) };
        let number = if is_state { self.states } else { self.messages - self.states };
        if number.is_multiple_of(every) {
            let bytes = message.to_bytes();
            self.encoded += bytes.len() as u64 * every;
            self.sent += sent_bytes(&bytes) * every;
            self.biggest = self.biggest.max(bytes.len() as u64);
        }
    }

    /// The traffic since `before`.
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            messages: self.messages - before.messages,
            states: self.states - before.states,
            encoded: self.encoded - before.encoded,
            sent: self.sent - before.sent,
            biggest: self.biggest,
        }
    }
}

fn sent_bytes(bytes: &[u8]) -> u64 {
    let len = bytes.len();
    if len <= COMPRESS_ABOVE {
        return len as u64;
    }
    zstd::bulk::compress(bytes, LEVEL).map_or(len, |packed| packed.len().min(len)) as u64
}
