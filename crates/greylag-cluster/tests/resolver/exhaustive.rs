//! Exhaustive test of the resolver: every view of a few members, every cut in two, both sides with the same view and
//! with views one step apart: never two survivors.
//!
//! The strategies distinguish six kinds of members: Joining, WeaklyUp, counted (Up, and the two statuses of a full
//! shutdown), Leaving, Exiting and Down; so six statuses cover all eight. keep_majority uses addresses and not ages,
//! keep_oldest ages and not addresses; so one order of both, with every cut and every status, covers all orders.
//!
//! Source: cluster scenario 69, G1, S6 to S8.

use std::collections::BTreeSet;

use greylag_cluster::strategy::Picture;
use greylag_cluster::{MemberStatus, Strategy};
use greylag_core::UniqueAddress;

use super::sides::{self, Members};

const STATUSES: [MemberStatus; 6] = [
    MemberStatus::Joining,
    MemberStatus::WeaklyUp,
    MemberStatus::Up,
    MemberStatus::Leaving,
    MemberStatus::Exiting,
    MemberStatus::Down,
];

/// Counts of outcomes under one strategy.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) pairs: u64,
    pub(crate) both: u64,
    pub(crate) none: u64,
    /// Pairs with two survivors among those in which one side knows a whole action of the leader more than the other.
    pub(crate) both_after_action: u64,
}

pub(crate) fn strategies(count: usize) -> Vec<Strategy> {
    let mut strategies = vec![Strategy::KeepMajority { role: None }];
    strategies.extend([true, false].map(|down_if_alone| Strategy::KeepOldest { role: None, down_if_alone }));
    strategies.extend((1..=count).map(|quorum_size| Strategy::StaticQuorum { role: None, quorum_size }));
    let is_played = |name: &&str| strategies.iter().any(|strategy| strategy.name() == *name);
    // These two do not count members: down_all leaves no side, and lease_majority asks a store.
    let left_out = Strategy::NAMES.iter().filter(|name| !is_played(name));
    assert_eq!(left_out.collect::<Vec<_>>(), [&"down_all", &"lease_majority"], "a new strategy is played here");
    strategies
}

pub(crate) fn views(count: usize) -> usize {
    STATUSES.len().pow(u32::try_from(count).expect("few"))
}

fn view(count: usize, mut code: usize) -> Members {
    let member = |index: usize| {
        let status = STATUSES[code % STATUSES.len()];
        code /= STATUSES.len();
        let number = u32::try_from(index + 1).expect("few");
        (sides::node(index), sides::member(index, status, number, &[]))
    };
    (0..count).map(member).collect()
}

struct Side {
    nodes: BTreeSet<UniqueAddress>,
    picture: Picture,
}

impl Side {
    fn new(count: usize, mask: usize, members: &Members) -> Self {
        let nodes = (0..count).filter(|index| (mask >> index) & 1 == 1).map(sides::node).collect();
        let picture = sides::picture(&nodes, members, &BTreeSet::new());
        Self { nodes, picture }
    }

    fn survives(&self, strategy: &Strategy) -> bool {
        let verdict = sides::verdict(&self.picture, &self.nodes, strategy);
        sides::survives(&self.picture, &self.nodes, strategy, verdict)
    }
}

/// Checks one view with all cuts and all views one step further, for each strategy.
pub(crate) fn check(count: usize, code: usize, strategies: &[Strategy], counts: &mut [Count]) -> Result<(), String> {
    let base = view(count, code);
    let mut others = sides::one_step_further(&base);
    let single_steps = others.len();
    others.push(sides::after_leader_action(&base));
    for mask in 1..(1 << count) - 1 {
        let ours = Side::new(count, mask, &base);
        let lives: Vec<bool> = strategies.iter().map(|strategy| ours.survives(strategy)).collect();
        let opposite = (1 << count) - 1 - mask;
        for (step, theirs) in std::iter::once(&base).chain(&others).enumerate() {
            let action = step > single_steps;
            let other = Side::new(count, opposite, theirs);
            for ((strategy, count), ours_lives) in strategies.iter().zip(counts.iter_mut()).zip(&lives) {
                let other_lives = other.survives(strategy);
                count.pairs += 1;
                count.none += u64::from(!ours_lives && !other_lives);
                if !(*ours_lives && other_lives) {
                    continue;
                }
                if action {
                    count.both_after_action += 1;
                } else {
                    count.both += 1;
                    return Err(format!("{strategy}: {:?} and {:?} both live", ours.picture, other.picture));
                }
            }
        }
    }
    Ok(())
}
