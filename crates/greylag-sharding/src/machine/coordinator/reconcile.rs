//! Registration, and the comparison of the shards that regions claim to host with the recorded homes.
//!
//! A claim never overrides a record of equal or larger generation, and a claim of a larger one is always adopted: lost
//! or stale state must not lead to a second copy of a living entity.
//!
//! Source: sharding §2.3, §2.13.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use greylag_core::{Generation, UniqueAddress};

use super::protocol::{CoordinatorEvent, Effect, StateEvent, StopReason, StoredHome};
use super::registry::RegionEntry;
use super::{Coordinator, CoordinatorState};
use crate::ids::{RegionId, ShardId};
use crate::machine::membership::Phase;
use crate::machine::message::{AgreementOutcome, Claim, ClaimState, CoordinatorMessage, Epoch, Register};

impl Coordinator {
    pub(super) fn on_register(&mut self, now: Instant, register: Register, out: &mut Vec<Effect>) {
        let Register { region, proxy, serial, fingerprint, highest_epoch, hosted } = register;
        self.epoch_state.see(highest_epoch);
        if !matches!(self.state, CoordinatorState::Reconciling | CoordinatorState::Active) {
            return;
        }
        // The region's node has obeyed a newer coordinator, or another one with the same epoch.
        let foreign = highest_epoch == self.epoch_state.epoch && !self.registry.is_answered(&region.node);
        if self.is_fenced_by(highest_epoch) || foreign {
            return self.stop(StopReason::Fenced { by: highest_epoch }, out);
        }
        if !self.may_register(&region, serial) {
            return;
        }
        let is_new = !self.registry.contains(&region);
        if is_new && !proxy {
            self.end_predecessors(&region);
        }
        let other_side = match &self.cluster_view.outcome {
            AgreementOutcome::Refused(mismatch) => Some(mismatch.clone()),
            AgreementOutcome::Asking | AgreementOutcome::Agreed => None,
        };
        let mismatch = other_side.or_else(|| self.epoch_state.fingerprint.mismatch(&fingerprint, proxy));
        let current = highest_epoch == self.epoch_state.epoch;
        let shutting_down = self.registry.get(&region).is_some_and(|entry| entry.shutting_down);
        let claims: BTreeMap<_, _> =
            hosted.iter().map(|claim| (claim.shard.clone(), (claim.generation, claim.state))).collect();
        let refused = mismatch.is_some();
        let entry = RegionEntry { proxy, refused, current, serial, shutting_down, claims };
        self.registry.register(&region, entry);
        match mismatch {
            Some(mismatch) => {
                self.send(&region, CoordinatorMessage::RegisterRefused { serial, mismatch }, out);
                out.push(Effect::Event(CoordinatorEvent::RegionRefused(region.clone())));
                self.refuse_claims(now, &region, &hosted, current, out);
            }
            None => {
                self.send(&region, CoordinatorMessage::RegisterAck { serial }, out);
                if !proxy && self.journal_state.add(&region) {
                    self.ledger.record(StateEvent::RegionRegistered(region.clone()));
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

    /// Whether the region may register: its member counts, no newer region of its process is known, and the message is
    /// not a late copy of an earlier `Register`.
    fn may_register(&self, region: &RegionId, serial: u64) -> bool {
        let phase = self.cluster_view.members.members.get(&region.node).map(|member| member.phase);
        if matches!(phase, None | Some(Phase::Joining | Phase::Down)) || self.registry.is_gone(region) {
            return false;
        }
        let newer = |known: &RegionId| known.node == region.node && known.incarnation > region.incarnation;
        let is_late = self.registry.get(region).is_some_and(|entry| entry.serial >= serial);
        !is_late && !self.registry.regions().any(|(known, _)| newer(known))
    }

    /// Ends earlier regions of the process, which has one region of a type at a time. Another process at the same
    /// address ends nothing: the name may have moved to another host, and its former process runs until its removal and
    /// the margin are over.
    fn end_predecessors(&mut self, region: &RegionId) {
        let registered = self.registry.regions().map(|(region, _)| region);
        let owners = self.ledger.named().chain(self.journal_state.regions()).chain(registered);
        let before = owners.filter(|r| r.node == region.node && r.incarnation < region.incarnation);
        for older in before.cloned().collect::<BTreeSet<_>>() {
            self.terminate(&older);
        }
    }

    fn reconcile(&mut self, now: Instant, region: &RegionId, claim: Claim, out: &mut Vec<Effect>) {
        let Claim { shard, generation, state } = claim;
        let recorded = self.ledger.decided(&shard).cloned();
        match recorded {
            Some(home) if !home.deallocated && home.region == *region && home.generation == generation => {
                self.confirm(now, &shard, region, generation, state);
            }
            Some(home) if home.generation >= generation => self.drop_claim(now, &shard, region, generation, out),
            recorded => {
                if let Some(home) = recorded.filter(|home| !home.deallocated) {
                    let confirmed = self.ledger.durable(&shard).is_some_and(|entry| entry.confirmed);
                    if confirmed && home.region != *region {
                        self.drop_claim(now, &shard, &home.region, home.generation, out);
                    }
                }
                self.handoffs.end(&shard);
                if self.journal_state.is_kept() {
                    // Record the end of the former home first: a history in which a home follows another without an end
                    // is contradictory.
                    self.deallocate(&shard, None);
                }
                self.ledger.adopt(&shard, generation, state);
                let region = region.clone();
                let home = StoredHome { region, generation, deallocated: false, previous: None, leftovers_from: None };
                self.decide(&shard, home);
            }
        }
    }

    fn confirm(&mut self, now: Instant, shard: &ShardId, region: &RegionId, generation: Generation, state: ClaimState) {
        if state == ClaimState::Stopping {
            return self.await_stopped(now, shard, region, generation);
        }
        self.orders.unstarted.remove(shard);
        if let Some(entry) = self.ledger.durable_mut(shard)
            && entry.stored.generation == generation
        {
            entry.confirmed = true;
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
        self.orders.drops.add(shard, region, generation, again);
        self.send(region, CoordinatorMessage::DropShard { shard: shard.clone(), generation }, out);
    }

    /// Drops all claims of a refused region, which may host nothing. Once the region has heard of the refusal, homes
    /// that it does not claim have ended.
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
            for shard in self.ledger.shards_of(region).iter().filter(|shard| !claimed(shard)) {
                self.deallocate(shard, None);
            }
        }
    }

    /// Sends `HostShard` for exactly the recorded homes that the region's last `Register` did not claim.
    pub(super) fn host_absent(&mut self, now: Instant, region: &RegionId, out: &mut Vec<Effect>) {
        let Some(entry) = self.registry.get(region).filter(|entry| !entry.refused && !entry.proxy) else { return };
        let owned = self.ledger.shards_of(region);
        let absent = owned.iter().filter(|shard| {
            let generation = self.ledger.durable(shard).map(|home| home.stored.generation);
            let claimed = entry.claims.get(*shard).is_some_and(|(claimed, _)| Some(*claimed) == generation);
            !claimed && !self.ledger.is_pending(shard) && !self.handoffs.contains(shard)
        });
        let mut absent: Vec<_> = absent.cloned().collect();
        absent.sort();
        let again = now + self.config.settings.shard_start_timeout;
        absent.iter().for_each(|shard| self.orders.unstarted.set(shard, again));
        self.send_homes(region, &absent, CoordinatorMessage::HostShard, out);
    }

    /// Sends the whole table, so that the first message to any shard costs no round trip; a long table takes several
    /// turns.
    pub(super) fn begin_table(&mut self, region: &RegionId, out: &mut Vec<Effect>) {
        self.orders.tables.begin(region);
        self.send_tables(out);
    }

    /// Sends the next parts of the tables, as far as this turn allows.
    pub(super) fn send_tables(&mut self, out: &mut Vec<Effect>) {
        while let Some((region, after, count)) = self.orders.tables.next(super::HOMES_PER_FRAME) {
            let part: Vec<_> = self.ledger.durable_after(after.as_ref()).take(count).collect();
            let (visited, last) = (part.len(), part.last().map(|(shard, _)| (*shard).clone()));
            let elsewhere =
                part.into_iter().filter(|(shard, entry)| entry.stored.region != region && self.may_send_home(shard));
            let known: Vec<_> = elsewhere.map(|(shard, _)| shard.clone()).collect();
            self.send_homes(&region, &known, CoordinatorMessage::ShardHomes, out);
            self.orders.tables.visited(region, visited, last.filter(|_| visited == count));
        }
        if self.orders.tables.asks_for_turn() {
            out.push(Effect::Continue);
        }
    }

    pub(super) fn on_no_region(&mut self, node: &UniqueAddress, epoch: Epoch) {
        let registered = self.registry.regions().any(|(region, entry)| region.node == *node && !entry.proxy);
        // A late answer must not end a region that was started since.
        if epoch == self.epoch_state.epoch && !registered && self.cluster_view.members.contains(node) {
            self.registry.note_without_region(node);
            self.terminate_hosting(node);
        }
    }

    fn terminate_hosting(&mut self, node: &UniqueAddress) {
        let owners = self.ledger.owners().chain(self.journal_state.regions());
        let named: BTreeSet<_> = owners.filter(|region| region.node == *node).cloned().collect();
        for region in named {
            self.terminate(&region);
        }
    }
}
