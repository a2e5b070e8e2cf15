//! The model: the writes that a store has taken for each id, and the promises about them.
//!
//! The model is told of every write that a store takes, and keeps what the store forgets: deleted events, and the
//! writers. It folds states from the writes by code that the entities do not share.

use std::collections::{BTreeMap, BTreeSet};

use greylag_core::Generation;
use greylag_persistence::{Head, StateHead, Under, WriterUuid};

use super::action_log::{NUMBERS, OrderKind};
use super::event_entity::{Entry, EntryKind, EventEntries};
use super::state_entity::StateEntries;

/// The claims of an id.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// The basis of each writer's last claim.
    asked: BTreeMap<WriterUuid, Under>,
    granted: Option<Generation>,
}

impl Claims {
    pub(super) fn asked(&mut self, writer: WriterUuid, under: Under) {
        self.asked.insert(writer, under);
    }

    /// Checks whether the writer that changed a head was entitled to.
    fn judge(&mut self, before: &Head, after: &Head, writer: Option<WriterUuid>) -> Result<(), String> {
        let under = writer.and_then(|writer| self.asked.get(&writer).copied());
        let generation = match under {
            Some(Under::Generation(generation)) => Some(generation),
            _ => None,
        };
        if after.highest > before.highest && (writer != Some(before.writer_uuid) || generation < self.granted) {
            return Err(format!("a writer that was superseded wrote {}", after.highest));
        }
        if after.epoch != before.epoch {
            // Without a generation a claim needs the present epoch, read from the head; a late copy has an old one.
            if matches!(under, Some(Under::Seen(seen)) if seen != before.epoch) {
                return Err(format!(
                    "a claim that had seen something else fenced a successor at epoch {}",
                    after.epoch
                ));
            }
            if generation < self.granted {
                return Err(format!("an older owner claimed epoch {}", after.epoch));
            }
            self.granted = self.granted.max(generation);
        }
        Ok(())
    }
}

/// The history of one id.
#[derive(Debug, Default)]
pub(super) struct EventHistory {
    pub(super) entries: Vec<Entry>,
    pub(super) claims: Claims,
    numbers: BTreeSet<u64>,
    /// Numbers of delivered entries; the first is delivery 1.
    deliveries: Vec<u64>,
    /// Orders that were answered as not stored.
    denied: BTreeSet<u64>,
}

impl EventHistory {
    /// Checks a performed call, which took these entries if it was an append and the head says so.
    pub(super) fn performed(
        &mut self,
        before: &Head,
        after: &Head,
        writer: Option<WriterUuid>,
        entries: Vec<Entry>,
    ) -> Result<(), String> {
        self.claims.judge(before, after, writer)?;
        if after.highest == before.highest {
            return Ok(());
        }
        for entry in entries {
            let last = self.entries.last().map_or(0, |last| last.number);
            if entry.after != last {
                return Err(format!("{entry:?} was taken after {last}: two histories"));
            }
            if !self.numbers.insert(entry.number) {
                return Err(format!("{entry:?} was taken twice"));
            }
            if self.denied.contains(&(entry.number / NUMBERS)) {
                return Err(format!("{entry:?} was taken after its user was told that it never would be"));
            }
            if entry.what == EntryKind::Send {
                self.deliveries.push(entry.number);
            }
            self.entries.push(entry);
        }
        let highest = self.entries.len() as u64;
        if after.highest.as_u64() == highest {
            Ok(())
        } else {
            Err(format!("{highest} events are counted as {after:?}"))
        }
    }

    /// Whether the first entry of an order is stored.
    pub(super) fn has(&self, order: u64) -> bool {
        self.numbers.contains(&(order * NUMBERS))
    }

    pub(super) fn deny(&mut self, order: u64) -> Result<(), String> {
        self.denied.insert(order);
        if self.has(order) { Err(format!("order {order} was said not to be stored, and is")) } else { Ok(()) }
    }

    /// Checks an answer: its own entries and all entries that it counts must be stored. An asker that wants proof must
    /// be told of everything that was stored when it asked.
    pub(super) fn check_answer(&self, order: u64, kind: OrderKind, stored: usize, count: usize) -> Result<(), String> {
        let newest = count.checked_sub(1).and_then(|at| self.entries.get(at)).map(|entry| entry.number);
        let is_known = count == 0 || newest.is_some();
        let is_own = kind.entries() == 0 || newest == Some(order * NUMBERS + kind.entries() - 1);
        let is_fresh = kind != OrderKind::ReadOwned || count >= stored;
        if is_known && is_own && is_fresh {
            return Ok(());
        }
        let len = self.entries.len();
        Err(format!("order {order}, {kind:?}, was answered {count}; {len} are stored, {stored} when it was given"))
    }

    /// Checks a delivery: it may leave only if its event is stored.
    pub(super) fn check_sent(&self, delivery: u64, entry: u64) -> Result<(), String> {
        let stored = usize::try_from(delivery).ok().and_then(|at| self.deliveries.get(at.checked_sub(1)?));
        if stored == Some(&entry) {
            return Ok(());
        }
        Err(format!("delivery {delivery} left for entry {entry}, and stored is {stored:?}"))
    }

