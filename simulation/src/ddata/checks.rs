//! Promises checked after every step, at every acknowledgement, and at the end.

use greylag_crdt::{GCounter, ReplicaId, ReplicatedData};
use greylag_ddata::{DeleteError, GetError, Input, Key, KeyId, Lifecycle, Notice, Read, Reply, Snapshot, WriteLevel};

use super::acts::TIMEOUT;
use super::ledger::{Ledger, Mask};
use super::world::World;

/// A request without an answer yet.
#[derive(Debug, Clone)]
pub(super) struct Pending {
    pub(super) entry: usize,
    /// The operations of a write; for a read, those that the reader had seen.
    pub(super) mask: Mask,
    pub(super) wanted: Wanted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Write {
        needed: usize,
        is_local: bool,
    },
    Read,
    /// A read that only asks whether the entry is deleted.
    Fate,
}

impl Wanted {
    pub(super) fn is_local_write(self) -> bool {
        matches!(self, Self::Write { is_local: true, .. })
    }
}

const EXPLAINED: &str = "what is shown is what was done (ddata L7, Z8)";
const GROWS: &str = "what was seen stays seen (ddata C3, C7)";
const IN_ORDER: &str = "no later update of an origin without its earlier ones (ddata C5)";
const HELD: &str = "acknowledged at a level means held by as many (ddata C2)";
const EQUAL: &str = "all replicas are equal after healing (ddata C1)";

impl World {
    /// Checks the values that a process shows, if its data have changed.
    pub(super) fn check_process(&mut self, index: usize) {
        let sum = self.processes[index].core.root_sum();
        if self.processes[index].checked == Some(sum) || self.broken.is_some() {
            return;
        }
        self.processes[index].checked = Some(sum);
        for ledger in 0..self.books.len() {
            match self.processes[index].core.value(&self.ledger_keys[ledger]) {
                Some(held) => {
                    let (seen, shown) = (held.seen(), held.shown());
                    if self.processes[index].deleted.contains(&ledger) {
                        let what = format!("l{ledger} is back at {index}");
                        return self.breaks("a deleted entry stays deleted (ddata R5)", what);
                    }
                    let expected = self.books[ledger].shown(seen);
                    if *expected != shown {
                        let what =
                            format!("{index} shows {shown:?} of l{ledger}, having seen {seen:b}, not {expected:?}");
                        return self.breaks(EXPLAINED, what);
                    }
                    if self.is_ordered && !self.books[ledger].is_in_order(seen) {
                        return self.breaks(IN_ORDER, format!("{index} has seen {seen:b} of l{ledger}"));
                    }
                    self.saw(index, ledger, seen);
                }
                None => self.check_absent(index, ledger),
            }
        }
        for tally in 0..self.tallies.len() {
            let value = self.processes[index].core.value(&self.tally_keys[tally]).map_or(0, GCounter::value);
            match self.tallies[tally].counted(value) {
                Ok(seen) => self.saw(index, self.books.len() + tally, seen),
                Err(what) => self.breaks(EXPLAINED, format!("c{tally} at {index}: {what}")),
            }
        }
    }

    fn saw(&mut self, index: usize, entry: usize, seen: Mask) {
        let before = std::mem::replace(&mut self.processes[index].seen[entry], seen);
        if before & !seen != 0 {
            self.breaks(GROWS, format!("{index} had seen {before:b} of entry {entry}, now {seen:b}"));
        }
    }

    /// Checks an entry without a value: nothing of it may have been seen, unless it was deleted.
    fn check_absent(&mut self, index: usize, ledger: usize) {
        if self.processes[index].seen[ledger] == 0 || self.processes[index].deleted.contains(&ledger) {
            return;
        }
        self.next += 1;
        let id = self.next;
        self.pending.insert((index, id), Pending { entry: ledger, mask: 0, wanted: Wanted::Fate });
        let tag = Ledger::TAG.to_string().into();
        let key = self.ledger_keys[ledger].id().clone();
        self.input(index, Input::Get { id, key, tag, level: greylag_ddata::ReadLevel::Local });
        if !self.processes[index].deleted.contains(&ledger) {
            self.breaks(GROWS, format!("l{ledger} is gone at {index}"));
        }
    }

