//! The counters of a transport.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use greylag_core::DeadLetterReason;

use crate::admission::control::Intrusion;
use crate::endpoints::dead_letters::DeadLetterKey;

/// The counters of a transport since its start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TransportStats {
    /// Envelopes that a [`Fault`](crate::Fault) swallowed in place of writing them.
    pub swallowed_envelopes: u64,
    /// Envelopes written to streams.
    pub sent_envelopes: u64,
    /// Frames that the envelopes were written in.
    pub sent_frames: u64,
    /// Bytes of those frames, after compression.
    pub sent_bytes: u64,
    /// How many of those frames left compressed.
    pub compressed_frames: u64,
    /// Accepted connections that moved to the data runtime, because they carry a data lane.
    pub moved_connections: u64,
    /// Envelopes read from streams.
    pub received_envelopes: u64,
    /// Frames that the envelopes were read from.
    pub received_frames: u64,
    /// Frames of kinds that this version does not know, or does not expect.
    pub skipped_frames: u64,
    /// Frames that could not be read; each closed its stream.
    pub malformed_frames: u64,
    /// Streams that peers have open to this node now.
    pub inbound_streams: usize,
    /// Intrusions, by kind and remote host.
    pub intrusions: BTreeMap<(Intrusion, IpAddr), u64>,
    /// How often a new certificate was loaded from disk.
    pub tls_reloads: u64,
    /// How often the certificate files could not be used; the certificate before stayed in use.
    pub tls_reload_failures: u64,
    /// Whole days until this node's certificate ends, negative once it has; `None` without TLS.
    pub certificate_days_left: Option<i64>,
    /// Messages that were dropped, by reason, lane and peer.
    pub dead_letters: BTreeMap<DeadLetterKey, u64>,
}

impl TransportStats {
    /// How many messages were dropped for `reason`, over all lanes and peers.
    pub fn dropped(&self, reason: DeadLetterReason) -> u64 {
        self.dead_letters.iter().filter(|(key, _)| key.reason == reason).map(|(_, count)| count).sum()
    }

    /// How often something of this kind was refused, over all remote hosts.
    pub fn intruded(&self, intrusion: Intrusion) -> u64 {
        self.intrusions.iter().filter(|((kind, _), _)| *kind == intrusion).map(|(_, count)| count).sum()
    }
}

/// The counters of envelopes, frames and connections since the start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    sent_envelopes: AtomicU64,
    swallowed_envelopes: AtomicU64,
    sent_frames: AtomicU64,
    sent_bytes: AtomicU64,
    compressed_frames: AtomicU64,
    moved_connections: AtomicU64,
    received_envelopes: AtomicU64,
    received_frames: AtomicU64,
    skipped_frames: AtomicU64,
    malformed_frames: AtomicU64,
}

impl Counters {
    pub(crate) fn sent(&self, envelopes: u64, bytes: usize) {
        self.sent_envelopes.fetch_add(envelopes, Ordering::Relaxed);
        self.sent_frames.fetch_add(1, Ordering::Relaxed);
        self.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn swallowed(&self) {
        self.swallowed_envelopes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn compressed(&self) {
        self.compressed_frames.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn moved_connection(&self) {
        self.moved_connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn received_frame(&self) {
        self.received_frames.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn received_envelopes(&self, count: u64) {
        self.received_envelopes.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn skipped(&self) {
        self.skipped_frames.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn malformed(&self) {
        self.malformed_frames.fetch_add(1, Ordering::Relaxed);
    }

    /// The counters as statistics, whose other fields are still to be set.
    pub(crate) fn read(&self) -> TransportStats {
        TransportStats {
            sent_envelopes: self.sent_envelopes.load(Ordering::Relaxed),
            swallowed_envelopes: self.swallowed_envelopes.load(Ordering::Relaxed),
            sent_frames: self.sent_frames.load(Ordering::Relaxed),
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            compressed_frames: self.compressed_frames.load(Ordering::Relaxed),
            moved_connections: self.moved_connections.load(Ordering::Relaxed),
            received_envelopes: self.received_envelopes.load(Ordering::Relaxed),
            received_frames: self.received_frames.load(Ordering::Relaxed),
            skipped_frames: self.skipped_frames.load(Ordering::Relaxed),
            malformed_frames: self.malformed_frames.load(Ordering::Relaxed),
            ..TransportStats::default()
        }
    }
}
