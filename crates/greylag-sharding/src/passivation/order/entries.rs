//! The table of a shard's slots for the orders, and the lists that run through it.
//!
//! A row holds a slot's links, so that moving a slot within a list or between lists allocates nothing. A slot is in at
//! most one order, which its row names. A slot's veto is kept whether or not the slot is in an order.

/// No slot: the end of a list.
pub(in crate::passivation) const NIL: u32 = u32::MAX;

/// The state of a slot in its order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::passivation) enum SlotState {
    /// In no order.
    #[default]
    Out,
    /// In its place in the order.
    Listed,
    /// Under a veto, and set aside by a search for a victim, so that the next search need not pass the slot again.
    Parked,
    /// Set aside once, and without its veto since; or under a new veto that no search has met.
    Returned,
}

/// The area that a slot is in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::passivation) enum Area {
    /// The admission window of a composite strategy.
    Window,
    /// The main area; the only area of a plain strategy.
    #[default]
    Main,
}

/// One row.
#[derive(Debug, Clone, Copy)]
pub(in crate::passivation) struct Entry {
    /// When the slot was last put into its place: smaller is earlier.
    pub(in crate::passivation) serial: u64,
    older: u32,
    newer: u32,
    pub(in crate::passivation) level: u16,
    pub(in crate::passivation) area: Area,
    pub(in crate::passivation) state: SlotState,
    pub(in crate::passivation) veto: bool,
}

impl Default for Entry {
    fn default() -> Self {
        Self { serial: 0, older: NIL, newer: NIL, level: 0, area: Area::Main, state: SlotState::Out, veto: false }
    }
}

/// All rows.
#[derive(Debug, Default)]
pub(in crate::passivation) struct Entries {
    rows: Vec<Entry>,
    serial: u64,
}

impl Entries {
    /// The row of a slot; empty for a slot never seen.
    pub(in crate::passivation) fn get(&self, slot: u32) -> Entry {
        self.rows.get(slot as usize).copied().unwrap_or_default()
    }

    /// The row of a slot, made if missing.
    pub(in crate::passivation) fn get_mut(&mut self, slot: u32) -> &mut Entry {
        let at = slot as usize;
        if at >= self.rows.len() {
            self.rows.resize_with(at + 1, Entry::default);
        }
        &mut self.rows[at]
    }

    /// Whether a slot is in an order.
    pub(in crate::passivation) fn is_live(&self, slot: u32) -> bool {
        self.get(slot).state != SlotState::Out
    }

    /// Gives a slot the latest serial.
    pub(in crate::passivation) fn renew(&mut self, slot: u32) -> &mut Entry {
        self.serial += 1;
        let serial = self.serial;
        let entry = self.get_mut(slot);
        entry.serial = serial;
        entry
    }
}

/// A list through the table, from the earliest slot to the latest.
#[derive(Debug, Clone)]
pub(in crate::passivation) struct SlotList {
    pub(in crate::passivation) oldest: u32,
    pub(in crate::passivation) newest: u32,
    pub(in crate::passivation) len: usize,
}

impl Default for SlotList {
    fn default() -> Self {
        Self { oldest: NIL, newest: NIL, len: 0 }
    }
}

impl SlotList {
    /// Appends a slot that is in no list.
    pub(in crate::passivation) fn push(&mut self, entries: &mut Entries, slot: u32) {
        let entry = entries.renew(slot);
        entry.older = self.newest;
        entry.newer = NIL;
        entry.state = SlotState::Listed;
        if self.newest == NIL {
            self.oldest = slot;
        } else {
            entries.get_mut(self.newest).newer = slot;
        }
        self.newest = slot;
        self.len += 1;
    }

    /// Takes out a slot of this list.
    pub(in crate::passivation) fn unlink(&mut self, entries: &mut Entries, slot: u32) {
        let Entry { older, newer, .. } = entries.get(slot);
        if older == NIL {
            self.oldest = newer;
        } else {
            entries.get_mut(older).newer = newer;
        }
        if newer == NIL {
            self.newest = older;
        } else {
            entries.get_mut(newer).older = older;
        }
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_stays_small() {
        assert!(size_of::<Entry>() <= 24);
    }

    #[test]
    fn slots_leave_a_list_from_its_ends_and_its_middle() {
        let (mut entries, mut list) = (Entries::default(), SlotList::default());
        for slot in [5, 3, 9, 1] {
            list.push(&mut entries, slot);
        }
        for (gone, oldest, newest) in [(3, 5, 1), (5, 9, 1), (1, 9, 9), (9, NIL, NIL)] {
            list.unlink(&mut entries, gone);
            assert_eq!((list.oldest, list.newest), (oldest, newest));
        }
        assert_eq!(list.len, 0);
    }
}
