//! The journal that all nodes share, and the promises about its content.
//!
//! The store is the real one in memory, with its claims, epochs and generations. A call reaches it after a while, also
//! from a process that has died meanwhile; its answer may be lost with the asker, or on the way ("outcome unknown").

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use greylag_persistence::{
    AppendError, Caps, InMemoryJournal, InMemorySnapshots, Scope, SnapshotCaps, StoreAnswer, StoreCall, StoreFailure,
    Stores, Timestamp,
};

use super::account::cents;
use super::hosting::Control;
use super::{Market, Timer};
use crate::purchases::customer::Wakeup;

pub(super) struct Ledger {
    stores: Stores,
    micros: Arc<AtomicU64>,
}

impl Ledger {
    pub(super) fn new() -> Self {
        let micros = Arc::new(AtomicU64::new(1));
        let clock = {
            let micros = micros.clone();
            move || Timestamp::from_micros(micros.load(Ordering::Relaxed))
        };
        let journal = InMemoryJournal::new(Scope::Shared, clock);
        let stores = Stores::new(Arc::new(journal), Arc::new(InMemorySnapshots::default()));
        Self { stores, micros }
    }

    pub(super) fn caps(&self) -> Caps {
        self.stores.journal.caps()
    }

    pub(super) fn snapshot_caps(&self) -> SnapshotCaps {
        self.stores.snapshots.caps()
    }

    /// Performs a call at the store in memory, which is done at its first poll.
    fn perform(&self, now_micros: u64, call: StoreCall) -> StoreAnswer {
        self.micros.store(now_micros, Ordering::Relaxed);
        let mut done = pin!(call.perform(&self.stores));
        match done.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => answer,
            Poll::Pending => unreachable!("no future of the store in memory waits"),
        }
    }
}

impl Market {
    pub(super) fn on_journal(&mut self, timer: Timer) {
        let Timer::Journal { node, shard, generation, slot, incarnation, of, call } = timer else { return };
        let append = match &*call {
            StoreCall::Append(append) => Some(append.clone()),
            _ => None,
        };
        let lost = append.is_some() && self.faulty && self.chance(0.04);
        let reached = !lost || self.chance(0.5);
        let unknown = || StoreAnswer::Appended(Err(AppendError::Unknown(StoreFailure::new("journal", "answer lost"))));
        let mut answer = if reached {
            let micros = 1 + self.net.now().as_micros() as u64;
            self.app.journal.perform(micros, *call)
        } else {
            unknown()
        };
        if let (Some(append), StoreAnswer::Appended(Ok(_))) = (append, &answer) {
            let customer = append.id.as_str().rsplit('|').next().and_then(|id| id.parse().ok()).expect("a customer");
            for event in &append.events {
                let number = std::str::from_utf8(&event.payload).ok().and_then(|text| text.parse().ok());
                self.on_applied(customer, number.expect("events are numbers"));
            }
        }
        if lost {
            answer = unknown();
        }
        let delay = self.random(1, 15);
        let control = Control::Resumed { slot, incarnation, woken: Wakeup::Answer(of, answer) };
        self.later(delay, Timer::Control { node, shard, generation, control });
    }

    /// Checks a stored event: it must be the customer's next purchase.
    fn on_applied(&mut self, customer: u32, number: u64) {
        self.note(|| format!("journal: customer {customer} bought {number}"));
        self.tally.handled += 1;
        let applied = self.app.applied.entry(customer).or_default();
        let input = &self.app.input;
        let mut own = (0..input.len()).filter(|index| input[*index] == customer);
        let next = own.nth(applied.len()).map(|index| index as u64);
        let twice = applied.contains(&number);
        applied.push(number);
        if twice {
            self.fail(format!("purchase {number} of customer {customer} was applied twice"));
        } else if next != Some(number) {
            self.fail(format!("customer {customer} applied purchase {number} where {next:?} was next"));
        }
    }

    /// Checks a purchase confirmed to the shop: it must be stored.
    pub(super) fn check_confirmed(&mut self, number: u64) {
        let customer = self.app.input[number as usize];
        if !self.app.applied.get(&customer).is_some_and(|applied| applied.contains(&number)) {
            self.fail(format!("purchase {number} of customer {customer} is confirmed and not stored"));
        }
    }

    /// Checks a suppressed purchase: it must have been stored before. Totals count the shop's purchases from 1.
    pub(super) fn check_suppressed(&mut self, customer: u64, total: u64) {
        let stored = self.app.applied.get(&(customer as u32));
        if !stored.is_some_and(|applied| applied.contains(&(total - 1))) {
            self.fail(format!("customer {customer} suppressed purchase {}, which is not stored", total - 1));
        }
    }

    pub(super) fn on_answer(&mut self, question: u64, total: u64) {
        let Some((_, customer)) = self.app.questions.remove(&question) else { return };
        let input = &self.app.input;
        let right: u64 = (0..input.len()).filter(|i| input[*i] == customer).map(|index| cents(index as u64)).sum();
        if total != right {
            self.fail(format!("customer {customer} answers {total} cents where {right} are right"));
        }
    }
}
