//! The durable record of the number of workers.

use super::id::ProcessId;

/// The latest change of the number of workers. Source: sharding §6.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DaemonRecord {
    /// Number of the change; 0 before any change.
    pub revision: u64,
    /// The number of workers from this change on.
    pub count: u32,
    /// The number of workers before; they are stopped first.
    pub previous: u32,
    /// Whether the previous workers have stopped.
    pub is_complete: bool,
    /// When the change was decided: wall clock in milliseconds since 1970.
    pub started_ms: u64,
}

impl DaemonRecord {
    /// The largest revision that is written or accepted.
    pub const MAX_REVISION: u64 = 1 << 60;

    /// The record before any change, with the program's number of workers.
    pub fn initial(count: u32, started_ms: u64) -> Self {
        Self { revision: 0, count, previous: count, is_complete: true, started_ms }
    }

    /// The record of a change to another number of workers, incomplete until the present workers have stopped.
    pub(super) fn change(&self, count: u32, started_ms: u64) -> Self {
        let revision = (self.revision + 1).min(Self::MAX_REVISION);
        Self { revision, count, previous: self.count, is_complete: false, started_ms }
    }

    /// The same record, with the previous workers stopped.
    pub(super) fn completed(&self) -> Self {
        Self { is_complete: true, ..*self }
    }

    /// Whether a manager may write this record over `current`: the same record, the next change, or the end of the
    /// change under way. Otherwise, of two managers that change the number at the same moment, the later one would stop
    /// and start workers by a record that has lost.
    pub fn follows(&self, current: Option<&Self>) -> bool {
        match current {
            None => self.revision == 1 && !self.is_complete,
            Some(current) if current == self => true,
            Some(current) if self.is_complete => *self == current.completed(),
            Some(current) => {
                let is_next = self.revision == current.revision + 1 && self.previous == current.count;
                current.is_complete && is_next
            }
        }
    }

    /// The order of records: wherever two meet, the later one wins.
    pub fn clock(&self) -> i64 {
        let clock = 2 * self.revision.min(Self::MAX_REVISION) + u64::from(self.is_complete);
        i64::try_from(clock).expect("revisions are below 2^61")
    }

    /// Whether the worker belongs to this record and may live now.
    pub fn allows(&self, id: &ProcessId) -> bool {
        self.is_complete && (id.revision, id.count) == (self.revision, self.count) && id.index < self.count
    }

    /// The workers of this record, in the order of their ids as text.
    pub(super) fn processes(&self) -> Vec<ProcessId> {
        let of = |index| ProcessId { revision: self.revision, count: self.count, index };
        let mut processes: Vec<_> = (0..self.count).map(of).collect();
        processes.sort_by_key(ProcessId::to_string);
        processes
    }
}

/// The number of workers, as the manager knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberOfProcesses {
    /// Number of workers.
    pub count: u32,
    /// When the number was decided, wall clock in milliseconds since 1970: the latest change or, without any change,
    /// the start of the manager that answers.
    pub started_ms: u64,
    /// Whether a change is under way, so that not all of them run yet.
    pub rescale_in_progress: bool,
    /// How often the number was changed.
    pub revision: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_change_and_its_completion_win() {
        let first = DaemonRecord::initial(4, 7);
        let begun = first.change(2, 8);
        let done = begun.completed();
        let next = done.change(3, 9);
        let clocks = [first, begun, done, next].map(|record| record.clock());
        assert!(clocks.is_sorted_by(|earlier, later| earlier < later), "{clocks:?}");
        assert_eq!((begun.previous, begun.count, next.previous), (4, 2, 2));
        let last = DaemonRecord { revision: DaemonRecord::MAX_REVISION, ..done };
        assert!(last.change(1, 0).clock() < i64::MAX);
    }

    #[test]
    fn workers_of_an_incomplete_or_another_revision_may_not_live() {
        let begun = DaemonRecord::initial(4, 0).change(2, 0);
        let id = |revision, count, index| ProcessId { revision, count, index };
        assert!(!begun.allows(&id(1, 2, 0)));
        assert!(begun.completed().allows(&id(1, 2, 0)));
        for old in [id(0, 4, 0), id(2, 2, 0), id(1, 4, 0)] {
            assert!(!begun.completed().allows(&old), "{old}");
        }
    }

    #[test]
    fn a_record_follows_the_one_its_manager_knew_and_no_other() {
        let first = DaemonRecord::initial(4, 0);
        let (begun, rival) = (first.change(2, 0), first.change(3, 0));
        assert!(begun.follows(None) && begun.follows(Some(&begun)), "the first change, and the same again");
        assert!(begun.completed().follows(Some(&begun)));
        assert!(begun.completed().change(5, 0).follows(Some(&begun.completed())));
        let next = begun.completed().change(5, 0);
        for (record, current) in [
            (begun.completed(), None),
            (next, None),
            (rival, Some(&begun)),
            (rival.completed(), Some(&begun)),
            (rival, Some(&begun.completed())),
            (begun, Some(&begun.completed())),
            (next, Some(&begun)),
            (next, Some(&rival.completed())),
            (next.completed(), Some(&begun.completed())),
        ] {
            assert!(!record.follows(current), "{record:?} after {current:?}");
        }
    }

    #[test]
    fn workers_are_sorted_as_text() {
        let ids: Vec<_> = DaemonRecord::initial(12, 0).processes().iter().map(ProcessId::to_string).collect();
        assert_eq!(ids, ["0", "1", "10", "11", "2", "3", "4", "5", "6", "7", "8", "9"]);
    }
}
