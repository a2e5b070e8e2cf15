//! What is counted of a replicator, and which events operators get about entries, clocks and peers. Source: ddata C8,
//! R6, A5, Y6, I3.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use greylag_crdt::ReplicaId;

use super::limiter::{EventLimiter, REMEMBERED};
use crate::api::effect::Effect;
use crate::api::event::{ReplicatorEvent, TypeConflict};
use crate::api::input::DropReason;
use crate::api::key::KeyId;
use crate::api::metrics::Traffic;
use crate::api::stats::Stats;
use crate::messages::message::{Message, Refusal};

/// Times too far ahead are reported once in this time for each peer.
const TELLING: Duration = Duration::from_secs(60);

/// The counters, and the limits of events about single entries and peers.
#[derive(Debug, Default)]
pub(super) struct Observed {
    pub(super) stats: Stats,
    sent: Traffic,
    received: Traffic,
    conflicts: Conflicts,
    /// Events about clocks that are far ahead.
    clocks: EventLimiter,
    /// Events about replica ids that are used twice.
    ids: EventLimiter,
    /// Events about times too far ahead, by the peer that sent them.
    times: EventLimiter,
}

impl Observed {
    /// Counts a message that goes out.
    pub(super) fn on_sent(&mut self, message: &Message, bytes: usize) {
        self.stats.full_states_sent += message.full_states();
        self.sent.count(message.kind(), bytes);
    }

    /// Counts a message that came in.
    pub(super) fn on_received(&mut self, message: &Message) {
        self.received.count(message.kind(), message.size_hint());
    }

    /// The messages sent, and those received.
    pub(super) fn traffic(&self) -> (&Traffic, &Traffic) {
        (&self.sent, &self.received)
    }

    /// Counts and reports that a peer sent a time too far ahead.
    pub(super) fn on_implausible_time(
        &mut self,
        now: Instant,
        peer: &UniqueAddress,
        ahead_ms: i64,
        out: &mut Vec<Effect>,
    ) {
        self.stats.implausible_times += 1;
        if self.times.is_news(now, &peer.to_string().into(), TELLING) {
            out.push(Effect::Event(ReplicatorEvent::ImplausibleHorizon { peer: peer.clone(), ahead_ms }));
        }
    }

    /// Counts a write whose timestamp is far ahead, and reports the first one of each entry.
    pub(super) fn on_clock_ahead(
        &mut self,
        now: Instant,
        key: &KeyId,
        peer: &UniqueAddress,
        ahead_ms: i64,
        out: &mut Vec<Effect>,
    ) {
        self.stats.clocks_ahead += 1;
        if self.clocks.is_first(now, key) {
            let (key, peer) = (key.clone(), peer.clone());
            out.push(Effect::Event(ReplicatorEvent::ClockAhead { key, peer, ahead_ms }));
        }
    }

    /// Counts data under this replica's name that it never made, and reports the first ones of each entry.
    pub(super) fn on_reused_id(
        &mut self,
        now: Instant,
        replica: ReplicaId,
        key: &KeyId,
        peer: &UniqueAddress,
        out: &mut Vec<Effect>,
    ) {
        self.stats.reused_ids += 1;
        if self.ids.is_first(now, key) {
            let (key, peer) = (key.clone(), peer.clone());
            out.push(Effect::Event(ReplicatorEvent::ReplicaIdReused { replica, key, peer }));
        }
    }

    /// Counts data of an entry that were refused, and reports entries that will never converge, each once in
    /// `interval`. `conflict` names the type here and the peer with the type there.
    pub(super) fn on_refused(
        &mut self,
        now: Instant,
        refusal: Refusal,
        key: &KeyId,
        conflict: impl FnOnce() -> TypeConflict,
        interval: Duration,
        out: &mut Vec<Effect>,
    ) {
        let event = match refusal {
            Refusal::TypeMismatch => {
                self.stats.type_mismatches += 1;
                let conflict = conflict();
                self.conflicts.met(conflict.clone());
                ReplicatorEvent::TypeConflict(conflict)
            }
            Refusal::UnknownType => {
                self.stats.unknown_types += 1;
                let TypeConflict { key, peer, found, .. } = conflict();
                ReplicatorEvent::UnknownType { key, peer, found }
            }
            Refusal::TooLarge => return self.stats.too_large += 1,
            Refusal::Undecodable | Refusal::NotReady | Refusal::Store => return self.stats.undecodable += 1,
        };
        if self.conflicts.events.is_news(now, key, interval) {
            out.push(Effect::Event(event));
        }
    }

    /// Counts and reports a transfer in fragments or parts that was given up.
    pub(super) fn on_aborted(&mut self, from: &UniqueAddress, out: &mut Vec<Effect>) {
        self.stats.transfers_aborted += 1;
        out.push(Effect::Event(ReplicatorEvent::TransferAborted { peer: from.clone() }));
    }

    /// Counts bytes of a peer that were dropped before they became a message.
    pub(super) fn on_dropped(&mut self, from: &UniqueAddress, why: DropReason, out: &mut Vec<Effect>) {
        match why {
            DropReason::Malformed => self.stats.malformed += 1,
            DropReason::Stranger => self.stats.from_strangers += 1,
            DropReason::Transfer => self.on_aborted(from, out),
        }
    }

    /// The conflicts that still exist: a conflict ends when the entry here is gone, deleted or of another type.
    pub(super) fn conflicts(&mut self, tag_of: impl Fn(&str) -> Option<Arc<str>>) -> Vec<TypeConflict> {
        self.conflicts.standing(tag_of)
    }
}

/// The conflicts of types.
#[derive(Debug, Default)]
struct Conflicts {
    /// Events about refused types.
    events: EventLimiter,
    /// The conflicts found so far, the latest one of each entry.
    standing: BTreeMap<KeyId, TypeConflict>,
}

impl Conflicts {
    /// Notes that a peer's entry was refused for its type.
    fn met(&mut self, conflict: TypeConflict) {
        if self.standing.len() < REMEMBERED || self.standing.contains_key(&conflict.key) {
            self.standing.insert(conflict.key.clone(), conflict);
        }
    }

    fn standing(&mut self, tag_of: impl Fn(&str) -> Option<Arc<str>>) -> Vec<TypeConflict> {
        self.standing.retain(|key, conflict| tag_of(key).is_some_and(|own| own == conflict.own));
        self.standing.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> KeyId {
        KeyId::from(format!("key-{number}"))
    }

    /// ddata R6: conflicts are listed as long as they exist, each entry once, and at most as many as are remembered.
    #[test]
    fn conflicts_are_listed_while_they_last() {
        let mut conflicts = Conflicts::default();
        for number in (0..2_000).chain([7]) {
            let peer = "a:1#1".parse().unwrap();
            conflicts.met(TypeConflict { key: key(number), own: "set".into(), peer, found: "map".into() });
        }
        assert_eq!(conflicts.standing(|_| Some("set".into())).len(), REMEMBERED);
        let left = conflicts.standing(|id| Some(if id == "key-7" { "set".into() } else { "map".into() }));
        assert_eq!(left.iter().map(|conflict| &*conflict.key).collect::<Vec<_>>(), ["key-7"]);
    }
}
