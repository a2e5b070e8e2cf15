//! Pruning: what a removed replica left is put under the name of a live one, and then forgotten.
//!
//! ```text
//! noticed    membership or data name a removed replica; the all-reachable clock runs
//! announced  the leader makes a round, which every contact spreads
//! collected  its owner completes a sync round with every member, once that member has shown that it knows the round
//! performed  the owner puts entry after entry under its own name and writes markers beside them
//! forgotten  markers go after their lifetime, and with the last of them the replica
//! ```
//!
//! Counters and contexts name every replica that ever wrote; without pruning they would grow for ever. A marker records
//! what was put where, and a replicator applies its markers to all data that it holds and receives, so a late copy
//! costs repeated work and never data. This machine tracks the removed replicas, the rounds, and the progress of the
//! own rounds; the replicator changes the entries.
//!
//! Source: ddata §5.

mod clock;
mod collection;
mod index;
mod ranges;
mod rounds;
mod time_changes;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use greylag_crdt::ReplicaId;

use clock::ReachableClock;
pub(crate) use clock::millis;
pub(crate) use collection::{Collections, RoundsSnapshot};
pub(crate) use index::{Named, ReplicaIndex};
pub(crate) use ranges::Ranges;
pub(crate) use rounds::MAX_ROUNDS;
use rounds::RoundTable;
pub use rounds::{PruningNews, PruningRound};
pub(crate) use time_changes::{RemainingEntries, Renewal, TimeChange, TimeChanges};
pub(crate) use work::{PruningStep, Work};

use crate::api::key::KeyId;
use crate::api::settings::ReplicatorSettings;
use crate::api::settings::omissions::{Clause, Omissions};
use crate::membership::replicas::{ReplicaStatus, Replicas};

/// The removed replicas, and the progress of pruning them.
#[derive(Debug)]
pub(crate) struct Pruning {
    own: ReplicaId,
    /// This replica and all replicas known to membership.
    known: BTreeSet<ReplicaId>,
    clock: ReachableClock,
    /// The removed replicas, with the time on the clock at which they were noticed.
    removed: BTreeMap<ReplicaId, Duration>,
    /// Removed replicas known from a store only. Membership overrides them: two halves of a cluster may have removed
    /// each other in an earlier life of this replicator.
    restored: BTreeSet<ReplicaId>,
    /// Replicas that data name and membership does not know; only the leader looks for them.
    unknown: BTreeMap<ReplicaId, Duration>,
    rounds: RoundTable,
    pub(crate) collections: Collections,
    pub(crate) ranges: Ranges,
    /// Entries to be performed, by removed replica.
    pub(crate) work: Vec<Work>,
    /// Changes of the times of markers and tombstones that are under way.
    pub(crate) time_changes: TimeChanges,
    /// The last entry examined for markers to forget; `None` if no examination is under way.
    pub(crate) forgotten_to: Option<(i64, KeyId)>,
    /// When the next tick is due.
    pub(crate) tick_at: Instant,
    omissions: Omissions,
}

impl Pruning {
    /// A machine that knows no removed replica.
    pub(crate) fn new(own: ReplicaId, settings: &ReplicatorSettings, now: Instant) -> Self {
        Self {
            own,
            known: [own].into(),
            clock: ReachableClock::default(),
            removed: BTreeMap::new(),
            restored: BTreeSet::new(),
            unknown: BTreeMap::new(),
            rounds: RoundTable::default(),
            collections: Collections::default(),
            ranges: Ranges::default(),
            work: Vec::new(),
            time_changes: TimeChanges::default(),
            forgotten_to: None,
            tick_at: now + settings.pruning_interval.unwrap_or_default(),
            omissions: settings.omissions,
        }
    }

    /// Takes a change of membership. Source: ddata Z1.
    pub(crate) fn on_replicas(&mut self, now: Instant, replicas: &Replicas) {
        let reachable = unreachable(replicas).is_none() || self.omissions.has(Clause::Unreachable);
        self.clock.set(now, replicas.own_status.is_some() && reachable && replicas.unmet.is_empty());
        let others = replicas.others.iter().map(|replica| ReplicaId(replica.address.uid().get()));
        self.known = others.chain([self.own]).collect();
        for member in &replicas.others {
            let member = ReplicaId(member.address.uid().get());
            if self.restored.remove(&member) {
                self.removed.remove(&member);
            }
        }
        for removed in &replicas.removed {
            self.restored.remove(&ReplicaId(removed.uid().get()));
            self.notice(now, ReplicaId(removed.uid().get()));
        }
        let members = collected_from(replicas);
        if self.omissions.has(Clause::Afresh) {
            self.collections.count_vanished_as_collected(&members);
        }
        self.collections.on_members(&members);
    }

