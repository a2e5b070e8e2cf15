//! Deciding: which shards need a home, the calls of the strategy, the numbers of allocations, the rounds of
//! rebalancing.
//!
//! ```text
//! request, handoff over, remembered --> wanted --CallAllocate--> strategy --> a generation for each home
//! rebalance_interval --CallRebalance--> strategy --> handoffs
//! ```
//! One call of each kind is under way at a time. The coordinator acts on the answers. Source: sharding §2.7, §2.9,
//! §2.16.

use std::time::{Duration, Instant};

use greylag_core::Generation;

use super::remembered::RememberedShards;
use super::requests::Requests;
use crate::allocation::View;
use crate::fingerprint::Fingerprint;
use crate::ids::ShardId;
use crate::machine::coordinator::protocol::Effect;
use crate::machine::message::Epoch;

/// See the module's description.
#[derive(Debug)]
pub(in crate::machine::coordinator) struct Decisions {
    pub(in crate::machine::coordinator) requests: Requests,
    pub(in crate::machine::coordinator) remembered: RememberedShards,
    next_seq: u64,
    /// Whether the gate of `min_regions` was passed (sharding §2.16).
    is_initialized: bool,
    rebalance_at: Option<Instant>,
    is_rebalancing: bool,
}

impl Decisions {
    pub(in crate::machine::coordinator) fn new(fingerprint: &Fingerprint) -> Self {
        Self {
            requests: Requests::default(),
            remembered: RememberedShards::new(fingerprint),
            next_seq: 1,
            is_initialized: false,
            rebalance_at: None,
            is_rebalancing: false,
        }
    }

    /// Whether the gate was passed.
    pub(in crate::machine::coordinator) fn is_initialized(&self) -> bool {
        self.is_initialized
    }

    /// Passes the gate. Returns whether it was closed before.
    pub(in crate::machine::coordinator) fn initialize(&mut self) -> bool {
        !std::mem::replace(&mut self.is_initialized, true)
    }

    /// Asks the strategy for homes of all shards that need one and live nowhere, in one call; shards that must be
    /// remembered first are added to their store instead.
    pub(in crate::machine::coordinator) fn call(
        &mut self,
        view: View,
        is_unallocated: impl Fn(&ShardId) -> bool,
        out: &mut Vec<Effect>,
    ) {
        let wanted = self.requests.wanted(&is_unallocated);
        self.remembered.add(wanted, out);
        let remembered = &self.remembered;
        let call = self.requests.begin_call(|shard| is_unallocated(shard) && remembered.allows(shard));
        out.extend(call.map(|(call, shards)| Effect::CallAllocate { call, shards, view }));
    }

    /// The number of the next allocation; `None` if the epoch has none left.
    pub(in crate::machine::coordinator) fn next_generation(&mut self, epoch: Epoch) -> Option<Generation> {
        let generation = Generation::new(epoch, self.next_seq).ok()?;
        self.next_seq += 1;
        Some(generation)
    }

    /// When the next round of rebalancing begins.
    pub(in crate::machine::coordinator) fn rebalance_at(&self) -> Option<Instant> {
        self.rebalance_at
    }

    /// Schedules the next round, one interval from now.
    pub(in crate::machine::coordinator) fn schedule_rebalance(&mut self, now: Instant, interval: Duration) {
        self.rebalance_at = Some(now + interval);
    }

    /// Whether a round begins now; if so, the next one is scheduled.
    pub(in crate::machine::coordinator) fn is_rebalance_due(&mut self, now: Instant, interval: Duration) -> bool {
        let is_due = self.rebalance_at.is_some_and(|at| at <= now);
        if is_due {
            self.schedule_rebalance(now, interval);
        }
        is_due
    }

    /// Whether the strategy has not answered the last round.
    pub(in crate::machine::coordinator) fn is_rebalancing(&self) -> bool {
        self.is_rebalancing
    }

    /// Notes that the strategy was asked which shards to move, or has answered.
    pub(in crate::machine::coordinator) fn set_rebalancing(&mut self, is_rebalancing: bool) {
        self.is_rebalancing = is_rebalancing;
    }
}
