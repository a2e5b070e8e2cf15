//! Chooses the replicas that a request may ask. Source: ddata R8, R10.

use greylag_core::UniqueAddress;
use greylag_crdt::hash64;
use rand::RngExt;

use crate::api::level::Level;
use crate::membership::replicas::Replica;
use crate::replicator::local::LocalReplica;

/// The replicas of a request, as they are when it begins.
#[derive(Debug, Clone)]
pub(super) struct Candidates {
    /// How many others have to answer.
    pub(super) needed: usize,
    /// Whether this replica counts in addition.
    pub(super) own: bool,
    /// The replicas that may be asked, in order.
    pub(super) others: Vec<UniqueAddress>,
}

impl Candidates {
    /// The candidates of an early request: one replica is needed, and none can be asked yet.
    pub(super) const UNKNOWN: Self = Self { needed: 1, own: false, others: Vec::new() };

    /// The candidates of a request that waits only for the own store.
    pub(super) const LOCAL: Self = Self { needed: 0, own: true, others: Vec::new() };

    /// The candidates of a request about this entry. `own_counts` says whether this replica can answer for itself,
    /// `deltas` whether it sends deltas.
    pub(super) fn of(local: &mut LocalReplica, key: &str, level: Level, own_counts: bool, deltas: bool) -> Self {
        let counts = |replica: &&Replica| {
            if level.only_staying() { replica.status.is_staying_voter() } else { replica.status.is_voter() }
        };
        let mut found: Vec<Replica> = local.replicas.others.iter().filter(counts).cloned().collect();
        let own_status = local.replicas.own_status;
        let own_is_candidate =
            own_status.is_some_and(|own| if level.only_staying() { own.is_staying_voter() } else { own.is_voter() });
        let n = found.len() + local.replicas.unmet.len() + usize::from(own_is_candidate);
        // Need one at least: without any voter no level can be met, not even all of none.
        let needed = level.needed(n, local.settings.majority_min_cap).max(1);
        let own = own_is_candidate && own_counts;
        if local.settings.prefer_oldest {
            found.sort_by_key(|replica| (!replica.reachable, replica.age, replica.address.clone()));
        } else if deltas {
            // Order by hash, so that the same replicas see consecutive deltas of a key, and keys spread over replicas.
            found.sort_by_cached_key(|replica| {
                let mut bytes = key.as_bytes().to_vec();
                bytes.extend_from_slice(&replica.address.uid().get().to_be_bytes());
                (!replica.reachable, hash64(&bytes))
            });
        } else {
            for at in (1..found.len()).rev() {
                found.swap(at, local.rng.random_range(0..=at));
            }
            found.sort_by_key(|replica| !replica.reachable);
        }
        let others = found.into_iter().map(|replica| replica.address).collect();
        Self { needed: needed - usize::from(own), own, others }
    }
}
