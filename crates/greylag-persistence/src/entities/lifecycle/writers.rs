//! The writer uuids under which the incarnations of a machine write.
//!
//! A late duplicate of an own claim or write shows an own uuid in the store: there is no other writer then, and the
//! entity recovers again.

use std::collections::BTreeSet;

use crate::contract::records::event::WriterUuid;

/// Whose claim or write the store shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The claim or write of this incarnation is the newest.
    Current,
    /// An earlier or late one of this machine.
    Own,
    /// One of another writer.
    Other,
}

/// The writer uuids of one machine.
pub(crate) struct Writers {
    current: WriterUuid,
    /// Those of all incarnations that sent a claim or a write.
    used: BTreeSet<WriterUuid>,
}

impl Default for Writers {
    fn default() -> Self {
        Self { current: WriterUuid::NONE, used: BTreeSet::new() }
    }
}

impl Writers {
    /// Begins an incarnation, which writes under this uuid.
    pub(crate) fn begin(&mut self, uuid: WriterUuid) {
        self.current = uuid;
    }

    /// The uuid of this incarnation.
    pub(crate) fn current(&self) -> WriterUuid {
        self.current
    }

    /// Notes that a claim or a write is sent; returns the uuid to send it under.
    pub(crate) fn on_sent(&mut self) -> WriterUuid {
        self.used.insert(self.current);
        self.current
    }

    /// Whether any incarnation of this machine sent a claim or a write under this uuid.
    pub(crate) fn is_own(&self, uuid: WriterUuid) -> bool {
        self.used.contains(&uuid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uuids_of_earlier_incarnations_stay_own_once_they_were_sent() {
        let [first, second, third] = [1, 2, 3].map(WriterUuid::from_u128);
        let mut writers = Writers::default();
        writers.begin(first);
        assert!(!writers.is_own(first), "nothing was sent");
        assert_eq!(writers.on_sent(), first);
        writers.begin(second);
        writers.begin(third);
        assert_eq!((writers.on_sent(), writers.current()), (third, third));
        assert_eq!([first, second, third].map(|uuid| writers.is_own(uuid)), [true, false, true]);
    }
}