    /// Count of unconfirmed deliveries.
    pub(super) fn open_deliveries(&self) -> usize {
        let confirms = self.entries.iter().filter(|entry| matches!(entry.what, EntryKind::Confirm(_)));
        self.deliveries.len() - confirms.count()
    }

    /// Compares a state with the first `events` events.
    pub(super) fn check_state(&self, state: &EventEntries, events: usize) -> Result<(), String> {
        let Some(entries) = self.entries.get(..events) else {
            return Err(format!("{events} events were recovered, and {} are stored", self.entries.len()));
        };
        let numbers: Vec<u64> = entries.iter().map(|entry| entry.number).collect();
        let gate = entries.iter().rev().find(|entry| matches!(entry.what, EntryKind::Open | EntryKind::Close));
        let confirmed: BTreeSet<u64> = entries
            .iter()
            .filter_map(|entry| match entry.what {
                EntryKind::Confirm(delivery) => Some(delivery),
                _ => None,
            })
            .collect();
        let sends = (1..).zip(entries.iter().filter(|entry| entry.what == EntryKind::Send));
        let open: Vec<(u64, u64)> = sends
            .filter(|(delivery, _)| !confirmed.contains(delivery))
            .map(|(delivery, entry)| (delivery, entry.number))
            .collect();
        let tracked: Vec<(u64, u64)> =
            state.tracker.unconfirmed().map(|(delivery, (), entry)| (delivery.as_u64(), *entry)).collect();
        let delivered = entries.iter().filter(|entry| entry.what == EntryKind::Send).count() as u64;
        let equal = state.numbers == numbers
            && state.is_closed == gate.is_some_and(|gate| gate.what == EntryKind::Close)
            && state.tracker.current_id().as_u64() == delivered
            && tracked == open;
        if equal { Ok(()) } else { Err(format!("recovered {state:?}, which is not the fold of {entries:?}")) }
    }
}

/// The revisions of one durable state.
#[derive(Debug, Default)]
pub(super) struct StateHistory {
    /// Content by revision, from 1 on; `None` where the state was deleted.
    pub(super) revisions: Vec<Option<StateEntries>>,
    denied: BTreeSet<u64>,
    numbers: BTreeSet<u64>,
    greatest: Option<Generation>,
}

impl StateHistory {
    /// Checks a performed write, which took this content if the head says so.
    pub(super) fn performed(
        &mut self,
        before: &StateHead,
        after: &StateHead,
        generation: Option<Generation>,
        content: Option<StateEntries>,
    ) -> Result<(), String> {
        if before.revision == after.revision {
            return Ok(());
        }
        if generation.is_some() && generation < self.greatest {
            return Err(format!("revision {} was written under a generation that was superseded", after.revision));
        }
        self.greatest = self.greatest.max(generation);
        let empty = StateEntries::default();
        let known = &self.revisions.last().and_then(Option::as_ref).unwrap_or(&empty).numbers;
        if let Some(content) = &content {
            if !content.numbers.starts_with(known) {
                return Err(format!("revision {} is {content:?}, and followed {known:?}", after.revision));
            }
            for number in &content.numbers[known.len()..] {
                if !self.numbers.insert(*number) || self.denied.contains(&(number / NUMBERS)) {
                    return Err(format!("entry {number} was taken again, or after it was said that it never would be"));
                }
            }
        }
        self.revisions.push(content);
        let count = self.revisions.len() as u64;
        if after.revision.as_u64() == count { Ok(()) } else { Err(format!("{count} writes are counted as {after:?}")) }
    }

    pub(super) fn has(&self, order: u64) -> bool {
        self.numbers.contains(&(order * NUMBERS))
    }

    pub(super) fn deny(&mut self, order: u64) -> Result<(), String> {
        self.denied.insert(order);
        if self.has(order) { Err(format!("order {order} was said not to be stored, and is")) } else { Ok(()) }
    }

    /// As [`EventHistory::check_answer`]; a deletion starts the count anew.
    pub(super) fn check_answer(&self, order: u64, kind: OrderKind, count: usize) -> Result<(), String> {
        let own = (kind.entries() > 0).then(|| order * NUMBERS + kind.entries() - 1);
        let fits = |lines: &StateEntries| {
            lines.numbers.len() == count && own.is_none_or(|own| lines.numbers.last() == Some(&own))
        };
        if own.is_none() && count == 0 || self.revisions.iter().rev().flatten().any(fits) {
            return Ok(());
        }
        Err(format!("order {order}, {kind:?}, was answered {count}, and no such state was stored"))
    }

    /// Compares a state with the content of a revision.
    pub(super) fn check_state(&self, state: &StateEntries, revision: usize) -> Result<(), String> {
        let stored = match revision.checked_sub(1) {
            None => Some(StateEntries::default()),
            Some(at) => self.revisions.get(at).map(|lines| lines.clone().unwrap_or_default()),
        };
        if stored.as_ref() == Some(state) {
            return Ok(());
        }
        Err(format!("recovered {state:?} at {revision}, where {stored:?} is stored"))
    }
}
