//! Most recently used first: for uses that cycle through more entities than can be active.
//!
//! The earliest slots stay and the latest one makes room for the next, so that the earliest are still active at the
//! start of the next cycle.

use std::collections::BTreeSet;

use super::entries::{Entries, NIL, SlotList, SlotState};
use super::ranking::Order;

/// The most-recently-used order.
#[derive(Debug, Default)]
pub(in crate::passivation) struct MostRecent {
    list: SlotList,
    parked: usize,
    /// Slots that were parked and whose veto was lifted, by serial. Some slots in `list` are older and some newer.
    returned: BTreeSet<(u64, u32)>,
}

impl MostRecent {
    fn detach(&mut self, entries: &mut Entries, slot: u32) {
        let entry = entries.get(slot);
        match entry.state {
            SlotState::Listed => self.list.unlink(entries, slot),
            SlotState::Parked => self.parked -= 1,
            SlotState::Returned => {
                self.returned.remove(&(entry.serial, slot));
            }
            SlotState::Out => unreachable!("only slots of an order are detached from it"),
        }
    }

    fn newest_in_line(&mut self, entries: &mut Entries) -> Option<(u64, u32)> {
        while self.list.newest != NIL {
            let slot = self.list.newest;
            let entry = entries.get_mut(slot);
            if !entry.veto {
                return Some((entry.serial, slot));
            }
            entry.state = SlotState::Parked;
            self.list.unlink(entries, slot);
            self.parked += 1;
        }
        None
    }

    fn newest_returned(&mut self, entries: &mut Entries) -> Option<(u64, u32)> {
        while let Some(&newest) = self.returned.last() {
            let entry = entries.get_mut(newest.1);
            if !entry.veto {
                return Some(newest);
            }
            entry.state = SlotState::Parked;
            self.returned.pop_last();
            self.parked += 1;
        }
        None
    }
}

impl Order for MostRecent {
    fn len(&self) -> usize {
        self.list.len + self.parked + self.returned.len()
    }

    fn insert(&mut self, entries: &mut Entries, slot: u32) {
        self.list.push(entries, slot);
    }

    fn touch(&mut self, entries: &mut Entries, slot: u32) {
        self.detach(entries, slot);
        self.list.push(entries, slot);
    }

    fn remove(&mut self, entries: &mut Entries, slot: u32) {
        self.detach(entries, slot);
        entries.get_mut(slot).state = SlotState::Out;
    }

    fn victim(&mut self, entries: &mut Entries) -> Option<u32> {
        let newest = self.newest_in_line(entries).max(self.newest_returned(entries));
        newest.map(|(_, slot)| slot)
    }

    fn readmit(&mut self, entries: &mut Entries, slot: u32) {
        let entry = entries.get_mut(slot);
        entry.state = SlotState::Returned;
        self.returned.insert((entry.serial, slot));
        self.parked -= 1;
    }
}
