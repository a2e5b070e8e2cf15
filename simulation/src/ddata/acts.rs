//! Acts of users: they change entries, read them, and delete them.

use std::time::Duration;

use greylag_crdt::{GCounter, ReplicatedData, UpdateCx};
use greylag_ddata::{Input, ReadLevel, WriteLevel};
use rand::RngExt;

use super::checks::{Pending, Wanted};
use super::ledger::{Ledger, MOST, OperationKind, Tally};
use super::world::World;

/// Timeout of a request.
pub(super) const TIMEOUT: Duration = Duration::from_millis(800);

impl World {
    /// Draws an act that would change something in a ledger as the process sees it.
    pub(super) fn draw_act(&mut self, index: usize, ledger: usize) -> OperationKind {
        let seen = self.processes[index].seen[ledger];
        let shown = self.books[ledger].shown(seen).clone();
        loop {
            let rng = self.net.rng();
            let (key, value) = (rng.random_range(0..3), rng.random_range(0..2));
            let act = match rng.random_range(0..16) {
                0..=3 => OperationKind::Add(key),
                4 | 5 => OperationKind::Take(key),
                6 => OperationKind::Clear,
                7 | 8 => OperationKind::Count(rng.random_range(-3..=5)),
                // Timestamps are unique: two puts of one time would be decided by their writers, which the model does
                // not know.
                9 => OperationKind::Put(key, rng.random_range(0..1_000) * 1_000 + self.books[ledger].ops.len() as i64),
                10 => OperationKind::Unput(key),
                11 => OperationKind::Vote(key, rng.random_range(1..5)),
                12 => OperationKind::Unvote(key),
                13 => OperationKind::Tag(key, value),
                14 => OperationKind::Untag(key, value),
                _ => OperationKind::UntagAll(key),
            };
            // A slot has the counts before it, too, so a replica that hears of it out of order shows more than its list
            // says.
            let fits = self.is_ordered || !matches!(act, OperationKind::Count(_));
            if fits && act != OperationKind::Count(0) && shown.allows(act) {
                return act;
            }
        }
    }

    /// Draws a level for a write, often the local one.
    pub(super) fn draw_level(&mut self) -> WriteLevel {
        match self.net.rng().random_range(0..7) {
            0..=2 => WriteLevel::Local,
            3 => WriteLevel::To { n: 2, timeout: TIMEOUT },
            4 => WriteLevel::majority(TIMEOUT),
            5 => WriteLevel::all(TIMEOUT),
            _ => WriteLevel::MajorityPlus { additional: 1, min_cap: None, timeout: TIMEOUT },
        }
    }

