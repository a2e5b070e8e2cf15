//! Rounds of pruning: which replica takes over what a removed one left.
//!
//! One small record per removed replica travels with every contact. Source: ddata Z3.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use greylag_crdt::ReplicaId;

use super::millis;
use crate::gate::Standing;

/// The replica that prunes a removed one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PruningRound {
    /// The removed replica.
    pub removed: ReplicaId,
    /// Of two rounds the one with the higher epoch counts; of two with one epoch, that of the smaller owner.
    pub epoch: u64,
    /// The replica under whose name everything is put.
    pub owner: ReplicaId,
    /// Wall clock of the announcement, in milliseconds.
    pub created_at: i64,
}

impl PruningRound {
    fn beats(&self, other: &Self) -> bool {
        (self.epoch, Reverse(self.owner)) > (other.epoch, Reverse(other.owner))
    }

    /// A round is dropped two lifetimes of a marker after its announcement. Source: ddata Z9.
    pub(crate) fn is_over(&self, wall_ms: i64, lifetime: Duration) -> bool {
        self.created_at.saturating_add(millis(lifetime).saturating_mul(2)) <= wall_ms
    }
}

/// What one replica tells another about pruning, whenever a sync round begins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PruningNews {
    /// The rounds it knows.
    pub rounds: Vec<PruningRound>,
    /// How it stands, up to when it forgot markers and tombstones among it.
    pub standing: Standing,
}

/// Rounds that are known at a time. Each stays for two lifetimes of a marker, half a day by default, so there may be as many
/// restarts in that time. Beyond it a removed replica waits until others are forgotten: what it wrote stays under its name.
pub(crate) const MAX_ROUNDS: usize = 8_192;

/// The rounds that are known, by removed replica.
#[derive(Debug, Default)]
pub(crate) struct RoundTable(BTreeMap<ReplicaId, PruningRound>);

impl RoundTable {
    /// Takes a round over unless a better one is known, or too many. Returns whether it was taken.
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

    /// The epoch above all that are known.
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

    /// ddata Z3: the higher epoch wins, then the smaller owner, in whatever order they arrive.
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

    /// ddata Z3: a peer that names ever more replicas does not fill the memory, and the known rounds go on.
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
