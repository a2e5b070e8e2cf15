//! Random partitions: up to twelve members in any status and of any role, two or three sides, all with one view or one
//! of them a step further.
//!
//! Source: cluster G1, S6 to S10.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use greylag_cluster::strategy::{Picture, Record};
use greylag_cluster::{MemberStatus, Strategy, Verdict};
use greylag_core::UniqueAddress;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::sides::{self, Members};

/// One partition, with the picture of each side.
pub(crate) struct Partition {
    sides: Vec<(BTreeSet<UniqueAddress>, Picture)>,
    role: Option<String>,
    quorum_size: usize,
}

/// How the sides' views differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Views {
    /// All sides have the same view.
    Same,
    /// One side knows one member a step further.
    OneStepApart,
    /// All sides know accusations from before the cut, some of them about members that were never gone.
    StaleRecords,
}

/// Outcomes of one strategy.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) partitions: u64,
    pub(crate) several: u64,
    pub(crate) one: u64,
    pub(crate) none: u64,
}

impl Partition {
    /// Draws a partition.
    pub(crate) fn draw(seed: u64, views: Views) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let count = rng.random_range(1..=12);
        let members = members(&mut rng, count);
        let side_count = if rng.random_bool(0.25) { 3 } else { 2 };
        let mut groups = vec![BTreeSet::new(); side_count];
        for address in members.keys() {
            groups[rng.random_range(0..side_count)].insert(address.clone());
        }
        groups.retain(|group| !group.is_empty());
        let ahead = rng.random_range(0..groups.len());
        let further = sides::one_step_further(&members);
        let before = if views == Views::StaleRecords { stale(&mut rng, &members) } else { BTreeSet::new() };
        let see = |(index, group): (usize, BTreeSet<UniqueAddress>)| {
            let step = views == Views::OneStepApart && index == ahead && !further.is_empty();
            let view = if step { &further[usize::try_from(seed).unwrap_or(0) % further.len()] } else { &members };
            let picture = sides::picture(&group, view, &before);
            (group, picture)
        };
        let sides = groups.into_iter().enumerate().map(see).collect();
        let role = rng.random_bool(0.3).then(|| "r".to_owned());
        Self { sides, role, quorum_size: rng.random_range(1..=7) }
    }

    /// Every strategy, with the drawn role and quorum.
    pub(crate) fn strategies(&self) -> Vec<Strategy> {
        let role = || self.role.clone();
        vec![
            Strategy::KeepMajority { role: role() },
            Strategy::StaticQuorum { role: role(), quorum_size: self.quorum_size },
            Strategy::KeepOldest { role: role(), down_if_alone: true },
            Strategy::KeepOldest { role: role(), down_if_alone: false },
            Strategy::LeaseMajority {
                lease_name: None,
                acquire_lease_delay_for_minority: Duration::from_secs(2),
                release_after: Duration::from_secs(40),
                role: role(),
            },
            Strategy::DownAll,
        ]
    }

    /// The number of sides that survive.
    pub(crate) fn survivors(&self, strategy: &Strategy) -> usize {
        let verdicts: Vec<Option<Verdict>> =
            self.sides.iter().map(|(side, picture)| sides::verdict(picture, side, strategy)).collect();
        // The side that requests first gets the lease; no other side does.
        let asks = |(index, verdict): (usize, &Option<Verdict>)| Some((verdict.as_ref()?.lease_delay()?, index));
        let holder = verdicts.iter().enumerate().filter_map(asks).min().map(|(_, index)| index);
        let lives = |(index, (side, picture)): &(usize, &(BTreeSet<UniqueAddress>, Picture))| {
            let verdict = verdicts[*index].map(|v| if holder == Some(*index) { v.granted() } else { v.denied() });
            sides::survives(picture, side, strategy, verdict)
        };
        self.sides.iter().enumerate().filter(lives).count()
    }
}

fn members(rng: &mut ChaCha8Rng, count: usize) -> Members {
    let mut ages: Vec<u32> = (1..=12).collect();
    let mut members = BTreeMap::new();
    for index in 0..count {
        let age = ages.swap_remove(rng.random_range(0..ages.len()));
        let status = match rng.random_range(0..20) {
            0 | 1 => MemberStatus::Joining,
            2 => MemberStatus::WeaklyUp,
            3 | 4 => MemberStatus::Leaving,
            5 => MemberStatus::Exiting,
            6 => MemberStatus::Down,
            _ => MemberStatus::Up,
        };
        let roles: &[&str] = if rng.random_bool(0.6) { &["r"] } else { &[] };
        members.insert(sides::node(index), sides::member(index, status, age, roles));
    }
    members
}

fn stale(rng: &mut ChaCha8Rng, members: &Members) -> BTreeSet<Record> {
    let names: Vec<&UniqueAddress> = members.keys().collect();
    let mut pick = || names[rng.random_range(0..names.len())].clone();
    let records: Vec<Record> = (0..3).map(|_| (pick(), pick())).collect();
    records.into_iter().filter(|(observer, subject)| observer != subject).take(2).collect()
}

/// Draws partitions, and counts the surviving sides under each strategy.
pub(crate) fn count(seeds: std::ops::Range<u64>, views: Views) -> Vec<(&'static str, Count)> {
    const NAMES: [&str; 6] = [
        "keep_majority",
        "static_quorum",
        "keep_oldest",
        "keep_oldest, down_if_alone = false",
        "lease_majority",
        "down_all",
    ];
    let mut counts = NAMES.map(|name| (name, Count::default()));
    for seed in seeds {
        let partition = Partition::draw(seed, views);
        let strategies = partition.strategies();
        assert_eq!(strategies.len(), NAMES.len(), "each strategy has its name, in this order");
        let is_drawn = |name: &&str| strategies.iter().any(|strategy| strategy.name() == *name);
        assert!(Strategy::NAMES.iter().all(is_drawn), "a new strategy is drawn here");
        for (strategy, (_, count)) in strategies.iter().zip(&mut counts) {
            count.partitions += 1;
            match partition.survivors(strategy) {
                0 => count.none += 1,
                1 => count.one += 1,
                _ => count.several += 1,
            }
        }
    }
    counts.to_vec()
}
