//! Random walks of gossip states, without processes: joins, leaves, downs, removals and merges in
//! any order (cluster scenario 67).
//!
//! No member vanishes without a tombstone, none comes back, no status goes backwards, no two states
//! bear one version, and every state keeps the invariants of M4.

use std::collections::{BTreeMap, BTreeSet};

use greylag_cluster::{AppVersion, Gossip, Member, MemberStatus, Relation, Tombstone};
use greylag_core::UniqueAddress;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{Omission, Outcome, Violation};

/// Count of nodes that hold states; one further node comes and goes.
const HOLDERS: usize = 3;
const STEPS: u64 = 30;

struct Walk {
    rng: ChaCha8Rng,
    states: Vec<Gossip>,
    buried: Vec<BTreeSet<UniqueAddress>>,
    versions: BTreeMap<Vec<(UniqueAddress, u64)>, Gossip>,
}

pub(super) fn run(seed: u64, _without: Option<Omission>) -> Result<Outcome, Violation> {
    let mut first = Gossip::default();
    for index in 0..HOLDERS {
        let mut member = Member::joining(node(index), Default::default(), AppVersion::default());
        (member.status, member.up_number) = (MemberStatus::Up, index as u32 + 1);
        first.members.insert(member);
    }
    let mut walk = Walk {
        rng: ChaCha8Rng::seed_from_u64(seed),
        states: vec![first; HOLDERS],
        buried: vec![BTreeSet::new(); HOLDERS],
        versions: BTreeMap::new(),
    };
    for _ in 0..STEPS {
        walk.step()?;
    }
    Ok(Outcome { steps: STEPS, checked: STEPS, ..Outcome::default() })
}

fn node(index: usize) -> UniqueAddress {
    format!("n{index}:1#{}", index + 1).parse().expect("it is an address")
}

impl Walk {
    fn step(&mut self) -> Result<(), Violation> {
        let at = self.rng.random_range(0..HOLDERS);
        let before = self.states[at].clone();
        if !before.members.contains_key(&node(at)) {
            return Ok(());
        }
        if self.rng.random_bool(0.5) {
            self.change(at);
        } else {
            self.hear(at);
        }
        self.check(at, &before)
    }

    /// Makes a change on the holder's own state.
    fn change(&mut self, at: usize) {
        let target = node(self.rng.random_range(0..=HOLDERS));
        let kind = self.rng.random_range(0..4);
        let before = self.states[at].clone();
        let state = &mut self.states[at];
        let known = state.members.get_mut(&target);
        match (kind, known) {
            (0, None) if !state.tombstones.contains_key(&target) => {
                let joined = Member::joining(target.clone(), Default::default(), AppVersion::default());
                state.members.insert(joined);
            }
            (1, Some(member)) if member.status < MemberStatus::Leaving => member.status = MemberStatus::Leaving,
            (2, Some(member)) => member.status = MemberStatus::Down,
            (3, Some(member)) if member.status == MemberStatus::Down && target != node(at) => {
                state.members.remove(&target);
                state.tombstones.insert(target, Tombstone::default());
                let members = state.members.clone();
                state.reachability.retain(|address| members.contains_key(address));
                state.version.retain(|address| members.contains_key(address));
            }
            _ => {}
        }
        if *state != before {
            state.touch(&node(at), true);
        }
    }

    /// Merges another holder's state.
    fn hear(&mut self, at: usize) {
        let theirs = self.states[self.rng.random_range(0..HOLDERS)].clone();
        if !theirs.members.contains_key(&node(at)) {
            return;
        }
        match self.states[at].version.compare(&theirs.version) {
            Relation::Same | Relation::After => {}
            Relation::Before => self.states[at] = theirs,
            Relation::Concurrent => {
                let merged = self.states[at].merged(&theirs);
                self.states[at] = merged.gossip;
                if merged.needs_version && self.states[at].members.contains_key(&node(at)) {
                    self.states[at].touch(&node(at), true);
                }
            }
        }
    }

    fn check(&mut self, at: usize, before: &Gossip) -> Result<(), Violation> {
        let now = &self.states[at];
        let broken = |promise, what: String| Err(Violation { promise, what });
        if !now.is_sound() {
            return broken("the gossip's invariants hold (cluster M4)", format!("{now:?}"));
        }
        self.buried[at].extend(now.tombstones.keys().cloned());
        for member in &before.members {
            let address = &member.address;
            match now.members.get(address) {
                Some(after) if after.status < member.status => {
                    return broken("no status goes backwards (cluster G3)", address.to_string());
                }
                None if !now.tombstones.contains_key(address) => {
                    return broken("no member vanishes without a tombstone (cluster M29)", address.to_string());
                }
                _ => {}
            }
        }
        if self.buried[at].iter().any(|address| now.members.contains_key(address)) {
            return broken("no removed member comes back (cluster G3)", format!("{now:?}"));
        }
        let version: Vec<_> = now.version.iter().map(|(node, count)| (node.clone(), count)).collect();
        let known = self.versions.entry(version).or_insert_with(|| now.clone());
        if !known.same_content(now) {
            return broken("one version, one content (cluster M6)", format!("{known:?}\n{now:?}"));
        }
        Ok(())
    }
}
