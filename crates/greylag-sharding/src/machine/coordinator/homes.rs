//! Where the shards live: durable homes, decisions under way, moves, requests to stop, and the orders that are repeated.
//!
//! Source: sharding §2.7 to §2.12, §2.16.

mod checked;
mod decisions;
mod drops;
mod handoffs;
mod ledger;
mod orders;
mod placement;
mod remembered;
mod requests;
mod stops;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use greylag_core::Generation;

use self::checked::CHECKED;
use self::decisions::Decisions;
pub(super) use self::drops::Drops;
use self::handoffs::HandOffs;
pub(super) use self::handoffs::{Ack, HandOffEffect, Move};
pub(super) use self::ledger::{HomeEntry, Ledger};
use self::orders::Orders;
pub(super) use self::stops::Key;
use self::stops::Stops;
use super::protocol::{Effect, StoredHome};
use crate::allocation::View;
use crate::fingerprint::Fingerprint;
use crate::ids::{RegionId, ShardId};
use crate::machine::membership::Members;
use crate::machine::message::{Epoch, Home};
use crate::settings::ShardingSettings;

/// See the module's description.
#[derive(Debug)]
pub(super) struct Homes {
    pub(super) ledger: Ledger,
    pub(super) decisions: Decisions,
    pub(super) handoffs: HandOffs,
    pub(super) stops: Stops,
    pub(super) orders: Orders,
}

impl Homes {
    /// No homes, and no decisions yet.
    pub(super) fn new(fingerprint: &Fingerprint, settings: &ShardingSettings) -> Self {
        Self {
            ledger: Ledger::default(),
            decisions: Decisions::new(fingerprint),
            handoffs: HandOffs::new(settings),
            stops: Stops::default(),
            orders: Orders::default(),
        }
    }

    /// Records a decision about a shard. Nothing is announced before it is durable.
    pub(super) fn decide(&mut self, shard: &ShardId, home: StoredHome) {
        self.handoffs.end_given_up(shard);
        self.ledger.decide(shard, home);
        self.decisions.requests.mark_fresh(shard);
        self.stops.mark_fresh(shard);
    }

    /// Ends a home; the tombstone keeps the facts that the next allocation needs.
    pub(super) fn deallocate(&mut self, shard: &ShardId, leftovers_from: Option<RegionId>) {
        if let Some(home) = self.ledger.decided(shard).filter(|home| !home.deallocated).cloned() {
            self.decide(shard, StoredHome { deallocated: true, leftovers_from, previous: None, ..home });
            self.orders.unstarted.remove(shard);
        }
    }

    /// Whether no entity of the shard lives anywhere, by the decisions so far: the shard may be given a home.
    pub(super) fn is_unallocated(&self, shard: &ShardId) -> bool {
        is_unallocated(&self.ledger, &self.handoffs, &self.orders, shard)
    }

    /// Whether a shard's home may be sent now: the home is durable, lives on a member, and is not moving. Before the
    /// coordinator is active, its region must have claimed the home.
    pub(super) fn may_send(&self, shard: &ShardId, is_active: bool, members: &Members) -> bool {
        let Some(entry) = self.ledger.durable(shard) else { return false };
        !entry.stored.deallocated
            && (is_active || entry.confirmed)
            && !self.ledger.is_pending(shard)
            && !self.handoffs.contains(shard)
            && members.contains(&entry.stored.region.node)
    }

    /// A durable home in the form sent to `to`.
    fn home_for(&self, to: &RegionId, shard: &ShardId, entry: &HomeEntry) -> Home {
        let own = entry.stored.region == *to;
        let flushed = entry.flushed.as_ref().filter(|(_, regions)| regions.contains(to)).map(|(attempt, _)| *attempt);
        Home {
            shard: shard.clone(),
            region: entry.stored.region.clone(),
            generation: entry.stored.generation,
            flushed,
            previous: entry.stored.previous.filter(|_| own),
            leftovers_from: entry.stored.leftovers_from.clone().filter(|_| own),
            given_up: self.handoffs.given_up(shard),
        }
    }

    /// The durable homes among `shards`, in the form sent to `to`.
    pub(super) fn homes_for(&self, to: &RegionId, shards: &[ShardId]) -> Vec<Home> {
        let home = |shard: &ShardId| self.ledger.durable(shard).map(|entry| self.home_for(to, shard, entry));
        shards.iter().filter_map(home).collect()
    }