    fn notice(&mut self, now: Instant, removed: ReplicaId) {
        if removed != self.own {
            let at = self.clock.elapsed(now);
            self.removed.entry(removed).or_insert(at);
        }
    }

    /// The replicas that are removed and not forgotten.
    pub(crate) fn removed(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        self.removed.keys().copied()
    }

    /// Takes over the removed replicas that a store remembered.
    pub(crate) fn restore(&mut self, now: Instant, removed: &BTreeSet<ReplicaId>, replicas: &Replicas) {
        let unheard = removed.iter().filter(|removed| !self.removed.contains_key(removed));
        self.restored = unheard.copied().collect();
        for removed in removed {
            self.notice(now, *removed);
        }
        self.on_replicas(now, replicas);
    }

    /// Whether a replica is removed, so that its messages are dropped.
    pub(crate) fn is_removed(&self, replica: ReplicaId) -> bool {
        self.removed.contains_key(&replica)
    }

    /// The rounds, for telling peers.
    pub(crate) fn rounds(&self) -> Vec<PruningRound> {
        self.rounds.iter().cloned().collect()
    }

    /// Takes the rounds of a peer. Source: ddata Z1, Z3, Z4.
    pub(crate) fn on_news(
        &mut self,
        now: Instant,
        wall_ms: i64,
        from: &UniqueAddress,
        news: &PruningNews,
        lifetime: Duration,
    ) {
        for round in &news.rounds {
            // Ignore rounds that prune this very replica: membership soon tells it that it is removed.
            if round.removed == self.own || round.is_over(wall_ms, lifetime) || !self.rounds.merge(round) {
                continue;
            }
            self.restored.remove(&round.removed);
            self.notice(now, round.removed);
            if round.owner != self.own {
                self.collections.remove(round.removed);
                self.work.retain(|work| work.removed != round.removed);
            }
        }
        self.collections.on_shown(from, self.own, &news.rounds);
    }

    /// The time before which markers must have ended to be forgotten now, by the clocks: no member is unreachable, and
    /// everything had time to spread since the markers ended and since all members were reachable. Source: ddata Z9.
    pub(crate) fn forgets_before(&self, now: Instant, wall_ms: i64, settings: &ReplicatorSettings) -> Option<i64> {
        settings.pruning_interval?;
        let since = self.clock.running_since()?;
        let spread = settings.max_pruning_dissemination;
        (since + spread <= now).then(|| wall_ms.saturating_sub(millis(spread)))
    }

    /// As the leader, announces a round for each removed replica noticed long enough ago. Source: ddata Z2, Z3.
    pub(crate) fn announce(
        &mut self,
        now: Instant,
        wall_ms: i64,
        own: &UniqueAddress,
        replicas: &Replicas,
        index: &ReplicaIndex,
        settings: &ReplicatorSettings,
    ) {
        if leader(own, replicas) != Some(own) {
            self.unknown.clear();
            return;
        }
        self.look_for_unknown(now, index);
        let elapsed = self.clock.elapsed(now);
        let voters = voters(self.own, replicas);
        let noticed = self.removed.iter().chain(&self.unknown);
        let ripe = noticed.filter(|(_, at)| elapsed.saturating_sub(**at) >= settings.max_pruning_dissemination);
        let ripe: Vec<ReplicaId> = ripe
            .map(|(removed, _)| *removed)
            .filter(|removed| index.mentions(*removed))
            .filter(|removed| self.rounds.get(*removed).is_none_or(|round| !voters.contains(&round.owner)))
            .collect();
        for removed in ripe {
            let epoch = self.rounds.next_epoch();
            if self.rounds.merge(&PruningRound { removed, epoch, owner: self.own, created_at: wall_ms }) {
                self.unknown.remove(&removed);
                self.notice(now, removed);
            }
        }
    }

    /// Notes replicas that only data name, for example of former incarnations whose stores returned.
    fn look_for_unknown(&mut self, now: Instant, index: &ReplicaIndex) {
        let is_known = |named: &ReplicaId| self.known.contains(named) || self.removed.contains_key(named);
        let unknown: BTreeSet<ReplicaId> = index.replicas().filter(|named| !is_known(named)).collect();
        self.unknown.retain(|replica, _| unknown.contains(replica));
        let elapsed = self.clock.elapsed(now);
        for replica in unknown {
            self.unknown.entry(replica).or_insert(elapsed);
        }
    }

    /// Continues the rounds of this owner: queues entries to perform, and returns the members still to be collected.
    /// Source: ddata Z4, Z5.
    pub(crate) fn continue_rounds(&mut self, replicas: &Replicas, index: &ReplicaIndex) -> BTreeSet<UniqueAddress> {
        let members = collected_from(replicas);
        let mut awaited = BTreeSet::new();
        for round in self.rounds.iter().filter(|round| round.owner == self.own) {
            let mut missing = self.collections.begin(round.removed, round.epoch, &members);
            if self.omissions.has(Clause::Collection) {
                missing.clear();
            }
            let under_way = self.work.iter().any(|work| work.removed == round.removed);
            if missing.is_empty() && index.mentions(round.removed) && !under_way {
                self.work.push(Work::new(round.removed));
            }
            awaited.extend(missing);
        }
        awaited
    }

