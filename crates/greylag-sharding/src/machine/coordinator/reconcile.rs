//! Registration, and the comparison of the shards that regions claim to host with the recorded homes.
//!
//! A claim never overrides a record of equal or larger generation, and a claim of a larger one is always adopted: lost
//! or stale state must not lead to a second copy of a living entity.
//!
//! Source: sharding §2.3, §2.13.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use greylag_core::{Generation, UniqueAddress};

use super::config::{CoordinatorState, HOMES_PER_FRAME};
use super::machine::Coordinator;
use super::nodes::RegionEntry;
use super::protocol::{CoordinatorEvent, Effect, StateEvent, StopReason, StoredHome};
use crate::ids::{RegionId, ShardId};
use crate::machine::message::{AgreementOutcome, Claim, ClaimState, CoordinatorMessage, Epoch, Register};

impl Coordinator {
    pub(super) fn on_register(&mut self, now: Instant, register: Register, out: &mut Vec<Effect>) {
        let Register { region, proxy, serial, fingerprint, highest_epoch, hosted } = register;
        self.epoch_state.see(highest_epoch);
        if !matches!(self.state, CoordinatorState::Reconciling | CoordinatorState::Active) {
            return;
        }
        // The region's node has obeyed a newer coordinator, or another one with the same epoch.
        let foreign = highest_epoch == self.epoch_state.epoch && !self.nodes.registry.is_answered(&region.node);
        if self.is_fenced_by(highest_epoch) || foreign {
            return self.stop(StopReason::Fenced { by: highest_epoch }, out);
        }
        if !self.nodes.may_register(&region, serial) {
            return;
        }
        let is_new = !self.nodes.registry.contains(&region);
        if is_new && !proxy {
            self.end_predecessors(&region);
        }
        let other_side = match &self.nodes.view.outcome {
            AgreementOutcome::Refused(mismatch) => Some(mismatch.clone()),
            AgreementOutcome::Asking | AgreementOutcome::Agreed => None,
        };
        let mismatch = other_side.or_else(|| self.epoch_state.fingerprint.mismatch(&fingerprint, proxy));
        let current = highest_epoch == self.epoch_state.epoch;
        let shutting_down = self.nodes.registry.get(&region).is_some_and(|entry| entry.shutting_down);
        let claims: BTreeMap<_, _> =
            hosted.iter().map(|claim| (claim.shard.clone(), (claim.generation, claim.state))).collect();
        let refused = mismatch.is_some();
        let entry = RegionEntry { proxy, refused, current, serial, shutting_down, claims };
        self.nodes.registry.register(&region, entry);
        match mismatch {
            Some(mismatch) => {
                self.send(&region, CoordinatorMessage::RegisterRefused { serial, mismatch }, out);
                out.push(Effect::Event(CoordinatorEvent::RegionRefused(region.clone())));
                self.refuse_claims(now, &region, &hosted, current, out);
            }
            None => {
                self.send(&region, CoordinatorMessage::RegisterAck { serial }, out);
                if !proxy && self.nodes.journal_state.add(&region) {
                    self.homes.ledger.record(StateEvent::RegionRegistered(region.clone()));
                }
                for claim in hosted {
                    self.reconcile(now, &region, claim, out);
                }
                if is_new {
                    out.push(Effect::Event(CoordinatorEvent::RegionRegistered(region.clone())));
                }
                // Send the table also to a region that registers again: an earlier table may have been lost with its
                // link.
                self.begin_table(&region, out);
                self.answer_requests(out);
            }
        }
        if current && self.state == CoordinatorState::Active && !refused {
            self.host_absent(now, &region, out);
        }
    }

    /// Ends earlier regions of the process, which has one region of a type at a time. Another process at the same
    /// address ends nothing: the name may have moved to another host, and its former process runs until its removal and
    /// the margin are over.
    fn end_predecessors(&mut self, region: &RegionId) {
        let before = self.nodes.known_of(&region.node, self.homes.ledger.named());
        for older in before.into_iter().filter(|known| known.incarnation < region.incarnation) {
            self.terminate(&older);
        }
    }

    fn reconcile(&mut self, now: Instant, region: &RegionId, claim: Claim, out: &mut Vec<Effect>) {
        let Claim { shard, generation, state } = claim;
        let recorded = self.homes.ledger.decided(&shard).cloned();
        match recorded {
            Some(home) if !home.deallocated && home.region == *region && home.generation == generation => {
                if state == ClaimState::Stopping {
                    let epoch = self.epoch_state.epoch;
                    self.homes.await_stopped(now, epoch, &shard, (region, generation));
                } else {
                    self.homes.confirm(&shard, generation);
                }
            }
            Some(home) if home.generation >= generation => self.drop_claim(now, &shard, region, generation, out),
            recorded => {
                if let Some(home) = recorded.filter(|home| !home.deallocated) {
                    let confirmed = self.homes.ledger.durable(&shard).is_some_and(|entry| entry.confirmed);
                    if confirmed && home.region != *region {
                        self.drop_claim(now, &shard, &home.region, home.generation, out);
                    }
                }
                self.homes.handoffs.end(&shard);
                if self.nodes.journal_state.is_kept() {
                    // Record the end of the former home first: a history in which a home follows another without an end
                    // is contradictory.
                    self.homes.deallocate(&shard, None);
                }
                self.homes.ledger.adopt(&shard, generation, state);
                let region = region.clone();
                let home = StoredHome { region, generation, deallocated: false, previous: None, leftovers_from: None };
                self.homes.decide(&shard, home);
            }
        }
    }

