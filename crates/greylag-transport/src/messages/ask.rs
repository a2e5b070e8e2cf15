//! Questions that wait for their answers.
//!
//! A question is a number and a future. The number travels; the future completes once, with the answer, a failure or
//! the timeout, whichever comes first. An answer that comes after that finds no entry under its number and is a late
//! reply. The table knows to which process a question went, so that the end of that process ends the question too.
//!
//! Source: cluster T15, T18, T38.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use greylag_core::{AnswerReader, ReplyAddress, UniqueAddress};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::remoting::{Answer, AskError, OpenAsk};

/// The questions that one process has asked and not yet given up.
///
/// Time is an argument: the owner calls [`AskTable::expire`] at [`AskTable::next_deadline`].
pub struct AskTable {
    node: UniqueAddress,
    asks: Mutex<Asks>,
}

struct Asks {
    rng: ChaCha8Rng,
    pending: BTreeMap<u64, Pending>,
    deadlines: BTreeSet<(Instant, u64)>,
    closed: bool,
}

struct Pending {
    slot: Arc<Slot>,
    deadline: Instant,
    timeout: Duration,
    peer: Option<UniqueAddress>,
    /// Reads the answer, if the question's token left with a reader.
    reader: Option<AnswerReader>,
}

impl AskTable {
    /// An empty table for the questions of `node`; their numbers are drawn by the seed.
    pub fn new(node: UniqueAddress, seed: [u8; 32]) -> Arc<Self> {
        let rng = ChaCha8Rng::from_seed(seed);
        let asks = Asks { rng, pending: BTreeMap::new(), deadlines: BTreeSet::new(), closed: false };
        Arc::new(Self { node, asks: Mutex::new(asks) })
    }

    /// Registers a question that waits until `now + timeout`. The flag says that this deadline is now the earliest, so
    /// the task that drives the deadlines has to look again.
    ///
    /// The question's number is drawn at random, because a peer that was asked one question must not
    /// be able to guess the numbers of the others and answer them. Source: cluster T38.
    pub fn open(self: &Arc<Self>, now: Instant, timeout: Duration) -> (OpenAsk, bool) {
        let slot = Arc::new(Slot::default());
        let deadline = now.checked_add(timeout).unwrap_or(now + FAR);
        let mut asks = self.lock();
        // Draw no 0: on the wire 0 means that there is no question.
        let id = asks.rng.random_range(1..=u64::MAX);
        let address = ReplyAddress { node: self.node.clone(), ask_id: id };
        let is_first = asks.deadlines.first().is_none_or(|(first, _)| deadline < *first);
        if asks.closed {
            slot.complete(Err(AskError::ShuttingDown));
        } else {
            asks.deadlines.insert((deadline, id));
            asks.pending.insert(id, Pending { slot: slot.clone(), deadline, timeout, peer: None, reader: None });
        }
        drop(asks);
        let answer = Box::pin(AnswerFuture { id, slot, table: Arc::downgrade(self) });
        (OpenAsk { address, answer }, is_first)
    }

    /// Notes that question `id` goes to `peer`; returns how long its asker waits. `None`: the asker
    /// has given up.
    pub fn sent_to(&self, id: u64, peer: &UniqueAddress) -> Option<Instant> {
        let mut asks = self.lock();
        let pending = asks.pending.get_mut(&id)?;
        pending.peer = Some(peer.clone());
        Some(pending.deadline)
    }

    /// Keeps the reader of the answer to question `id`, if its asker still waits.
    pub fn expect(&self, id: u64, reader: AnswerReader) {
        // The former reader may hold the last handle to a user's codec: it is dropped after the lock.
        let former = self.lock().pending.get_mut(&id).and_then(|pending| pending.reader.replace(reader));
        drop(former);
    }

    /// Returns the reader of the answer to question `id`.
    pub fn reader(&self, id: u64) -> Option<AnswerReader> {
        self.lock().pending.get(&id)?.reader.clone()
    }

