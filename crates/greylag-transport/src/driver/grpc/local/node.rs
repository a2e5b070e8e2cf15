//! The own node, as far as its peers and streams need to know it.

use std::collections::HashSet;

use greylag_core::{DeadLetterReason, NodeAddress, UniqueAddress};

use super::announcer::{Announcement, Announcer};
use super::blocked::Blocked;
use super::own_facts::OwnFacts;
use super::runtimes::Runtimes;
use super::shutdown::Shutdown;
use super::streams::Streams;
use crate::endpoints::endpoint::Endpoint;
use crate::lanes::lane::{Lane, LaneKind};
use crate::messages::envelope::Recipient;
use crate::messages::hello::{Features, Hello, MIN_SUPPORTED, PROTOCOL_VERSION};
use crate::settings::TransportSettings;

/// The node that a transport belongs to.
pub(crate) struct LocalNode {
    pub(crate) settings: TransportSettings,
    pub(crate) endpoint: Endpoint,
    pub(crate) facts: OwnFacts,
    pub(crate) runtimes: Runtimes,
    pub(crate) streams: Streams,
    pub(crate) shutdown: Shutdown,
    blocked: Blocked,
    announcer: Announcer,
}

impl LocalNode {
    pub(crate) fn new(
        settings: TransportSettings,
        endpoint: Endpoint,
        facts: OwnFacts,
        runtimes: Runtimes,
        announcer: Announcer,
    ) -> Self {
        Self {
            settings,
            endpoint,
            facts,
            runtimes,
            streams: Streams::default(),
            shutdown: Shutdown::default(),
            blocked: Blocked::default(),
            announcer,
        }
    }

    /// The Hello of a stream to `to`.
    pub(crate) fn hello(&self, to: &NodeAddress, lane: Lane, seq: u64) -> Hello {
        Hello {
            protocol_version: PROTOCOL_VERSION,
            min_supported: MIN_SUPPORTED,
            cluster_name: self.settings.cluster_name.clone(),
            from: self.endpoint.self_address.clone(),
            to: to.clone(),
            expected_uid: None,
            lane,
            lane_count: self.settings.outbound_lanes,
            stream_seq: seq,
            features: Features::OURS,
            cluster_id: self.facts.cluster_id(),
            host_id: self.facts.host_id(),
        }
    }

    /// Replaces the members. A node in untrusted mode that has no members yet listens to every process, because
    /// otherwise it could not join.
    pub(crate) fn trust(&self, members: &mut dyn Iterator<Item = &UniqueAddress>) {
        let members: HashSet<_> = members.cloned().collect();
        let listens_to_all = self.settings.untrusted_mode && members.is_empty();
        self.endpoint.membership.set_members((!listens_to_all).then_some(members));
    }

    /// Whether this process may speak only to the recipients that are open to strangers (cluster T17).
    pub(crate) fn is_stranger(&self, peer: &UniqueAddress) -> bool {
        self.endpoint.membership.is_stranger(peer)
    }

    /// Why a message of a process that is no member does not reach this recipient; `None` if it does. In untrusted mode
    /// strangers never reach the cluster's own protocols, the join among them.
    pub(crate) fn closed_to_strangers(&self, recipient: &Recipient) -> Option<DeadLetterReason> {
        let is_trusted = recipient.lane_kind() == LaneKind::Ordinary
            && self.settings.trusted_recipients.iter().any(|trusted| **trusted == *recipient.path);
        match self.settings.untrusted_mode {
            true => (!is_trusted).then(|| self.stranger_reason()),
            false if is_trusted || self.endpoint.membership.is_open(&recipient.path) => None,
            false => Some(self.stranger_reason()),
        }
    }

    /// The reason of a dead letter whose only fault is that its sender is a stranger.
    pub(crate) fn stranger_reason(&self) -> DeadLetterReason {
        if self.settings.untrusted_mode { DeadLetterReason::Untrusted } else { DeadLetterReason::NotAMember }
    }

    /// Whether this node has itself reached the process at the address that the process names.
    pub(crate) fn has_reached(&self, process: &UniqueAddress) -> bool {
        self.endpoint.peer(process.address()).is_some_and(|known| known.reached && known.peer == *process)
    }

    pub(crate) fn is_blocked(&self, peer: &UniqueAddress) -> bool {
        self.blocked.contains(peer)
    }

    pub(crate) fn block(&self, peer: &UniqueAddress) {
        self.blocked.block(peer);
    }

    pub(crate) fn unblock(&self, peer: &UniqueAddress) {
        self.blocked.unblock(peer);
    }

    /// Tells the listeners, unless the announcement is of a stranger and there is no room for those.
    pub(crate) fn announce(&self, announcement: Announcement) {
        self.announcer.announce(announcement, |peer| self.is_stranger(peer));
    }

    /// The number of events of strangers that listeners missed so far.
    pub(crate) fn missed_announcements(&self) -> u64 {
        self.announcer.missed()
    }
}
