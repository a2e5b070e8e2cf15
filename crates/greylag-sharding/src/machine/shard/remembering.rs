//! Which entities of one shard are remembered, and the one write about them that is under way.
//!
//! Each remembered entity is in one of six states; an entity in none of them is not remembered. Starts and ends during
//! a write form the next write, in which the last change of an entity counts.
//!
//! ```text
//! none --> RememberingStart --stored--> Active --> WaitingForRestart --> Active
//! Active --> Passivating --> RememberingStop --stored--> none, or RememberingStart
//! WaitingForRestart --given up, and forgotten--> RememberingStop
//! load: NotStarted --> Active, or RememberingStop if it lives in another shard
//! ```
//! Left to others: entities and their restarts (the shard); the store (the shell).
//!
//! Source: sharding §4.7, §4.8.

mod remembered;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub use self::remembered::{InvalidTransition, Remembered, StoreUpdate};
use super::table::{IncarnationPhase, Slot};
use crate::ids::EntityId;

/// The write under way.
#[derive(Debug)]
struct Write {
    number: u64,
    update: StoreUpdate,
    deadline: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Start,
    Stop,
}

/// The progress of the load at the begin of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    /// Not asked for yet.
    Unasked,
    /// The load is repeated at the instant.
    UnderWay(Instant),
    Done,
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct Remembering {
    load_timeout: Duration,
    write_timeout: Duration,
    load: Load,
    states: BTreeMap<EntityId, Remembered>,
    /// Changes for the next write.
    next: BTreeMap<EntityId, Change>,
    under_way: Option<Write>,
    writes: u64,
    /// Messages that wait for a write.
    waiting: usize,
    /// When a stopping shard gives up its writes.
    give_up_at: Option<Instant>,
}

impl Remembering {
    /// A new state, before the load.
    pub(super) fn new(load_timeout: Duration, write_timeout: Duration) -> Self {
        Self {
            load_timeout,
            write_timeout,
            load: Load::Unasked,
            states: BTreeMap::new(),
            next: BTreeMap::new(),
            under_way: None,
            writes: 0,
            waiting: 0,
            give_up_at: None,
        }
    }

    // --- loading ---

    /// Whether to load from the store now; the load is repeated after `load_timeout`.
    pub(super) fn asks_to_load(&mut self, now: Instant) -> bool {
        let is_due = match self.load {
            Load::Unasked => true,
            Load::UnderWay(again_at) => again_at <= now,
            Load::Done => false,
        };
        if is_due {
            self.load = Load::UnderWay(now + self.load_timeout);
        }
        is_due
    }

    /// Whether the store has not answered in time.
    pub(super) fn is_load_late(&self, now: Instant) -> bool {
        matches!(self.load, Load::UnderWay(again_at) if again_at <= now)
    }

    /// Takes the loaded ids. False if ids were loaded before.
    pub(super) fn loaded(&mut self, ids: impl IntoIterator<Item = EntityId>) -> bool {
        if self.load == Load::Done {
            return false;
        }
        self.load = Load::Done;
        self.states = ids.into_iter().map(|id| (id, Remembered::NotStarted)).collect();
        true
    }

    /// Whether the load is still under way.
    pub(super) fn is_loading(&self) -> bool {
        self.load != Load::Done
    }

    // --- states ---

    pub(super) fn state(&self, id: &EntityId) -> Option<Remembered> {
        self.states.get(id).copied()
    }

    /// How many entities are remembered.
    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    /// How many entities are in a state.
    pub(super) fn count(&self, state: Remembered) -> usize {
        self.states.values().filter(|known| **known == state).count()
    }

    /// Changes a state, and puts the change into the next write if it must be stored.
    pub(super) fn change(&mut self, id: &EntityId, to: Option<Remembered>) -> Result<(), InvalidTransition> {
        let from = self.state(id);
        if !is_allowed(from, to) {
            return Err(InvalidTransition { id: id.clone(), from, to });
        }
        match to {
            None => drop(self.states.remove(id)),
            Some(to) => drop(self.states.insert(id.clone(), to)),
        }
        match to {
            Some(Remembered::RememberingStart) => drop(self.next.insert(id.clone(), Change::Start)),
            Some(Remembered::RememberingStop) => drop(self.next.insert(id.clone(), Change::Stop)),
            _ => {}
        }
        Ok(())
    }

    // --- writing ---