    /// Tells a region that its claim lost, repeated until it answers that nothing of the shard lives there. Until then
    /// the shard is not allocated.
    pub(super) fn drop_claim(
        &mut self,
        now: Instant,
        shard: &ShardId,
        region: &RegionId,
        generation: Generation,
        out: &mut Vec<Effect>,
    ) {
        let again = now + self.config.settings.retry_interval;
        self.homes.orders.drops.add(shard, region, generation, again);
        self.send(region, CoordinatorMessage::DropShard { shard: shard.clone(), generation }, out);
    }

    /// Drops all claims of a refused region, which may host nothing. Once the region has heard of the refusal, homes
    /// that it does not claim have ended, and so have the handoffs that wait for their end.
    fn refuse_claims(
        &mut self,
        now: Instant,
        region: &RegionId,
        hosted: &[Claim],
        current: bool,
        out: &mut Vec<Effect>,
    ) {
        for claim in hosted {
            self.drop_claim(now, &claim.shard, region, claim.generation, out);
        }
        if current {
            let claimed = |shard: &ShardId| hosted.iter().any(|claim| claim.shard == *shard);
            for shard in self.homes.ledger.shards_of(region).iter().filter(|shard| !claimed(shard)) {
                self.homes.end_stopped(shard, None);
            }
        }
    }

    /// Sends `HostShard` for exactly the recorded homes that the region's last `Register` did not claim.
    pub(super) fn host_absent(&mut self, now: Instant, region: &RegionId, out: &mut Vec<Effect>) {
        let Some(entry) = self.nodes.registry.get(region).filter(|entry| !entry.refused && !entry.proxy) else {
            return;
        };
        let owned = self.homes.ledger.shards_of(region);
        let absent = owned.iter().filter(|shard| {
            let generation = self.homes.ledger.durable(shard).map(|home| home.stored.generation);
            let claimed = entry.claims.get(*shard).is_some_and(|(claimed, _)| Some(*claimed) == generation);
            !claimed && !self.homes.ledger.is_pending(shard) && !self.homes.handoffs.contains(shard)
        });
        let mut absent: Vec<_> = absent.cloned().collect();
        absent.sort();
        let again = now + self.config.settings.shard_start_timeout;
        absent.iter().for_each(|shard| self.homes.orders.unstarted.set(shard, again));
        self.send_homes(region, &absent, CoordinatorMessage::HostShard, out);
    }

    /// Sends the whole table, so that the first message to any shard costs no round trip; a long table takes several
    /// turns.
    pub(super) fn begin_table(&mut self, region: &RegionId, out: &mut Vec<Effect>) {
        self.homes.orders.tables.begin(region);
        self.send_tables(out);
    }

    /// Sends the next parts of the tables, as far as this turn allows.
    pub(super) fn send_tables(&mut self, out: &mut Vec<Effect>) {
        while let Some((region, after, count)) = self.homes.orders.tables.next(HOMES_PER_FRAME) {
            let part: Vec<_> = self.homes.ledger.durable_after(after.as_ref()).take(count).collect();
            let (visited, last) = (part.len(), part.last().map(|(shard, _)| (*shard).clone()));
            let elsewhere =
                part.into_iter().filter(|(shard, entry)| entry.stored.region != region && self.may_send_home(shard));
            let known: Vec<_> = elsewhere.map(|(shard, _)| shard.clone()).collect();
            self.send_homes(&region, &known, CoordinatorMessage::ShardHomes, out);
            self.homes.orders.tables.visited(region, visited, last.filter(|_| visited == count));
        }
        if self.homes.orders.tables.asks_for_turn() {
            out.push(Effect::Continue);
        }
    }

    pub(super) fn on_no_region(&mut self, node: &UniqueAddress, epoch: Epoch) {
        let registered = self.nodes.registry.regions().any(|(region, entry)| region.node == *node && !entry.proxy);
        // A late answer must not end a region that was started since.
        if epoch == self.epoch_state.epoch && !registered && self.nodes.view.members.contains(node) {
            self.nodes.registry.note_without_region(node);
            self.terminate_hosting(node);
        }
    }

    fn terminate_hosting(&mut self, node: &UniqueAddress) {
        let owners = self.homes.ledger.owners().chain(self.nodes.journal_state.regions());
        let named: BTreeSet<_> = owners.filter(|region| region.node == *node).cloned().collect();
        for region in named {
            self.terminate(&region);
        }
    }
}