    /// Asks the strategy for homes of all shards that need one, in one call.
    pub(super) fn call_strategy(&mut self, view: View, out: &mut Vec<Effect>) {
        let Self { decisions, ledger, handoffs, orders, .. } = self;
        decisions.call(view, |shard| is_unallocated(ledger, handoffs, orders, shard), out);
    }

    /// Takes out the regions that wait for homes that may be sent now, with the shards.
    pub(super) fn take_answers(&mut self, is_active: bool, members: &Members) -> BTreeMap<RegionId, Vec<ShardId>> {
        let awaited = self.decisions.requests.awaited();
        let sendable: Vec<_> = awaited.filter(|shard| self.may_send(shard, is_active, members)).cloned().collect();
        let mut answers: BTreeMap<RegionId, Vec<ShardId>> = BTreeMap::new();
        for shard in sendable {
            for region in self.decisions.requests.answer(&shard) {
                answers.entry(region).or_default().push(shard.clone());
            }
        }
        answers
    }

    /// A region has started shards: the orders to host them need not be repeated.
    pub(super) fn on_shard_started(&mut self, region: &RegionId, shards: Vec<(ShardId, Generation)>) {
        for (shard, generation) in shards {
            let home = self.ledger.durable(&shard).map(|entry| &entry.stored);
            if home.is_some_and(|home| home.region == *region && home.generation == generation) {
                self.orders.unstarted.remove(&shard);
            }
        }
    }

    /// A region says that nothing of the shard up to that generation lives there. `unchecked`: any generation counts as the
    /// current home's.
    pub(super) fn on_shard_stopped(
        &mut self,
        region: &RegionId,
        shard: &ShardId,
        generation: Generation,
        (leftovers, unchecked): (bool, bool),
    ) {
        if self.orders.drops.stopped(shard, region, generation) {
            self.decisions.requests.mark_fresh(shard);
            self.stops.mark_fresh(shard);
        }
        let ended = self.ledger.decided(shard).is_some_and(|home| {
            let same = home.region == *region && home.generation == generation;
            !home.deallocated && (same || unchecked)
        });
        if ended {
            self.end_stopped(shard, leftovers.then(|| region.clone()));
        }
    }

    /// Ends the home of a shard of which nothing lives there any more, and the handoff that waited for that.
    pub(super) fn end_stopped(&mut self, shard: &ShardId, leftovers_from: Option<RegionId>) {
        if self.handoffs.stopped(shard) == Some(true) {
            // Allocate at once, even with no traffic: an idle cluster would lose its shards otherwise.
            self.decisions.requests.make_eager(shard);
        }
        self.deallocate(shard, leftovers_from);
    }

    /// Waits for an owner that stops the shard already, by the order of a predecessor of this incarnation.
    pub(super) fn await_stopped(
        &mut self,
        now: Instant,
        epoch: Epoch,
        shard: &ShardId,
        (owner, generation): (&RegionId, Generation),
    ) {
        if !self.handoffs.contains(shard) {
            self.handoffs.await_stopped(now, epoch, shard, owner, generation);
        }
    }

    /// A region claims the recorded home of a shard, which is not stopping there.
    pub(super) fn confirm(&mut self, shard: &ShardId, generation: Generation) {
        self.orders.unstarted.remove(shard);
        if let Some(entry) = self.ledger.durable_mut(shard)
            && entry.stored.generation == generation
        {
            entry.confirmed = true;
        }
    }

    /// Ends the homes of a region that is proven to be gone.
    pub(super) fn end_region(&mut self, region: &RegionId) {
        let mut owned = self.ledger.shards_of(region).to_vec();
        owned.sort();
        for shard in owned {
            if self.handoffs.end(&shard) == Some(true) {
                self.decisions.requests.make_eager(&shard);
            }
            self.lost_home(&shard);
            self.deallocate(&shard, None);
        }
    }

    /// Forgets what waits for a region that is gone.
    pub(super) fn forget_region(&mut self, region: &RegionId) {
        for shard in self.orders.drops.forget(region) {
            self.decisions.requests.mark_fresh(&shard);
            self.stops.mark_fresh(&shard);
        }
        self.handoffs.forget(region);
        self.decisions.requests.forget(region);
        self.stops.forget(region);
        self.orders.tables.forget(region);
    }

