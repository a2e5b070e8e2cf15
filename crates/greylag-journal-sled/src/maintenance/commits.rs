//! The commits of a journal, gaps in their sequence included, and what their records say the journal must hold.

use std::collections::BTreeMap;

use greylag_persistence::SeqNr;
use greylag_store_sled::{Reader, StoreError};

use crate::rows::keys::PidNo;
use crate::verification::{self, Chain, Heads};

/// The commits whose records can be read.
#[derive(Default)]
pub(super) struct Commits {
    /// The number of the last commit.
    pub(super) last: u64,
    /// Count of missing commits before the last one.
    pub(super) gaps: u64,
    /// The last event of each id that any commit names.
    pub(super) highest: BTreeMap<PidNo, SeqNr>,
    /// The ordinal after all events and changes that the commits name.
    pub(super) next_ordinal: u64,
    /// Errors of commit records that cannot be read.
    pub(super) damage: Vec<String>,
    chain: Chain,
}

impl Commits {
    pub(super) fn read(reader: &Reader) -> Self {
        let mut commits = Self::default();
        for record in verification::records(1, reader) {
            let (number, commit) = match record {
                Ok(record) => record,
                Err(error) => {
                    commits.damage.push(format!("a commit: {error}"));
                    // An iteration gets past a damaged record, but not past a damaged page.
                    if matches!(error, StoreError::Checksum { .. } | StoreError::Corrupt(_)) {
                        continue;
                    }
                    break;
                }
            };
            commits.gaps += number.saturating_sub(commits.last + 1);
            commits.last = commits.last.max(number.saturating_add(commit.merged));
            commits.next_ordinal = commits.next_ordinal.max(commit.next_ordinal().unwrap_or_default());
            for append in &commit.appends {
                let highest = commits.highest.entry(append.pid).or_default();
                *highest = (*highest).max(append.last());
            }
            commits.chain.note(number, commit);
        }
        commits
    }

    /// Count of missing commits: gaps, and commits after the last one up to the one that the guard names.
    pub(super) fn missing(&self, guard: Option<u64>) -> u64 {
        self.gaps + guard.unwrap_or_default().saturating_sub(self.last)
    }

    /// The damage, one sentence each: missing or unreadable commits, and rows that differ from what the last commit
    /// that names them wrote.
    pub(super) fn damage(&self, guard: Option<u64>, reader: &Reader) -> Vec<String> {
        let mut damage = self.damage.clone();
        if self.gaps > 0 {
            damage.push(format!("{} commits before commit {} are missing", self.gaps, self.last));
        }
        let found = self.last;
        match guard {
            Some(guard) if guard > found => {
                let missing = guard - found;
                damage.push(format!("{missing} commits are missing: {}", StoreError::TailLost { guard, found }));
            }
            None if found > 0 => damage.push(StoreError::GuardLost { found }.to_string()),
            _ => {}
        }
        damage.extend(self.chain.lost(&Heads::new(reader)).into_iter().map(|lost| lost.to_string()));
        damage
    }
}
