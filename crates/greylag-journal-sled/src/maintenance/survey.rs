//! Everything in a journal, sound or not, thing by thing; damage to one hides no other.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use greylag_persistence::{PersistenceId, SeqNr, Snapshot, SnapshotCriteria};
use greylag_store_sled::Reader;

use crate::heads::Undurable;
use crate::keys::{self, PidNo, Space};
use crate::lookup::{self, LookupError};
use crate::offset_row::SliceOffsets;
use crate::reads::Reads;
use crate::records::{EventRow, StoredHead};
use crate::state_row::StateRow;

/// One thing of a journal.
pub(super) enum Found<'a> {
    /// An id; its events and snapshots follow.
    Id {
        id: &'a PersistenceId,
        pid: PidNo,
        head: Option<StoredHead>,
    },
    Event {
        pid: PidNo,
        row: &'a EventRow,
    },
    Snapshot(PidNo, &'a Snapshot),
    State(&'a StateRow),
    Offsets {
        projection: &'a str,
        slice: u16,
        row: &'a SliceOffsets,
    },
    /// What cannot be read; if it is an event, which one.
    Damage {
        what: String,
        event: Option<(PidNo, SeqNr)>,
    },
}

type Visit<'v> = &'v mut dyn FnMut(Found<'_>);

/// Looks through one journal.
pub(super) struct Survey {
    pub(super) reader: Reader,
    undurable: Undurable,
}

impl Survey {
    pub(super) fn new(reader: Reader) -> Self {
        Self { reader, undurable: Undurable::default() }
    }

    /// Shows everything.
    pub(super) fn walk(&self, visit: Visit<'_>) {
        for (pid, id) in self.ids(visit) {
            self.walk_id(pid, &id, visit);
        }
        for key in self.keys(keys::space(Space::States), "states", visit) {
            let Some(id) = keys::state_id(&key) else { continue };
            match self.reads().state(&id) {
                Ok(Some(state)) => visit(Found::State(&state)),
                Ok(None) => {}
                Err(error) => damage(visit, format!("state of {id}: {}", shown(&error))),
            }
        }
        for key in self.keys(keys::space(Space::Offsets), "offsets", visit) {
            let Some((projection, slice)) = keys::offsets_slice(&key) else { continue };
            match self.reader.get(&key).map(|row| row.and_then(SliceOffsets::decode)) {
                Ok(Some(row)) => visit(Found::Offsets { projection: &projection, slice, row: &row }),
                Ok(None) => damage(visit, format!("offsets of slice {slice} of {projection}: unreadable")),
                Err(error) => damage(visit, format!("offsets of slice {slice} of {projection}: {error}")),
            }
        }
    }

    fn walk_id(&self, pid: PidNo, id: &PersistenceId, visit: Visit<'_>) {
        let head = match lookup::head(&self.reader, id) {
            Ok(Some(head)) => Some(head),
            Ok(None) => {
                damage(visit, format!("head of {id}: missing"));
                None
            }
            Err(error) => {
                damage(visit, format!("head of {id}: {}", shown(&error)));
                None
            }
        };
        visit(Found::Id { id, pid, head });
        let numbers: Vec<u64> = match head {
            Some(stored) => (stored.head.deleted_to.as_u64() + 1..=stored.head.highest.as_u64()).collect(),
            // Without its head, what is there is all that is known.
            None => self.numbers(keys::events(pid), visit),
        };
        for number in numbers {
            let seq_nr = SeqNr::saturating(number);
            let why = match lookup::event(&self.reader, id, pid, seq_nr) {
                Ok(Some(row)) => {
                    visit(Found::Event { pid, row: &row });
                    continue;
                }
                Ok(None) => "missing".to_owned(),
                Err(error) => shown(&error),
            };
            visit(Found::Damage { what: format!("event {seq_nr} of {id}: {why}"), event: Some((pid, seq_nr)) });
        }
        for number in self.numbers(keys::snapshots(pid), visit) {
            let seq_nr = SeqNr::saturating(number);
            match self.reads().snapshot(id, pid, seq_nr, SnapshotCriteria::LATEST) {
                Ok(Some(snapshot)) => visit(Found::Snapshot(pid, &snapshot)),
                Ok(None) => {}
                Err(error) => damage(visit, format!("snapshot {seq_nr} of {id}: {}", shown(&error))),
            }
        }
    }

    /// Ids by number; those whose name is lost by their heads.
    fn ids(&self, visit: Visit<'_>) -> BTreeMap<PidNo, PersistenceId> {
        let mut ids = BTreeMap::new();
        for key in self.keys(keys::space(Space::Ids), "ids", visit) {
            let Some(pid) = keys::number(&key, 0).map(PidNo) else { continue };
            let name = self.reader.get(&key).map(|name| name.and_then(|name| parse(&name)));
            match name {
                Ok(Some(id)) => {
                    ids.insert(pid, id);
                }
                Ok(None) => damage(visit, format!("name of id {}: unreadable", pid.0)),
                Err(error) => damage(visit, format!("name of id {}: {error}", pid.0)),
            }
        }
        for key in self.keys(keys::space(Space::Heads), "heads", visit) {
            let Some(id) = keys::head_id(&key) else { continue };
            if let Ok(Some(head)) = lookup::head(&self.reader, &id) {
                ids.entry(head.pid).or_insert(id);
            }
        }
        ids
    }

    fn numbers(&self, bounds: (Vec<u8>, Vec<u8>), visit: Visit<'_>) -> Vec<u64> {
        let keys = self.keys((&bounds.0[..], &bounds.1[..]), "records", visit);
        keys.iter().filter_map(|key| keys::number(key, 1)).collect()
    }

    /// Keys in order. Where the engine cannot go on, those before and those behind the damage.
    fn keys<A: AsRef<[u8]>, B: AsRef<[u8]>>(
        &self,
        (from, to): (A, B),
        what: &str,
        visit: Visit<'_>,
    ) -> BTreeSet<Bytes> {
        let mut found = BTreeSet::new();
        let mut stopped = None;
        for record in self.reader.range(from.as_ref(), to.as_ref()) {
            match lookup::key_of(record) {
                Ok(key) => found.insert(key),
                Err(error) => {
                    stopped = Some(error);
                    break;
                }
            };
        }
        if let Some(error) = stopped {
            damage(visit, format!("a part of the {what}: {error}"));
            let behind = self.reader.range(from.as_ref(), to.as_ref()).rev();
            found.extend(behind.map_while(|record| lookup::key_of(record).ok()));
        }
        found
    }

    fn reads(&self) -> Reads<'_> {
        Reads { name: "the journal", reader: self.reader.clone(), undurable: &self.undurable }
    }
}

fn parse(name: &[u8]) -> Option<PersistenceId> {
    PersistenceId::unique(std::str::from_utf8(name).ok()?).ok()
}

fn damage(visit: Visit<'_>, what: String) {
    visit(Found::Damage { what, event: None });
}

fn shown(error: &LookupError) -> String {
    match error {
        LookupError::Corrupt(corrupt) => format!("{:?}", corrupt.kind).to_lowercase(),
        LookupError::Store(error) => error.to_string(),
    }
}
