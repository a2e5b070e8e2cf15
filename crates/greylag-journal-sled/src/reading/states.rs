//! The view of the readers of durable states.

use bytes::Bytes;
use greylag_persistence::{
    ChangesOf, Corrupt, CorruptKind, Offset, PersistenceId, ReadError, Revision, SeqNr, StateChange, StoredState,
};
use greylag_store_sled::StoreError;

use super::reads::{MAX_OVERTAKEN, Reads};
use crate::lookup::{self, LookupError};
use crate::rows::keys;
use crate::rows::records::Row;
use crate::rows::state_row::{ChangeRow, StateRow};

impl Reads<'_> {
    /// The durable row of `id`, whole and checked.
    pub(crate) fn state(&self, id: &PersistenceId) -> Result<Option<StateRow>, LookupError> {
        let mut missing = None;
        for _ in 0..MAX_OVERTAKEN {
            let Some(value) = self.durable_state(id)? else { return Ok(None) };
            let unreadable = || LookupError::corrupt(id, SeqNr::ZERO, CorruptKind::Unreadable);
            let row = Row::decode(value).ok_or_else(unreadable)?;
            let revision = Revision::new(row.save.0).ok_or_else(unreadable)?;
            let seq_nr = SeqNr::saturating(revision.as_u64());
            let chunk = |at| {
                let value = self.reader.get(&keys::state_chunk(id, revision, at));
                value.map_err(|error| LookupError::of(id, seq_nr, error))
            };
            if let Some(body) = row.join(chunk)? {
                let row = StateRow::decode(id, body).ok_or_else(unreadable)?;
                if !row.state.is_intact() {
                    let seq_nr = SeqNr::saturating(row.state.revision.as_u64());
                    return Err(LookupError::corrupt(id, seq_nr, CorruptKind::Checksum));
                }
                return Ok(Some(row));
            }
            // The state was overwritten since the row was read, or is lost; the row, read again, tells which.
            if missing.replace(revision) == Some(revision) {
                return Err(LookupError::corrupt(id, seq_nr, CorruptKind::Missing));
            }
        }
        Err(LookupError::Store(StoreError::corrupt(format!("the state of {id} never stands still"))))
    }

    /// The durable row. The store is read first, then the undurable rows; [`Undurable::durable_head`] says why.
    fn durable_state(&self, id: &PersistenceId) -> Result<Option<Bytes>, LookupError> {
        let key = keys::state(id);
        let stored = self.reader.get(&key).map_err(|error| LookupError::of(id, SeqNr::ZERO, error))?;
        Ok(self.undurable.durable_row(&key).unwrap_or(stored))
    }

    pub(crate) fn state_or_absent(&self, id: PersistenceId) -> Result<StoredState, ReadError> {
        let row = self.state(&id).map_err(|error| self.read_error(error))?;
        Ok(row.map_or_else(|| StoredState::absent(id), |row| row.state))
    }

    pub(crate) fn state_ids(
        &self,
        entity_type: Option<&str>,
        after: Option<&PersistenceId>,
        limit: usize,
    ) -> Result<Vec<PersistenceId>, StoreError> {
        let mut ids = Vec::new();
        let (from, to) = keys::states(after);
        for record in self.reader.range(&from, &to) {
            if ids.len() >= limit {
                break;
            }
            // A damaged row counts too, since its key still names an id.
            let key = lookup::key_of(record)?;
            if self.undurable.durable_row(&key) == Some(None) {
                continue;
            }
            let id = std::str::from_utf8(&key[1..]).ok().and_then(|id| PersistenceId::unique(id).ok());
            let id = id.ok_or_else(|| StoreError::corrupt("a state stands under a key that is no id"))?;
            if entity_type.is_none_or(|meant| id.entity_type() == meant) {
                ids.push(id);
            }
        }
        Ok(ids)
    }

    /// Durable changes from this ordinal on, the latest of each id.
    pub(crate) fn changes(&self, of: &ChangesOf, from: u64, limit: usize) -> Result<Vec<StateChange>, LookupError> {
        let mut changes = Vec::new();
        // The end is taken before anything is read: a change that is passed over below has its successor at or below
        // the end, or the successor is still to come.
        let Some(newest) = self.newest().filter(|newest| *newest >= from) else { return Ok(changes) };
        let (first, end) = (keys::change(from), keys::change(newest.saturating_add(1)));
        for record in self.reader.range(&first, &end) {
            if changes.len() >= limit {
                break;
            }
            match self.change_at(of, record) {
                Ok((_, change)) => changes.extend(change),
                // A page ends before damage; the next page begins with the damage and answers the error.
                Err(LookupError::Corrupt(_)) if !changes.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(changes)
    }

    /// One change and its ordinal; `None` in place of a change that the query does not want or that was superseded.
    pub(crate) fn change_at(
        &self,
        of: &ChangesOf,
        record: Result<(Bytes, Bytes), StoreError>,
    ) -> Result<(u64, Option<StateChange>), LookupError> {
        let unreadable = || LookupError::Store(StoreError::corrupt("unreadable change of a state"));
        let (key, value) = record.map_err(LookupError::Store)?;
        let (ordinal, id) =
            keys::number(&key, 0).zip(ChangeRow::decode(value)).map(|(at, row)| (at, row.id)).ok_or_else(unreadable)?;
        Ok((ordinal, self.change(of, ordinal, id)?))
    }

    fn change(&self, of: &ChangesOf, ordinal: u64, id: PersistenceId) -> Result<Option<StateChange>, LookupError> {
        if let ChangesOf::Slices { entity_type, slices } = of
            && (id.entity_type() != entity_type || !slices.contains(&id.slice()))
        {
            return Ok(None);
        }
        // The row is read without its chunks: damage to a state that the query does not want must not stop its reader.
        let missing = |id| Err(LookupError::Corrupt(Corrupt { id, seq_nr: SeqNr::ZERO, kind: CorruptKind::Missing }));
        let Some(value) = self.durable_state(&id)? else { return missing(id) };
        let stored = Row::decode(value).and_then(|row| StateRow::decode(&id, row.content));
        let stored = stored.ok_or_else(|| LookupError::corrupt(&id, SeqNr::ZERO, CorruptKind::Unreadable))?;
        if stored.ordinal > ordinal || (stored.ordinal == ordinal && !of.matches(&stored.state)) {
            return Ok(None);
        }
        match self.state(&id)? {
            Some(row) if row.ordinal == ordinal => {
                Ok(Some(StateChange { offset: Offset::Ordinal(ordinal), state: row.state }))
            }
            Some(row) if row.ordinal > ordinal => Ok(None),
            _ => missing(id),
        }
    }
}
