//! Surveys a journal, sound or not, record by record; damage to one record hides no other.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use greylag_persistence::{PersistenceId, SeqNr, Snapshot, SnapshotCriteria};
use greylag_store_sled::Reader;

use super::commits::Commits;
use crate::heads::Undurable;
use crate::lookup::{self, LookupError};
use crate::reading::Reads;
use crate::rows::keys::{self, PidNo, Space};
use crate::rows::offset_row::SliceOffsets;
use crate::rows::records::{EventRow, StoredHead};
use crate::rows::state_row::StateRow;

/// One thing found in a journal.
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
    /// A record of an id whose name is lost.
    Nameless {
        key: &'a Bytes,
        value: &'a Bytes,
    },
    /// An event that is lost; `why` is the error of the record in its place, if there is one.
    Lost {
        id: &'a PersistenceId,
        pid: PidNo,
        seq_nr: SeqNr,
        why: Option<String>,
    },
    /// Any other damage, as a sentence.
    Damage {
        what: String,
    },
}

type Visit<'v> = &'v mut dyn FnMut(Found<'_>);

/// The survey of one journal.
pub(super) struct Survey {
    pub(super) reader: Reader,
    pub(super) commits: Commits,
    undurable: Undurable,
}

impl Survey {
    pub(super) fn new(reader: Reader) -> Self {
        let commits = Commits::read(&reader);
        Self { reader, commits, undurable: Undurable::default() }
    }

    /// Passes everything to `visit`.
    pub(super) fn walk(&self, visit: Visit<'_>) {
        let ids = self.ids(visit);
        for (pid, id) in &ids {
            self.walk_id(*pid, id, visit);
        }
        self.walk_nameless(&ids, visit);
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
        let deleted_to = head.map(|stored| stored.head.deleted_to.as_u64());
        let mut there = self.numbers(keys::events(pid), visit);
        there.retain(|number| deleted_to.is_none_or(|deleted_to| *number > deleted_to));
        let named = self.commits.highest.get(&pid).map_or(0, |highest| highest.as_u64());
        let stored = head.map_or(0, |stored| stored.head.highest.as_u64());
        // Numbers have no gaps. Without the head it is unknown which events before the first present one were deleted.
        let first = deleted_to.map(|deleted_to| deleted_to + 1).or(there.first().copied()).unwrap_or(named.max(1));
        let last = there.last().copied().unwrap_or_default().max(named).max(stored);
        if head.is_some() && last > stored {
            let what = "is older than its events: its last event is";
            damage(visit, format!("head of {id}: {what} {stored}, and there are or were events up to {last}"));
        }
        for number in first..=last {
            let seq_nr = SeqNr::saturating(number);
            let why = match lookup::event(&self.reader, id, pid, seq_nr) {
                Ok(Some(row)) => {
                    visit(Found::Event { pid, row: &row });
                    continue;
                }
                Ok(None) => None,
                Err(error) => Some(shown(&error)),
            };
            visit(Found::Lost { id, pid, seq_nr, why });
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

    /// Passes events of ids whose name and head are both lost.
    fn walk_nameless(&self, ids: &BTreeMap<PidNo, PersistenceId>, visit: Visit<'_>) {
        let mut pids: BTreeSet<PidNo> = self.commits.highest.keys().copied().collect();
        let (mut from, to) = keys::all_events();
        while let Some(key) = self.reader.keys(&from, &to).next().and_then(Result::ok) {
            let Some(pid) = keys::number(&key, 0).map(PidNo) else { break };
            pids.insert(pid);
            from = keys::events(pid).1;
        }
        for pid in pids.into_iter().filter(|pid| !ids.contains_key(pid)) {
            let (from, to) = keys::events(pid);
            let rows: Vec<_> = self.reader.range(&from, &to).filter_map(Result::ok).collect();
            let last = self.commits.highest.get(&pid).map_or(0, |highest| highest.as_u64());
            let what = format!("neither name nor head of id number {} is left; {} events of it are", pid.0, rows.len());
            damage(visit, if last > 0 { format!("{what}, its last one was {last} or a later one") } else { what });
            rows.iter().for_each(|(key, value)| visit(Found::Nameless { key, value }));
        }
    }

    /// Ids by number; an id whose name record is lost is found by its head.
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

    /// Keys in order. If an iteration cannot get past damage, the keys before and behind the damage.
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
        Reads::new("the journal", self.reader.clone(), &self.undurable)
    }
}

fn parse(name: &[u8]) -> Option<PersistenceId> {
    PersistenceId::unique(std::str::from_utf8(name).ok()?).ok()
}

fn damage(visit: Visit<'_>, what: String) {
    visit(Found::Damage { what });
}

fn shown(error: &LookupError) -> String {
    match error {
        LookupError::Corrupt(corrupt) => format!("{:?}", corrupt.kind).to_lowercase(),
        LookupError::Store(error) => error.to_string(),
    }
}
