//! The links of a producer under its identity, by entity, by instance, and by shard.
//!
//! Source: delivery S1, S6, S7.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use super::entity_state::EntityState;
use super::protocol::ShardingProducerSettings;
use crate::ids::{ControllerRef, Epoch, ProducerIdentity, StreamId};
use crate::machine::omissions::Omissions;
use crate::machine::producer_link::{self, LinkMode, ProducerLink, ProducerLinkSettings};
use crate::machine::tracking::deadlines::{ArmedTimer, Deadlines};
use crate::message::BatchHeader;

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(super) struct Links<P> {
    identity: ProducerIdentity,
    resend_first_interval: Duration,
    resend_first_unconfirmed_idle_timeout: Duration,
    omissions: Omissions,
    node: UniqueAddress,
    path: Arc<str>,
    last_instance: u64,
    by_entity: BTreeMap<Arc<str>, u64>,
    states: BTreeMap<u64, Box<EntityState<P>>>,
    shards: BTreeMap<Arc<str>, ShardLinks>,
    deadlines: Deadlines<u64>,
}

/// The links to entities of one shard.
#[derive(Debug, Clone, Default)]
struct ShardLinks {
    instances: BTreeSet<u64>,
    unrouted: bool,
    /// Whether its entities are on another node.
    away: bool,
}

impl ShardLinks {
    /// Whether the entry can be dropped. An entry with a flag is kept, since the region does not repeat where a shard
    /// is.
    fn is_blank(&self) -> bool {
        self.instances.is_empty() && !self.unrouted && !self.away
    }
}

impl<P: Clone> Links<P> {
    pub(super) fn new(
        settings: &ShardingProducerSettings,
        identity: ProducerIdentity,
        node: UniqueAddress,
        path: Arc<str>,
    ) -> Self {
        Self {
            identity,
            resend_first_interval: settings.resend_first_interval,
            resend_first_unconfirmed_idle_timeout: settings.resend_first_unconfirmed_idle_timeout,
            omissions: settings.omissions,
            node,
            path,
            last_instance: 0,
            by_entity: BTreeMap::new(),
            states: BTreeMap::new(),
            shards: BTreeMap::new(),
            deadlines: Deadlines::new(),
        }
    }

    /// The queue was loaded: later frames belong to this stream and epoch.
    pub(super) fn set_stream(&mut self, stream_id: StreamId, epoch: Epoch) {
        self.identity.stream_id = stream_id;
        self.identity.epoch = epoch;
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.identity.epoch
    }

    /// The header of a link's frames.
    pub(super) fn header(&self, controller: ControllerRef, lowest: u64) -> BatchHeader {
        let ProducerIdentity { producer_id, stream_id, epoch } = &self.identity;
        BatchHeader {
            producer_id: producer_id.clone(),
            stream_id: *stream_id,
            epoch: *epoch,
            controller,
            ordered: true,
            lowest,
        }
    }

    /// Checks that each link is found by its entity and its shard, and is looked at when it has work to do. Source:
    /// delivery S1.
    pub(super) fn check_invariants(&self) {
        assert_eq!(self.by_entity.len(), self.states.len(), "an entity has one link");
        assert_eq!(self.shards.values().map(|links| links.instances.len()).sum::<usize>(), self.states.len());
        assert!(
            self.shards.values().all(|links| !links.is_blank()),
            "a shard is known while there is something to know"
        );
        for (instance, state) in &self.states {
            assert!(*instance <= self.last_instance, "instances are numbered in order");
            assert_eq!(self.by_entity.get(&state.entity), Some(instance), "a link is found by its entity");
            let of_shard = self.shards.get(&state.shard);
            assert!(of_shard.is_some_and(|links| links.instances.contains(instance)), "a link is found by its shard");
            assert!(state.armed.covers(state.link.next_deadline()), "a link is looked at when it has work to do");
        }
    }

    /// The node of the producer.
    pub(super) fn node(&self) -> &UniqueAddress {
        &self.node
    }

    pub(super) fn instance_of(&self, entity: &str) -> Option<u64> {
        self.by_entity.get(entity).copied()
    }

    pub(super) fn get(&self, instance: u64) -> Option<&EntityState<P>> {
        self.states.get(&instance).map(|state| &**state)
    }

    pub(super) fn get_mut(&mut self, instance: u64) -> Option<&mut EntityState<P>> {
        self.states.get_mut(&instance).map(|state| &mut **state)
    }

    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    pub(super) fn instances(&self) -> Vec<u64> {
        self.states.keys().copied().collect()
    }

