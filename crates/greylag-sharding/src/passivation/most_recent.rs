//! Most recently used first: for uses that cycle through more entities than can be active.
//!
//! The earliest slots stay and the latest one makes room for the next, so that the earliest are still active at the
//! start of the next cycle.

use std::collections::BTreeSet;

use super::entries::{Entries, Line, NIL, Standing};
use super::order::Order;

/// The most-recently-used order.
#[derive(Debug, Default)]
pub(super) struct MostRecent {
    line: Line,
    parked: usize,
    /// Slots that were parked and whose veto was lifted, by serial. Some slots in `line` are older and some newer.
    returned: BTreeSet<(u64, u32)>,
}

impl MostRecent {
    fn detach(&mut self, entries: &mut Entries, slot: u32) {
        let entry = entries.get(slot);
        match entry.standing {
            Standing::Listed => self.line.unlink(entries, slot),
            Standing::Parked => self.parked -= 1,
            Standing::Returned => {
                self.returned.remove(&(entry.serial, slot));
            }
            Standing::Out => unreachable!("only slots of an order are detached from it"),
        }
    }

    fn newest_in_line(&mut self, entries: &mut Entries) -> Option<(u64, u32)> {
        while self.line.newest != NIL {
            let slot = self.line.newest;
            let entry = entries.get_mut(slot);
            if !entry.veto {
                return Some((entry.serial, slot));
            }
            entry.standing = Standing::Parked;
            self.line.unlink(entries, slot);
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
            entry.standing = Standing::Parked;
            self.returned.pop_last();
            self.parked += 1;
        }
        None
    }
}

impl Order for MostRecent {
    fn len(&self) -> usize {
        self.line.len + self.parked + self.returned.len()
    }

    fn insert(&mut self, entries: &mut Entries, slot: u32) {
        self.line.push(entries, slot);
    }

    fn touch(&mut self, entries: &mut Entries, slot: u32) {
        self.detach(entries, slot);
        self.line.push(entries, slot);
    }

    fn remove(&mut self, entries: &mut Entries, slot: u32) {
        self.detach(entries, slot);
        entries.get_mut(slot).standing = Standing::Out;
    }

    fn victim(&mut self, entries: &mut Entries) -> Option<u32> {
        let newest = self.newest_in_line(entries).max(self.newest_returned(entries));
        newest.map(|(_, slot)| slot)
    }

    fn readmit(&mut self, entries: &mut Entries, slot: u32) {
        let entry = entries.get_mut(slot);
        entry.standing = Standing::Returned;
        self.returned.insert((entry.serial, slot));
        self.parked -= 1;
    }
}
