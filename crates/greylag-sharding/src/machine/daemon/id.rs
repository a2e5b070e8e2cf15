//! Ids of workers: index, number of workers, and revision.

use std::fmt;

/// One worker of one revision. As an entity id it is the bare index at revision 0, and `revision|count|index` later.
///
/// Source: sharding §6.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessId {
    /// How often the number of workers had been changed.
    pub revision: u64,
    /// How many workers the revision has.
    pub count: u32,
    /// Index of the worker, from 0.
    pub index: u32,
}

impl ProcessId {
    /// Reads an entity id; a bare index is a worker of revision 0, which has `initial` workers. `None` for any text
    /// that no [`ProcessId`] is written as.
    pub fn read(id: &str, initial: u32) -> Option<Self> {
        let mut parts = id.split('|');
        let read = match (parts.next()?, parts.next(), parts.next(), parts.next()) {
            (index, None, None, None) => Self { revision: 0, count: initial, index: index.parse().ok()? },
            (revision, Some(count), Some(index), None) => {
                Self { revision: revision.parse().ok()?, count: count.parse().ok()?, index: index.parse().ok()? }
            }
            _ => return None,
        };
        (read.index < read.count && read.to_string() == id).then_some(read)
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.revision {
            0 => write!(f, "{}", self.index),
            revision => write!(f, "{revision}|{}|{}", self.count, self.index),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario sharding 80: ids of the first revision have no revision in them, ids of a later one do.
    #[test]
    fn scenario_80_ids_name_their_revision_but_for_the_first() {
        let ids = |revision| {
            let of = move |index| ProcessId { revision, count: 3, index };
            (0..3).map(move |index| of(index).to_string()).collect::<Vec<_>>()
        };
        assert_eq!(ids(0), ["0", "1", "2"]);
        assert_eq!(ids(1), ["1|3|0", "1|3|1", "1|3|2"]);
        for (id, revision) in [("0", 0), ("2", 0), ("1|3|0", 1), ("18446744073709551615|3|2", u64::MAX)] {
            let read = ProcessId::read(id, 3).unwrap();
            assert_eq!((read.revision, read.count, read.to_string().as_str()), (revision, 3, id));
        }
    }

    #[test]
    fn ids_that_name_no_worker_are_refused() {
        for id in ["", "3", "-1", "+1", "01", "a", "1|3", "1|3|3", "0|3|1", "1|3|0|", "1|03|0", "1|3|x", "|||"] {
            assert_eq!(ProcessId::read(id, 3), None, "{id}");
        }
    }
}