    /// Whether question `id` waits for an answer of `peer` and of no other process.
    pub fn was_sent_to(&self, id: u64, peer: &UniqueAddress) -> bool {
        self.lock().pending.get(&id).is_some_and(|pending| pending.peer.as_ref() == Some(peer))
    }

    /// Ends question `id`. False if its asker waits no more: the reply is late.
    pub fn complete(&self, id: u64, outcome: Result<Answer, AskError>) -> bool {
        let pending = self.lock().take(id);
        pending.is_some_and(|pending| pending.slot.complete(outcome))
    }

    /// Ends every question that went to `peer`.
    pub fn fail_peer(&self, peer: &UniqueAddress, error: &AskError) {
        self.fail_where(|pending| pending.peer.as_ref() == Some(peer), error);
    }

    /// Ends every question and refuses new ones.
    pub fn close(&self) {
        self.lock().closed = true;
        self.fail_where(|_| true, &AskError::ShuttingDown);
    }

    /// When [`AskTable::expire`] next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.lock().deadlines.first().map(|(at, _)| *at)
    }

    /// Ends every question whose time is over.
    pub fn expire(&self, now: Instant) {
        loop {
            let mut asks = self.lock();
            let Some(&(at, id)) = asks.deadlines.first() else { return };
            if at > now {
                return;
            }
            let pending = asks.take(id);
            drop(asks);
            if let Some(pending) = pending {
                let timeout = pending.timeout;
                pending.slot.complete(Err(AskError::Timeout(timeout)));
            }
        }
    }

    /// How many questions wait.
    pub fn waiting(&self) -> usize {
        self.lock().pending.len()
    }

    fn fail_where(&self, chosen: impl Fn(&Pending) -> bool, error: &AskError) {
        let failed: Vec<Pending> = {
            let mut asks = self.lock();
            let ids: Vec<u64> = asks.pending.iter().filter(|(_, p)| chosen(p)).map(|(id, _)| *id).collect();
            ids.into_iter().filter_map(|id| asks.take(id)).collect()
        };
        // Complete after unlocking: a waker may poll at once, and ask again.
        for pending in failed {
            pending.slot.complete(Err(error.clone()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Asks> {
        self.asks.lock().expect("nothing under this lock panics")
    }
}

impl std::fmt::Debug for AskTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AskTable").field("node", &self.node).field("waiting", &self.waiting()).finish_non_exhaustive()
    }
}

/// Stands for "never" where a timeout overflows the clock.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl Asks {
    fn take(&mut self, id: u64) -> Option<Pending> {
        let pending = self.pending.remove(&id)?;
        self.deadlines.remove(&(pending.deadline, id));
        Some(pending)
    }
}

/// Holds an outcome until the future takes it, or the future's waker until the outcome comes.
#[derive(Default)]
struct Slot {
    state: Mutex<SlotState>,
}

#[derive(Default)]
enum SlotState {
    #[default]
    Empty,
    Waiting(Waker),
    Ready(Result<Answer, AskError>),
    Taken,
}

impl Slot {
    /// False if there is an outcome already.
    fn complete(&self, outcome: Result<Answer, AskError>) -> bool {
        let mut state = self.lock();
        if matches!(*state, SlotState::Ready(_) | SlotState::Taken) {
            return false;
        }
        let before = std::mem::replace(&mut *state, SlotState::Ready(outcome));
        drop(state);
        if let SlotState::Waiting(waker) = before {
            waker.wake();
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().expect("nothing under this lock panics")
    }
}

/// Completes once; dropped early, the future removes its question from the table.
struct AnswerFuture {
    id: u64,
    slot: Arc<Slot>,
    table: Weak<AskTable>,
}

impl Future for AnswerFuture {
    type Output = Result<Answer, AskError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.slot.lock();
        match std::mem::replace(&mut *state, SlotState::Taken) {
            SlotState::Ready(outcome) => Poll::Ready(outcome),
            SlotState::Empty | SlotState::Waiting(_) => {
                *state = SlotState::Waiting(cx.waker().clone());
                Poll::Pending
            }
            SlotState::Taken => panic!("an answer was polled after it was taken"),
        }
    }
}

