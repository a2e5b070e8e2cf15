//! The answers that a writer got.

use std::collections::{BTreeMap, BTreeSet};

use super::content::is_deletion;
use crate::contract::head::Claim;
use crate::contract::offset::{OwnedSlices, OwnerEpoch};
use crate::contract::records::event::{SeqNr, Timestamp, WriterEpoch};
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::revision::Revision;
use crate::contract::records::state::StoredState;
use crate::contract::tck::harness::{Checked, ensure, equal};

/// The answers that one writer got. Events that a read has shown count as acknowledged: they must not vanish either.
#[derive(Default)]
pub(super) struct RecordedAnswers {
    pub(super) epoch: WriterEpoch,
    pub(super) timestamp: Timestamp,
    pub(super) highest: SeqNr,
    pub(super) deleted_to: SeqNr,
    /// The greatest number that was ever to be deleted.
    pub(super) deleting: SeqNr,
    /// Contents of events by number, those not deleted.
    pub(super) stored: BTreeMap<u64, String>,
    /// Contents of events that were answered "not stored".
    pub(super) refused: BTreeSet<String>,
    pub(super) snapshot: SeqNr,
    pub(super) snapshots_deleted_to: SeqNr,
    pub(super) revision: Revision,
    /// The greatest revision that was ever written.
    pub(super) writing: Revision,
    pub(super) refused_states: BTreeSet<String>,
    /// The epochs of the worker's slices.
    pub(super) owner: BTreeMap<u16, OwnerEpoch>,
    pub(super) saved: u64,
    /// The greatest number that was ever to be saved.
    pub(super) saving: u64,
}

impl RecordedAnswers {
    pub(super) fn claimed(&mut self, id: &PersistenceId, claim: Claim) -> Checked {
        let (epoch, highest) = (self.epoch, self.highest);
        ensure(claim.epoch > epoch, || format!("{id} was claimed at {epoch}, and now at {}", claim.epoch))?;
        ensure(claim.highest >= highest, || format!("{id} ended at {highest}, and is claimed at {}", claim.highest))?;
        ensure(claim.deleted_to >= self.deleted_to, || format!("{id}: deleted events are back at a claim"))?;
        self.epoch = claim.epoch;
        Ok(())
    }

    pub(super) fn appended(
        &mut self,
        id: &PersistenceId,
        first: SeqNr,
        contents: Vec<String>,
        timestamp: Timestamp,
    ) -> Checked {
        let before = self.timestamp;
        ensure(timestamp > before, || format!("time stands still for {id}: {before}, then {timestamp}"))?;
        self.timestamp = timestamp;
        self.stored.extend((first.as_u64()..).zip(contents));
        self.highest = self.stored.keys().next_back().map_or(self.highest, |last| SeqNr::saturating(*last));
        Ok(())
    }

    pub(super) fn deleted(&mut self, effective: SeqNr) {
        self.deleted_to = self.deleted_to.max(effective);
        self.stored = self.stored.split_off(&(self.deleted_to.as_u64() + 1));
    }

    pub(super) fn owned(&mut self, owned: &OwnedSlices) -> Checked {
        for (slice, epoch) in &owned.epochs {
            let before = self.owner.insert(*slice, *epoch).unwrap_or_default();
            ensure(*epoch > before, || {
                format!("slice {slice} of {} was owned at {before}, and now at {epoch}", owned.projection)
            })?;
        }
        Ok(())
    }

    pub(super) fn check_state(&mut self, row: &StoredState) -> Checked {
        let (told, tried) = (self.revision, self.writing);
        ensure((told..=tried).contains(&row.revision), || {
            format!("state {}: {told} was acknowledged, {tried} tried, {} is stored", row.id, row.revision)
        })?;
        self.revision = row.revision;
        let found = row.value.as_ref().map(|value| String::from_utf8_lossy(&value.payload).into_owned());
        let absent = row.revision.is_none() || is_deletion(row.revision);
        equal(&format!("state {} at {} is absent", row.id, row.revision), found.is_none(), absent)?;
        let Some(found) = found else { return Ok(()) };
        ensure(row.is_intact() && found.starts_with(&format!("{}:", row.revision)), || {
            format!("state {} at {} is {found:?}", row.id, row.revision)
        })?;
        ensure(!self.refused_states.contains(&found), || format!("state {found:?} was said not to be stored"))
    }
}
