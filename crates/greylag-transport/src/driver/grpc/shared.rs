//! The state that all tasks of one transport share.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use greylag_core::UniqueAddress;

use super::accepting::{CallerSlots, ConnectionAdmission};
use super::dialling::Resolver;
use super::local::LocalNode;
use super::peers::{Dial, Peer, Peers};
use super::receiving::Workers;
use super::sending::{AskTimer, Flushes, LargestMessages};
use super::stats::Counters;
use super::tls::TlsFiles;
use crate::holder::Holder;
use crate::lanes::lane_map::LaneMap;

/// The shared state of one transport.
pub(crate) struct TransportInner {
    pub(crate) node: LocalNode,
    pub(crate) peers: Peers,
    pub(crate) lanes: LaneMap,
    pub(crate) workers: Workers,
    pub(crate) counters: Counters,
    /// `None` means plain text.
    pub(crate) tls: Option<Arc<TlsFiles>>,
    pub(crate) admission: ConnectionAdmission,
    pub(crate) callers: Arc<CallerSlots>,
    pub(crate) resolver: Resolver,
    pub(crate) start_stream: StartStream,
    pub(crate) flushes: Flushes,
    pub(crate) asks: AskTimer,
    pub(crate) largest: LargestMessages,
    /// The number of the next sender that waits for room.
    pub(crate) next_waiting: AtomicU64,
}

/// Starts the task that dials a peer and serves the stream: the machine of a peer orders dials, and knows no streams.
pub(crate) type StartStream = fn(Arc<TransportInner>, Arc<Peer>, Dial);

impl TransportInner {
    pub(crate) fn new(
        node: LocalNode,
        tls: Option<Arc<TlsFiles>>,
        workers: Workers,
        start_stream: StartStream,
    ) -> Self {
        Self {
            peers: Peers::default(),
            lanes: node.settings.lane_map(),
            workers,
            counters: Counters::default(),
            tls,
            admission: ConnectionAdmission::new(node.settings.dead_letter_log_rate),
            callers: Arc::default(),
            resolver: Resolver::default(),
            start_stream,
            flushes: Flushes::default(),
            asks: AskTimer::default(),
            largest: LargestMessages::default(),
            next_waiting: AtomicU64::new(0),
            node,
        }
    }

    /// Replaces the members that hold addresses.
    pub(crate) fn set_holders(self: &Arc<Self>, holders: Vec<Holder>) {
        self.peers.set_holders(holders).for_each(|(peer, input)| self.input(&peer, input));
    }

    /// Replaces the processes that were removed from the cluster.
    pub(crate) fn set_tombstones(self: &Arc<Self>, tombstones: &BTreeSet<UniqueAddress>) {
        self.peers.set_tombstones(tombstones).for_each(|(peer, input)| self.input(&peer, input));
    }
}