    /// Whether data still name a removed replica.
    pub(crate) fn has_something_to_do(&self, index: &ReplicaIndex) -> bool {
        self.removed.keys().any(|removed| index.mentions(*removed))
    }

    /// Drops rounds that are over, and removed replicas of which nothing is left. Source: ddata Z9.
    pub(crate) fn drop_finished(
        &mut self,
        wall_ms: i64,
        replicas: &Replicas,
        index: &ReplicaIndex,
        lifetime: Duration,
    ) {
        self.rounds.retain(|round| !round.is_over(wall_ms, lifetime));
        let (rounds, own) = (&self.rounds, self.own);
        self.collections.retain(|removed| rounds.get(removed).is_some_and(|round| round.owner == own));
        let tombstones: BTreeSet<ReplicaId> =
            replicas.removed.iter().map(|removed| ReplicaId(removed.uid().get())).collect();
        self.removed.retain(|removed, _| {
            tombstones.contains(removed) || rounds.get(*removed).is_some() || index.names(*removed)
        });
        self.ranges.retain(|removed| index.names(removed) || rounds.get(removed).is_some());
    }
}

/// An unreachable member, for which pruning waits.
pub(crate) fn unreachable(replicas: &Replicas) -> Option<&UniqueAddress> {
    replicas.others.iter().find(|replica| !replica.reachable).map(|replica| &replica.address)
}

/// The members that an owner collects from: peers, and those that are joining.
fn collected_from(replicas: &Replicas) -> BTreeSet<UniqueAddress> {
    replicas.others.iter().map(|replica| replica.address.clone()).collect()
}

/// The pruning leader: the first full member in the order of addresses.
fn leader<'a>(own: &'a UniqueAddress, replicas: &'a Replicas) -> Option<&'a UniqueAddress> {
    let others = replicas.others.iter().filter(|replica| replica.status == ReplicaStatus::Up);
    let own = (replicas.own_status == Some(ReplicaStatus::Up)).then_some(own);
    others.map(|replica| &replica.address).chain(own).min()
}

fn voters(own: ReplicaId, replicas: &Replicas) -> BTreeSet<ReplicaId> {
    let others = replicas.others.iter().filter(|replica| replica.status.is_voter());
    let own = replicas.own_is_voter().then_some(own);
    others.map(|replica| ReplicaId(replica.address.uid().get())).chain(own).collect()
}

#[cfg(test)]
mod tests {
    use greylag_crdt::{DotSource, Markers};

    use super::*;

    const REMOVED: ReplicaId = ReplicaId(9);

    /// Whether a removed replica is still removed after a tick, and whether the own numbers that stand for its numbers
    /// are still reserved.
    fn left(is_tombstone: bool, has_round: bool, is_named: bool) -> (bool, bool) {
        let (now, settings) = (Instant::now(), ReplicatorSettings::default());
        let mut pruning = Pruning::new(ReplicaId(1), &settings, now);
        pruning.notice(now, REMOVED);
        pruning.ranges.cover(&DotSource::new(), REMOVED, 1, 3);
        if has_round {
            pruning.rounds.merge(&PruningRound { removed: REMOVED, epoch: 1, owner: ReplicaId(1), created_at: 0 });
        }
        let (mut index, markers) = (ReplicaIndex::default(), Markers::new());
        if is_named {
            index.update(&"key".into(), None, Some(Named { mentions: &[REMOVED], markers: &markers }));
        }
        let address: UniqueAddress = "r:1#9".parse().expect("an address");
        let removed = is_tombstone.then_some(address).into_iter().collect();
        let replicas = Replicas { removed, ..Replicas::default() };
        pruning.drop_finished(1, &replicas, &index, Duration::from_secs(1));
        (pruning.is_removed(REMOVED), !pruning.ranges.reserved().is_empty())
    }

    /// ddata Z9, Z6: a removed replica is forgotten when neither membership nor rounds nor data name it, and not
    /// before; the images of its numbers stay reserved as long as a round or data may name it.
    #[test]
    fn a_removed_replica_is_forgotten_when_nothing_names_it() {
        for is_tombstone in [false, true] {
            for has_round in [false, true] {
                for is_named in [false, true] {
                    let is_removed = is_tombstone || has_round || is_named;
                    let expected = (is_removed, has_round || is_named);
                    assert_eq!(
                        left(is_tombstone, has_round, is_named),
                        expected,
                        "{is_tombstone} {has_round} {is_named}"
                    );
                }
            }
        }
    }
}
