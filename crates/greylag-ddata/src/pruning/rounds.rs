//! Pruning rounds: which replica takes over the data of a removed one.
//!
//! One small record per removed replica travels with every sync round. Source: ddata Z3.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use greylag_crdt::ReplicaId;

use super::clock::millis;
use crate::gate::Standing;

/// The round of a removed replica: who prunes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PruningRound {
    /// The removed replica.
    pub removed: ReplicaId,
    /// Of two rounds the higher epoch counts; with equal epochs the smaller owner.
    pub epoch: u64,
    /// The replica under whose name the data is put.
    pub owner: ReplicaId,
    /// Wall clock of the announcement, in milliseconds.
    pub created_at: i64,
}

impl PruningRound {
    fn beats(&self, other: &Self) -> bool {
        (self.epoch, Reverse(self.owner)) > (other.epoch, Reverse(other.owner))
    }

    /// Whether the round is over: two lifetimes of a marker have passed since its announcement. Source: ddata Z9.
    pub(crate) fn is_over(&self, wall_ms: i64, lifetime: Duration) -> bool {
        self.created_at.saturating_add(millis(lifetime).saturating_mul(2)) <= wall_ms
    }
}

/// What a replica tells another about pruning and itself whenever a sync round begins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PruningNews {
    /// The rounds that the sender knows.
    pub rounds: Vec<PruningRound>,
    /// The sender's standing, which includes its forget horizon.
    pub standing: Standing,
}

/// The most rounds known at a time. Each stays for two lifetimes of a marker, half a day by default, so there may be as
/// many restarts in that time. Beyond the limit a removed replica waits until others are forgotten: its data keep its
/// name.
pub(crate) const MAX_ROUNDS: usize = 8_192;

/// The known rounds, by removed replica.
#[derive(Debug, Default)]
pub(crate) struct RoundTable(BTreeMap<ReplicaId, PruningRound>);

impl RoundTable {
    /// Takes over a round unless a better one is known, or too many are. Returns whether it was taken over.
    pub(crate) fn merge(&mut self, round: &PruningRound) -> bool {
        let has_room = self.0.len() < MAX_ROUNDS;
        let better = self.0.get(&round.removed).map_or(has_room, |known| round.beats(known));
        if better {
            self.0.insert(round.removed, round.clone());
        }
        better
    }

    pub(crate) fn get(&self, removed: ReplicaId) -> Option<&PruningRound> {
        self.0.get(&removed)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &PruningRound> {
        self.0.values()
    }

    /// An epoch above all known ones.
    pub(crate) fn next_epoch(&self) -> u64 {
        self.0.values().map(|round| round.epoch).max().unwrap_or(0).saturating_add(1)
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&PruningRound) -> bool) {
        self.0.retain(|_, round| keep(round));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(epoch: u64, owner: u64) -> PruningRound {
        PruningRound { removed: ReplicaId(9), epoch, owner: ReplicaId(owner), created_at: 0 }
    }

    /// ddata Z3: the higher epoch wins, then the smaller owner, in any order of arrival.
    #[test]
    fn of_two_rounds_the_same_one_counts_everywhere() {
        for order in [[round(1, 2), round(2, 3), round(2, 4)], [round(2, 4), round(2, 3), round(1, 2)]] {
            let mut table = RoundTable::default();
            for round in &order {
                table.merge(round);
            }
            assert_eq!(table.get(ReplicaId(9)), Some(&round(2, 3)));
            assert_eq!(table.next_epoch(), 3);
        }
    }

    /// ddata Z3: a peer that names ever more replicas does not fill the memory, and known rounds can still change.
    #[test]
    fn rounds_are_bounded() {
        let mut table = RoundTable::default();
        let of = |removed, epoch| PruningRound { removed: ReplicaId(removed), ..round(epoch, 2) };
        let taken = (0..MAX_ROUNDS as u64 + 9).filter(|removed| table.merge(&of(*removed, 1))).count();
        assert_eq!((taken, table.iter().count()), (MAX_ROUNDS, MAX_ROUNDS));
        assert!(table.merge(&of(5, 2)), "a better round of one that is known is taken");
        table.retain(|round| round.removed != ReplicaId(5));
        assert!(table.merge(&of(MAX_ROUNDS as u64, 1)), "and another one when there is room again");
    }
}