    /// Asks for another home of a remembered shard whose region is gone.
    fn lost_home(&mut self, shard: &ShardId) {
        if self.decisions.remembered.is_on() {
            self.decisions.requests.make_eager(shard);
        }
    }

    /// Takes the remembered shards read from the store.
    pub(super) fn on_remembered(&mut self, shards: BTreeSet<ShardId>) {
        self.decisions.remembered.on_read(shards);
        // Shards requested before the read could not be added.
        let awaited: Vec<_> = self.decisions.requests.awaited().cloned().collect();
        awaited.iter().for_each(|shard| self.decisions.requests.mark_fresh(shard));
    }

    /// Notes that these shards are durable in the store.
    pub(super) fn on_shards_remembered(&mut self, shards: Vec<ShardId>) {
        for shard in shards {
            self.decisions.requests.mark_fresh(&shard);
            self.decisions.remembered.on_added(shard);
        }
    }

    /// Asks for a home for every remembered shard without one, and remembers every shard with a home, including homes
    /// that a region has claimed.
    pub(super) fn want_remembered(&mut self, out: &mut Vec<Effect>) {
        if !self.decisions.remembered.is_on() {
            return;
        }
        self.decisions.remembered.note_homes(self.ledger.all_durable().map(|(shard, _)| shard.clone()));
        let homeless = |shard: &&ShardId| self.ledger.decided(shard).is_none_or(|home| home.deallocated);
        let homeless: Vec<_> = self.decisions.remembered.shards().filter(homeless).cloned().collect();
        homeless.iter().for_each(|shard| self.decisions.requests.make_eager(shard));
        let hosted: Vec<_> = self.durable().map(|(shard, _)| shard.clone()).collect();
        self.decisions.remembered.add(hosted, out);
    }

    /// The durable homes.
    pub(super) fn durable(&self) -> impl Iterator<Item = (&ShardId, &StoredHome)> {
        self.ledger.all_durable().map(|(shard, entry)| (shard, &entry.stored)).filter(|(_, home)| !home.deallocated)
    }

    /// The unacked orders to host that are due now, by region; they are due next at `again`.
    pub(super) fn unstarted_due(&mut self, now: Instant, again: Instant) -> BTreeMap<RegionId, Vec<ShardId>> {
        let mut hosts: BTreeMap<RegionId, Vec<ShardId>> = BTreeMap::new();
        for shard in self.orders.unstarted.due(now) {
            match self.ledger.durable(&shard) {
                Some(entry) if !entry.stored.deallocated => {
                    self.orders.unstarted.set(&shard, again);
                    hosts.entry(entry.stored.region.clone()).or_default().push(shard);
                }
                _ => self.orders.unstarted.remove(&shard),
            }
        }
        hosts
    }

    /// `is_known`: whether the region is registered; one that is gone is forgotten everywhere. Source: sharding §2.7 to
    /// §2.12.
    pub(super) fn check_invariants(&self, is_known: impl Fn(&RegionId) -> bool) {
        if !cfg!(debug_assertions) {
            return;
        }
        self.ledger.check_invariants();
        self.decisions.requests.check_invariants();
        self.stops.check_invariants();
        self.orders.drops.check_invariants();
        self.orders.tables.check_invariants();
        self.handoffs.check_invariants(|shard| self.ledger.decided(shard).filter(|home| !home.deallocated));
        let asking = self.decisions.requests.askers().chain(self.stops.askers()).chain(self.orders.tables.regions());
        let known = asking.chain(self.handoffs.participants()).take(CHECKED).all(is_known);
        assert!(known, "a region that is gone is waited for, and answered, no more");
    }

    /// When work of an active coordinator is due.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let decisions = [self.decisions.rebalance_at(), self.orders.unstarted.next()];
        decisions.into_iter().chain([self.handoffs.next_deadline(), self.stops.next()]).flatten().min()
    }
}

/// Whether no entity of the shard lives anywhere, by the decisions so far.
fn is_unallocated(ledger: &Ledger, handoffs: &HandOffs, orders: &Orders, shard: &ShardId) -> bool {
    ledger.decided(shard).is_none_or(|home| home.deallocated)
        && !handoffs.contains(shard)
        && !orders.drops.waits_for(shard)
}