    /// An empty link to an entity of a shard.
    fn new_link(&self, now: Instant, shard: &str) -> ProducerLink<P> {
        let settings = ProducerLinkSettings {
            mode: LinkMode::Sharding,
            stream_id: self.identity.stream_id,
            epoch: self.identity.epoch,
            resend_first_interval: self.resend_first_interval,
            resend_first_unconfirmed_idle_timeout: self.resend_first_unconfirmed_idle_timeout,
            omissions: self.omissions,
        };
        let mut link = ProducerLink::new(settings, now);
        if !self.is_routed(shard) {
            // A link without frames has nothing to transmit.
            link.handle(now, producer_link::Input::RouteChanged(false), &mut Vec::new());
        }
        link
    }

    /// Opens a link to an entity without one, under a fresh instance (S1).
    pub(super) fn open(&mut self, now: Instant, entity: Arc<str>, shard: Arc<str>) -> u64 {
        let link = self.new_link(now, &shard);
        self.last_instance += 1;
        let instance = self.last_instance;
        let links = self.shards.entry(shard.clone()).or_default();
        links.instances.insert(instance);
        let is_here = !links.away;
        let controller = ControllerRef { node: self.node.clone(), path: self.path.clone(), instance };
        self.by_entity.insert(entity.clone(), instance);
        let state = EntityState::new(now, entity, shard, controller, link);
        self.states.insert(instance, Box::new(EntityState { is_here, ..state }));
        instance
    }

    pub(super) fn remove(&mut self, instance: u64) -> Option<Box<EntityState<P>>> {
        let state = self.states.remove(&instance)?;
        self.by_entity.remove(&state.entity);
        if let Some(links) = self.shards.get_mut(&state.shard) {
            links.instances.remove(&instance);
            if links.is_blank() {
                self.shards.remove(&state.shard);
            }
        }
        Some(state)
    }

    /// Replaces an entity's link by an empty one under a fresh instance; returns the new instance and the former link.
    pub(super) fn renew(&mut self, now: Instant, instance: u64) -> Option<(u64, ProducerLink<P>)> {
        let mut state = self.states.remove(&instance)?;
        let link = self.new_link(now, &state.shard);
        self.last_instance += 1;
        let renewed = self.last_instance;
        let links = self.shards.entry(state.shard.clone()).or_default();
        links.instances.remove(&instance);
        links.instances.insert(renewed);
        self.by_entity.insert(state.entity.clone(), renewed);
        state.controller.instance = renewed;
        state.armed = ArmedTimer::default();
        let former = std::mem::replace(&mut state.link, link);
        self.states.insert(renewed, state);
        Some((renewed, former))
    }

    // ---- shards ---------------------------------------------------------------------------------

    pub(super) fn shards(&self) -> impl Iterator<Item = &Arc<str>> {
        self.shards.keys()
    }

    fn is_routed(&self, shard: &str) -> bool {
        self.shards.get(shard).is_none_or(|links| !links.unrouted)
    }

    /// Whether the entities of a shard are known to be on another node.
    pub(super) fn is_away(&self, shard: &str) -> bool {
        self.shards.get(shard).is_some_and(|links| links.away)
    }

    /// Sets whether the entities of a shard are on this node; also for a shard without links.
    pub(super) fn homed(&mut self, shard: &Arc<str>, is_here: bool) {
        if !is_here {
            self.shards.entry(shard.clone()).or_default().away = true;
        } else if let Some(links) = self.shards.get_mut(shard) {
            links.away = false;
            if links.is_blank() {
                self.shards.remove(shard);
            }
        }
    }

    pub(super) fn of_shard(&self, shard: &str) -> Vec<u64> {
        self.shards.get(shard).map(|links| links.instances.iter().copied().collect()).unwrap_or_default()
    }

    /// Sets whether a shard has a route; also for a shard without links. Returns whether that has changed.
    pub(super) fn route_changed(&mut self, shard: &Arc<str>, routed: bool) -> bool {
        if routed && !self.shards.contains_key(shard) {
            return false;
        }
        let links = self.shards.entry(shard.clone()).or_default();
        let is_news = links.unrouted == routed;
        links.unrouted = !routed;
        if links.is_blank() {
            self.shards.remove(shard);
        }
        is_news
    }

    // ---- deadlines ------------------------------------------------------------------------------

    pub(super) fn arm(&mut self, instance: u64, deadline: Option<Instant>) {
        if let Some(state) = self.states.get_mut(&instance) {
            self.deadlines.arm(instance, &mut state.armed, deadline);
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    /// The next link whose deadline may be due.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<u64> {
        while let Some((entry, instance)) = self.deadlines.pop_due(now) {
            if self.states.get_mut(&instance).is_some_and(|state| state.armed.fired(entry)) {
                return Some(instance);
            }
        }
        None
    }
}