    /// The next write, if there are changes and no write is under way.
    pub(super) fn next_write(&mut self, now: Instant) -> Option<(u64, StoreUpdate)> {
        if self.under_way.is_some() || self.next.is_empty() {
            return None;
        }
        let mut update = StoreUpdate::default();
        for (id, change) in std::mem::take(&mut self.next) {
            match change {
                Change::Start => update.starts.push(id),
                Change::Stop => update.stops.push(id),
            }
        }
        self.writes += 1;
        let write = Write { number: self.writes, update: update.clone(), deadline: now + self.write_timeout };
        self.under_way = Some(write);
        Some((self.writes, update))
    }

    /// Ends the durable write and returns its changes. `None` if it is not the write under way.
    pub(super) fn stored(&mut self, number: u64) -> Option<StoreUpdate> {
        self.under_way.take_if(|write| write.number == number).map(|write| write.update)
    }

    /// Whether this is the write under way.
    pub(super) fn is_under_way(&self, number: u64) -> bool {
        self.under_way.as_ref().is_some_and(|write| write.number == number)
    }

    /// Whether the write under way has taken too long.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.under_way.as_ref().is_some_and(|write| write.deadline <= now)
    }

    /// Whether something is not stored yet.
    pub(super) fn has_unstored(&self) -> bool {
        self.under_way.is_some() || !self.next.is_empty()
    }

    /// `waiting`: the messages in slots that wait for the store, if those were counted. Source: sharding §4.7, §4.8.
    pub(super) fn check_invariants(&self, waiting: Option<usize>) {
        debug_assert!(self.next.is_empty() || self.under_way.is_some(), "a change waits only for the write under way");
        debug_assert!(
            waiting.is_none_or(|waiting| waiting == self.waiting),
            "messages that wait for the store are counted"
        );
    }

    // --- slots whose messages wait for the store ---

    /// The entity's messages wait for a write from now on.
    pub(super) fn begin_storing<E, P>(&mut self, slot: &mut Slot<E, P>) {
        slot.phase = IncarnationPhase::Storing;
        self.waiting = self.waiting.saturating_add(slot.queue_len());
    }

    /// The entity's messages wait for no write any more.
    pub(super) fn end_storing<E, P>(&mut self, slot: &mut Slot<E, P>) {
        slot.phase = IncarnationPhase::Absent;
        self.waiting = self.waiting.saturating_sub(slot.queue_len());
    }

    /// Cancels the entity's start, unless it is on its way to the store: the shard stops, and need not store it.
    pub(super) fn cancel_storing<E, P>(&mut self, slot: &mut Slot<E, P>) {
        if slot.phase == IncarnationPhase::Storing {
            self.end_storing(slot);
            if let Some(id) = &slot.id {
                self.cancel_start(id);
            }
        }
    }

    /// Whether one message more may wait for the store, where `most` may.
    pub(super) fn has_room(&self, most: usize) -> bool {
        self.waiting < most
    }

    /// Counts one more message in the slot, if the slot waits for the store.
    pub(super) fn note_waiting<E, P>(&mut self, slot: &Slot<E, P>) {
        if slot.phase == IncarnationPhase::Storing {
            self.waiting = self.waiting.saturating_add(1);
        }
    }

    // --- the end of the shard ---

    /// Removes an unsent start from the next write: the shard stops, and need not remember the entity.
    fn cancel_start(&mut self, id: &EntityId) {
        if self.next.get(id) == Some(&Change::Start) {
            self.next.remove(id);
            self.states.remove(id);
        }
    }

    /// Starts the timeout of the last writes, counted from the first call: no entity lives any more.
    pub(super) fn give_up_later(&mut self, now: Instant) {
        self.give_up_at.get_or_insert(now + self.write_timeout);
    }

    /// Whether a stopping shard has waited for its writes long enough.
    pub(super) fn has_given_up(&self, now: Instant) -> bool {
        self.give_up_at.is_some_and(|at| at <= now)
    }

    /// Drops all changes that are not stored.
    pub(super) fn drop_unstored(&mut self) {
        self.next.clear();
        self.under_way = None;
        self.give_up_at = None;
        self.load = Load::Done;
    }

    /// When a tick next has work to do.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let load = match self.load {
            Load::UnderWay(again_at) => Some(again_at),
            Load::Unasked | Load::Done => None,
        };
        let write = self.under_way.as_ref().map(|write| write.deadline);
        [load, write, self.give_up_at].into_iter().flatten().min()
    }
}

