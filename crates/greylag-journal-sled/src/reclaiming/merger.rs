//! Merges commit records whose events are all deleted, a few with every group commit, so that records of deleted
//! events do not pile up. Numbers stay provably gap-free: the record that stays tells how many commits it stands
//! for, and how many ordinals of deleted events and changes it covers.
//!
//! Only commits that the last opening verified are merged: later ones are still to be verified at the next opening.
//! A pass begins when a quarter as many events were swept as the previous pass met records, so that passes cost a
//! few reads for each deleted event, however many commits are live. Source: persistence §4.3.

use greylag_store_sled::{Batch, Reader, StoreError};

use crate::rows::commit_record::CommitRecord;
use crate::rows::keys;
use crate::rows::records::Verified;
use crate::verification::{self, Heads};

const LEAST_SWEPT: u64 = 256;

/// Progress of merging.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    /// The last commit that may be merged.
    last: u64,
    /// The next commit of the pass under way.
    next: Option<u64>,
    swept: u64,
    met: u64,
    met_by_last_pass: u64,
}

/// Records that become one: the number of the first, the numbers of the others, and the merged record.
struct Run {
    first: u64,
    others: Vec<u64>,
    merged: CommitRecord,
}

impl Merger {
    pub(crate) fn new(verified: Verified) -> Self {
        Self { last: verified.commit_no, met_by_last_pass: verified.commit_no, ..Self::default() }
    }

    pub(crate) fn has_work(&self) -> bool {
        self.next.is_some()
    }

    /// Counts events that were removed from the disk; enough of them start a pass over the store.
    pub(crate) fn note_swept(&mut self, events: u64) {
        self.swept += events;
        if self.next.is_none() && self.last > 1 && self.swept >= LEAST_SWEPT.max(self.met_by_last_pass / 4) {
            (self.next, self.swept, self.met) = (Some(1), 0, 0);
        }
    }

    /// Reads the next `limit` records, and merges runs of consecutive dead ones.
    pub(crate) fn step(&mut self, limit: usize, reader: &Reader, batch: &mut Batch) -> Result<(), StoreError> {
        let Some(first) = self.next else { return Ok(()) };
        let mut heads = Heads::new(reader);
        let mut run: Option<Run> = None;
        let mut next = None;
        for (at, record) in verification::records(first, reader).enumerate() {
            let (number, commit) = match record {
                // The pass ends at a damaged record; readers that need the record find the damage.
                Err(error) if error.is_corruption() => break,
                record => record?,
            };
            if number.saturating_add(commit.merged) > self.last {
                break;
            }
            if at >= limit.max(2) {
                // The next step starts at the merged record, so that the run continues.
                next = Some(run.as_ref().map_or(number, |run| run.first));
                break;
            }
            self.met += 1;
            match (&mut run, is_dead(&commit, &mut heads)?) {
                (Some(run), true) => run.add(number, &commit),
                (None, true) => run = Some(Run::new(number, &commit)),
                (_, false) => run.take().iter().try_for_each(|run| run.write(reader, batch))?,
            }
        }
        run.iter().try_for_each(|run| run.write(reader, batch))?;
        self.next = next;
        if next.is_none() {
            self.met_by_last_pass = self.met;
        }
        Ok(())
    }
}

fn is_dead(commit: &CommitRecord, heads: &mut Heads<'_>) -> Result<bool, StoreError> {
    for append in &commit.appends {
        if heads.deleted_to(append.pid)?.is_none_or(|deleted_to| append.last() > deleted_to) {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Run {
    fn new(first: u64, commit: &CommitRecord) -> Self {
        let CommitRecord { first_ordinal, merged, .. } = *commit;
        let gone = gone(commit);
        let merged = CommitRecord { first_ordinal, merged, gone, ..CommitRecord::default() };
        Self { first, others: Vec::new(), merged }
    }

    fn add(&mut self, number: u64, commit: &CommitRecord) {
        self.others.push(number);
        self.merged.merged += 1 + commit.merged;
        self.merged.gone += gone(commit);
    }

    fn write(&self, reader: &Reader, batch: &mut Batch) -> Result<(), StoreError> {
        let Some(second) = self.others.first() else { return Ok(()) };
        match reader.check_removal(&keys::commit(*second)) {
            Err(error) if error.is_corruption() => {
                tracing::warn!(first = self.first, %error, "dead commits are not merged: a page before them is damaged");
                return Ok(());
            }
            checked => checked?,
        }
        self.others.iter().for_each(|number| batch.remove(&keys::commit(*number)));
        batch.put(&keys::commit(self.first), &self.merged.encode());
        Ok(())
    }
}

fn gone(commit: &CommitRecord) -> u64 {
    commit.event_count() + commit.changes + commit.gone
}
