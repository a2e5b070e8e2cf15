//! Least recently used first, in one or more levels.
//!
//! A new slot enters level 0, and each use moves it one level up. A level above 0 that is too full moves its least
//! recent slot one level down, so that only slots used again and again stay in the upper levels. Victims come from the
//! lowest level that has one; one level alone is the common least-recently-used policy.

use std::collections::BTreeSet;

use super::entries::{Entries, NIL, SlotList, SlotState};
use super::ranking::{Order, share};
use crate::passivation::policy::Segments;

/// Level, serial and slot: the order of parked slots.
type Rank = (u16, u64, u32);

#[derive(Debug, Default)]
struct Level {
    list: SlotList,
    /// Most slots, including parked ones. Level 0 has the rest of the other levels, and needs no limit of its own.
    limit: usize,
    /// Parked slots. All are older than the slots in `list`: they were its oldest when they were parked.
    aside: usize,
}

impl Level {
    fn len(&self) -> usize {
        self.list.len + self.aside
    }
}

/// The least-recently-used order.
#[derive(Debug)]
pub(in crate::passivation) struct Recency {
    levels: Vec<Level>,
    /// Each level's part of the limit; empty for an even split.
    proportions: Vec<f64>,
    parked: BTreeSet<Rank>,
    returned: BTreeSet<Rank>,
}

impl Recency {
    /// An empty order; `None` for one level.
    pub(in crate::passivation) fn new(segments: Option<&Segments>) -> Self {
        let count = segments.map_or(1, |segments| segments.levels.max(1));
        Self {
            levels: (0..count).map(|_| Level::default()).collect(),
            proportions: segments.map_or_else(Vec::new, |segments| segments.proportions.clone()),
            parked: BTreeSet::new(),
            returned: BTreeSet::new(),
        }
    }

    fn append(&mut self, entries: &mut Entries, slot: u32, level: u16) {
        self.levels[usize::from(level)].list.push(entries, slot);
        entries.get_mut(slot).level = level;
    }

    /// Takes a slot out of its level, and returns the level.
    fn detach(&mut self, entries: &mut Entries, slot: u32) -> u16 {
        let entry = entries.get(slot);
        let rank = (entry.level, entry.serial, slot);
        let level = &mut self.levels[usize::from(entry.level)];
        let aside = match entry.state {
            SlotState::Listed => {
                level.list.unlink(entries, slot);
                return entry.level;
            }
            SlotState::Parked => &mut self.parked,
            SlotState::Returned => &mut self.returned,
            SlotState::Out => unreachable!("only slots of an order are detached from it"),
        };
        aside.remove(&rank);
        level.aside -= 1;
        entry.level
    }

    /// Moves the least recent slots of a level down until its limit holds. Ignores vetoes, since no slot leaves the
    /// shard.
    fn trim(&mut self, entries: &mut Entries, level: u16) {
        while self.levels[usize::from(level)].len() > self.levels[usize::from(level)].limit {
            let aside = [first(&self.parked, level), first(&self.returned, level)];
            let oldest = aside.into_iter().flatten().min();
            let slot = oldest.map_or(self.levels[usize::from(level)].list.oldest, |(_, _, slot)| slot);
            self.detach(entries, slot);
            self.append(entries, slot, level - 1);
        }
    }

    /// The least recent slot of a level that is under no veto. Parks the slots under a veto that it meets.
    fn victim_of(&mut self, entries: &mut Entries, level: u16) -> Option<u32> {
        while let Some(rank) = first(&self.returned, level) {
            let entry = entries.get_mut(rank.2);
            if !entry.veto {
                return Some(rank.2);
            }
            entry.state = SlotState::Parked;
            self.returned.remove(&rank);
            self.parked.insert(rank);
        }
        let within = &mut self.levels[usize::from(level)];
        while within.list.oldest != NIL {
            let slot = within.list.oldest;
            let entry = entries.get_mut(slot);
            if !entry.veto {
                return Some(slot);
            }
            entry.state = SlotState::Parked;
            self.parked.insert((level, entry.serial, slot));
            within.list.unlink(entries, slot);
            within.aside += 1;
        }
        None
    }
}

fn first(ranks: &BTreeSet<Rank>, level: u16) -> Option<Rank> {
    ranks.range((level, 0, 0)..=(level, u64::MAX, u32::MAX)).next().copied()
}

impl Order for Recency {
    fn len(&self) -> usize {
        self.levels.iter().map(Level::len).sum()
    }

    fn insert(&mut self, entries: &mut Entries, slot: u32) {
        self.append(entries, slot, 0);
    }

    fn touch(&mut self, entries: &mut Entries, slot: u32) {
        let level = self.detach(entries, slot);
        if usize::from(level) + 1 == self.levels.len() {
            return self.append(entries, slot, level);
        }
        self.append(entries, slot, level + 1);
        self.trim(entries, level + 1);
    }

    fn remove(&mut self, entries: &mut Entries, slot: u32) {
        self.detach(entries, slot);
        entries.get_mut(slot).state = SlotState::Out;
    }

    fn victim(&mut self, entries: &mut Entries) -> Option<u32> {
        (0..self.levels.len() as u16).find_map(|level| self.victim_of(entries, level))
    }

    fn readmit(&mut self, entries: &mut Entries, slot: u32) {
        let entry = entries.get_mut(slot);
        entry.state = SlotState::Returned;
        let rank = (entry.level, entry.serial, slot);
        self.parked.remove(&rank);
        self.returned.insert(rank);
    }

    fn set_limit(&mut self, entries: &mut Entries, limit: usize) {
        let count = self.levels.len();
        for (at, level) in self.levels.iter_mut().enumerate() {
            level.limit = self.proportions.get(at).map_or(limit / count, |proportion| share(*proportion, limit));
        }
        // Begin at the top, since slots that leave a level may fill the one below.
        (1..count as u16).rev().for_each(|level| self.trim(entries, level));
    }
}