    pub(super) fn on_reply(&mut self, index: usize, id: u64, reply: Reply) {
        if let Some(wanted) = self.watched.get_mut(&(index, id)) {
            *wanted = Some(reply);
            return;
        }
        match reply {
            Reply::Delete(result) => match result {
                Ok(()) => self.acknowledged += 1,
                Err(
                    DeleteError::ReplicationFailed { .. }
                    | DeleteError::AlreadyDeleted { .. }
                    | DeleteError::StoreFailed { .. },
                ) => self.failed += 1,
                Err(error) => self.breaks("deletes end as they may (ddata R5)", format!("{error:?}")),
            },
            Reply::Update(result) => {
                let Some(pending) = self.pending.remove(&(index, id)) else { return };
                match result {
                    Ok(()) => self.check_acknowledged(index, &pending),
                    Err(_) => self.failed += 1,
                }
            }
            Reply::Get(result) => {
                let Some(pending) = self.pending.remove(&(index, id)) else { return };
                self.check_read(index, &pending, result);
            }
        }
    }

    /// Checks that an acknowledged update is on as many replicas as its level says, at that moment. A replica that died
    /// since counts with what it held.
    fn check_acknowledged(&mut self, index: usize, pending: &Pending) {
        self.acknowledged += 1;
        let Wanted::Write { needed, .. } = pending.wanted else { return };
        if !self.is_ordered {
            // A delta that comes too late is skipped but acknowledged all the same, so the count does not hold.
            return;
        }
        // The data of this process have changed in this very step.
        self.check_process(index);
        let is_durable = self.is_durable(pending.entry);
        let holds = |index: &usize| {
            let process = &self.processes[*index];
            let now = match is_durable {
                _ if !process.alive => 0,
                false => process.seen[pending.entry],
                true => self.flushed(*index, pending.entry),
            };
            let is_deleted = process.deleted.contains(&pending.entry) || self.is_deleted_on_disk(*index, pending.entry);
            pending.mask & !(now | process.held[pending.entry]) == 0 || is_deleted
        };
        let holders = (0..self.processes.len()).filter(holds).count();
        if holders < needed {
            self.breaks(HELD, format!("{index} was told {needed} hold {:b}, {holders} do", pending.mask));
        }
    }

    /// Checks that a read shows at least what the reader had seen when it asked. Source: ddata C6, R7.
    fn check_read(&mut self, index: usize, pending: &Pending, result: Result<Read<Snapshot>, GetError>) {
        match (pending.wanted, result) {
            (Wanted::Fate, Ok(Read::Deleted)) => drop(self.processes[index].deleted.insert(pending.entry)),
            (Wanted::Fate, _) | (_, Ok(Read::Deleted)) => {}
            (_, Ok(Read::Found(snapshot))) => {
                self.acknowledged += 1;
                let seen = snapshot.to::<Ledger>().map_or(0, |ledger| ledger.seen());
                if pending.mask & !seen != 0 {
                    let what = format!("{index} had seen {:b}, and read {seen:b}", pending.mask);
                    self.breaks("a process reads what it wrote (ddata C6)", what);
                }
            }
            (_, Ok(Read::NotFound)) if pending.mask != 0 => {
                self.breaks("a process reads what it wrote (ddata C6)", format!("{index} read nothing"));
            }
            (_, Ok(Read::NotFound)) => {}
            (_, Err(_)) => self.failed += 1,
        }
    }

    /// Checks that a subscriber is shown more and more operations. Source: ddata C7.
    pub(super) fn on_notice(&mut self, index: usize, key: &KeyId, notice: Notice) {
        let Some(ledger) = self.ledger_keys.iter().position(|known| known.id() == key) else { return };
        if let Notice::Value(snapshot) = notice {
            let seen = snapshot.to::<Ledger>().map_or(0, |ledger| ledger.seen());
            let before = self.processes[index].told.insert(ledger, seen).unwrap_or_default();
            if before & !seen != 0 {
                self.breaks(GROWS, format!("a subscriber at {index} was told {before:b}, then {seen:b}"));
            }
        }
    }

    /// The first obstacle to a settled state of the members, if any. Source: ddata C1, Z8.
    pub(super) fn unsettled(&self) -> Option<String> {
        let living = self.living();
        let first = *living.first()?;
        for index in &living {
            let core = &self.processes[*index].core;
            if *core.lifecycle() != Lifecycle::Running {
                return Some(format!("{index} never caught up"));
            }
            if core.root_sum() != self.processes[first].core.root_sum() {
                return Some(format!("{index} and {first} differ"));
            }
            if core.log_len() > 0 {
                return Some(format!("the log of {index} is not acknowledged"));
            }
        }
        if self.arrangement.settings.pruning_interval.is_some() {
            return living.iter().find_map(|index| self.named_at(*index));
        }
        None
    }

