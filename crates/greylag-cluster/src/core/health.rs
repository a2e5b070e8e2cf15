//! Reports the membership machine's health and counters.
//!
//! Source: cluster M36, §6 (`publish_stats_interval`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use greylag_core::UniqueAddress;

use super::{ClusterCore, Effect, Life};
use crate::event::ClusterEvent;
use crate::health::Health;
use crate::stats::GossipStats;

impl ClusterCore {
    /// This node's health. The driver adds the transport's part (dead letters, certificates).
    pub fn health(&self, now: Instant) -> Health {
        let mut unreachable: BTreeMap<UniqueAddress, BTreeSet<UniqueAddress>> = BTreeMap::new();
        for (observer, subject, _) in self.gossip.reachability.accusations() {
            unreachable.entry(subject.clone()).or_default().insert(observer.clone());
        }
        let initialized = matches!(self.life, Life::Member);
        let blockers = self.gossip.blockers(&self.node, &self.exits).filter(|_| initialized);
        Health {
            initialized,
            status: self.view.self_status(),
            leader: self.view.leader.clone(),
            converged: self.view.converged,
            blockers: blockers.unwrap_or_default(),
            blocked_ticks: self.blocked_ticks,
            unreachable,
            suspect: self.trust.is_suspect(),
            foreign_cluster: self.foreign_clusters.met(now),
            held_addresses: self.address_claims.shown(now, &self.node),
            certificate_days_left: None,
            dead_letters: BTreeMap::new(),
        }
    }

    /// Counts of the gossip that reached this node, by outcome.
    pub fn gossip_stats(&self) -> &GossipStats {
        &self.stats
    }

    pub(super) fn tick_stats(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let Some(interval) = self.settings.publish_stats_interval else { return };
        let due = *self.stats_at.get_or_insert(now + interval);
        if due <= now {
            self.stats_at = Some(now + interval);
            out.push(Effect::Publish(ClusterEvent::GossipStats(self.stats.clone())));
        }
    }
}
