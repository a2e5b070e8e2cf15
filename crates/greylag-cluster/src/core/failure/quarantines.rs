//! Decides when the processes of removed members are quarantined.
//!
//! A member that left in order is quarantined after a while, since its last messages may still be under way; any other
//! removed member at once, and so is every process whose address a new member has taken. Source: cluster T19.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use crate::core::Effect;
use crate::gossip::shared::Shared;
use crate::membership::view::MembershipView;

/// When each member that left in order is to be quarantined.
#[derive(Debug, Default)]
pub(in crate::core) struct Quarantines(BTreeMap<UniqueAddress, Instant>);

impl Quarantines {
    /// When the next quarantine is due.
    pub(in crate::core) fn next_deadline(&self) -> Option<Instant> {
        self.0.values().min().copied()
    }

    /// Quarantines the members whose time has come.
    pub(in crate::core) fn on_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let due = |(peer, at): (&UniqueAddress, &Instant)| (*at <= now).then(|| peer.clone());
        let peers: Vec<UniqueAddress> = self.0.iter().filter_map(due).collect();
        for peer in peers {
            self.0.remove(&peer);
            out.push(Effect::Quarantine { peer, harmless: true });
        }
    }

    /// Source: cluster T19.
    pub(in crate::core) fn check_invariants(&self, view: &MembershipView) {
        if cfg!(debug_assertions) && self.0.len() * view.members.len() <= 100 {
            let is_free = |peer: &UniqueAddress| view.members.keys().all(|member| member.address() != peer.address());
            assert!(self.0.keys().all(is_free), "a process whose address a member has taken does not wait");
        }
    }

    /// Notes the members that `view` shows as removed and `old` does not; those that left in order are quarantined
    /// `after` a while.
    pub(in crate::core) fn on_view(
        &mut self,
        now: Instant,
        old: &MembershipView,
        view: &MembershipView,
        after: Duration,
        out: &mut Vec<Effect>,
    ) {
        // Walk the tombstones only if they changed: the list is long and mostly does not.
        let fresh = if Shared::is(&view.tombstones, &old.tombstones) { None } else { Some(&view.tombstones) };
        for (peer, tombstone) in fresh.into_iter().flat_map(|tombstones| tombstones.iter()) {
            if old.tombstones.contains_key(peer) || *peer == view.self_address {
                continue;
            }
            // Skip tombstones that came with the first gossip: this node never met those processes.
            if old.member(peer).is_some() {
                if tombstone.clean && !tombstone.dead {
                    self.0.insert(peer.clone(), now + after);
                } else {
                    out.push(Effect::Quarantine { peer: peer.clone(), harmless: false });
                }
            }
        }
        // Quarantine at once every process whose address a new member has taken.
        let members = &view.members;
        let replaced = |peer: &&UniqueAddress| members.iter().any(|member| member.address.address() == peer.address());
        let replaced: Vec<UniqueAddress> = self.0.keys().filter(replaced).cloned().collect();
        for peer in replaced {
            self.0.remove(&peer);
            out.push(Effect::Quarantine { peer, harmless: true });
        }
    }
}