    /// An entry that still names a replica that is gone, at a process. Source: ddata Z8.
    fn named_at(&self, index: usize) -> Option<String> {
        let lives = |replica: ReplicaId| self.living().iter().any(|own| replica == self.processes[*own].replica());
        let core = &self.processes[index].core;
        let ledgers = self.ledger_keys.iter().map(|key| (key.id(), named(core, key)));
        let tallies = self.tally_keys.iter().map(|key| (key.id(), named(core, key)));
        let found = |(key, names): (&KeyId, Vec<ReplicaId>)| {
            let gone = names.into_iter().find(|name| !lives(*name))?;
            Some(format!("{key} names {gone} at {index}"))
        };
        ledgers.chain(tallies).find_map(found)
    }

    /// Checks that the members are settled, given that faults have stopped and there was enough time.
    pub(super) fn check_settled(&mut self) {
        if let Some(what) = self.unsettled().filter(|_| self.broken.is_none()) {
            return self.breaks(EQUAL, what);
        }
        let living = self.living();
        let Some((first, rest)) = living.split_first() else { return };
        for index in rest {
            let (one, other) = (&self.processes[*first].core, &self.processes[*index].core);
            let ledgers = self.ledger_keys.iter().map(|key| bytes(one, key) == bytes(other, key));
            let tallies = self.tally_keys.iter().map(|key| bytes(one, key) == bytes(other, key));
            if !ledgers.chain(tallies).all(|same| same) || one.digests() != other.digests() {
                return self.breaks(EQUAL, format!("{first} and {index} differ in bytes"));
            }
        }
        for index in living {
            for ledger in 0..self.books.len() {
                let process = &self.processes[index];
                let told = process.told.get(&ledger).copied().unwrap_or_default();
                if told != process.seen[ledger] && !process.deleted.contains(&ledger) {
                    let what = format!("at {index} it was told {told:b} of {:b}", process.seen[ledger]);
                    return self.breaks("a subscriber ends with the final state (ddata C7)", what);
                }
            }
        }
    }

    /// Checks that no entry was performed twice for one removed replica. Source: ddata Z4, O6.
    pub(super) fn check_performed_once(&mut self) {
        let again: u64 = self.processes.iter().map(|process| process.core.stats().performed_again).sum();
        let keys = self.ledger_keys.iter().map(Key::id).chain(self.tally_keys.iter().map(Key::id));
        let owners = |key: &KeyId| {
            let markers = self.living().into_iter().flat_map(|index| {
                let markers = self.processes[index].core.markers(key);
                markers.iter().map(|marker| (marker.removed, marker.owner)).collect::<Vec<_>>()
            });
            let pairs: std::collections::BTreeSet<_> = markers.collect();
            let removed: std::collections::BTreeSet<_> = pairs.iter().map(|(removed, _)| *removed).collect();
            pairs.len() > removed.len()
        };
        let twice = keys.filter(|key| owners(key)).count();
        if again > 0 || twice > 0 {
            let what = format!("{again} entries again by one owner, {twice} by two");
            self.breaks("no entry is performed twice for one replica (ddata Z4, O6)", what);
        }
    }

    /// Checks that after healing every member gets an update acknowledged by all.
    pub(super) fn check_serves(&mut self) {
        for index in self.living() {
            let before = self.acknowledged;
            self.count(index, 0, WriteLevel::all(TIMEOUT));
            self.run_for(TIMEOUT / 2);
            if self.broken.is_none() && self.acknowledged == before {
                self.breaks("everything is served after healing", format!("{index} is not answered"));
            }
        }
    }

    /// Count of performed entries.
    pub(super) fn performed(&self) -> u64 {
        self.processes.iter().map(|process| process.core.stats().performed).sum()
    }

    /// Whether a request may wait for its replica's own disk.
    pub(super) fn may_wait_for_store(&self, index: usize, id: u64) -> bool {
        self.pending.get(&(index, id)).is_some_and(|pending| self.is_durable(pending.entry))
    }
}

/// The replicas named in an entry's data.
fn named<T: ReplicatedData>(core: &greylag_ddata::ReplicatorCore, key: &Key<T>) -> Vec<ReplicaId> {
    let pruning = core.value(key).and_then(ReplicatedData::pruning);
    pruning.map(|pruning| pruning.modified_by().into_iter().collect()).unwrap_or_default()
}

fn bytes<T: ReplicatedData>(core: &greylag_ddata::ReplicatorCore, key: &Key<T>) -> Option<Vec<u8>> {
    core.value(key).map(ReplicatedData::to_bytes)
}