impl Drop for AnswerFuture {
    fn drop(&mut self) {
        if let Some(table) = self.table.upgrade() {
            table.lock().take(self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Arc<AskTable> {
        AskTable::new("a:1#1".parse().unwrap(), [7; 32])
    }

    fn poll(ask: &mut OpenAsk) -> Poll<Result<i32, AskError>> {
        let mut cx = Context::from_waker(Waker::noop());
        ask.answer.as_mut().poll(&mut cx).map(|done| done.map(|answer| *answer.downcast().unwrap()))
    }

    #[test]
    fn the_first_outcome_wins_and_later_ones_are_late() {
        let (table, now) = (table(), Instant::now());
        let (mut ask, first) = table.open(now, Duration::from_secs(3));
        assert!(first);
        assert!(poll(&mut ask).is_pending());
        let id = ask.address.ask_id;
        assert!(table.complete(id, Ok(Box::new(5))));
        assert!(!table.complete(id, Ok(Box::new(6))));
        assert_eq!(poll(&mut ask), Poll::Ready(Ok(5)));
        assert_eq!(table.next_deadline(), None);
    }

    /// Cluster T38: a peer that was asked one question cannot guess the number of another.
    #[test]
    fn the_number_of_a_question_says_nothing_about_the_next() {
        let (table, now) = (table(), Instant::now());
        let asks: Vec<_> = (0..1000).map(|_| table.open(now, Duration::from_secs(1)).0).collect();
        let mut ids: Vec<u64> = asks.iter().map(|ask| ask.address.ask_id).collect();
        // Two of a thousand random numbers lie so close in one of 2^28 runs.
        ids.sort_unstable();
        let nearest = ids.windows(2).map(|pair| pair[1] - pair[0]).min();
        assert!(nearest > Some(1 << 16), "{nearest:?}");
        assert_eq!(table.waiting(), 1000);
    }

    #[test]
    fn deadlines_are_kept_in_order_and_the_earliest_is_announced() {
        let (table, now) = (table(), Instant::now());
        let (mut late, _) = table.open(now, Duration::from_secs(3));
        let (mut early, first) = table.open(now, Duration::from_secs(1));
        assert!(first);
        assert!(!table.open(now, Duration::from_secs(2)).1);
        table.expire(now + Duration::from_secs(1));
        assert_eq!(poll(&mut early), Poll::Ready(Err(AskError::Timeout(Duration::from_secs(1)))));
        assert!(poll(&mut late).is_pending());
    }

    #[test]
    fn the_end_of_a_peer_ends_only_its_questions() {
        let (table, now) = (table(), Instant::now());
        let (mut to_b, _) = table.open(now, Duration::from_secs(3));
        let (mut to_c, _) = table.open(now, Duration::from_secs(3));
        let b: UniqueAddress = "b:1#2".parse().unwrap();
        table.sent_to(to_b.address.ask_id, &b);
        table.sent_to(to_c.address.ask_id, &"b:1#3".parse().unwrap());
        table.fail_peer(&b, &AskError::PeerRestarted);
        assert_eq!(poll(&mut to_b), Poll::Ready(Err(AskError::PeerRestarted)));
        assert!(poll(&mut to_c).is_pending());
        table.close();
        assert_eq!(poll(&mut to_c), Poll::Ready(Err(AskError::ShuttingDown)));
        assert_eq!(poll(&mut table.open(now, FAR).0), Poll::Ready(Err(AskError::ShuttingDown)));
    }

    #[test]
    fn a_dropped_ask_leaves_nothing_in_the_table() {
        let (table, now) = (table(), Instant::now());
        let (ask, _) = table.open(now, Duration::from_secs(3));
        let id = ask.address.ask_id;
        drop(ask);
        assert_eq!((table.waiting(), table.next_deadline()), (0, None));
        assert!(!table.complete(id, Ok(Box::new(1))));
    }
}