/// The table of sharding §4.7. `None` is an entity that is not remembered.
fn is_allowed(from: Option<Remembered>, to: Option<Remembered>) -> bool {
    use Remembered::{Active, NotStarted, Passivating, RememberingStart, RememberingStop, WaitingForRestart};
    matches!(
        (from, to),
        (None | Some(RememberingStop), Some(RememberingStart))
            | (Some(RememberingStart | NotStarted | WaitingForRestart), Some(Active))
            | (Some(Active), Some(Passivating | WaitingForRestart))
            | (Some(Passivating | NotStarted | WaitingForRestart), Some(RememberingStop))
            | (Some(RememberingStop), None)
    )
}

#[cfg(test)]
mod tests {
    use super::Remembered::{Active, NotStarted, Passivating, RememberingStart, RememberingStop, WaitingForRestart};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn id(name: &str) -> EntityId {
        EntityId::new(name).unwrap()
    }

    fn empty() -> Remembering {
        let mut remembering = Remembering::new(SECOND, SECOND * 5);
        assert!(remembering.asks_to_load(Instant::now()) && remembering.loaded([]));
        remembering
    }

    /// Every change outside the table is refused, and has no effect.
    #[test]
    fn every_pair_of_states_is_allowed_or_refused_as_the_table_says() {
        let all = [NotStarted, RememberingStart, Active, Passivating, WaitingForRestart, RememberingStop];
        let all: Vec<_> = all.into_iter().map(Some).chain([None]).collect();
        let table = [
            (None, Some(RememberingStart)),
            (Some(RememberingStart), Some(Active)),
            (Some(Active), Some(Passivating)),
            (Some(Active), Some(WaitingForRestart)),
            (Some(WaitingForRestart), Some(Active)),
            (Some(Passivating), Some(RememberingStop)),
            (Some(RememberingStop), None),
            (Some(RememberingStop), Some(RememberingStart)),
            (Some(NotStarted), Some(Active)),
            (Some(NotStarted), Some(RememberingStop)),
            // An entity that is given up: `on_permanent_failure = "forget"`.
            (Some(WaitingForRestart), Some(RememberingStop)),
        ];
        for from in &all {
            for to in &all {
                let mut remembering = empty();
                remembering.states.extend(from.map(|from| (id("e"), from)));
                let changed = remembering.change(&id("e"), *to);
                assert_eq!(changed.is_ok(), table.contains(&(*from, *to)), "{from:?} to {to:?}");
                let expected = if changed.is_ok() { *to } else { *from };
                assert_eq!(remembering.state(&id("e")), expected);
            }
        }
    }

    #[test]
    fn changes_during_a_write_become_one_write_of_the_last_changes() {
        let (mut remembering, now) = (empty(), Instant::now());
        remembering.change(&id("a"), Some(RememberingStart)).unwrap();
        let (first, update) = remembering.next_write(now).unwrap();
        assert_eq!((update.starts, update.stops), (vec![id("a")], vec![]));
        remembering.change(&id("b"), Some(RememberingStart)).unwrap();
        remembering.change(&id("c"), Some(RememberingStart)).unwrap();
        remembering.cancel_start(&id("c"));
        assert_eq!(remembering.next_write(now), None, "one is under way");
        assert_eq!(remembering.stored(first + 1), None);
        assert_eq!(remembering.stored(first).unwrap().starts, [id("a")]);
        for to in [Active, Passivating, RememberingStop, RememberingStart] {
            remembering.change(&id("a"), Some(to)).unwrap();
        }
        let (second, update) = remembering.next_write(now).unwrap();
        assert_eq!((update.starts, update.stops), (vec![id("a"), id("b")], vec![]), "stopped and started again");
        assert!(remembering.has_unstored() && !remembering.is_late(now + SECOND * 4));
        assert!(remembering.is_late(now + SECOND * 5) && remembering.is_under_way(second));
        remembering.stored(second).unwrap();
        assert!(!remembering.has_unstored() && remembering.next_deadline().is_none());
    }

    #[test]
    fn a_load_is_asked_for_again_until_it_is_there() {
        let (mut remembering, now) = (Remembering::new(SECOND, SECOND), Instant::now());
        assert!(remembering.asks_to_load(now) && !remembering.asks_to_load(now));
        assert_eq!(remembering.next_deadline(), Some(now + SECOND));
        assert!(remembering.asks_to_load(now + SECOND) && remembering.is_loading());
        assert!(remembering.loaded([id("a")]) && !remembering.loaded([id("b")]), "the second answer comes too late");
        assert_eq!((remembering.count(NotStarted), remembering.state(&id("b"))), (1, None));
        assert!(!remembering.asks_to_load(now + SECOND * 9) && remembering.next_deadline().is_none());
    }
}
