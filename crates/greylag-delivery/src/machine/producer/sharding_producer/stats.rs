//! Counters of a producer controller, as its handles see them.

use std::time::{Duration, Instant};

/// Counters of the controller, and gauges.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProducerStats {
    /// Messages accepted.
    pub sent: u64,
    /// Messages in the queue at the first load.
    pub recovered: u64,
    /// Frames transmitted again.
    pub resent: u64,
    /// Messages confirmed.
    pub confirmed: u64,
    /// Messages accepted and not confirmed.
    pub unconfirmed: u64,
    /// When the oldest of these was accepted, or a little earlier: usually at most 100 ms, more if messages wait for
    /// long.
    pub oldest_unconfirmed: Option<Instant>,
    /// Messages that have room and are being stored.
    pub storing: u64,
    /// Messages that wait for their entity's demand.
    pub buffered: u64,
    /// Senders that wait for room.
    pub waiting: u64,
    /// Entities with a link.
    pub entities: u64,
    /// Entities with demand: a message to one of them is sent at once.
    pub with_demand: u64,
    /// Longest time without a message of a consumer while a message was unconfirmed.
    pub longest_silence: Duration,
    /// Longest time from acceptance to confirmation of one message.
    pub slowest_confirmation: Duration,
    /// Confirmations of frames that were never sent, and messages to links that have ended.
    pub ignored: u64,
}
