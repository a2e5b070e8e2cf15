//! What reading every record of a journal tells.

use super::survey::Found;

/// Counts of what a journal holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Group commits that changed something, merged ones included.
    pub commits: u64,
    /// Ids that were ever claimed, or have a snapshot.
    pub ids: u64,
    /// Events that are not deleted.
    pub events: u64,
    /// Snapshots.
    pub snapshots: u64,
    /// Durable states, tombstones included.
    pub states: u64,
    /// Slices of projections.
    pub slices: u64,
}

/// Events that are lost, or cannot be read any more.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Missing {
    /// The id of the events.
    pub id: String,
    /// The number of the first missing event.
    pub first: u64,
    /// The number of the last missing event.
    pub last: u64,
}

/// Result of reading every record of a journal.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Verification {
    /// Counts of what is there and sound.
    pub counts: Counts,
    /// The damaged or missing parts, one sentence each.
    pub damage: Vec<String>,
    /// Events that are missing, as far as heads, neighbours and commit records tell.
    pub missing: Vec<Missing>,
    /// Count of missing commits, from the tail guard and gaps in commit numbers. Nothing else may tell what some of
    /// them stored.
    pub missing_commits: u64,
}

impl Verification {
    /// Whether nothing is damaged.
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty()
    }
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { id, first, last } = self;
        if first == last {
            write!(f, "event {first} of {id} is lost")
        } else {
            write!(f, "events {first} to {last} of {id} are lost")
        }
    }
}

impl Verification {
    /// Adds each sentence of damage that is not in the list yet.
    pub(super) fn tell(&mut self, damage: impl IntoIterator<Item = String>) {
        for what in damage {
            if !self.damage.contains(&what) {
                self.damage.push(what);
            }
        }
    }

    pub(super) fn note(&mut self, thing: &Found<'_>) {
        let count = match thing {
            Found::Id { .. } => &mut self.counts.ids,
            Found::Event { .. } => &mut self.counts.events,
            Found::Snapshot(..) => &mut self.counts.snapshots,
            Found::State(_) => &mut self.counts.states,
            Found::Offsets { .. } => &mut self.counts.slices,
            Found::Nameless { .. } => return,
            Found::Damage { what } => return self.damage.push(what.clone()),
            Found::Lost { id, seq_nr, why, .. } => {
                self.damage.extend(why.iter().map(|why| format!("event {seq_nr} of {id}: {why}")));
                return self.miss(id.as_str(), seq_nr.as_u64());
            }
        };
        *count += 1;
    }

    fn miss(&mut self, id: &str, number: u64) {
        match self.missing.last_mut() {
            Some(missing) if missing.id == id && missing.last + 1 == number => missing.last = number,
            _ => self.missing.push(Missing { id: id.to_owned(), first: number, last: number }),
        }
    }
}