    /// Changes a ledger at a process.
    pub(super) fn change(&mut self, index: usize, ledger: usize, act: OperationKind, level: WriteLevel) {
        if self.books[ledger].ops.len() >= MOST || self.processes[index].deleted.contains(&ledger) {
            return;
        }
        let process = &self.processes[index];
        let (origin, seen) = ((index, process.life), process.seen[ledger]);
        let number = self.books[ledger].note(origin, act, seen);
        self.tell(|| format!("{index} does {number} to l{ledger}: {act:?} at {level:?}, having seen {seen:b}"));
        let id = self.await_write(index, ledger, 1 << number, level);
        let (mut out, now, wall) = (Vec::new(), self.now(), self.wall_ms(index));
        let key = &self.ledger_keys[ledger];
        let modify = |ledger: &mut Ledger, cx: &mut UpdateCx<'_>| {
            ledger.perform(cx, number, act);
            Ok::<_, ()>(())
        };
        let core = &mut self.processes[index].core;
        let done = core.update(now, wall, id, key, level, Ledger::zero, modify, &mut out);
        self.began(index, id, done.map_err(|error| format!("{error:?}")), out);
    }

    /// Increments a bare counter at a process.
    pub(super) fn count(&mut self, index: usize, tally: usize, level: WriteLevel) {
        let number = self.tallies[tally].ops.len();
        if number >= Tally::MOST {
            return;
        }
        self.tallies[tally].ops.push((index, self.processes[index].life));
        self.tell(|| format!("{index} counts {number} in c{tally} at {level:?}"));
        let id = self.await_write(index, self.books.len() + tally, 1 << number, level);
        let (mut out, now, wall) = (Vec::new(), self.now(), self.wall_ms(index));
        let key = &self.tally_keys[tally];
        let core = &mut self.processes[index].core;
        let add = |counter: &mut GCounter, cx: &mut UpdateCx<'_>| counter.increment(cx, Tally::digit(number));
        let done = core.update(now, wall, id, key, level, GCounter::new, add, &mut out);
        self.began(index, id, done.map_err(|error| format!("{error:?}")), out);
    }

    /// Expires a bare counter at one process. Other processes may still have its amount; an amount that comes back is
    /// added to the counts made here from now on.
    pub(super) fn expire(&mut self, index: usize, tally: usize) {
        self.tell(|| format!("c{tally} expires at {index}"));
        let (entry, key, now) = (self.books.len() + tally, self.tally_keys[tally].id().clone(), self.now());
        let process = &mut self.processes[index];
        process.held[entry] |= std::mem::take(&mut process.seen[entry]);
        process.checked = None;
        let mut out = Vec::new();
        process.core.expire_now(now, &key, &mut out);
        self.perform(index, out);
    }

    /// Makes an update that changes nothing, at a level: other replicas must then hold what this one holds. Source:
    /// ddata R2.
    pub(super) fn confirm(&mut self, index: usize, ledger: usize, level: WriteLevel) {
        let seen = self.processes[index].seen[ledger];
        if seen == 0 || self.processes[index].deleted.contains(&ledger) {
            return;
        }
        let id = self.await_write(index, ledger, seen, level);
        let (mut out, now, wall) = (Vec::new(), self.now(), self.wall_ms(index));
        let key = &self.ledger_keys[ledger];
        let core = &mut self.processes[index].core;
        let done = core.update(now, wall, id, key, level, Ledger::zero, |_, _| Ok::<_, ()>(()), &mut out);
        self.began(index, id, done.map_err(|error| format!("{error:?}")), out);
    }

    fn await_write(&mut self, index: usize, entry: usize, mask: u64, level: WriteLevel) -> u64 {
        self.next += 1;
        let (voters, staying) = self.processes[index].view.voters();
        let needed = match level {
            WriteLevel::Local => 1,
            WriteLevel::To { n, .. } => n,
            WriteLevel::Majority { .. } => voters / 2 + 1,
            WriteLevel::MajorityPlus { additional, .. } => (staying / 2 + 1 + additional).min(staying),
            WriteLevel::All { .. } => staying,
        };
        let wanted = Wanted::Write { needed, is_local: level == WriteLevel::Local };
        self.pending.insert((index, self.next), Pending { entry, mask, wanted });
        self.next
    }

    /// Handles the outcome of a request; a local operation must be done at once, whatever the network does. Source:
    /// ddata C4.
    fn began(&mut self, index: usize, id: u64, done: Result<(), String>, out: Vec<greylag_ddata::Effect>) {
        match done {
            Err(error) => {
                self.pending.remove(&(index, id));
                if !error.contains("Stopped") && !error.contains("Deleted") {
                    self.breaks("a sound update is taken", format!("{index} was refused: {error}"));
                }
            }
            Ok(()) => self.perform(index, out),
        }
        let waits = self.pending.get(&(index, id)).is_some_and(|pending| pending.wanted.is_local_write());
        if waits && !self.may_wait_for_store(index, id) {
            self.breaks("local operations complete at once (ddata C4)", format!("{index} waits"));
        }
    }

    /// Reads a ledger at a process.
    pub(super) fn read(&mut self, index: usize, ledger: usize, level: ReadLevel) {
        self.next += 1;
        let id = self.next;
        let seen = self.processes[index].seen[ledger];
        self.pending.insert((index, id), Pending { entry: ledger, mask: seen, wanted: Wanted::Read });
        let tag = Ledger::TAG.to_string().into();
        self.input(index, Input::Get { id, key: self.ledger_keys[ledger].id().clone(), tag, level });
    }

    /// Deletes a ledger at a process, for good.
    pub(super) fn delete(&mut self, index: usize, ledger: usize, level: WriteLevel) {
        self.next += 1;
        let id = self.next;
        self.tell(|| format!("{index} deletes l{ledger} at {level:?}"));
        let wall_ms = self.wall_ms(index);
        self.input(index, Input::Delete { id, key: self.ledger_keys[ledger].id().clone(), level, wall_ms });
    }
}
